"""What the cluster knows: topics, the chain of each one's segments, settings, and how they change.

`commands` are the only way to change it, `state` applies them, and a store carries them durably: today
`local`, one node's own journal; in a cluster, Raft. The broker knows only the store's interface.
"""
