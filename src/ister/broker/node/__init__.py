"""A node: its directory, its topics and the leases derived from metadata, and the care of what grows old."""
