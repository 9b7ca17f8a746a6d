"""The offset of a group's next pop from a queue, and wake-ups when messages of an ordered queue are visible again."""

from typing import Final

from codec.topics import RETRY_PREFIX
from gateway.broker.consumers.consumer_offsets import ConsumerOffsets
from gateway.broker.pop.deadlines import Deadline, Deadlines
from gateway.broker.pop.ordered_pops import OrderedPopTable
from gateway.broker.pop.receipts import original_topic
from gateway.broker.pop.waiting_pops import WaitingPops
from gateway.config.process import BrokerConfig
from storage.store import MessageStore

FROM_MIN: Final = 0
"""Init mode of a group that starts at the first message. Source: ConsumeInitMode, 5.4.0."""


class PopOffsets:
    """Consumer offsets as pops use them, and deadlines at which ordered queues become visible."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        offsets: ConsumerOffsets,
        ordered_pops: OrderedPopTable,
        waiting_pops: WaitingPops,
        deadlines: Deadlines,
    ) -> None:
        self.config = config
        self._store = store
        self._offsets = offsets
        self._ordered_pops = ordered_pops
        self._waiting_pops = waiting_pops
        self._deadlines = deadlines
        self._visibility_deadlines: dict[tuple[str, str, int], Deadline] = {}
        for key in ordered_pops.blocked_queues():
            self.wake_when_visible(*key)

    def next_offset(self, topic: str, group: str, queue_id: int, init_mode: int) -> int:
        """Return the queue offset of the next message to pop. A group that is new to the queue gets its start offset.

        Source: PopMessageProcessor.getPopOffset and resetPopOffset, 5.4.0.
        """
        reset = self._offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            self._ordered_pops.forget_queue(topic, group, queue_id)
            self._offsets.commit_offset(group, topic, queue_id, reset)
            return reset
        offset = self._offsets.query_offset(group, topic, queue_id)
        if offset < 0:
            offset = self._first_offset(topic, queue_id, init_mode)
            self._offsets.commit_offset(group, topic, queue_id, offset)
        return offset

    def _first_offset(self, topic: str, queue_id: int, init_mode: int) -> int:
        """Return the start offset of a new group. Source: PopMessageProcessor.getInitOffset, 5.4.0."""
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        if init_mode == FROM_MIN or topic.startswith(RETRY_PREFIX):
            return low
        if (
            self.config.pop.init_pop_offset_by_check_msg_in_mem
            and low <= 0
            and self._is_recent(topic, queue_id)
        ):
            return 0
        return max(0, high - 1)

    def _is_recent(self, topic: str, queue_id: int) -> bool:
        """Tell whether the first message of a queue counts as in memory."""
        if self._store.max_offset(topic, queue_id) == 0:
            return False
        age = self._store.max_physical_offset - self._store.physical_offset_at(topic, queue_id, 0)
        return age <= self._store.config.access_in_memory_bytes

    def peek_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Return the offset of the next message without changing anything.

        Source: PeekMessageProcessor.getPopOffset, 5.4.0.
        """
        offset = self._offsets.query_offset(group, topic, queue_id)
        return self._store.min_offset(topic, queue_id) if offset < 0 else offset

    def count_available(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of messages of a queue that the group has not popped."""
        return self._store.max_offset(topic, queue_id) - self.peek_offset(topic, group, queue_id)

    def wake_when_visible(self, topic: str, group: str, queue_id: int) -> None:
        """Schedule the answer of waiting ordered pops for the time when unacked messages are visible again.

        Source: QueueLevelConsumerOrderInfoLockManager, 5.4.0.
        """
        key = topic, group, queue_id
        deadline = self._visibility_deadlines.pop(key, None)
        if deadline is not None:
            self._deadlines.cancel(deadline)
        at_ms = self._ordered_pops.blocked_until_ms(*key)
        if at_ms is not None and self.config.pop.enable_notify_after_pop_order_lock_release:
            self._visibility_deadlines[key] = self._deadlines.schedule(
                at_ms, lambda: self._handle_visible(key)
            )

    def _handle_visible(self, key: tuple[str, str, int]) -> None:
        topic, group, _ = key
        self._visibility_deadlines.pop(key, None)
        self.wake_when_visible(*key)  # Other messages of the same pop may stay invisible for longer.
        if key not in self._visibility_deadlines and self.count_available(*key) > 0:
            self._waiting_pops.answer_waiting(original_topic(topic, group), group)
