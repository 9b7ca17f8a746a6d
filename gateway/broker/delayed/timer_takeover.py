"""The timers of a slave: nothing but the master's progress, from which the wheel is built again at a promotion.

Problem: the messages that wait for their time are in the commit log of master and slave, but the timer wheel, which
says when they are due, is not. An official slave keeps a wheel of its own beside the master's.

Here a slave has no wheel. `TakeoverState` remembers the master's checkpoint, every few seconds: the time up to which it
has delivered, and the offset up to which it has read the timer topic. A slave that becomes the master reads the timer
topic from its beginning, as after any start, and `TimerTakeover` says which messages are done:

1. The master had read the message, and its time was before the delivered time: the master has delivered it.
2. The message was due before the end of the log, but after the checkpoint. The master may have delivered it or not: a
   copy in the real queue decides (`DeliveredCopies`).
3. The message is a copy that the master wrote because its time was beyond the window of the wheel (rolled), and the
   original is still in the log: the original is put into the wheel, so the copy must not be.

All others wait, or are due. The state survives a crash: the file says that the wheel is being built until the topic is
read as far as the master had read it. Before the first time the old files are deleted, because a former master's wheel
knows nothing of what was delivered since.
"""

import logging
from collections.abc import Iterable, Iterator, Set
from enum import StrEnum
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple

import trio

from codec import fastjson
from codec.errors import MessageFormatError
from codec.java_numbers import JavaNumberError, read_json_integer
from codec.message import decode_message
from codec.properties import find_property
from codec.topics import TIMER_TOPIC
from gateway.broker.delayed.delay_service import MAX_COPIES_EXAMINED, DeliveredCopies, real_queue_of
from gateway.runtime.config_file import ChangingTable, ConfigFile
from gateway.runtime.saved_tables import dump_table, load_table
from storage.store import MessageStore
from storage.timer_checkpoint import POSITION_FIELDS, TimerPosition
from storage.timer_store import TimerStoreConfig, begin_timer_files

log = logging.getLogger(__name__)

MIN_ROLLED_DELAY_MS: Final = 24 * 3600 * 1000
"""No master rolls a message that is due sooner: the window is two days unless it is configured otherwise."""
CHECKPOINT_AGE_MS: Final = 10_000
"""Greatest age of a checkpoint, within which copies of delivered messages are looked for."""
UNKNOWN: Final = -1
KEYS_PER_SLICE: Final = 2000
"""Keys of offsets that are encoded in one turn."""


class StoreRole(StrEnum):
    """The part that the store of a broker has played last."""

    MASTER = "master"
    SLAVE = "slave"
    TAKING_OVER = "taking over"


class _Saved(NamedTuple):
    role: StoreRole
    read_ms: int
    queue_offset: int
    is_compared: bool
    master_role: str
    has_own_pops: bool
    popped_keys: set[str]


