"""What is out with consumers: kept from the pop to the ack, and given to the retry topic when its time is over.

All of it can be had again from the revive topic, which is written first (revive_log). Not responsible for sleeping
(agenda), nor for which messages a pop takes.
"""

import logging
from contextlib import suppress
from functools import partial
from typing import Final

from codec import properties as keys
from codec.constants import ResponseCode
from codec.hosts import pack_host
from codec.message import Message, decode_message
from codec.topics import RETRY_PREFIX
from gateway.broker.advertised_hosts import Hosts
from gateway.broker.consumer_offsets import ConsumerOffsets
from gateway.broker.group_table import GroupTable
from gateway.broker.long_poll import LongPolls
from gateway.broker.message_writer import NewMessage, Putter
from gateway.broker.pop.checkpoint import Acks, CheckPoint, PopKey
from gateway.broker.pop.deadlines import Agenda, Appointment
from gateway.broker.pop.receipts import REVIVE_GROUP, SEEN_GROUP, normal_topic, pop_retry_topic
from gateway.broker.pop.revive_log import Record, ReviveLog
from gateway.broker.topic_table import TopicTable
from gateway.config.process import BrokerConfig
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from storage.clock import Clock
from storage.errors import CorruptionError
from storage.store import MessageStore

log = logging.getLogger(__name__)

