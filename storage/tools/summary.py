"""Summarises a store without reading all of it: log segments, queues, groups and their lag, index, timer, checkpoint.

Queue ends are found by bisection, and the times of a log segment from its first and last message, so a store of any
size takes a few page reads for each file.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from codec.java_numbers import parse_integer_or
from codec.message import MAGIC_AT
from storage.damage import MESSAGE_MAGIC
from storage.errors import CorruptionError
from storage.index import HEADER, HEADER_BYTES
from storage.log_scan import NoMessage, ScannedMessage, check_message
from storage.timer_checkpoint import POSITION_FIELDS
from storage.tools.index_file import IndexHeader
from storage.tools.store_reader import StoreReader, end_of_data
from storage.tools.table_check import Checkpoint, load_table

_SEARCH_BYTES: Final = 1 << 20
_TIMER_FIELDS: Final = ("delivered_before_ms", "log_flushed_until", "queue_offset")


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of the commit log. Offsets are physical, ``end_offset`` exclusive; times in ms, 0 if unknown."""

    file: str
    bytes: int
    first_offset: int
    end_offset: int
    first_store_ms: int
    last_store_ms: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """The readable part of a queue: queue offsets [min_offset, max_offset)."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    problem: str = ""

    @property
    def messages(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group's committed offset in one queue; ``lag`` is negative if that is beyond the queue's end."""

    group: str
    topic: str
    queue_id: int
    committed: int
    lag: int


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """An index file; ``keys`` counts its entries."""

    file: str
    bytes: int
    keys: int
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """Everything that `summarize_store` found. ``timer`` is empty if the store has no timer files."""

    root: str
    state: str
    pid: int
    command: str
    first_offset: int
    end_offset: int
    segments: list[Segment]
    queues: list[QueueSummary]
    groups: list[GroupSummary]
    index: list[IndexSummary]
    timer: dict[str, int]
    checkpoint: dict[str, int]

    def to_values(self) -> Iterator[dict[str, Any]]:
        """Yield one value for JSON for the store, then one for each part; ``kind`` tells them apart."""
        whole = {"root": self.root, "state": self.state, "pid": self.pid, "command": self.command}
        whole |= {"first_offset": self.first_offset, "end_offset": self.end_offset}
        yield {"kind": "store", **whole, "topics": len({queue.topic for queue in self.queues})}
        yield from ({"kind": "segment", **asdict(segment)} for segment in self.segments)
        yield from ({"kind": "queue", **asdict(queue), "messages": queue.messages} for queue in self.queues)
        yield from ({"kind": "group", **asdict(group)} for group in self.groups)
        yield from ({"kind": "index", **asdict(index)} for index in self.index)
        if self.timer:
            yield {"kind": "timer", **self.timer}
        yield {"kind": "checkpoint", **self.checkpoint}


def summarize_store(reader: StoreReader) -> StoreSummary:
    """Return the summary of a store. Raises OSError."""
    checkpoint = Checkpoint(reader.files, reader.config.checkpoint_path)
    # Queues first: the end of the last message that they point to saves reading the last log file from its beginning.
    queues, known_until = _summarize_queues(reader)
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in queues}
    groups = list(_summarize_groups(reader, ends))
    end = reader.find_log_end(known_until, check_crc=False).physical_offset
    return StoreSummary(
        root=reader.config.root,
        state=reader.state.state.value,
        pid=reader.state.pid,
        command=reader.state.command,
        first_offset=reader.log.first_base,
        end_offset=end,
        segments=[_summarize_segment(reader, base, end) for base in (*reader.bases, *reader.spare)],
        queues=queues,
        groups=groups,
        index=list(_summarize_index(reader)),
        timer=_summarize_timer(reader),
        checkpoint={
            "bytes": checkpoint.file_bytes,
            "log_ms": checkpoint.log_ms,
            "queues_ms": checkpoint.queues_ms,
            "index_ms": checkpoint.index_ms,
            "confirmed_until": checkpoint.confirm_offset,
        },
    )


def _summarize_queues(reader: StoreReader) -> tuple[list[QueueSummary], int]:
    """Return the queues, and the end of the last message that one of them points to."""
    summaries, known_until = [], -1
    for queue in reader.queues():
        problem = ""
        try:
            reader.find_ends(queue)
        except CorruptionError as error:
            problem = str(error)
            queue.min_offset = queue.next_offset = queue.bases[0] if queue.bases else 0
        except FileNotFoundError:
            continue  # deleted by the broker meanwhile
        with suppress(CorruptionError, FileNotFoundError):
            known_until = max(known_until, reader.end_of_last_message(queue))
        summaries.append(
            QueueSummary(queue.topic, queue.queue_id, queue.min_offset, queue.next_offset, problem)
        )
    return summaries, known_until


