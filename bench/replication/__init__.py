"""Three nodes as processes on this machine, every record on the disks of three: what that costs, and what a
failover takes.

throughput  batches to one topic and to one of each node, beside the same bytes written and synced three times
lone        one record at a time, with three replicas and with one in turn
failover    kill -9 of the node that leads a topic's open segment
picture     one such failover over time
raw         the bare loop, on three files at once
"""
