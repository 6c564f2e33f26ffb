"""Records of one topic into another, as they are: what mirror and replay share."""
