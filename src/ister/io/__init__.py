"""The four seams. All that touches the world passes through one of them: clock, network, disk, object store.

Each module has the narrow interface and the real implementation; the simulated ones sit in
`ister.testing`. Nothing else in the broker may read a clock, roll dice, open a file or a socket:
that is what makes a whole cluster replayable from one seed.
"""
