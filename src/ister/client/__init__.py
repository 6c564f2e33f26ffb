"""The client: a log to append to and to read from, over the binary protocol.

    connection      one socket: pipelined requests, answers matched by correlation id
    routing         which address serves a topic, and the connection to it
    retry           how often, how long, and what is said when it was in vain
    batch           one frame on its way, and those who wait for it
    sequencer       frames of one producer, in order, each exactly once (A5)
    gathering       the columns of the next frame, and receipts
    producer        records gathered into frames
    reader          frames fetched ahead, verified, in an unbroken line
    requests        one request that may be sent again
    log             what a program holds; its parts: topics, ends, subscriptions, losses, moves, nodes,
                    history
    portal          a thread with an event loop, for programs without one
    sync_producer   the producer for those programs

`ister.connect` is the way in; `ister.sync` is the same for programs without an event loop.
"""
