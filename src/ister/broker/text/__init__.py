"""The text protocol: PUT, GET and the rest, and the cursor that GET shares (S5)."""
