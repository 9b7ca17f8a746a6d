"""Hold answers until their messages are as safe as the configuration promises: on the disk, on replicas, or both.

Theory of operation
-------------------
A message's *position* is the physical offset one past its last byte. The log is a sequence, so everything below a
position is safe wherever the position itself is. An answer that may have to wait is handed to `AnswerGate.hold` with
the position of its message, and leaves when both hold that apply to the broker:

- **disk** (SYNC_FLUSH): `GroupCommit` has flushed the log up to the position (`note_durable`);
- **replicas** (SYNC_MASTER): as many slaves as required have acknowledged the position (`note_replicated`).

1. `hold` asks the `ReplicationRule` for a status that needs no waiting, such as SLAVE_NOT_AVAILABLE while there is no
   slave. Otherwise the answer stands in the queue for replicas. With SYNC_FLUSH it stands in the queue for the disk,
   and a flush is requested. An answer that stands in no queue is returned, and leaves at once.
2. `note_durable` and `note_replicated` end the waits up to a position. An answer that waits for nothing any more is
   written, together with the others of its connection.
3. A wait that exceeds its time limit ends with a status: FLUSH_DISK_TIMEOUT or FLUSH_SLAVE_TIMEOUT. Both mean that the
   message is stored, but perhaps not safe. The answer still waits for the other outcome, as in the official broker, and
   the replicas' status takes precedence over the disk's.

Invariant: a SUCCESS answer leaves only after both have reached the position of its message. A crash before that loses
answers, never messages whose answers were sent; the producer sends again.

When the disk refuses a flush (FlushFailed), all answers that wait for the disk become refusals: no flush can make their
messages durable any more (`storage/flush_guard.py`). Answers that wait for replicas only are not affected.

With ASYNC_FLUSH and without synchronous replication ``must_wait`` is False, and handlers answer without calling `hold`.

Source: CommitLog.handleDiskFlushAndHA, GroupCommitService, FlushDiskWatcher and GroupTransferService, 5.4.0.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Protocol

import trio

from codec.command import decode_frame, encode_command, encode_response
from codec.constants import ResponseCode
from gateway.broker.messages.group_commit import GroupCommit
from gateway.broker.messages.message_writer import store_refusal
from remoting.connection import Connection
from remoting.declare import Header
from remoting.handler_table import ANSWERS_LATER, AnswersLater, Call, encode_reply
from storage.errors import FlushFailed
from storage.store import MessageStore

log = logging.getLogger(__name__)

LENGTH_BYTES: Final = 4

EncodeStatus = Callable[[bytes, int], bytes]
"""Turns a successful answer into the one for a message that is stored, but not as safe as promised."""


def with_status(answer: bytes, status: int) -> bytes:
    """Return the same answer with the status as its code: what a producer gets."""
    command = decode_frame(answer, LENGTH_BYTES, len(answer))
    command.code = status
    return encode_command(command)


def without_status(answer: bytes, status: int) -> bytes:
    """Return the answer as it is: the official broker takes these statuses for success wherever nobody reads them.

    Those are pops, ends of transactions and messages that a consumer sends back.
    """
    return answer


class ReplicationRule(Protocol):
    """Decides which copies a message needs. `gateway/broker/replication/in_sync.py` implements it."""

    @property
    def timeout_s(self) -> float:
        """Maximum time in seconds that an answer waits for replicas."""

    def status_now(self) -> int | None:
        """Return the status of a message that was just appended, without waiting; None if its answer has to wait.

        SUCCESS means that no copy is required at present, SLAVE_NOT_AVAILABLE that waiting would be useless.
        """

    def check_append(self) -> None:
        """Raise RequestError, before anything is stored, if too few replicas are in sync to take a message."""


class HeldAnswer:
    """An encoded answer, and the number of queues in which it waits; 0 after it was written."""

    __slots__ = ("answer", "connection", "encode_status", "position", "status", "waits")

    def __init__(
        self, connection: Connection, answer: bytes, position: int, encode_status: EncodeStatus
    ) -> None:
        self.connection = connection
        self.answer = answer
        self.position = position
        self.encode_status = encode_status
        self.status: int = ResponseCode.SUCCESS
        self.waits = 0

    def encode(self) -> bytes:
        """Return the answer to write."""
        return self.encode_status(self.answer, self.status) if self.status else self.answer


class WaitQueue:
    """Answers that wait for the same event, in the order of their positions. All have the same time limit."""

    def __init__(self, timeout_status: ResponseCode, timeout_ms: float) -> None:
        self.timeout_status = timeout_status
        self.timeout_ms = timeout_ms
        self._entries: deque[tuple[float, HeldAnswer]] = deque()

    def add(self, held: HeldAnswer) -> None:
        """Queue the answer of the message that was appended last."""
        held.waits += 1
        self._entries.append((trio.current_time() + self.timeout_ms / 1000, held))

    def take_reached(self, position: int) -> list[HeldAnswer]:
        """End the waits up to a position; return the answers that wait for nothing else."""
        entries, ready = self._entries, []
        while entries and entries[0][1].position <= position:
            held = entries.popleft()[1]
            held.waits -= 1
            # Negative after a refusal.
            if held.waits == 0:
                ready.append(held)
        return ready

    def take_expired(self, now_s: float) -> list[HeldAnswer]:
        """End the waits whose time limit has passed, with the status for that; return their answers."""
        entries, expired = self._entries, []
        while entries and entries[0][0] <= now_s:
            held = entries.popleft()[1]
            # The statuses of replicas are greater than the disk's, over which they take precedence.
            held.status = max(held.status, self.timeout_status)
            held.waits -= 1
            expired.append(held)
        return expired

    def take_all(self) -> list[HeldAnswer]:
        """Empty the queue; return the answers that have not been written."""
        unwritten = [held for _, held in self._entries if held.waits > 0]
        self._entries.clear()
        return unwritten

    def next_deadline_s(self, now_s: float) -> float:
        """Return when the oldest wait expires; without one, the earliest time at which a later one can."""
        return self._entries[0][0] if self._entries else now_s + self.timeout_ms / 1000


class AnswerGate:
    """Holds answers until the positions of their messages are durable and replicated.

    ``must_wait`` is False while no answer has to wait: handlers test it before they call `hold`. ``may_refuse`` is
    False where `check_append` never refuses a message. ``held_count`` is the number of held answers. ``replication``
    is None without synchronous replication.
    """

    def __init__(
        self,
        store: MessageStore,
        commit: GroupCommit,
        *,
        flush_timeout_ms: int,
        replication: ReplicationRule | None = None,
    ) -> None:
        self.must_wait = commit.synchronous or replication is not None
        self.may_refuse = replication is not None
        self.held_count = 0
        self._store = store
        self._commit = commit
        self._replication = replication
        self._replicated_position = 0
        self._for_disk = WaitQueue(ResponseCode.FLUSH_DISK_TIMEOUT, flush_timeout_ms)
        self._for_replicas = WaitQueue(
            ResponseCode.FLUSH_SLAVE_TIMEOUT, inf if replication is None else replication.timeout_s * 1000
        )
        commit.add_listener(self.note_durable, self.refuse_undurable)

    def reconfigure(self, *, flush_timeout_ms: int) -> None:
        """Apply a changed time limit to answers held from now on."""
        self._for_disk.timeout_ms = flush_timeout_ms

    def check_append(self) -> None:
        """Raise RequestError, before a message is stored, if too few replicas are in sync to take it."""
        if self._replication is not None:
            self._replication.check_append()

    def hold(
        self,
        connection: Connection,
        answer: bytes | None,
        position: int,
        encode_status: EncodeStatus = with_status,
    ) -> bytes | None:
        """Return the answer if it can leave at once; otherwise return None, and write it when its message is safe.

        ``position`` is the end of the message, which must be the last of the log. Without an answer, the message is
        only flushed soon.
        """
        if answer is None:
            if self._commit.synchronous:
                self._commit.request_flush()
            return None
        held = HeldAnswer(connection, answer, position, encode_status)
        if self._replication is not None:
            # After the append: the gap to the slaves that decides it includes this message.
            status = self._replication.status_now()
            if status is None:
                self._for_replicas.add(held)
            else:
                held.status = status
        if self._commit.synchronous:
            self._for_disk.add(held)
            self._commit.request_flush()
        # In both queues the answer waits for the later of the two outcomes.
        if not held.waits:
            return held.encode()
        # Counted directly, without the limit: the message is stored, so its answer must not be refused.
        connection.outstanding_requests += 1
        self.held_count += 1
        return None

    def hold_all(
        self, connection: Connection, answers: Sequence[bytes], positions: Sequence[int]
    ) -> bytes | None:
        """Do as `hold` does for several sends whose messages, the last of the log, end at these positions.

        Return the answers that can leave at once, joined, or None.
        """
        # All messages are in the log already, so the first flush that is requested here covers every one of them.
        ready = [
            answer_now
            for answer, position in zip(answers, positions, strict=True)
            if (answer_now := self.hold(connection, answer, position)) is not None
        ]
        return b"".join(ready) if ready else None

    def hold_reply(
        self, call: Call, reply: Header | None, position: int, encode_status: EncodeStatus = with_status
    ) -> AnswersLater:
        """Answer a typed request when its message is safe: `hold` for handlers that do not work on raw commands."""
        command = call.command
        answer = None if command.is_oneway else encode_reply(command, reply)
        answer_now = self.hold(call.connection, answer, position, encode_status)
        if answer_now is not None:
            call.connection.write(answer_now)
        return ANSWERS_LATER

    def note_durable(self, position: int) -> None:
        """Write the answers that waited for the log to be on the disk up to a position."""
        self._write(self._for_disk.take_reached(position))

    def note_replicated(self, position: int) -> None:
        """Write the answers that waited for enough replicas to have the log up to a position."""
        # The position falls when a slave leaves. What it had before stays replicated.
        if position > self._replicated_position:
            self._replicated_position = position
            self._write(self._for_replicas.take_reached(position))

    def refuse_undurable(self, error: FlushFailed) -> None:
        """Refuse all answers that wait for the disk, also those that came during the flush that failed."""
        # One refusal for all: its text names no message, only the reason.
        refusal = store_refusal(error, self._store.config.max_message_bytes)
        for held in self._for_disk.take_all():
            # It may still stand in the queue for replicas, which skips it from now on.
            held.waits = 0
            self._release(held)
            request = decode_frame(held.answer, LENGTH_BYTES, len(held.answer))
            held.connection.write(encode_response(request.opaque, refusal.code, {}, b"", refusal.remark))

    def end_waits(self) -> None:
        """Write all held answers as if their time limits had passed, because the store is about to be closed."""
        for queue in (self._for_replicas, self._for_disk):
            self._expire(queue, inf)

    def _expire(self, queue: WaitQueue, now_s: float) -> None:
        expired = queue.take_expired(now_s)
        if expired:
            extra = {"status": queue.timeout_status.name, "answers": len(expired)}
            log.warning("answers wait no longer for their messages to be safe", extra=extra)
            self._write([held for held in expired if held.waits == 0])

    def _write(self, ready: list[HeldAnswer]) -> None:
        """Write answers, those of one connection in one call."""
        # A pipelining producer has many answers here, and each write of their connection is a system call.
        answers: dict[Connection, list[bytes]] = {}
        for held in ready:
            self._release(held)
            answers.setdefault(held.connection, []).append(held.encode())
        for connection, parts in answers.items():
            connection.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def _release(self, held: HeldAnswer) -> None:
        self.held_count -= 1
        held.connection.outstanding_requests -= 1

    async def watch_deadlines(self) -> None:
        """End waits whose time limit has passed, until cancelled.

        All waits of a queue have the same time limit, so the oldest is due first, and an answer that is queued during
        the sleep is not due before its end. An event of the first answer would cost each single send a pass through
        the scheduler.
        """
        queues = (self._for_disk, self._for_replicas)
        while True:
            now_s = trio.current_time()
            await trio.sleep_until(min(queue.next_deadline_s(now_s) for queue in queues))
            for queue in queues:
                self._expire(queue, trio.current_time())
