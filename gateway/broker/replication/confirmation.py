"""Makes the messages of a master under a controller readable once they are confirmed.

`SyncStateRule` says up to where the log is confirmed, `ConfirmedStore` builds the queue entries up to there, and what
waits for messages is told which queues grew. That happens whenever the rule has news, for at most `MESSAGES_AT_ONCE`;
`run` continues with the rest, and with what could not be written. An answer leaves once its message is readable: its
producer may read it, or end its transaction, at once.

A master that requires no other replica confirms what it appends. Its store builds entries at once then, unless older
messages have none yet: answers wait until `run` has built those too. For sends that C code has stored, the entries
follow before their answers leave.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import trio.lowlevel

from gateway.broker.replication.sync_state import SyncStateRule
from gateway.broker.waiting.wake_signal import WakeSignal
from storage.confirmed_store import ConfirmedStore
from storage.errors import FlushFailed, StoreFull

MESSAGES_AT_ONCE: Final = 300
"""Messages whose entries are built before other tasks get their turn: about a millisecond."""
CHECK_INTERVAL_S: Final = 0.1
"""Longest time until entries are built of what was appended, or not written, without a word."""

NoteGrown = Callable[[Iterable[tuple[str, int]]], None]
NotePosition = Callable[[int], None]


class Confirmation:
    """Connects the rule and the store of one master.

    Implements `ReplicationRule` of `answer_gate.py`: that of the rule, but no answer overtakes a message that the store
    has not made readable yet.
    """

    def __init__(self, store: ConfirmedStore, rule: SyncStateRule) -> None:
        self._store = store
        self._rule = rule
        self._listeners: list[NoteGrown] = []
        self._position_listeners: list[NotePosition] = []
        self._has_more = WakeSignal()
        self._note_position(0)
        rule.add_listener(self._note_position)

    def add_listener(self, listener: NoteGrown) -> None:
        """Call ``listener`` with the topics and ids of queues whenever some have got readable messages."""
        self._listeners.append(listener)

    def add_position_listener(self, listener: NotePosition) -> None:
        """Call ``listener`` with the physical offset up to which messages are confirmed and readable."""
        self._position_listeners.append(listener)

    @property
    def timeout_s(self) -> float:
        """Maximum time in seconds that an answer waits for its message to be confirmed and readable."""
        return self._rule.timeout_s

    def status_now(self) -> int | None:
        """Return the status of the message that was appended last if its answer need not wait, otherwise None."""
        status = self._rule.status_now()
        is_readable = self._store.readable_until >= self._store.max_physical_offset
        return status if is_readable else None

    def check_append(self) -> None:
        """Refuse a message where too few replicas are in sync. Raises RequestError."""
        self._rule.check_append()

    def _note_position(self, position: int) -> None:
        self._store.confirms_at_once = self._rule.confirms_at_once
        self.advance()

    def advance(self) -> None:
        """Make readable what is confirmed, at most `MESSAGES_AT_ONCE`."""
        confirm_offset, before = self._rule.confirm_offset, self._store.readable_until
        if before < confirm_offset:
            # What has no room on the disk, `run` tries again.
            with suppress(StoreFull):
                self._dispatch(confirm_offset)
            # Less than a whole message may be confirmed beyond the last one.
            if before < self._store.readable_until < confirm_offset:
                self._has_more.set()
        # Of messages that appends have made readable at once, and of those before one without room.
        self._note_grown(self._store.take_grown())
        self._announce()

    def _dispatch(self, confirm_offset: int) -> None:
        self._note_grown(self._store.dispatch(MESSAGES_AT_ONCE, confirm_offset))

    def _note_grown(self, grown: list[tuple[str, int]]) -> None:
        if grown:
            for listener in self._listeners:
                listener(grown)

    def _announce(self) -> None:
        position = min(self._rule.replicated_position, self._store.readable_until)
        for listener in self._position_listeners:
            listener(position)

    async def run(self) -> None:
        """Continue what `advance` began, until cancelled. Raises FlushFailed."""
        while True:
            self._has_more.clear()
            try:
                before = -1
                while before < self._store.readable_until:
                    before = self._store.readable_until
                    self._dispatch(self._rule.confirm_offset)
                    self._announce()
                    await trio.lowlevel.checkpoint()
            except FlushFailed:
                raise
            except StoreFull:
                # Entries wait for room on the disk, or for the end of a topic's deletion.
                self._note_grown(self._store.take_grown())
            await self._has_more.wait(CHECK_INTERVAL_S)
