"""Tables and streams into topics."""
