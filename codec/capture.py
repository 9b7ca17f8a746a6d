"""Capture files: exchanges between clients and brokers in an append-only file of header, blocks of records, and index.

Each block has a CRC and states its own position, so that a reader can skip damage and find the next block. The index at
the end lists the blocks with their times and topics; a file without one (still being written, or after a crash) is read
block by block. Layouts are declared in `codec.layouts` and described in `docs/reference/capture-format.md`. A
``buffer`` parameter is a whole file, for example a memory-mapped one.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator
from mmap import mmap
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from codec.errors import CaptureError, TornError

Buffer = bytes | bytearray | memoryview | mmap

MAGIC: Final = b"RMQGWCAP"
END_MAGIC: Final = b"RMQGWEND"
BLOCK_MAGIC: Final = b"BLCK"
VERSION: Final = 1
FATES: Final = ("", "mirrored", "skipped", "refused", "dropped")
"""The outcome of an exchange at the mirror's target; a record stores the index in this tuple. "": no outcome known."""
MAX_PLAIN_BYTES: Final = 1 << 30
"""Largest uncompressed block: bounds what a damaged or hostile file may make a reader allocate."""
MAX_BLOCK_TOPICS: Final = 1000
"""A block with more topics says "any topic" instead of listing them."""
MAX_BLOCK_TEXTS: Final = 0x10000
"""Texts of one block: records refer to them by numbers of 16 bits."""
MAX_TEXT_BYTES: Final = 0xFFFF
SEARCHES_PER_BYTE: Final = 4
"""Limit of the checks of each byte of a damaged file as part of a block, on average."""
MIN_SEARCHED_BYTES: Final = 64 * 1024 * 1024

FILE_HEAD: Final = Struct(">8sHHqQ")
BLOCK_HEAD: Final = Struct(">4sIQIBBHIIqqI")
INDEX_ENTRY: Final = Struct(">QIIqqI")
TRAILER: Final = Struct(">QI8s")
RECORD_HEAD: Final = Struct(">IBBiqqQIIIHHHHHIII")

_RECORDS, _INDEX = 1, 2
_PLAIN, _ZLIB = 0, 1
_ANY_TOPIC = 0xFFFFFFFF
_CRC_FROM = 8
_ANSWERED, _TARGET_ANSWERED, _REVERSE, _BY_TARGET, _REDACTED = 1, 2, 4, 8, 16
_U32_MAX = 0xFFFFFFFF
_crc = zlib.crc32
_WORD = Struct(">I")
_SHORT = Struct(">H")
_POSITION_AT = Struct(">Q").unpack_from


class FileHeader(NamedTuple):
    """The writer and creation time of a file. `run` is the same for all files of one process and unique to it.

    `size` is the position of the first block, in bytes.
    """

    created_ms: int
    gateway: str
    run: int
    size: int


class CaptureBlock(NamedTuple):
    """The position and size of a block of records, in bytes. Times are the smallest and largest `wall_ms`, inclusive.

    `topics` is None when the block may hold records of any topic; "" stands for records without a topic.
    """

    position: int
    size: int
    records: int
    min_ms: int
    max_ms: int
    topics: frozenset[str] | None


class Damage(NamedTuple):
    """`size` bytes from `position` on that cannot be read, and the reason."""

    position: int
    size: int
    reason: str


class CaptureRecord(NamedTuple):
    """One exchange. Frames include their length words; `wall_ms` is the request's arrival in ms since 1970.

    `asked_us` is the same moment by the gateway's monotonic clock, comparable only among records of one `run`.
    `forwarded_us` is the time until the request was forwarded, `answered_us` from then until the answer arrived, and
    `target_us` the latency of the mirror's target; microseconds, at most 71 minutes. `answer` is None when there was
    none; `target` is the target's answer, and `fate` (one of FATES) the outcome there. `reverse` is true for a request
    that the broker sent to the client, `by_target` when `answer` came from the target instead of the primary,
    and `redacted` when frames were changed before they were written.
    """

    code: int
    request: bytes
    answer: bytes | None = None
    target: bytes | None = None
    wall_ms: int = 0
    asked_us: int = 0
    forwarded_us: int = 0
    answered_us: int = 0
    target_us: int = 0
    connection: int = 0
    client: str = ""
    upstream: str = ""
    broker: str = ""
    topic: str = ""
    group: str = ""
    fate: str = ""
    reverse: bool = False
    by_target: bool = False
    redacted: bool = False


