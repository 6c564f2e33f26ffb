"""The bench: a broker under load, beside what the same disk does for a bare loop in the same run.

    workload   what is asked for, and the records themselves
    target     the broker under load: one of its own in a temporary directory, or a given one
    raw        the bare loops: write and sync, read
    figures    seconds and latencies into the fields that are reported
    load       records into a topic through `log.append`, the way a program would
    modes      append, latency, read, fanin, topics

Like the command line it is an edge of the package: it starts processes and measures time. Nothing imports it
but `ister bench`.
"""
