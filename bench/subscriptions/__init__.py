"""Speed of subscriptions, beside others that hand out records until they are acknowledged."""
