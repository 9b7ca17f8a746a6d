"""The wire format of replication under a controller (AutoSwitchHA): a handshake about epochs, then reports and frames.

A slave begins with a *hello* of 16 bytes: state 1, two flags, its broker id at the controller. The master answers with
its own: state 1, the size of what follows, the end of its log, its newest epoch, and 12 bytes for each epoch. Then the
slave reports, as in DefaultHA but after the state 2: the first report asks for the bytes from there on, 0 for all, and
the later ones acknowledge. Frames have a head of 36 bytes: state 2, the number of bytes, the physical offset of the
first one, an epoch with its start, the master's confirm offset. A frame without bytes is a heartbeat. All numbers are
big endian, and there is no version.

The frame that ends an epoch names the next one, so an official slave learns of an epoch before it has its first byte.

Source: AutoSwitchHAClient, AutoSwitchHAConnection, 5.4.0.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gateway.broker.replication.epochs import MAX_EPOCHS, EpochStart, check_epochs
from gateway.broker.replication.ha_wire import MAX_FRAME_BYTES, FrameReader, HaWireError

HANDSHAKE: Final = 1
TRANSFER: Final = 2
STATE: Final = struct.Struct(">i")
SLAVE_HELLO: Final = struct.Struct(">ihhq")
REPORT: Final = struct.Struct(">iq")
MASTER_HELLO: Final = struct.Struct(">iiqi")
EPOCH: Final = struct.Struct(">iq")
FRAME_HEAD: Final = struct.Struct(">iiqiqq")
MAX_PIECE_BYTES: Final = MAX_FRAME_BYTES
NO_OFFSET: Final = -1
"""The offset of heartbeats of an official master that does not know yet where it will begin, such as an empty one."""


class SlaveHello(NamedTuple):
    """The first message of a slave. A learner copies without ever counting as in sync."""

    broker_id: int
    begins_at_last_file: bool = False
    is_learner: bool = False


class MasterHello(NamedTuple):
    """The answer of a master: the end of its log, and its epochs."""

    end: int
    epochs: tuple[EpochStart, ...]

    @property
    def newest_epoch(self) -> int:
        """The newest epoch; -1 from a master without one."""
        return self.epochs[-1].epoch if self.epochs else -1


def encode_slave_hello(hello: SlaveHello) -> bytes:
    """Return the bytes with which a slave begins."""
    return SLAVE_HELLO.pack(HANDSHAKE, hello.begins_at_last_file, hello.is_learner, hello.broker_id)


def encode_master_hello(hello: MasterHello) -> bytes:
    """Return the bytes with which a master answers."""
    epochs = b"".join(EPOCH.pack(*entry) for entry in hello.epochs)
    return MASTER_HELLO.pack(HANDSHAKE, len(epochs), hello.end, hello.newest_epoch) + epochs


def encode_report(offset: int) -> bytes:
    """Return a slave's report that it has the log up to a physical offset."""
    return REPORT.pack(TRANSFER, offset)


def encode_frame_head(offset: int, size: int, epoch: EpochStart, confirm_offset: int) -> bytes:
    """Return the head of a frame with ``size`` bytes of the log, whose first is at a physical offset."""
    return FRAME_HEAD.pack(TRANSFER, size, offset, *epoch, confirm_offset)


class SlaveReader:
    """Reads what a slave sends."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[SlaveHello | int]:
        """Yield the hellos and reports that are complete with these bytes. Raises HaWireError."""
        data, position = self._rest + data, 0
        while len(data) - position >= STATE.size:
            (state,) = STATE.unpack_from(data, position)
            layout = SLAVE_HELLO if state == HANDSHAKE else REPORT
            if state not in (HANDSHAKE, TRANSFER):
                raise HaWireError(_describe_state(state))
            if len(data) - position < layout.size:
                break
            if state == HANDSHAKE:
                _, last_file, learner, broker_id = SLAVE_HELLO.unpack_from(data, position)
                yield SlaveHello(broker_id, last_file == 1, learner == 1)
            else:
                _, offset = REPORT.unpack_from(data, position)
                if offset < 0:
                    raise HaWireError(f"a report of the negative offset {offset}")
                yield offset
            position += layout.size
        self._rest = data[position:]


def _describe_state(state: int) -> str:
    hint = "; a slave without a controller sends such bytes" if state == 0 else ""
    return f"a message of state {state}, where {HANDSHAKE} or {TRANSFER} is expected{hint}"


class MasterHelloReader:
    """Reads the answer of a master. At most `MAX_EPOCHS` epochs are taken, as many as an official master can send."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> tuple[MasterHello, bytes] | None:
        """Return the answer and the bytes after it once it is complete, None before. Raises HaWireError."""
        self._data += data
        if len(self._data) < MASTER_HELLO.size:
            return None
        state, size, end, _ = MASTER_HELLO.unpack_from(self._data)
        if state != HANDSHAKE:
            raise HaWireError(f"an answer of state {state} to the handshake: the master has no controller")
        if not 0 <= size <= MAX_EPOCHS * EPOCH.size or size % EPOCH.size:
            raise HaWireError(f"a handshake with {size} bytes of epochs")
        if len(self._data) < MASTER_HELLO.size + size:
            return None
        body = self._data[MASTER_HELLO.size : MASTER_HELLO.size + size]
        epochs = tuple(EpochStart(*values) for values in EPOCH.iter_unpack(body))
        _check_hello(epochs, end)
        return MasterHello(end, epochs), self._data[MASTER_HELLO.size + size :]


def _check_hello(epochs: Sequence[EpochStart], end: int) -> None:
    """Raise HaWireError for epochs that no log can have."""
    try:
        check_epochs(epochs)
    except ValueError as error:
        raise HaWireError(f"a handshake whose epochs cannot be: {error}") from error
    if end < 0 or (epochs and epochs[-1].start > end):
        raise HaWireError(f"a handshake with epochs after the end of the log, {end}")


class TransferReader(FrameReader):
    """Reads the frames of a master. ``epoch`` and ``confirm_offset`` are those of the frame that was yielded last."""

    __slots__ = ("confirm_offset", "epoch")
    head_layout = FRAME_HEAD

    def __init__(self) -> None:
        super().__init__()
        self.epoch = EpochStart(-1, 0)
        self.confirm_offset = 0

    def _read_head(self, head: bytes) -> tuple[int, int]:
        state, size, offset, epoch, start, self.confirm_offset = FRAME_HEAD.unpack(head)
        if state != TRANSFER:
            raise HaWireError(f"a frame of state {state}, where {TRANSFER} is expected")
        if offset == NO_OFFSET and size == 0:
            return offset, size
        if min(size, offset, epoch, start) < 0 or self.confirm_offset < NO_OFFSET:
            raise HaWireError(
                f"a frame of {size} bytes at offset {offset}, of epoch {epoch} from {start} on, confirmed up to "
                f"{self.confirm_offset}"
            )
        self.epoch = EpochStart(epoch, start)
        return offset, size