def _summarize_groups(reader: StoreReader, ends: dict[tuple[str, int], int]) -> Iterator[GroupSummary]:
    saved = load_table(reader.files, reader.config.config_path, "consumerOffset").get("offsetTable")
    for key, offsets in sorted(saved.items() if isinstance(saved, dict) else ()):
        topic, at, group = str(key).partition("@")
        for number, committed in sorted(offsets.items() if isinstance(offsets, dict) else (), key=str):
            queue_id = parse_integer_or(str(number), -1)
            if at and queue_id >= 0 and isinstance(committed, int):
                lag = ends.get((topic, queue_id), 0) - committed
                yield GroupSummary(group, topic, queue_id, committed, lag)


def _summarize_segment(reader: StoreReader, base: int, log_end: int) -> Segment:
    path = reader.log.path(base)
    end = base + reader.log.file_bytes
    if base >= reader.bases[-1]:
        end = max(base, min(end, log_end))
    try:
        size = reader.files.size(path) or 0
        problem = "" if size == reader.log.file_bytes else f"it has {size} bytes, not {reader.log.file_bytes}"
        view = reader.log.mapped_file(base).view
    except FileNotFoundError:
        return Segment(path, 0, base, base, 0, 0, "deleted meanwhile")
    first = check_message(view, 0, base, False) if len(view) else NoMessage("")
    last = _last_message(path, view, base, end)
    if not isinstance(first, ScannedMessage) and end > base:
        problem = problem or f"no message at its beginning: {first.reason or 'nothing is there'}"
    return Segment(
        path,
        size,
        base,
        end,
        first.store_timestamp if isinstance(first, ScannedMessage) else 0,
        last.store_timestamp if last else 0,
        problem,
    )


def _last_message(path: str, view: memoryview, base: int, end: int) -> ScannedMessage | None:
    """Search a log file backwards for the last message before physical offset ``end``."""
    stop = min(end - base, len(view), end_of_data(path))
    while stop > 0:
        start = max(0, stop - _SEARCH_BYTES)
        # A magic number may lie across the border of two parts.
        for magic in reversed(list(MESSAGE_MAGIC.finditer(view[start : stop + MAGIC_AT - 1]))):
            position = start + magic.start() - MAGIC_AT
            message = check_message(view, position, base + position, False) if position >= 0 else None
            if isinstance(message, ScannedMessage) and base + position + message.size <= end:
                return message
        stop = start
    return None


def _summarize_index(reader: StoreReader) -> Iterator[IndexSummary]:
    directory = reader.config.index_path
    for name in reader.files.list(directory):
        path = f"{directory}/{name}"
        try:
            with open(path, "rb") as file:
                head = file.read(HEADER_BYTES)
        except (FileNotFoundError, IsADirectoryError):
            continue
        size = reader.files.size(path) or 0
        if len(head) < HEADER_BYTES:
            yield IndexSummary(path, size, 0, 0, 0, 0, 0, f"it has only {size} bytes")
            continue
        header = IndexHeader(*HEADER.unpack(head))
        keys = max(0, header.next_entry - 1)
        yield IndexSummary(
            path, size, keys, header.begin_ms, header.end_ms, header.begin_offset, header.end_offset
        )


def _summarize_timer(reader: StoreReader) -> dict[str, int]:
    """Return up to where timer messages were delivered and read, and how many wait according to timermetrics."""
    content = reader.files.read_small(f"{reader.config.config_path}/timercheck") or b""
    if len(content) < POSITION_FIELDS.size:
        return {}
    fields = POSITION_FIELDS.unpack_from(content)
    metrics = load_table(reader.files, reader.config.config_path, "timermetrics").get("timingCount")
    counts = [slot.get("count") for slot in (metrics or {}).values() if isinstance(slot, dict)]
    timer_log = f"{reader.config.root}/timerlog"
    log_bytes = sum(reader.files.size(f"{timer_log}/{name}") or 0 for name in reader.files.list(timer_log))
    return dict(zip(_TIMER_FIELDS, fields, strict=False)) | {
        "waiting": sum(count for count in counts if isinstance(count, int)),
        "log_files_bytes": log_bytes,
    }
