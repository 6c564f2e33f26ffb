"""Segments on several disks: the leader's and the followers' side, fencing, recovery, repair.

`docs/internals/replication.md` has the fault model and the rules; each module says which part of them is its
own.
"""
