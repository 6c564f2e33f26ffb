"""Spark sessions that work out of the box: which Java, which Python, which interface."""