class TakeoverState(ChangingTable):
    """The last role of the store, and the timer checkpoint of its master, in config/takeover.json.

    ``is_compared`` is False for the store of a former master until its log is known to be a part of the new master's:
    it may have messages that were never confirmed, and will be cut. ``master_role`` is the brokerRole that the last
    master of this project had, which a slave that takes over keeps; "" while unknown. ``has_own_pops`` is True for the
    store of a former master, or one that was cut, until it has the present master's offsets of groups that pop: its own
    may count pops whose records were cut. ``popped_keys`` are the keys of the offsets that pops have moved, as
    topic@group: at a slave those that its masters said, or that its own log had, because the present master may not
    know of them; at a master those of its pops, which it goes on saying after a restart.

    ``read_ms`` is the time before which the master has delivered, ``queue_offset`` the offset in the timer topic before
    which it has read; both are -1 while they are unknown. A store without the file has always been a master's.
    """

    def __init__(self, file: ConfigFile) -> None:
        super().__init__(file)
        saved = file.load(_parse_file)
        file.is_missing = False  # nothing needs to be written for a master
        unknown = _Saved(StoreRole.MASTER, UNKNOWN, UNKNOWN, True, "", False, set())
        (
            self.role,
            self.read_ms,
            self.queue_offset,
            self.is_compared,
            self.master_role,
            self.has_own_pops,
            self.popped_keys,
        ) = saved or unknown
        self._has_unsaved_pops = False
        # Keys whose offsets may still be in their file, although they are gone from `popped_keys`.
        self._removed_keys: set[str] = set()
        self.saving_progress = trio.Lock()
        """Held while this table is written and then the offsets of consumers, in this order, by one task at a time."""
        self.metrics = b""

    def _change(self, role: StoreRole, read_ms: int, queue_offset: int) -> None:
        if (role, read_ms, queue_offset) != (self.role, self.read_ms, self.queue_offset):
            self.role, self.read_ms, self.queue_offset = role, read_ms, queue_offset
            self._dirty = True

    def begin_following(self, *, has_messages: bool) -> None:
        """Record, durably, that the store is a slave's. Raises StoreFull, OSError, FlushFailed."""
        if self.role is not StoreRole.SLAVE:
            self._change(StoreRole.SLAVE, UNKNOWN, UNKNOWN)
            self.is_compared = not has_messages
            self.has_own_pops = has_messages
            self.persist()

    def note_master_role(self, broker_role: str) -> None:
        """Remember the brokerRole of the master."""
        if broker_role != self.master_role:
            self.master_role = broker_role
            self._dirty = True

    def note_compared(self) -> None:
        """Record that the log is a part of the master's."""
        if not self.is_compared:
            self.is_compared = True
            self._dirty = True

    def forget_progress(self) -> None:
        """Forget the master's checkpoint, because the log was cut: it may count messages that are gone, as pops may."""
        self._change(self.role, UNKNOWN, UNKNOWN)
        self.has_own_pops = True
        self._dirty = True

    def note_popped_keys(self, keys: Iterable[str]) -> None:
        """Remember that pops have moved some offsets."""
        self.change_popped_keys(frozenset(keys), frozenset())

    def change_popped_keys(self, added: Set[str], removed: Set[str]) -> None:
        """Remember that pops have moved some offsets, and forget others."""
        if not added <= self.popped_keys or not removed.isdisjoint(self.popped_keys):
            self._removed_keys |= self.popped_keys & removed
            self.popped_keys |= added
            self.popped_keys -= removed
            self._dirty = True

    def replace_popped_keys(self, keys: Iterable[str]) -> None:
        """Remember these offsets as those that pops have moved, and no others."""
        popped_keys = set(keys)
        if popped_keys != self.popped_keys:
            self._removed_keys |= self.popped_keys - popped_keys
            self.popped_keys = popped_keys
            self._dirty = True

    def note_pops(self) -> None:
        """Record that the offsets of groups that pop are the present master's.

        The file says so only once the offsets are saved: otherwise a crash before that leaves those of pops that were
        cut.
        """
        if self.has_own_pops:
            self.has_own_pops = False
            self._has_unsaved_pops = True

    def note_saved_offsets(self) -> None:
        """Record that the offsets of consumers are saved as they are now."""
        if self._has_unsaved_pops or self._removed_keys:
            self._has_unsaved_pops = False
            self._removed_keys = set()
            self._dirty = True

    async def save_with_offsets(self, offsets: ChangingTable) -> None:
        """Write this table, then the offsets of consumers, while `saving_progress` is held. Raises StoreFull, OSError.

        After a crash it must be known which of the offsets pops have moved. The next write of this table drops the keys
        that were kept for the old file of offsets.
        """
        await self.save_changes()
        has_saved_pops = self._has_unsaved_pops and not self.has_own_pops
        removed_keys, self._removed_keys = self._removed_keys, set()
        try:
            await offsets.save_changes()
        except BaseException:
            self._removed_keys |= removed_keys
            raise
        if has_saved_pops:
            self._has_unsaved_pops = False
        if has_saved_pops or removed_keys:
            self._dirty = True

    def note_checkpoint(self, packed: bytes) -> None:
        """Take over the master's answer to GET_TIMER_CHECK_POINT. Raises ValueError for another size."""
        if len(packed) < POSITION_FIELDS.size:
            raise ValueError(f"a timer checkpoint of {len(packed)} bytes")
        position = TimerPosition(*POSITION_FIELDS.unpack_from(packed))
        self._change(self.role, position.read_ms, position.queue_offset)

    def note_metrics(self, content: bytes) -> None:
        """Keep the master's counts of waiting messages, to answer queries about them."""
        self.metrics = content

    def begin_takeover(self, read_ms: int, queue_offset: int) -> None:
        """Record, durably, that the timer files are replaced. Raises StoreFull, OSError, FlushFailed."""
        self._change(StoreRole.TAKING_OVER, read_ms, queue_offset)
        self.persist()

    def end_takeover(self) -> None:
        """Record that the store is a master's, with a complete timer wheel."""
        self._change(StoreRole.MASTER, UNKNOWN, UNKNOWN)

    def encode_slices(self) -> Iterator[bytes]:
        """Yield the content of takeover.json. Hundreds of thousands of offsets may have been moved by pops."""
        # A copy, because the sets may change between the slices.
        keys = iter([*self.popped_keys, *(self._removed_keys - self.popped_keys)])
        values = {
            "role": self.role,
            "timerReadMs": self.read_ms,
            "timerQueueOffset": self.queue_offset,
            "isCompared": self.is_compared,
            "masterRole": self.master_role,
            "hasOwnPops": self.has_own_pops or self._has_unsaved_pops,
        }
        yield dump_table("takeover.json", values)[:-1] + b',"poppedKeys":['
        comma = b""
        while part := list(islice(keys, KEYS_PER_SLICE)):
            yield comma + fastjson.dumps(part)[1:-1]
            comma = b","
        yield b"]}"


