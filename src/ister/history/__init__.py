"""History: sealed segments as objects in a store outside the brokers (docs/internals/history.md)."""
