"""What an operator gives up, and what is gone with a disk (F6)."""
