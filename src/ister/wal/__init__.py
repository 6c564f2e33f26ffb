"""The write-ahead log engine: segment files, group commit, index, recovery, leases.

One file per segment, frames end to end. The broker appends through `Segment`, which assigns offsets and
queues; `GroupCommit` makes what is queued durable, one write and one sync per dirty file and cycle; then
the segment tells whoever waits. `recover` opens a segment after any kind of stop.
"""
