"""Quotas: limits on messages and bytes sent and pulled per second, for the broker and for single topics.

`flow_control.py` refuses sends and holds pulls beyond their quota.
"""

from collections.abc import Collection
from dataclasses import dataclass
from math import floor
from typing import Final, NamedTuple

from codec.java_numbers import parse_integer_or
from gateway.broker.topics.topic_table import TopicChange, TopicTable
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
        tokens = self.refill()
        return 0.0 if tokens >= 1 else (1 - tokens) / self.per_second + MIN_WAIT_SHARE_S


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
    """All buckets of a broker."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[QuotaKey, TokenBucket] = {}
        self._directions = {SEND: 0, PULL: 0}
        self._topic_rates = {
            topic.topic_name: rates for topic in topics.table.values() if (rates := _topic_rates(topic))
        }
        self.reconfigure(config)
        topics.add_listener(self._topics_changed)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings. Buckets whose rate changed start full."""
        self._burst_s = config.flow.quota_burst_s
        rates_of_broker = {
            QuotaKey(SEND, MESSAGES, ALL_TOPICS): config.flow.send_quota_messages,
            QuotaKey(SEND, BYTES, ALL_TOPICS): config.flow.send_quota_bytes,
            QuotaKey(PULL, MESSAGES, ALL_TOPICS): config.flow.pull_quota_messages,
            QuotaKey(PULL, BYTES, ALL_TOPICS): config.flow.pull_quota_bytes,
        }
        rates = {kind: rate for kind, rate in rates_of_broker.items() if rate}
        for of_topic in self._topic_rates.values():
            rates |= of_topic
        self._set_rates(set(self._buckets), rates)

    @property
    def sending(self) -> bool:
        """True when sends have a quota."""
        return self._directions[SEND] > 0

    @property
    def pulling(self) -> bool:
        """True when pulls have a quota."""
        return self._directions[PULL] > 0

    def _topics_changed(self, change: TopicChange) -> None:
        for topic in change.deleted:
            self._set_rates(self._topic_rates.pop(topic, {}).keys(), {})
        for config in change.stored:
            before, rates = self._topic_rates.pop(config.topic_name, {}), _topic_rates(config)
            if rates:
                self._topic_rates[config.topic_name] = rates
            if rates != before:
                self._set_rates(before.keys(), rates)

    def _set_rates(self, before: Collection[QuotaKey], rates: dict[QuotaKey, int]) -> None:
        """Replace the buckets ``before`` by those with these rates."""
        previous = {kind: self._buckets.pop(kind) for kind in before}
        for kind in previous:
            self._directions[kind.direction] -= 1
        for kind, rate in rates.items():
            self._buckets[kind] = self._keep_or_create_bucket(previous.get(kind), rate)
            self._directions[kind.direction] += 1

    def _keep_or_create_bucket(self, bucket: TokenBucket | None, rate: int) -> TokenBucket:
        limit = float(max(1, rate * self._burst_s))
        if bucket is not None and (bucket.per_second, bucket.limit) == (rate, limit):
            return bucket
        return TokenBucket(rate, limit, self._clock, limit, self._clock.monotonic())

    def _buckets_for(self, direction: str, topic: str) -> list[tuple[QuotaKey, TokenBucket]]:
        kinds = (
            QuotaKey(direction, unit, quota_topic)
            for quota_topic in (ALL_TOPICS, topic)
            for unit in (MESSAGES, BYTES)
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
            available = max(1, floor(bucket.refill()))
            if kind.unit == MESSAGES:
                messages = min(messages, available)
            else:
                size_bytes = min(size_bytes, available)
        return messages, size_bytes


def _topic_rates(config: TopicConfig) -> dict[QuotaKey, int]:
    """Return the quotas among a topic's attributes.

    Invalid numbers, which another server may have stored, are ignored.
    """
    rates: dict[QuotaKey, int] = {}
    if not config.attributes:
        return rates
    for direction, unit in KINDS:
        kind = QuotaKey(direction, unit, config.topic_name)
        rate = parse_integer_or(config.attributes.get(kind.attribute), 0)
        if rate > 0:
            rates[kind] = rate
    return rates
