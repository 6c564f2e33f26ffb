"""A topic's records as files of a table: what executors write, and what the driver commits."""
