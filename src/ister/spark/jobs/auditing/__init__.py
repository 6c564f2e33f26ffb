"""What an audit checks, on executors, and what it finds."""
