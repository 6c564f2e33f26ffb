"""What the cluster knows: topics, the chain of each one's segments, settings, and how they change.

`commands` are the only way to change it, `state` applies them, and a store carries them durably:
`replicated`, which is Raft, also for a node alone. The broker's topics know only the store's interface.
"""