TIMED_ACKS_MS: Final = 3_000
"""How long after a pop's time acks of an official broker's timer are waited for.

Source: PopReviveService.mergeAndRevive waits for more than 2 s of later records, to the second.
"""
RETRY_QUEUES: Final = 1
MOST_BEHIND: Final = 10_000
"""A checkpoint so many records behind the end of its queue is written again, so that a start reads no more."""
REPUT_INTERVALS_S: Final = (
    10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""How much longer messages wait that could not be written for another try. Source: PopReviveService, 5.4.0."""


class Pending:
    """A pop with messages that are not acked."""

    __slots__ = ("appointment", "offset", "point")

    def __init__(self, point: CheckPoint, offset: int, appointment: Appointment) -> None:
        self.point = point
        self.offset = offset
        self.appointment = appointment


class ReviveQueue:
    """One revive queue: pops that are out, in the order of their records, and how far records were read.

    ``saved``: the records before are known to the saved offsets of groups.
    """

    __slots__ = ("committed", "pending", "saved", "seen")

    def __init__(self, seen: int, saved: int) -> None:
        self.pending: dict[PopKey, Pending] = {}
        self.seen = seen
        self.saved = saved
        self.committed = seen - 1

    def done_until(self) -> int:
        """Offset of the last record before which nothing is out."""
        first = next(iter(self.pending.values()), None)
        return (self.seen if first is None else first.offset) - 1


class Reviver:
    """Pops that are out. Source: PopReviveService and PopBufferMergeService, 5.4.0.

    Deviation: what is out is in memory as well, so that messages are revived when their time comes, not seconds
    later, and nothing is scanned. The offset kept for the revive group is that of the last record done with.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        put: Putter,
        hosts: Hosts,
        agenda: Agenda,
    ) -> None:
        self.config = config
        self._clock = clock
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._put = put
        self._hosts = hosts
        self._agenda = agenda
        self.log = ReviveLog(config.broker_cluster_name, config.broker_name, clock, store, put, hosts)
        self._out: dict[tuple[str, str, int], int] = {}
        self._queues = [self._start(queue_id) for queue_id in range(config.pop.revive_queue_num)]
        for queue_id in range(config.pop.revive_queue_num):
            self.catch_up(queue_id)

    def out(self, topic: str, group: str, queue_id: int) -> int:
        """How many messages of a queue a group popped and neither acked nor got back."""
        return self._out.get((topic, group, queue_id), 0)

    def _count(self, key: PopKey, change: int) -> None:
        queue = key.topic, key.group, key.queue_id
        left = self._out.pop(queue, 0) + change
        if left:
            self._out[queue] = left

    def __len__(self) -> int:
        return sum(len(queue.pending) for queue in self._queues)

    def _start(self, queue_id: int) -> ReviveQueue:
        """Where records were not done with when the broker ended."""
        done = self._offsets.query(REVIVE_GROUP, self.log.topic, queue_id)
        saved = self._offsets.query(SEEN_GROUP, self.log.topic, queue_id)
        return ReviveQueue(min(done + 1, self.log.end(queue_id)), max(0, saved))

    def watch(self, long_polls: LongPolls) -> None:
        """Hears from now on of records that others write, such as a timer that an official broker had set."""
        for queue_id in range(len(self._queues)):
            long_polls.watch((self.log.topic, queue_id), partial(self._grew, queue_id))

    def _grew(self, queue_id: int) -> bool:
        self.catch_up(queue_id)
        return True

    # -- pops and acks --------------------------------------------------------------------------------------

    def add(self, queue_id: int, point: CheckPoint) -> None:
        """Notes a pop, first in the revive topic. Raises RequestError when that refuses it, or one like it is out."""
        if not 0 <= queue_id < len(self._queues):
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"there is no revive queue {queue_id}")
        if point.key in self._queues[queue_id].pending:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "a pop of the same messages at the same time is out"
            )
        self._note(queue_id, point, self.log.write(queue_id, point))
        self._move_on(queue_id, self._queues[queue_id])

    def unused(self, queue_id: int, key: PopKey) -> PopKey:
        """The key, with a pop time a little later when it would be that of another pop."""
        while 0 <= queue_id < len(self._queues) and key in self._queues[queue_id].pending:
            key = key._replace(pop_time=key.pop_time + 1)
        return key

    def ack(self, queue_id: int, acks: Acks, invisible_time: int) -> None:
        """Notes that messages are done, first in the revive topic; those that came back count for nothing.

        Of a pop that is not known here the checkpoint may still be with the timer of an official broker that was here
        before: the acks go the same way. Raises RequestError when the revive topic refuses it.
        """
        if not 0 <= queue_id < len(self._queues):
            return
        queue = self._queues[queue_id]
        pending = queue.pending.get(acks.key)
        if pending is None:
            due_ms = acks.key.pop_time + invisible_time
            if self.config.store.timer_wheel_enable and due_ms > self._clock.now_ms():
                self.log.write_timed(queue_id, acks, due_ms)
            return
        out = set(pending.point.pending())
        acks.offsets = [offset for offset in acks.offsets if offset in out]
        if acks.offsets:
            self._passed(queue, self.log.write(queue_id, acks))
            self._apply(queue, acks)

    def _note(self, queue_id: int, point: CheckPoint, offset: int, wait_ms: int = 0) -> None:
        queue = self._queues[queue_id]
        known = queue.pending.pop(point.key, None)
        if known is not None:
            self._agenda.cancel(known.appointment)
            self._count(point.key, -len(known.point.pending()))
        self._count(point.key, len(point.pending()))
        due_ms = point.revive_time + wait_ms
        appointment = self._agenda.at(due_ms, partial(self._revive, queue_id, point.key))
        queue.pending[point.key] = Pending(point, offset, appointment)
        self._passed(queue, offset)

    @staticmethod
    def _passed(queue: ReviveQueue, offset: int) -> None:
        """A record of our own needs not be read; one that others wrote before it does."""
        if offset == queue.seen:
            queue.seen += 1

    def _apply(self, queue: ReviveQueue, acks: Acks) -> None:
        pending = queue.pending.get(acks.key)
        if pending is None:
            return
        self._count(acks.key, -sum(pending.point.ack(offset) for offset in acks.offsets))
        if pending.point.done:
            self._agenda.cancel(pending.appointment)
            del queue.pending[acks.key]

    def _move_on(self, queue_id: int, queue: ReviveQueue) -> None:
        """Writes the first checkpoint again when it has fallen far behind."""
        key, first = next(iter(queue.pending.items()))
        if queue.seen - first.offset > MOST_BEHIND:
            with suppress(RequestError):
                first.offset = self.log.write(queue_id, first.point)
                queue.pending[key] = queue.pending.pop(key)
                self._passed(queue, first.offset)

    # -- records of others ----------------------------------------------------------------------------------

    def catch_up(self, queue_id: int) -> None:
        """Takes notice of records that are in a revive queue already: after a start, or from a timer."""
        queue = self._queues[queue_id]
        for record in self.log.read(queue_id, queue.seen) if queue.seen < self.log.end(queue_id) else ():
            queue.seen = record.offset
            self._take(queue_id, queue, record)
            queue.seen = record.offset + 1

    def _take(self, queue_id: int, queue: ReviveQueue, record: Record) -> None:
        content = record.content
        if isinstance(content, CheckPoint) and record.offset >= queue.saved:
            self._move_group(content)
        if isinstance(content, Acks):
            self._apply(queue, content)
        elif content is not None and content.diffs and not content.done:
            self._note(queue_id, content, record.offset, TIMED_ACKS_MS if record.timed else 0)

    def _move_group(self, point: CheckPoint) -> None:
        """A pop that the saved offsets know nothing of, since a crash came before: it is not to be made again."""
        key = point.key
        known = key.topic in self._topics and key.group in self._groups
        if known and self._offsets.query(key.group, key.topic, key.queue_id) < point.end:
            self._offsets.commit(key.group, key.topic, key.queue_id, point.end)

    # -- reviving -------------------------------------------------------------------------------------------

    def _revive(self, queue_id: int, key: PopKey) -> None:
        queue = self._queues[queue_id]
        point = queue.pending[key].point
        revived = self._retry_all(queue_id, point) if self._has_readers(key) else point.pending()
        self._count(key, -sum(point.ack(offset) for offset in revived))
        if not point.done:  # Nothing at all can be written: it stays as it is, and so does its record.
            due_ms = self._clock.now_ms() + REPUT_INTERVALS_S[0] * 1000
            queue.pending[key].appointment = self._agenda.at(due_ms, partial(self._revive, queue_id, key))
            return
        del queue.pending[key]
        with suppress(RequestError):  # So that a crash before the next save of offsets revives nothing twice.
            self._passed(queue, self.log.write(queue_id, Acks(key, revived)))

    def _has_readers(self, key: PopKey) -> bool:
        """Whether topic and group still exist."""
        known = self._topics.get(normal_topic(key.topic, key.group)) is not None
        return known and self._groups.find(key.group) is not None

    def _retry_all(self, queue_id: int, point: CheckPoint) -> list[int]:
        """Gives what is not acked to the retry topic; the offsets that are seen to."""
        revived = []
        for offset in point.pending():
            message = self._message(point.key, offset)
            try:
                if message is not None:
                    self._retry(point.key, message)
            except RequestError as refused:
                extra = {"key": point.key, "offset": offset, "reason": refused.remark}
                log.warning("a message cannot be written for another try", extra=extra)
                if not self._put_off(queue_id, point, offset):
                    break
            revived.append(offset)
        log.info("messages popped and not acked", extra={"key": point.key, "offsets": revived})
        return revived

    def _message(self, key: PopKey, offset: int) -> Message | None:
        """The message that was popped; None when the store no longer has it."""
        try:
            result = self._store.read(key.topic, key.queue_id, offset, 1)
        except CorruptionError as error:
            log.error("a popped message cannot be read", extra={"key": key, "reason": str(error)})
            return None
        message = decode_message(result.chunks[0]) if result.chunks else None
        return message if message is not None and message.queue_offset == offset else None

    def _retry(self, key: PopKey, message: Message) -> None:
        """Writes a message to the retry topic. Source: PopReviveService.reviveRetry, 5.4.0."""
        topic = key.topic
        if not topic.startswith(RETRY_PREFIX):
            topic = pop_retry_topic(topic, key.group, v2=self.config.pop.enable_retry_topic_v2)
        properties = dict(message.properties)
        if message.reconsume_times == 0 or keys.FIRST_POP_TIME not in properties:
            properties[keys.FIRST_POP_TIME] = str(key.pop_time)
        properties[keys.ORIGIN_GROUP] = key.group
        host = pack_host(self._hosts.own())
        again = NewMessage(
            topic,
            self._retry_queue(topic, key, message),
            message.body,
            properties,
            message.flag,
            message.sys_flag,
            message.born_timestamp,
            host,
            host,
            message.reconsume_times + 1,
        )
        self._put.put_now(again)

    def _retry_queue(self, topic: str, key: PopKey, message: Message) -> int:
        """The queue of a retry topic, which is made when it is not there."""
        queues = RETRY_QUEUES
        separate = self.config.pop.use_separate_retry_queue
        if separate and (normal := self._topics.get(normal_topic(topic, key.group))) is not None:
            queues = normal.write_queue_nums
        known = self._topics.get(topic)
        if known is None or (separate and known.write_queue_nums != queues):
            self._topics.update(
                [TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)]
            )
            for queue_id in range(queues):
                if self._offsets.query(key.group, topic, queue_id) < 0:
                    self._offsets.commit(key.group, topic, queue_id, 0)
        return message.queue_id if separate and message.queue_id < queues else 0

    def _put_off(self, queue_id: int, point: CheckPoint, offset: int) -> bool:
        """Has a message tried again later; False when that cannot be written either.

        Source: PopReviveService.rePutCK, 5.4.0.
        """
        times = point.re_puts
        if times >= len(REPUT_INTERVALS_S) and self.config.pop.skip_when_ck_reput_reach_max_times:
            log.error("a popped message is given up", extra={"key": point.key, "offset": offset})
            return True
        longer_ms = REPUT_INTERVALS_S[min(times, len(REPUT_INTERVALS_S) - 1)] * 1000
        key = self.unused(queue_id, point.key._replace(start_offset=offset))
        invisible_time = point.revive_time + longer_ms - key.pop_time
        try:
            self.add(queue_id, CheckPoint(key, invisible_time, [0], re_puts=times + 1))
        except RequestError:
            return False
        return True

    # -- what is kept ---------------------------------------------------------------------------------------

    def commit_offsets(self) -> None:
        """Notes in the table of offsets how far the revive queues are done with."""
        for queue_id, queue in enumerate(self._queues):
            done = queue.done_until()
            if done > queue.committed:
                queue.committed = done
                self._offsets.commit(REVIVE_GROUP, self.log.topic, queue_id, done)
            if queue.seen > queue.saved:
                queue.saved = queue.seen
                self._offsets.commit(SEEN_GROUP, self.log.topic, queue_id, queue.seen)
