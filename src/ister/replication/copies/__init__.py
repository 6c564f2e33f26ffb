"""Copies of sealed segments: completed, repaired, scrubbed, and let go."""
