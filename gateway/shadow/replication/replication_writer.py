"""A writer for a target that keeps the primary's queue offsets: messages come from the primary's queues, not from
exchanges, so that nothing depends on what passed through the gateway.

Sending live exchanges again would make a message no earlier: the primary answers the waiting read when it answers the
sender (in simulation both happen at the same moment; between processes on a crowded machine, load 13 on two cores, the
median was 2.3 ms later). It would cost target and gateway as much, and every message would have to be put in order.
What it costs the primary is one reader more; `gather_ms` lets that take several messages at a time.
Not responsible for following queues (kept_feeds is).
"""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

import trio

from codec.constants import ResponseCode
from codec.topics import DLQ_PREFIX, RETRY_PREFIX, group_of_retry_topic
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.mirror.consumer_offsets import ConsumerOffsetWriter
from gateway.shadow.mirror.diverged_queues import DivergedQueues
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import OFF, STRICT_DUAL, SYNC_BEST_EFFORT, TARGET_PRIMARY
from gateway.shadow.replication.consumer_offset_sync import PreservedOffsets
from gateway.shadow.replication.feed_set import FeedSet
from gateway.shadow.replication.queue_feed import FeedPhase
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.outcome import Fate, Outcome, refused
from gateway.shadow.traffic.request_policy import (
    END_TRANSACTION,
    RECALL_MESSAGE,
    SENDS,
    UPDATE_CONSUMER_OFFSET,
)
from gateway.shadow.traffic.resend import repeated
from gateway.shadow.traffic.subject import Subject, subject_of

ARRIVES_WITH_QUEUE: Final = "comes with its queue of the primary, as soon as it is there"
TARGET_IS_BEHIND: Final = "the target does not have what is before it yet"
HEAL_DELAY_MS: Final = 1_000
"""What nobody answered may still be stored for so long."""
SEND_MESSAGE: Final = 10
_QUEUED_CODES: Final = SENDS | {END_TRANSACTION, RECALL_MESSAGE}


class ReplicationWriter:
    """A `Writer` for one broker and its counterpart; ``waits`` says whether answers about a topic are held for it."""

    def __init__(
        self,
        primary: Cluster,
        target: Cluster,
        broker: str,
        target_broker: str,
        feeds: FeedSet,
        hold_ms: int,
        holds_answers: Callable[[str], bool],
    ) -> None:
        self._target = target
        self._broker = broker
        self._target_broker = target_broker
        self._feeds = feeds
        self._hold_s = hold_ms / 1000
        self._holds_answers = holds_answers
        self._offset_writer = ConsumerOffsetWriter(
            primary, target, broker, target_broker, PreservedOffsets(feeds), retry_topics=True
        )

    async def write(self, exchanges: Sequence[Exchange]) -> list[Outcome]:
        """See `Writer`. Waits once for all messages, at most `hold_ms`; offsets and settings are told one by one."""
        started_s = trio.current_time()
        await self._wait_for_messages(exchanges)
        outcomes = [await self._write_one(exchange, subject_of(exchange)) for exchange in exchanges]
        for outcome in outcomes:
            outcome.latency_s = trio.current_time() - started_s
        return outcomes

    async def _wait_for_messages(self, exchanges: Sequence[Exchange]) -> None:
        last: dict[tuple[str, int], int] = {}
        for exchange in exchanges:
            subject = subject_of(exchange)
            offset = _last_offset(exchange, subject)
            if offset >= 0 and self._is_worth_waiting(subject):
                last[subject.queue] = max(offset, last.get(subject.queue, 0))
        with trio.move_on_after(self._hold_s):
            async with trio.open_nursery() as nursery:
                for (topic, queue_id), offset in last.items():
                    place = self._broker, topic, queue_id, offset
                    nursery.start_soon(
                        partial(self._feeds.wait_until, *place, urgent=self._holds_answers(topic))
                    )

    def _is_worth_waiting(self, subject: Subject) -> bool:
        """Nobody waits for a queue that is far behind, unless a client does."""
        feed = self._feeds.feeds.get((self._broker, *subject.queue))
        return self._holds_answers(subject.topic) or (feed is not None and feed.phase is FeedPhase.LIVE)

    async def _write_one(self, exchange: Exchange, subject: Subject) -> Outcome:
        if exchange.code == UPDATE_CONSUMER_OFFSET:
            return await self._offset_writer.write_commit(exchange, subject)
        if exchange.code in _QUEUED_CODES:
            return self._message_outcome(exchange, subject)
        command = repeated(exchange.request_command, self._target_broker)
        if self._target_broker not in self._target.brokers:
            await self._target.refresh()
        answer = await self._target.ask_command(self._target.master(self._target_broker), command)
        self._feeds.request_discovery()
        if answer.code != ResponseCode.SUCCESS:
            return refused(exchange, answer.code, answer.remark, answer)
        return Outcome(exchange, Fate.MIRRORED, answer=answer)

    def _message_outcome(self, exchange: Exchange, subject: Subject) -> Outcome:
        offset = _last_offset(exchange, subject)
        if offset < 0:
            return Outcome(exchange, Fate.SKIPPED, ARRIVES_WITH_QUEUE)
        end = self._feeds.target_end(self._broker, subject.topic, subject.queue_id)
        if end is not None and end > offset:
            return Outcome(exchange, Fate.MIRRORED)
        if self._holds_answers(subject.topic):
            return Outcome(exchange, Fate.REFUSED, TARGET_IS_BEHIND)
        return Outcome(exchange, Fate.SKIPPED, ARRIVES_WITH_QUEUE)


