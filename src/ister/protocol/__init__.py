"""The binary client protocol: what travels between a client and a broker.

A connection opens with a preamble of 8 bytes, "ISTR" and the lowest and highest protocol version that the
client speaks (u16 each). Everything after it, both ways, is messages:

    size u32          of all that follows
    correlation u32   chosen by the client, returned with the answer
    kind u16          requests: `Kind`; answers: 0, or the number of an error (`ister.errors`)
    header_size u16
    header            msgpack array (`messages`), except where a fixed layout is faster
    payload           frames, as they are stored

The first request is `Hello`. Requests are pipelined: a client may send any number before it reads an
answer, within the limits that the broker named in its hello, and answers may come in another order.
Appends of one connection to one topic take effect in the order sent.

Messages grow at the end: a field that an older peer does not know is ignored by it, one that an older
peer does not send has its default.
"""