# -- writing ------------------------------------------------------------------------------------------------------


def encode_header(created_ms: int, gateway: str, run: int) -> bytes:
    """Return the beginning of a file. ``run`` has 64 bits."""
    name = _encode_text(gateway)
    head = FILE_HEAD.pack(MAGIC, VERSION, len(name), created_ms, run) + name
    return head + _WORD.pack(_crc(head))


class BlockBuilder:
    """Collects the records of one block; `size_bytes` is their size before compression."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._texts: dict[str, int] = {}
        self._packed_texts: list[bytes] = []
        self._topics: set[str] = set()
        self._min_ms = self._max_ms = 0
        self.count = 0
        self.size_bytes = 0

    def add_record(self, record: CaptureRecord) -> None:
        """Add a record. Raises CaptureError when it does not fit: a block has room for 65,535 texts and 1 GiB."""
        answer, target = record.answer, record.target
        size = RECORD_HEAD.size + len(record.request) + len(answer or b"") + len(target or b"")
        if self.size_bytes + size > MAX_PLAIN_BYTES - 5 * MAX_TEXT_BYTES or len(self._texts) > 0xFFFF - 5:
            raise CaptureError(0, "the block is full")
        self._note_time_and_topic(record)
        text = self._text_number
        head = RECORD_HEAD.pack(
            size,
            _record_flags(record),
            FATES.index(record.fate),
            record.code,
            record.wall_ms,
            record.asked_us,
            record.connection,
            min(max(record.forwarded_us, 0), _U32_MAX),
            min(max(record.answered_us, 0), _U32_MAX),
            min(max(record.target_us, 0), _U32_MAX),
            text(record.client),
            text(record.upstream),
            text(record.broker),
            text(record.topic),
            text(record.group),
            len(record.request),
            len(answer or b""),
            len(target or b""),
        )
        self._parts += (head, record.request, answer or b"", target or b"")
        self.size_bytes += size

    def _note_time_and_topic(self, record: CaptureRecord) -> None:
        wall_ms = record.wall_ms
        if not self.count:
            self._min_ms = self._max_ms = wall_ms
        elif wall_ms < self._min_ms:
            self._min_ms = wall_ms
        elif wall_ms > self._max_ms:
            self._max_ms = wall_ms
        self.count += 1
        self._topics.add(record.topic)

    def _text_number(self, text: str) -> int:
        number = self._texts.get(text)
        if number is None:
            number = self._texts[text] = len(self._texts)
            packed = _encode_text(text)
            self._packed_texts.append(_SHORT.pack(len(packed)) + packed)
            self.size_bytes += 2 + len(packed)
        return number

    def build(self, position: int, level: int = 1) -> tuple[bytes, CaptureBlock]:
        """Return the bytes of the block at this position of the file, and its index entry.

        ``level`` is zlib's, 1 to 9; 0 stores the block uncompressed, as does a block that would not shrink.
        """
        texts = b"".join((_WORD.pack(len(self._texts)), *self._packed_texts))
        topics = None
        if len(self._topics) <= MAX_BLOCK_TOPICS:
            topics = frozenset(_decode_text(_encode_text(topic)) for topic in self._topics)
        block = CaptureBlock(position, 0, self.count, self._min_ms, self._max_ms, topics)
        data = _encode_block(_RECORDS, block, b"".join((texts, *self._parts)), level)
        return data, block._replace(size=len(data))


def encode_index(position: int, blocks: Iterable[CaptureBlock], level: int = 1) -> bytes:
    """Return the end of a file: the index of its blocks, for this position, and the trailer that points to it."""
    topics: dict[str, int] = {}
    entries: list[bytes] = []
    indexed_blocks = list(blocks)
    for block in indexed_blocks:
        numbers = None
        if block.topics is not None:
            numbers = [topics.setdefault(topic, len(topics)) for topic in block.topics]
        entries.append(INDEX_ENTRY.pack(*block[:5], _ANY_TOPIC if numbers is None else len(numbers)))
        entries.append(b"".join(map(_WORD.pack, numbers or ())))
    payload = b"".join((_encode_topics(topics), *entries))
    low = min((block.min_ms for block in indexed_blocks), default=0)
    high = max((block.max_ms for block in indexed_blocks), default=0)
    head = CaptureBlock(position, 0, len(indexed_blocks), low, high, frozenset())
    position_bytes = position.to_bytes(8)
    return _encode_block(_INDEX, head, payload, level) + TRAILER.pack(
        position, _crc(position_bytes), END_MAGIC
    )


def _encode_topics(topics: Collection[str] | None) -> bytes:
    if topics is None:
        return _WORD.pack(_ANY_TOPIC)
    packed = map(_encode_text, topics)
    return _WORD.pack(len(topics)) + b"".join(_SHORT.pack(len(name)) + name for name in packed)


def _encode_block(kind: int, block: CaptureBlock, payload: bytes, level: int) -> bytes:
    if len(payload) > MAX_PLAIN_BYTES:
        raise CaptureError(block.position, f"a block of {len(payload)} bytes is too large")
    topics = _encode_topics(None if block.topics is None else sorted(block.topics))
    stored, compression = payload, _PLAIN
    if level:
        squeezed = zlib.compress(payload, level)
        if len(squeezed) < len(payload):
            stored, compression = squeezed, _ZLIB
    size = BLOCK_HEAD.size - 4 + len(topics) + len(stored)
    head = BLOCK_HEAD.pack(
        BLOCK_MAGIC, 0, block.position, size, kind, compression, 0, block.records,
        len(payload), block.min_ms, block.max_ms, _WORD.unpack_from(topics)[0],
    )  # fmt: skip
    rest = b"".join((head[_CRC_FROM:], topics[4:], stored))
    return b"".join((BLOCK_MAGIC, _WORD.pack(_crc(rest)), rest))


def _record_flags(record: CaptureRecord) -> int:
    return (
        (0 if record.answer is None else _ANSWERED)
        | (0 if record.target is None else _TARGET_ANSWERED)
        | (_REVERSE if record.reverse else 0)
        | (_BY_TARGET if record.by_target else 0)
        | (_REDACTED if record.redacted else 0)
    )


def _encode_text(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return data if len(data) <= MAX_TEXT_BYTES else data[:MAX_TEXT_BYTES]


def _decode_text(data: bytes | bytearray | memoryview) -> str:
    return str(data, "utf-8", "replace")


# -- reading ------------------------------------------------------------------------------------------------------


def decode_header(buffer: Buffer) -> FileHeader:
    """Return the header of a file. Raises CaptureError for a damaged one, a later version, or another kind of file."""
    if len(buffer) < FILE_HEAD.size + 4 or buffer[: len(MAGIC)] != MAGIC:
        raise CaptureError(0, "not a capture file, or its first bytes are lost")
    _, version, name_bytes, created_ms, run = FILE_HEAD.unpack_from(buffer)
    end = FILE_HEAD.size + name_bytes
    if end + 4 > len(buffer) or _WORD.unpack_from(buffer, end)[0] != _crc(buffer[:end]):
        raise CaptureError(0, "the file header does not match its CRC")
    if version != VERSION:
        raise CaptureError(0, f"version {version} of the format is not supported, only {VERSION}")
    return FileHeader(created_ms, _decode_text(buffer[FILE_HEAD.size : end]), run, end + 4)


def index_position(tail: Buffer, size: int) -> int | None:
    """Return the position of the index in a file of ``size`` bytes with these last TRAILER.size bytes; None without
    one."""
    if len(tail) < TRAILER.size:
        return None
    position, crc, magic = TRAILER.unpack_from(tail)
    whole = magic == END_MAGIC and crc == _crc(tail[:8]) and position < size - TRAILER.size
    return int(position) if whole else None


def decode_index(data: Buffer, position: int) -> list[CaptureBlock] | None:
    """Return the blocks of the index in these bytes (without the trailer) at ``position``; None when they are not an
    index."""
    try:
        block, kind = _parse_block(data, 0, len(data), position)
        if kind != _INDEX or block.size != len(data):
            return None
        # Each block of the index is somewhere before it: a compressed index could claim millions of others.
        if block.records > position // BLOCK_HEAD.size:
            return None
        return _parse_index(decompress_payload(data, block), block.records)
    except CaptureError:
        return None


def read_index(buffer: Buffer) -> list[CaptureBlock] | None:
    """Return the blocks of the index at the end of a file; None without a complete one (a crash, or still being
    written)."""
    at = len(buffer) - TRAILER.size
    position = index_position(buffer[max(at, 0) :], len(buffer))
    return None if position is None else decode_index(buffer[position:at], position)


def iter_blocks(buffer: Buffer) -> Iterator[CaptureBlock | Damage]:
    """Yield all blocks of records in order, by the index if there is one, without reading anything else of the file.

    Blocks found by the index are not checked before they are read.
    """
    index = read_index(buffer)
    if index is not None:
        yield from index
        return
    yield from walk_blocks(buffer)


class _Search:
    """The search for blocks after damage, with a bound on the bytes that are read for it.

    A file may be full of beginnings of blocks that each claim the rest of the file.
    """

    def __init__(self, buffer: bytes | bytearray | mmap) -> None:
        self._buffer = buffer
        self._left_bytes = SEARCHES_PER_BYTE * len(buffer) + MIN_SEARCHED_BYTES

    def find_block(self, start: int) -> int:
        """Return the position of the next complete block or of the trailer; the end when there is none.

        A block names its own position, so a copy of one inside a message is not mistaken for one.
        """
        data, end = self._buffer, len(self._buffer)
        position = data.find(BLOCK_MAGIC, start)
        while position >= 0:
            if position + BLOCK_HEAD.size <= end and _POSITION_AT(data, position + 8)[0] == position:
                try:
                    self._left_bytes -= block_size(data[position : position + BLOCK_HEAD.size], position)
                    if self._left_bytes < 0:
                        return end
                    _parse_block(data, position, end)
                    return position
                except CaptureError:
                    pass
            position = data.find(BLOCK_MAGIC, position + 1)
        return end


def walk_blocks(buffer: Buffer) -> Iterator[CaptureBlock | Damage]:
    """Yield all blocks of records in order without the index, checking every block; damage is yielded and skipped."""
    if isinstance(buffer, memoryview):
        buffer = bytes(buffer)
    search = _Search(buffer)
    try:
        position = decode_header(buffer).size
    except CaptureError as error:
        position = search.find_block(0)
        yield Damage(0, position, error.reason)
    end = len(buffer)
    while position < end:
        if position + TRAILER.size == end and _is_trailer(buffer, position):
            return
        try:
            block, kind = _parse_block(buffer, position, end)
        except CaptureError as error:
            following = search.find_block(position + 1)
            yield Damage(position, following - position, error.reason)
            position = following
            continue
        if kind == _RECORDS:
            yield block
        position += block.size


def may_contain(
    block: CaptureBlock,
    *,
    from_ms: int | None = None,
    until_ms: int | None = None,
    topics: Collection[str] | None = None,
) -> bool:
    """Return False if the block has no record of these topics whose request arrived in [from_ms, until_ms)."""
    if (from_ms is not None and block.max_ms < from_ms) or (
        until_ms is not None and block.min_ms >= until_ms
    ):
        return False
    return topics is None or block.topics is None or not block.topics.isdisjoint(topics)


def block_size(head: Buffer, position: int) -> int:
    """Return the size of the block whose head (BLOCK_HEAD.size bytes) is at ``position`` of its file.

    Raises CaptureError where no block begins, TornError for less than a head.
    """
    if len(head) < BLOCK_HEAD.size:
        raise TornError(position, f"torn: {len(head)} bytes are too short for the head of a block")
    magic, _, own, size = BLOCK_HEAD.unpack_from(head)[:4]
    if magic != BLOCK_MAGIC or own != position:
        raise CaptureError(position, "no block starts here")
    if size < BLOCK_HEAD.size:
        raise CaptureError(position, f"a block of {size} bytes is shorter than its head")
    return int(size)


def check_block(data: Buffer, position: int) -> tuple[CaptureBlock, bool]:
    """Return the block at the start of these bytes, which are at ``position`` of their file, and whether it has
    records.

    Raises CaptureError where it is damaged, TornError where it is incomplete.
    """
    block, kind = _parse_block(data, 0, len(data), position)
    return block, kind == _RECORDS


def read_block(buffer: Buffer, block: CaptureBlock) -> list[CaptureRecord]:
    """Return the records of a block, in the order they were written. Raises CaptureError where it is damaged."""
    return decode_records(buffer[block.position : block.position + block.size], block)


def decode_records(data: Buffer, block: CaptureBlock) -> list[CaptureRecord]:
    """Return the records of a block from its bytes alone. Raises CaptureError where it is damaged."""
    try:
        return list(_iter_records(verified_payload(data, block), block.records))
    except (StructError, IndexError, UnicodeDecodeError) as error:
        raise CaptureError(block.position, f"the records of a block are malformed: {error}") from error


def verified_payload(data: Buffer, block: CaptureBlock) -> bytes:
    """Verify a block of records and return its decompressed payload. Raises CaptureError where it is damaged."""
    stored_block, kind = _parse_block(data, 0, len(data), block.position)
    if kind != _RECORDS or stored_block != block:
        raise CaptureError(block.position, "the block does not match its index entry")
    return decompress_payload(data, block)


def decompress_payload(data: Buffer, block: CaptureBlock) -> bytes:
    """Return the decompressed payload of a block that was verified, from its bytes alone. Raises CaptureError."""
    head = BLOCK_HEAD.unpack_from(data)
    compression, plain_bytes, topic_count = head[5], head[8], head[11]
    at = BLOCK_HEAD.size
    if topic_count != _ANY_TOPIC:
        at = _parse_topics(data, at, topic_count)[1]
    stored = bytes(data[at : block.size])
    if compression == _ZLIB:
        stored = _decompress(stored, min(plain_bytes, MAX_PLAIN_BYTES), block.position)
    elif compression != _PLAIN:
        raise CaptureError(block.position, f"unknown compression {compression}")
    if len(stored) != plain_bytes:
        raise CaptureError(block.position, f"a block holds {len(stored)} bytes, its head says {plain_bytes}")
    return stored


def decode_payload_texts(payload: bytes, max_texts: int = MAX_BLOCK_TEXTS) -> tuple[list[str], int]:
    """Return the texts that records refer to by number, and the position of the first record. Raises CaptureError."""
    if len(payload) < _WORD.size:
        raise CaptureError(0, "a block has no text table")
    count = _WORD.unpack_from(payload)[0]
    if count > max_texts:
        raise CaptureError(0, f"a block has {count} texts, more than {max_texts}")
    return _parse_topics(payload, _WORD.size, count)


def scan_records(
    buffer: Buffer,
    *,
    from_ms: int | None = None,
    until_ms: int | None = None,
    topics: Collection[str] | None = None,
) -> Iterator[CaptureRecord | Damage]:
    """Yield the records of these topics whose requests arrived in [from_ms, until_ms); skip blocks without any.

    Damage is yielded where it is found, and reading continues after it.
    """
    for block in iter_blocks(buffer):
        if isinstance(block, Damage):
            yield block
            continue
        if not may_contain(block, from_ms=from_ms, until_ms=until_ms, topics=topics):
            continue
        try:
            records = read_block(buffer, block)
        except CaptureError as error:
            yield Damage(block.position, block.size, error.reason)
            continue
        for record in records:
            early = from_ms is not None and record.wall_ms < from_ms
            late = until_ms is not None and record.wall_ms >= until_ms
            if not early and not late and (topics is None or record.topic in topics):
                yield record


def _parse_block(buffer: Buffer, at: int, end: int, base: int = 0) -> tuple[CaptureBlock, int]:
    """Verify the block at ``at`` in a buffer and return it with its kind.

    ``base`` is the position of the buffer in its file.
    """
    position = base + at
    size = block_size(buffer[at : min(at + BLOCK_HEAD.size, end)], position)
    _, crc, _, _, kind, _, _, count, _, low, high, topic_count = BLOCK_HEAD.unpack_from(buffer, at)
    stop = at + size
    if stop > end:
        raise TornError(position, f"torn: a block of {size} bytes, of which the file contains {end - at}")
    if _crc(memoryview(buffer)[at + _CRC_FROM : stop]) != crc:
        raise CaptureError(position, "the block does not match its CRC")
    topics = None
    if topic_count != _ANY_TOPIC:
        topics = frozenset(_parse_topics(buffer, at + BLOCK_HEAD.size, topic_count)[0])
    return CaptureBlock(position, size, count, low, high, topics), kind


def _parse_topics(buffer: Buffer, at: int, count: int) -> tuple[list[str], int]:
    topics = []
    try:
        for _ in range(count):
            stop = at + 2 + _SHORT.unpack_from(buffer, at)[0]
            topics.append(_decode_text(buffer[at + 2 : stop]))
            at = stop
    except StructError as error:
        raise CaptureError(at, "the topics of a block extend beyond it") from error
    return topics, at


def _decompress(data: bytes, plain_bytes: int, position: int) -> bytes:
    try:
        # One byte more than the head states is enough to detect a block that is too large.
        return zlib.decompressobj().decompress(data, plain_bytes + 1)
    except zlib.error as error:
        raise CaptureError(position, f"a compressed block is damaged: {error}") from error


def _parse_index(payload: bytes, count: int) -> list[CaptureBlock]:
    names, at = decode_payload_texts(payload, count * MAX_BLOCK_TOPICS)
    blocks = []
    try:
        for _ in range(count):
            position, size, records, low, high, topic_count = INDEX_ENTRY.unpack_from(payload, at)
            at += INDEX_ENTRY.size
            topics = None
            if topic_count != _ANY_TOPIC:
                if topic_count > MAX_BLOCK_TOPICS:
                    raise CaptureError(0, f"a block of the index has {topic_count} topics")
                numbers = Struct(f">{topic_count}I").unpack_from(payload, at)
                topics = frozenset([names[number] for number in numbers])
                at += 4 * topic_count
            blocks.append(CaptureBlock(position, size, records, low, high, topics))
    except (StructError, IndexError) as error:
        raise CaptureError(0, f"the index is malformed: {error}") from error
    return blocks


def _iter_records(payload: bytes, count: int) -> Iterator[CaptureRecord]:
    texts, at = decode_payload_texts(payload)
    unpack, head_bytes = RECORD_HEAD.unpack_from, RECORD_HEAD.size
    for _ in range(count):
        (
            size, flags, fate, code, wall_ms, asked_us, connection, forwarded_us, answered_us, target_us,
            client, upstream, broker, topic, group, request_bytes, answer_bytes, target_bytes,
        ) = unpack(payload, at)  # fmt: skip
        answer_at = at + head_bytes + request_bytes
        target_at = answer_at + answer_bytes
        if target_at + target_bytes != at + size or at + size > len(payload):
            raise IndexError(f"a record of {size} bytes at {at} does not hold its frames")
        yield CaptureRecord(
            code,
            payload[at + head_bytes : answer_at],
            payload[answer_at:target_at] if flags & _ANSWERED else None,
            payload[target_at : at + size] if flags & _TARGET_ANSWERED else None,
            wall_ms,
            asked_us,
            forwarded_us,
            answered_us,
            target_us,
            connection,
            texts[client],
            texts[upstream],
            texts[broker],
            texts[topic],
            texts[group],
            FATES[fate],
            bool(flags & _REVERSE),
            bool(flags & _BY_TARGET),
            bool(flags & _REDACTED),
        )
        at += size


def _is_trailer(buffer: Buffer, position: int) -> bool:
    index_position, crc, magic = TRAILER.unpack_from(buffer, position)
    return bool(
        magic == END_MAGIC and crc == _crc(buffer[position : position + 8]) and index_position < position
    )
