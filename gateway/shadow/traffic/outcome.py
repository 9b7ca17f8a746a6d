"""How exchanges get to the target: what a mirror stream asks of a writer, and what became of each exchange.

Not responsible for queues, deadlines and modes (the stream's), nor for comparing answers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from codec.command import Command
from gateway.shadow.traffic.exchange import Exchange


class OutcomeKind(Enum):
    """What became of an exchange at the target."""

    MIRRORED = "mirrored"
    SKIPPED = "skipped"
    """Left out on purpose: the policy for its code says so, or it arrives another way."""
    REFUSED = "refused"
    """The target answered, and not with success."""
    DROPPED = "dropped"
    """Never asked: the queue was full, or the deadline or the breaker came first."""


@dataclass(slots=True)
class Outcome:
    """The fate of one exchange; `answer` is the target's, None when it was not asked. `reason` is for people.

    `refusal` is the response code of a target that refused it.
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
    """The target answered, and not with success."""
    return Outcome(exchange, OutcomeKind.REFUSED, f"code {code}: {remark}", answer, refusal=code)


OutcomeListener = Callable[[Outcome], None]
"""Is called for every outcome; returns at once and does not raise."""


class TargetWriter(Protocol):
    """Brings exchanges of one upstream broker to its counterpart, in the order they have per queue.

    It may be told of the same exchange again after it raised, and must then do no harm.
    """

    async def write(self, exchanges: Sequence[Exchange]) -> list[Outcome]:
        """One outcome for each, in their order. Raises ASKING_FAILED of `cluster` when the target is not there."""
