"""Topics as tables and as streams: what is planned on the driver, and what a task reads."""
