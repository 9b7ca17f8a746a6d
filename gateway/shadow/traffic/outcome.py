"""The interface between mirror streams and target writers: a writer takes exchanges and returns an outcome for each.

The stream owns queues, deadlines and modes. Answers are compared in `compare`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from codec.command import Command
from gateway.shadow.traffic.exchange import Exchange


class OutcomeKind(Enum):
    """The result of one exchange at the target."""

    MIRRORED = "mirrored"
    SKIPPED = "skipped"
    """Left out on purpose: by the policy of its request code, or because it reaches the target in another way."""
    REFUSED = "refused"
    """The target answered with an error."""
    DROPPED = "dropped"
    """Never sent: the queue was full, the deadline had passed, or the circuit breaker was open."""


@dataclass(slots=True)
class Outcome:
    """The result of one exchange. `answer` is the target's, None if it was not asked; `reason` is for people.

    `refusal` is the response code of a target that refused the exchange.
    """

    exchange: Exchange
    kind: OutcomeKind
    reason: str = ""
    answer: Command | None = None
    latency_s: float = 0.0
    refusal: int | None = None


def refused_outcome(
    exchange: Exchange, code: int, remark: str | None, answer: Command | None = None
) -> Outcome:
    """Return the outcome of an exchange that the target answered with an error."""
    return Outcome(exchange, OutcomeKind.REFUSED, f"code {code}: {remark}", answer, refusal=code)


OutcomeListener = Callable[[Outcome], None]
"""Called for every outcome; must return at once and must not raise."""


class TargetWriter(Protocol):
    """Writes exchanges of one upstream broker to its counterpart, in the order that they have in each queue.

    After `write` raises, the same exchanges are passed to it again: writing an exchange twice must do no harm.
    """

    async def write(self, exchanges: Sequence[Exchange]) -> list[Outcome]:
        """Return one outcome per exchange, in their order.

        Raises CLUSTER_ERRORS of `clusters.cluster` if the target is unreachable.
        """
