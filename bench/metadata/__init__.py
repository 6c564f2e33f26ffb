"""The speed of the cluster's metadata: three processes on loopback, real files, every commit synced.

node      one process: metadata, peer connections, a disk; does what it is told on its standard input
cluster   three of them: founding, joining, killing, starting again
commits   a lone proposal, and many at once, at the leader and at a follower
failover  kill -9 of the metadata leader, until a survivor has committed something new
scale     10,000 topics with 100,000 segments: snapshot, restart, status, memory
run       all of it once, beside a bare write and sync in the same directory
"""
