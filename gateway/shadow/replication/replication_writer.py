"""The target writer of offset-preserving replication: it waits for a message's queue instead of sending the message.

Theory of operation
-------------------
A target that preserves the primary's queue offsets must receive each queue as it is stored at the primary, including
messages that did not pass through the gateway. So messages are copied from the primary's queues (`queue_feed.py`), and
a mirrored exchange only says that a queue has grown. The writer turns that into an outcome:

- Sends, ends of transactions and recalls: once the feed of the queue has passed the message's offset, the outcome is
  MIRRORED. A message that does not arrive within `hold_ms` is SKIPPED, as it will arrive with its queue; if a client
  waits for it (synchronous modes), it is REFUSED instead. Delayed and half messages have no offset of their own yet,
  and are SKIPPED.
- Consumer offsets are committed at the target unchanged, never beyond what the target has.
- Everything else (topics, groups) is sent again, and the feeds look for new queues at once.

A crash loses nothing here, because the writer stores nothing: the feeds resume at the target's next offset.

Rejected: sending live exchanges again in addition. It would bring no message earlier, since the primary answers the
waiting pull when it answers the sender (in simulation both happen at the same moment; between processes on a crowded
machine, load 13 on two cores, the median was 2.3 ms later). It would cost target and gateway as much again, and every
message would have to be put in order. The price at the primary is one more reader; `gather_ms` lets that reader take
several messages at a time.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from codec.constants import ResponseCode
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.mirror.consumer_offsets import ConsumerOffsetWriter
from gateway.shadow.replication.consumer_offset_sync import PreservedOffsets
from gateway.shadow.replication.feed_set import FeedSet
from gateway.shadow.replication.queue_feed import FeedPhase
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.outcome import Outcome, OutcomeKind, refused_outcome
from gateway.shadow.traffic.request_policy import (
    END_TRANSACTION,
    RECALL_MESSAGE,
    SEND_CODES,
    UPDATE_CONSUMER_OFFSET,
)
from gateway.shadow.traffic.resend import is_temporary_refusal, repeat_command
from gateway.shadow.traffic.subject import Subject, subject_of
from remoting.errors import RequestError

ARRIVES_WITH_QUEUE: Final = "arrives with its queue, as soon as the queue is copied"
TARGET_IS_BEHIND: Final = "the target does not have the messages before it yet"
_QUEUED_CODES: Final = SEND_CODES | {END_TRANSACTION, RECALL_MESSAGE}


class ReplicationWriter:
    """A `TargetWriter` for one broker and its counterpart.

    ``holds_answers`` tells whether clients wait until the target has a topic's messages.
    """

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
        """Return the outcomes of exchanges. Raises CLUSTER_ERRORS of `cluster`, LookupError.

        Waits once for the messages of all exchanges, at most `hold_ms`; other exchanges are written one by one.
        """
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
                # One wait per queue is enough: a target that has a message has all earlier ones.
                last[subject.queue] = max(offset, last.get(subject.queue, 0))
        # A message that is late is not lost, it arrives with its queue. The pause only decides about its outcome.
        with trio.move_on_after(self._hold_s):
            async with trio.open_nursery() as nursery:
                for (topic, queue_id), offset in last.items():
                    position = self._broker, topic, queue_id, offset
                    nursery.start_soon(
                        partial(self._feeds.wait_until, *position, urgent=self._holds_answers(topic))
                    )

    def _is_worth_waiting(self, subject: Subject) -> bool:
        """Tell whether to wait for a queue. The writer waits for a queue that is far behind only if clients wait."""
        feed = self._feeds.feeds.get((self._broker, *subject.queue))
        return self._holds_answers(subject.topic) or (feed is not None and feed.phase is FeedPhase.LIVE)

    async def _write_one(self, exchange: Exchange, subject: Subject) -> Outcome:
        if exchange.code == UPDATE_CONSUMER_OFFSET:
            return await self._offset_writer.write_commit(exchange, subject)
        if exchange.code in _QUEUED_CODES:
            return self._message_outcome(exchange, subject)
        command = repeat_command(exchange.request_command, self._target_broker)
        answer = await self._target.ask_command(await self._target.find_master(self._target_broker), command)
        if is_temporary_refusal(answer.code, answer.remark):
            raise RequestError(answer.code, answer.remark)
        # The command may have created a topic, whose queues are to be followed at once.
        self._feeds.request_discovery()
        if answer.code != ResponseCode.SUCCESS:
            return refused_outcome(exchange, answer.code, answer.remark, answer)
        return Outcome(exchange, OutcomeKind.MIRRORED, answer=answer)

    def _message_outcome(self, exchange: Exchange, subject: Subject) -> Outcome:
        offset = _last_offset(exchange, subject)
        # A delayed or half message has no offset in its queue yet.
        if offset < 0:
            return Outcome(exchange, OutcomeKind.SKIPPED, ARRIVES_WITH_QUEUE)
        end = self._feeds.target_end(self._broker, subject.topic, subject.queue_id)
        if end is not None and end > offset:
            return Outcome(exchange, OutcomeKind.MIRRORED)
        if self._holds_answers(subject.topic):
            return Outcome(exchange, OutcomeKind.REFUSED, TARGET_IS_BEHIND)
        return Outcome(exchange, OutcomeKind.SKIPPED, ARRIVES_WITH_QUEUE)


def _last_offset(exchange: Exchange, subject: Subject) -> int:
    """Return the offset of the last message sent, or the one before a committed offset; -1 for other requests."""
    if exchange.code == UPDATE_CONSUMER_OFFSET:
        return subject.number - 1
    return -1 if subject.offset < 0 else subject.offset + subject.count - 1