def _last_offset(exchange: Exchange, subject: Subject) -> int:
    """The primary's offset of the (last) message sent; the one before a committed offset; -1 for all others."""
    if exchange.code == UPDATE_CONSUMER_OFFSET:
        return subject.number - 1
    return -1 if subject.offset < 0 else subject.offset + subject.count - 1


def find_queue_rule(rules: MirrorRules, topic: str) -> int | None:
    """The rule that decides about a topic's queues: by topic; for retry and dead-letter topics by their group.

    A queue is kept whole or not at all, so what else a rule says (codes, clients) does not matter.
    """
    derived = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    name = group_of_retry_topic(topic).removeprefix(DLQ_PREFIX) if derived else topic
    for index, rule in enumerate(rules.rules):
        if any(fnmatchcase(name, pattern) for pattern in (rule.groups if derived else rule.topics)):
            return index
    return None


def queue_selector(rules: MirrorRules) -> Callable[[str, str, int], bool]:
    """Which queues the rules and modes want followed now."""

    def wanted(broker: str, topic: str, queue_id: int) -> bool:
        index = find_queue_rule(rules, topic)
        if index is None or rules.effective_mode(index, topic) in (OFF, TARGET_PRIMARY):
            return False
        return rules.is_sampled(index, SEND_MESSAGE, Subject(topic, queue_id=queue_id))

    return wanted


def answer_hold_predicate(rules: MirrorRules) -> Callable[[str], bool]:
    """Whether clients' answers about a topic are held until the target has the message."""

    def waits(topic: str) -> bool:
        index = find_queue_rule(rules, topic)
        return index is not None and rules.effective_mode(index, topic) in (SYNC_BEST_EFFORT, STRICT_DUAL)

    return waits


def clear_healed_marks(diverged: DivergedQueues, feeds: FeedSet) -> int:
    """Forgets marks of queues that the target had whole after what they lacked; says how many."""
    healed = 0
    for mark in list(diverged):
        feed = feeds.feeds.get((mark.broker, mark.topic, mark.queue_id))
        if (
            feed is not None
            and feed.complete_ms > mark.last_ms + HEAL_DELAY_MS
            and feed.copier.target_end > mark.offset
        ):
            healed += diverged.clear_marks(mark.topic, mark.broker, mark.queue_id)
    return healed
