"""Counters of the traffic through one listener."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.runtime.metrics import Metric, counter_metrics

MEANINGS = {
    "connections": "Client connections accepted.",
    "unreachable": "Client connections closed because the primary could not be reached.",
    "requests": "Frames received from clients.",
    "answers": "Frames received from the primary, and from the target in its place.",
    "request_bytes": "Bytes of complete frames received from clients.",
    "answer_bytes": "Bytes of complete frames received from the primary.",
    "given_up": "Remembered requests given up without an answer, because of a limit on number, bytes or time.",
    "bad_frames": "Connections closed because of bytes that are not a frame.",
    "directed": "Requests sent to the target instead of the primary.",
    "target_unreachable": "Client connections closed because the target could not be reached.",
}


@dataclass(slots=True)
class ListenerCounters:
    """Counters since the listener was opened. The field names are part of metric names."""

    connections: int = 0
    unreachable: int = 0
    requests: int = 0
    answers: int = 0
    request_bytes: int = 0
    answer_bytes: int = 0
    given_up: int = 0
    bad_frames: int = 0
    directed: int = 0
    target_unreachable: int = 0

    def figures(self, labels: dict[str, str]) -> Iterator[Metric]:
        """Yield a metric per counter, with these labels."""
        return counter_metrics(self, "forward", MEANINGS, labels)
