"""A broker: topics and their segments on this node, and the server through which clients reach them."""
