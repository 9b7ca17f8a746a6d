"""The store of a broker under a controller whose messages are readable only once they are confirmed.

Theory of operation
-------------------
**Problem.** With ``allAckInSyncStateSet`` a message is safe when all replicas in sync have it. Until then another
replica may be elected that lacks it. A consumer that had read it would have read a message that does not exist, and its
offset would name another one later.

**Invariant.** A message that is not confirmed has no queue entry: everything that reads, counts or waits for messages
goes by queue entries and by `CommitLog.readable_until`, so nothing else has to know. Since messages are confirmed in
the order of the log, whoever reads one finds all before it.

**Steps.**

1. An append writes the message into the log, and gets its queue offset from a `QueueTail`, which drops the entry.
2. `dispatch` builds the entries of confirmed messages from the log, as a slave does (`storage.log_dispatch`). While
   ``confirms_at_once`` is True, as for a master without slaves, an append does this at once, unless older messages
   have no entries yet: it does not make up for them. `take_grown` tells the queues of both.
3. The checkpoint covers what has entries. Its confirm offset therefore is not beyond the official one, which an
   official broker keeps in the same place.

After a restart, entries exist for what was confirmed only. So recovery builds none beyond the last entry and the
checkpoint's confirm offset, whichever is later, and notes the offsets that later messages have already
(`Recovery.tail_ends`). A power cut may take entries of confirmed messages: those are confirmed once more. A replica
that was elected opens its store with ``log_is_confirmed``: what it has is what the controller has chosen.

A slave's store is the same without appends: its entries follow the confirm offset that its master names.

Not offered: offset-preserving appends, whose checks read the entries of the messages before.
"""

import logging
from collections.abc import Generator
from contextlib import suppress
from typing import Any, Final

from storage.append import Appended, BatchAppended, NewMessage
from storage.clock import Clock
from storage.commit_log import NO_LIMIT
from storage.config import StoreConfig
from storage.errors import MessageIllegal, StoreFull
from storage.files import Files
from storage.log_dispatch import LogDispatch
from storage.offset_preserving_append import OffsetPreservingResult
from storage.queue_tail import SCRATCH_BYTES, QueueTail
from storage.recovery import Recovery
from storage.store import MessageStore

log = logging.getLogger(__name__)

DISPATCHED_AT_ONCE: Final = 1000
"""Most messages of a batch whose entries its append builds."""


class ConfirmedStore(MessageStore):
    """A message store whose entries are built by `dispatch`, unless it ``confirms_at_once`` what is appended."""

    def __init__(self, config: StoreConfig, files: Files, clock: Clock) -> None:
        super().__init__(config, files, clock)
        self.confirms_at_once = False
        self._tails: dict[tuple[str, int], QueueTail] = {}
        self._writers = self._tails
        self._scratch = bytearray(SCRATCH_BYTES)
        self._dispatch = LogDispatch(self)

    def _take_over(self, recovery: Recovery) -> None:
        commit_log = self.commit_log
        commit_log.dispatched_until = min(commit_log.max_offset, recovery.dispatched_until)
        for key, end in recovery.tail_ends.items():
            self._create_writer(*key).next_offset = end
        if commit_log.dispatched_until < commit_log.max_offset:
            first_ms = commit_log.first_store_timestamp(commit_log.dispatched_until)
            self.dispatched_until_ms = None if first_ms is None else first_ms - 1
            extra = {
                "root": self.config.root,
                "confirmed": commit_log.dispatched_until,
                "end": commit_log.max_offset,
            }
            log.info("the end of the log is not confirmed yet", extra=extra)

    # -- appending --

    def _create_writer(self, topic: str, queue_id: int) -> QueueTail:
        """Return the tail of a queue, both created if need be. Raises MessageIllegal, StoreFull."""
        key = topic, queue_id
        queue = self._queues.get(key) or self._queue_set.create(topic, queue_id)
        tail = self._tails.get(key)
        if tail is None:
            tail = QueueTail(queue_id, queue.topic_part, queue.next_offset, self._scratch)
            self._tails[key] = tail
        return tail

    def append(self, message: NewMessage[Any]) -> Appended:
        """Store one message as `MessageStore.append` does; it is readable once it is confirmed."""
        dispatches = self._dispatches_at_once
        appended = super().append(message)
        if dispatches:
            self._dispatch_appended()
        return appended

    def append_batch(self, topic: str, queue_id: int, batch_body: bytes, **fields: Any) -> BatchAppended:
        """Store a batch as `MessageStore.append_batch` does; it is readable once it is confirmed."""
        dispatches = self._dispatches_at_once
        appended = super().append_batch(topic, queue_id, batch_body, **fields)
        if dispatches:
            self._dispatch_appended()
        return appended

    def append_preserving_offsets(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        body: memoryview,
        *,
        store_host: bytes | None = None,
        reset: bool = False,
    ) -> OffsetPreservingResult:
        """Refuse. Raises MessageIllegal."""
        raise MessageIllegal(
            "a broker with allAckInSyncStateSet takes no messages with the offsets of another cluster"
        )

    @property
    def _dispatches_at_once(self) -> bool:
        """True if the next message gets its entry with its append: all before it have theirs."""
        return self.confirms_at_once and self._dispatch.undispatched_bytes == 0

    def _dispatch_appended(self) -> None:
        # The message itself is stored: where the disk has no room for its entry, `dispatch` is called again later.
        with suppress(StoreFull):
            self._dispatch.append_entries(DISPATCHED_AT_ONCE)

    # -- confirming --

    @property
    def undispatched_bytes(self) -> int:
        """Bytes of the log whose messages have no queue entries yet."""
        return self._dispatch.undispatched_bytes

    def dispatch(self, limit: int, confirmed_until: int = NO_LIMIT) -> list[tuple[str, int]]:
        """Make at most ``limit`` more messages readable, as far as they are confirmed; return the queues that grew.

        ``confirmed_until`` is a physical offset, perhaps within a message. Raises StoreFull; may be repeated then. The
        queues are all that `take_grown` would return.
        """
        return self._dispatch.dispatch(limit, confirmed_until)

    def take_grown(self) -> list[tuple[str, int]]:
        """Return the queues with messages that have become readable by appends, or by a `dispatch` that raised."""
        return self._dispatch.take_grown()

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message will get; those before it may not be readable yet."""
        tail = self._tails.get((topic, queue_id))
        return self.max_offset(topic, queue_id) if tail is None else tail.next_offset

    # -- deleting --

    def delete_topic_in_slices(self, topic: str) -> Generator[None, None, None]:
        """Remove all queues of a topic as `MessageStore.delete_topic_in_slices` does."""
        # What is not confirmed yet gets no entry: the deletion is noted with the end of the log.
        tails = {key: tail for key, tail in list(self._tails.items()) if key[0] == topic}
        for key in tails:
            del self._tails[key]
        note = self._deletion_note(topic)

        def note_or_restore() -> None:
            try:
                note()
            except (StoreFull, OSError):
                # Nothing has changed, and the messages without entries keep their offsets. In this thread, before the
                # queues are back: an append that found a queue without its tail would give their offsets again.
                self._tails.update(tails)
                raise

        return self._queue_set.delete_topic(topic, note_or_restore)