class TimerTakeover:
    """Says which messages of the timer topic the former master has dealt with; for messages before ``end``."""

    def __init__(self, state: TakeoverState, store: MessageStore) -> None:
        self._state = state
        self._store = store
        self._now_ms = store.clock.now_ms()
        self._copies = DeliveredCopies(store, MAX_COPIES_EXAMINED)
        self._rolled: set[bytes] = set()
        self.end = store.next_queue_offset(TIMER_TOPIC, 0)

    def is_done(
        self, view: memoryview, queue_offset: int, slot_ms: int, due_ms: int, store_ms: int, properties: bytes
    ) -> bool:
        """Tell whether a message of the timer topic must not be put into the wheel."""
        if queue_offset >= self.end:
            return False
        read_ms = self._state.read_ms
        if queue_offset < self._state.queue_offset and slot_ms < read_ms:
            return True
        if b"TIMER_DEL_UNIQKEY\x01" in properties:
            return False
        is_copy = b"TIMER_ROLL_TIMES\x01" in properties
        if is_copy or slot_ms - store_ms >= MIN_ROLLED_DELAY_MS:
            identity = _identity(properties)
            if is_copy and identity in self._rolled:
                return True
            self._rolled.add(identity)
        return due_ms <= self._now_ms and self._was_delivered(view, read_ms)

    def _was_delivered(self, view: memoryview, read_ms: int) -> bool:
        try:
            message = decode_message(view)
            topic, queue_id = real_queue_of(message)
        except (MessageFormatError, JavaNumberError):
            return False
        return self._copies.take(message, topic, queue_id, read_ms - CHECKPOINT_AGE_MS)

    def note_progress(self, queue_offset: int) -> bool:
        """Return True, after recording it, if the topic is read as far as it was at the takeover."""
        if queue_offset < self.end:
            return False
        self._state.end_takeover()
        log.info("timer messages of the former master taken over", extra={"messages": self.end})
        return True


def take_timers_over(
    state: TakeoverState, config: TimerStoreConfig, store: MessageStore
) -> TimerTakeover | None:
    """Prepare the timer files of a master before they are opened; return None unless the store was a slave's.

    Raises StoreFull, OSError, FlushFailed.
    """
    if state.role is StoreRole.MASTER:
        return None
    begin = store.min_offset(TIMER_TOPIC, 0)
    if state.role is StoreRole.SLAVE:
        read_ms, queue_offset = state.read_ms, state.queue_offset
        if read_ms < 0:
            read_ms, queue_offset = _last_time_ms(store), store.max_offset(TIMER_TOPIC, 0)
            if queue_offset > begin:
                log.warning("timer checkpoint of the former master unknown, its time is estimated")
        begin_timer_files(store, config, read_ms, begin)
        state.begin_takeover(read_ms, queue_offset)
    takeover = TimerTakeover(state, store)
    if takeover.end == begin:
        state.end_takeover()  # no message waits, so that nothing would end it
        return None
    return takeover


def _last_time_ms(store: MessageStore) -> int:
    """Return the store timestamp of the last message that a queue ends with, less the age that a checkpoint may have.

    Last in the log, and not by its time: the clock of a master before the last may have been ahead.
    """
    last_offsets = (
        (topic, queue_id, store.max_offset(topic, queue_id) - 1) for topic, queue_id in store.queue_keys()
    )
    stamps = (
        (store.physical_offset_at(*message), store.store_timestamp_at(*message)) for message in last_offsets
    )
    _, time_ms = max((stamp for stamp in stamps if stamp[1] > 0), default=(0, 0))
    return max(0, time_ms - CHECKPOINT_AGE_MS)


def _identity(properties: bytes) -> bytes:
    parts = (find_property(properties, key) or b"" for key in (b"REAL_TOPIC", b"UNIQ_KEY", b"TIMER_OUT_MS"))
    return blake2b(b"\x02".join(parts), digest_size=16).digest()


def _parse_file(content: bytes) -> _Saved:
    """Parse takeover.json. Raises ValueError."""
    saved = load_table(content)
    read_ms = read_json_integer(saved.get("timerReadMs", UNKNOWN))
    popped_keys = saved.get("poppedKeys")
    return _Saved(
        StoreRole(str(saved.get("role"))),
        read_ms,
        read_json_integer(saved.get("timerQueueOffset", UNKNOWN)),
        saved.get("isCompared") is not False,
        str(saved.get("masterRole", "")),
        saved.get("hasOwnPops") is True,
        set(map(str, popped_keys) if isinstance(popped_keys, list) else ()),
    )
