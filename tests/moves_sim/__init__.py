"""A world of moves and drains, over all that goes wrong in `tests.replicas_sim`."""
