"""What this node does not have, asked of a node that does."""
