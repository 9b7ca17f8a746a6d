"""The counts of a mirror stream: how many exchanges it observed, and how many had each outcome.

Invariant, which tests check at any moment, for each stream and for all together:

    observed = mirrored + skipped + refused + dropped + queued

A stream and its backlog share one `StreamAccount`; everything that enters, leaves or is lost goes through it exactly
once.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gateway.runtime.metrics import Metric, counter_metrics
from gateway.shadow.mirror.backlog import BacklogEntry
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.outcome import Outcome, OutcomeKind
from gateway.shadow.traffic.request_policy import SEND_CODES

log = logging.getLogger(__name__)

OnOutcome = Callable[[BacklogEntry, Outcome], None]
"""Called exactly once for each entry, when its outcome is known."""

_MEANINGS: Final = {
    "observed": "Exchanges that a mirror observed.",
    "mirrored": "Exchanges that were written to the target.",
    "skipped": "Exchanges left out on purpose: by rule, mode or policy.",
    "refused": "Exchanges that the target refused.",
    "dropped": "Exchanges lost to a full queue, or with which the target failed every time.",
    "oneway": "Sends without an answer; included in mirrored, skipped or dropped.",
    "resumed": "Exchanges that an earlier process left on disk; included in observed.",
    "repeated": "Attempts repeated after a failure.",
    "found": "Messages that the target had stored although its answer was lost; not sent again.",
    "late": "Messages mirrored after later messages of their queue.",
}


@dataclass(slots=True)
class StreamCounts:
    """Number of exchanges by outcome; the field names are part of metric names and JSON keys."""

    observed: int = 0
    mirrored: int = 0
    skipped: int = 0
    refused: int = 0
    dropped: int = 0
    oneway: int = 0
    resumed: int = 0
    repeated: int = 0
    found: int = 0
    late: int = 0

    def count_outcome(self, kind: OutcomeKind, count: int = 1) -> None:
        """Add exchanges with this outcome."""
        name = kind._value_  # `value` is a dynamic attribute, and slower.
        setattr(self, name, getattr(self, name) + count)

    @property
    def decided(self) -> int:
        """Exchanges whose outcome is known."""
        return self.mirrored + self.skipped + self.refused + self.dropped

    def metrics(self, **labels: str) -> Iterator[Metric]:
        """Yield every count as a counter metric."""
        return counter_metrics(self, "mirror", _MEANINGS, labels)


class StreamAccount:
    """Counts of one stream, and the entries of each topic that are still waiting.

    `problem` is the target's or the disk's latest failure, "" while there is none. `lost` counts exchanges that were
    in damaged files; their outcomes are never reported, because it is unknown which exchanges they were. Implements
    `BacklogListener`.
    """

    def __init__(self, stream_name: str, on_outcome: OnOutcome) -> None:
        self.counts = StreamCounts()
        self.problem = ""
        self.lost = 0
        self._stream_name = stream_name
        self._on_outcome = on_outcome
        self._waiting_by_topic: Counter[str] = Counter()

    def count_waiting(self, topic: str) -> int:
        """Return the number of waiting entries of a topic, without resumed ones that have not been read yet."""
        return self._waiting_by_topic[topic]

    def add_entry(self, entry: BacklogEntry) -> None:
        """Count an exchange that enters the stream."""
        self.counts.observed += 1
        self._waiting_by_topic[entry.subject.topic] += 1

    def count_skipped(self, exchange: Exchange) -> None:
        """Count an exchange that does not enter the stream."""
        self.counts.observed += 1
        self.counts.skipped += 1
        self._count_oneway(exchange)

    def settle_entry(self, entry: BacklogEntry, outcome: Outcome) -> None:
        """Count the outcome of an entry and report it; an exception of the listener is logged."""
        entry.outcome = outcome
        self.counts.count_outcome(outcome.kind)
        self._count_oneway(entry.exchange)
        topic = entry.subject.topic
        self._waiting_by_topic[topic] -= 1
        if not self._waiting_by_topic[topic]:
            # Clients make up topics: a counter that stays at 0 would never be freed.
            del self._waiting_by_topic[topic]
        try:
            self._on_outcome(entry, outcome)
        except Exception:
            log.exception("handling an outcome failed", extra={"stream": self._stream_name})

    def _count_oneway(self, exchange: Exchange) -> None:
        self.counts.oneway += exchange.answer is None and exchange.code in SEND_CODES

    # -- BacklogListener ----------------------------------------------------------------------------------------

    def on_dropped(self, entry: BacklogEntry, reason: str) -> None:
        """Settle an entry for which the backlog has no room."""
        self.settle_entry(entry, Outcome(entry.exchange, OutcomeKind.DROPPED, reason))

    def on_lost(self, count: int, reason: str) -> None:
        """Count exchanges lost from disk. Counts by topic stay too high, because the lost topics are unknown."""
        self.counts.dropped += count
        self.lost += count
        self.problem = reason

    def on_resumed(self, count: int) -> None:
        """Count exchanges that an earlier process left on disk."""
        self.counts.observed += count
        self.counts.resumed += count

    def on_identified(self, entry: BacklogEntry) -> None:
        """Assign an exchange of an earlier process to its topic, once it has been read from disk."""
        self._waiting_by_topic[entry.subject.topic] += 1
