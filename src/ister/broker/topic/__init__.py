"""One topic on one node: its log written, handed off and read."""
