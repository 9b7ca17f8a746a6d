"""Metrics of the connections of one listener."""

from collections.abc import Iterator

from gateway.runtime.metrics import Metric
from remoting.server import RemotingServer


def connection_metrics(part: str, server: RemotingServer) -> Iterator[Metric]:
    """Yield the number of connections of a listener, and the memory that they hold."""
    labels = {"part": part}
    connections = tuple(server.connections)
    yield Metric("connections", len(connections), "open connections", "gauge", labels)
    unfinished = sum(each.input_bytes for each in connections)
    yield Metric("unfinished_frame_bytes", unfinished, "received bytes of unfinished frames", "gauge", labels)
    unread = sum(each.output_bytes for each in connections)
    yield Metric("unread_answer_bytes", unread, "bytes of answers that peers have not read", "gauge", labels)
