"""The shadow gateway: stands between clients and a real cluster, and prepares the move to another one.

    exchange.py   what passed: one request and its answer; whom the forwarder tells, asks and waits for (`Hub`)
    cluster.py    one cluster seen through its namesrvs, and typed questions to its brokers
    reading.py    how the gateway reads queues for itself
    settings.py   how TOML tables become frozen dataclasses, with errors that name the key
    figures.py    counters, gauges and latencies that parts show to the console and the report
    forward/      listeners, links between a client and its upstream, addresses in answers, TLS
    mirror/       rules and modes, bounded queues, translation for the target, offsets of the target
    capture/      traffic to files and back (layout: codec/capture.py)
    compare/      answers of primary and target field by field, content queue by queue
    cutover/      copying topics, groups, offsets and history; the steps of a move
    report/       live view, /metrics, JSON, HTML
    server.py     builds all of it from a configuration

First law: whatever happens to a mirror, the primary's traffic does not notice. Only `forward` is on its path.
"""
