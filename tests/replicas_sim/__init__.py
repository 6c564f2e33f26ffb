"""The simulation of clusters whose segments have several replicas; what it shares is in `tests.cluster`."""
