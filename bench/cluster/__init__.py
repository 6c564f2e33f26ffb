"""A cluster of three real processes on loopback: what a user of it feels when leadership changes.

nodes     `ister serve` as child processes: started, killed, paused, started again on the same directory
rollover  a producer at full speed across a thousand rollovers, beside the same without any
election  kill -9 of the node that leads the metadata, while others append
timeline  one such kill as a picture
calls     requests with their times
topics    a topic of each node
copies    whether every segment has its copies
"""
