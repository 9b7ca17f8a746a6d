"""What passed through one listener, as plain counts. Not responsible for showing them."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.runtime.metrics import Figure, counters

MEANINGS = {
    "connections": "Client connections accepted.",
    "unreachable": "Client connections closed because the primary could not be reached.",
    "requests": "Frames received from clients.",
    "answers": "Frames received from the primary, and from the target in its place.",
    "request_bytes": "Bytes of whole frames received from clients.",
    "answer_bytes": "Bytes of whole frames received from the primary.",
    "given_up": "Requests whose answers were not waited for, by a limit of number, bytes or time.",
    "bad_frames": "Connections closed for bytes that are no frame.",
    "directed": "Requests that were directed to the target.",
    "target_unreachable": "Client connections closed because the target could not be reached.",
}


@dataclass(slots=True)
class Counts:
    """Counts of one listener, from its start."""

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

    def figures(self, labels: dict[str, str]) -> Iterator[Figure]:
        """All counts, with these labels."""
        return counters(self, "forward", MEANINGS, labels)
