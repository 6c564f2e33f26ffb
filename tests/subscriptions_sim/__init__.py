"""A world of subscriptions: consumers that crash, refuse, stall and reconnect while nodes die."""
