"""Counts of the RPCs of a gRPC front by method: how many ended with which code, how long they took, how many run."""

from collections import Counter
from collections.abc import Iterator, Mapping

from gateway.grpc_front import messages
from gateway.runtime.metrics import Distribution, LatencyHistogram, Metric


class RpcCounts:
    """The RPCs of one method.

    ``by_code`` counts those that ended, under the number of RocketMQ's status, or under the name of a gRPC status for
    those that were refused before they had one. ``latency`` has those that one request begins, from their headers to
    their answer. ``running`` are in progress, open streams among them.
    """

    __slots__ = ("by_code", "latency", "running")

    def __init__(self) -> None:
        self.by_code: Counter[int | str] = Counter()
        self.latency = LatencyHistogram()
        self.running = 0


def name_code(code: int | str) -> str:
    """Return the name of a status: RocketMQ's, or the one of gRPC that a text is already."""
    if isinstance(code, str):
        return code
    return str(messages.Code.Name(code)) if code in messages.Code.values() else str(code)


def rpc_metrics(counts: Mapping[str, RpcCounts]) -> Iterator[Metric | Distribution]:
    """Yield the metrics of all methods that have been called."""
    for method, of_method in counts.items():
        labels = {"method": method}
        for code, number in of_method.by_code.items():
            yield Metric(
                "grpc_calls_total",
                number,
                "gRPC calls that ended, by status",
                labels=labels | {"code": name_code(code)},
            )
        if of_method.by_code or of_method.running:
            yield Metric("grpc_calls_running", of_method.running, "gRPC calls in progress", "gauge", labels)
        if of_method.latency.count:
            yield Distribution(
                "grpc_call_seconds",
                of_method.latency,
                "time from a gRPC call's headers to its answer",
                labels,
            )
