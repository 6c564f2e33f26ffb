"""Whole clusters of real brokers in one process, from one seed: what goes wrong, and what must hold."""
