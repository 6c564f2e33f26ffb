"""The ancestors' holes, each with a test that would fail on the ancestor."""
