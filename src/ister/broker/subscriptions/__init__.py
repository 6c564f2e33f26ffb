"""Durable places in a topic: their owners, what is handed out to whom, and what was acknowledged (S1 to
S4)."""
