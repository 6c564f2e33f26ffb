"""What runs over whole topics: each job is a function on a session, and a command of `ister pipeline`."""
