"""A real broker process on real files, killed again and again."""
