"""Quotas: limits on messages and bytes sent and pulled per second, for the broker and for single topics.

`flow_control.py` refuses sends and holds pulls beyond their quota.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Final, NamedTuple

from codec.java_numbers import parse_integer_or
from gateway.broker.topic_table import TopicTable
from gateway.config.process import BrokerConfig
from remoting.bodies.topics import TopicConfig
from storage.clock import Clock

MESSAGES, BYTES = "messages", "bytes"
SEND, PULL = "send", "pull"
ALL_TOPICS: Final = ""
MIN_WAIT_SHARE_S: Final = 0.1
"""Added to each wait for a quota: after it, tokens for 0.1 s have accumulated, so an answer carries more messages."""


# This does not use `toolkit.rate_limiter`, which makes its caller wait. A broker instead refuses or holds a request
# when no tokens are left, and takes tokens after the request, when it knows how much was sent or pulled.
@dataclass(slots=True)
class TokenBucket:
    """Tokens that accumulate at a steady rate up to a limit.

    More tokens may be taken than there are. The next caller waits until the debt is paid.
    """

    per_second: float
    limit: float
    clock: Clock
    tokens: float
    filled_s: float

    def refill(self) -> float:
        """Add the tokens earned since the last call and return their number; a debt is negative."""
        now_s = self.clock.monotonic()
        self.tokens = min(self.limit, self.tokens + (now_s - self.filled_s) * self.per_second)
        self.filled_s = now_s
        return self.tokens

    def wait_s(self) -> float:
        """Return the seconds until tokens may be taken; 0 when they may be taken now."""
        left = self.refill()
        return 0.0 if left >= 1 else (1 - left) / self.per_second + MIN_WAIT_SHARE_S


class QuotaKey(NamedTuple):
    """Identifies one bucket; ``topic`` may be ALL_TOPICS."""

    direction: str
    unit: str
    topic: str

    @property
    def attribute(self) -> str:
        """The topic attribute that sets this quota."""
        return f"quota.{self.direction}.{self.unit}"


KINDS: Final = tuple((direction, unit) for direction in (SEND, PULL) for unit in (MESSAGES, BYTES))


class Quotas:
    """All buckets of a broker. ``sending`` and ``pulling`` tell whether that direction has any."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, clock: Clock) -> None:
        self._clock = clock
        self._topics = topics
        self._buckets: dict[QuotaKey, TokenBucket] = {}
        self.sending = self.pulling = False
        self.reconfigure(config)
        topics.add_listener(self._topics_changed)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings. Buckets whose rate changed start full."""
        self._burst_s = config.flow.quota_burst_s
        self._broker_rates = {
            QuotaKey(SEND, MESSAGES, ALL_TOPICS): config.flow.send_quota_messages,
            QuotaKey(SEND, BYTES, ALL_TOPICS): config.flow.send_quota_bytes,
            QuotaKey(PULL, MESSAGES, ALL_TOPICS): config.flow.pull_quota_messages,
            QuotaKey(PULL, BYTES, ALL_TOPICS): config.flow.pull_quota_bytes,
        }
        self._rebuild()

    def _topics_changed(self, _: Sequence[TopicConfig]) -> None:
        self._rebuild()

    def _rebuild(self) -> None:
        rates = {kind: rate for kind, rate in self._broker_rates.items() if rate}
        for config in self._topics.table.values():
            if config.attributes:
                rates |= _topic_rates(config)
        self._buckets = {kind: self._keep_or_create_bucket(kind, rate) for kind, rate in rates.items()}
        self.sending = any(kind.direction == SEND for kind in rates)
        self.pulling = any(kind.direction == PULL for kind in rates)

    def _keep_or_create_bucket(self, kind: QuotaKey, rate: int) -> TokenBucket:
        known, limit = self._buckets.get(kind), float(max(1, rate * self._burst_s))
        if known is not None and (known.per_second, known.limit) == (rate, limit):
            return known
        return TokenBucket(rate, limit, self._clock, limit, self._clock.monotonic())

    def _buckets_for(self, direction: str, topic: str) -> list[tuple[QuotaKey, TokenBucket]]:
        kinds = (
            QuotaKey(direction, unit, place) for place in (ALL_TOPICS, topic) for unit in (MESSAGES, BYTES)
        )
        return [(kind, self._buckets[kind]) for kind in kinds if kind in self._buckets]

    def consume(self, direction: str, topic: str, messages: int, size_bytes: int) -> None:
        """Take tokens for messages that were sent or pulled."""
        for kind, bucket in self._buckets_for(direction, topic):
            bucket.refill()
            bucket.tokens -= messages if kind.unit == MESSAGES else size_bytes

    def describe_exhausted(self, direction: str, topic: str) -> str | None:
        """Describe the quota that is exhausted now, for a remark; return None when no quota is exhausted."""
        for kind, bucket in self._buckets_for(direction, topic):
            if bucket.refill() < 1:
                whose = f"topic[{topic}]" if kind.topic else "this broker"
                return f"{direction} quota of {whose}: {bucket.per_second} {kind.unit} per second"
        return None

    def wait_s(self, direction: str, topic: str) -> float:
        """Return the seconds until no quota is exhausted; 0 when none is exhausted now."""
        return max((bucket.wait_s() for _, bucket in self._buckets_for(direction, topic)), default=0.0)

    def limit_to_tokens(self, direction: str, topic: str, messages: int, size_bytes: int) -> tuple[int, int]:
        """Lower the requested messages and bytes to the tokens left, but to no less than one message and one byte."""
        for kind, bucket in self._buckets_for(direction, topic):
            left = max(1, floor(bucket.refill()))
            if kind.unit == MESSAGES:
                messages = min(messages, left)
            else:
                size_bytes = min(size_bytes, left)
        return messages, size_bytes


def _topic_rates(config: TopicConfig) -> dict[QuotaKey, int]:
    """Return the quotas among a topic's attributes.

    Invalid numbers, which another server may have stored, are ignored.
    """
    rates = {}
    for direction, unit in KINDS:
        kind = QuotaKey(direction, unit, config.topic_name)
        rate = parse_integer_or(config.attributes.get(kind.attribute), 0)
        if rate > 0:
            rates[kind] = rate
    return rates
