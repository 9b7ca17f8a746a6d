"""Yields stored messages one at a time, as values for JSON, with bounded memory.

With a topic, its queues are read in turn, by queue offset; otherwise the log from its beginning.
"""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from codec.errors import MessageFormatError
from codec.message import Message, decode_message
from codec.sysflag import COMPRESSED
from storage.consume_queue import ConsumeQueue
from storage.errors import CorruptionError
from storage.layout import QUEUE_ENTRY, QUEUE_HOLE_SIZES
from storage.log_scan import ScanEnd, scan_log
from storage.queue_set import list_queue_files
from storage.tools.findings import Part, StoreFinding, damage
from storage.tools.store_reader import StoreReader

_ENTRIES_PER_READ = 1024


@dataclass(frozen=True, slots=True)
class DumpFilter:
    """The messages to dump: all conditions must hold. Offsets are queue offsets, times store times in ms.

    Ranges are half open: ``from_offset <= offset < until_offset``. ``key`` is one of KEYS or the unique key.
    """

    topic: str = ""
    queue_id: int | None = None
    from_offset: int = 0
    until_offset: int | None = None
    from_ms: int = 0
    until_ms: int | None = None
    key: str = ""

    def matches(self, message: Message) -> bool:
        """Return True if a message is to be dumped."""
        return (
            (not self.topic or message.topic == self.topic)
            and (self.queue_id is None or message.queue_id == self.queue_id)
            and self.from_offset <= message.queue_offset
            and (self.until_offset is None or message.queue_offset < self.until_offset)
            and self.from_ms <= message.store_timestamp
            and (self.until_ms is None or message.store_timestamp < self.until_ms)
            and (not self.key or self.key == message.unique_key or self.key in message.keys)
        )


def dump_messages(reader: StoreReader, conditions: DumpFilter) -> Iterator[Message | StoreFinding]:
    """Yield the messages that match, and a finding for each message that cannot be read."""
    if conditions.topic:
        for topic, queue_id, _ in list(list_queue_files(reader.files, reader.config.consume_queue_path)):
            if topic == conditions.topic and conditions.queue_id in (None, queue_id):
                queue = reader.queue(topic, queue_id)
                if queue is not None:
                    yield from _dump_queue(reader, queue, conditions)
        return
    for base in reader.log.bases() if reader.bases else ():
        if base in reader.missing:
            yield damage(Part.LOG, reader.log.path(base), 0, "the file is missing")
        else:
            yield from _dump_file(reader, base, conditions)


def _dump_queue(
    reader: StoreReader, queue: ConsumeQueue, conditions: DumpFilter
) -> Iterator[Message | StoreFinding]:
    try:
        reader.find_ends(queue)
    except CorruptionError as error:
        yield damage(
            Part.QUEUE, error.file, error.offset, error.reason, topic=queue.topic, queue_id=queue.queue_id
        )
        return
    number = max(queue.min_offset, conditions.from_offset)
    end = (
        queue.next_offset
        if conditions.until_offset is None
        else min(queue.next_offset, conditions.until_offset)
    )
    while number < end:
        data = queue.read_entries(number, min(_ENTRIES_PER_READ, end - number))
        for physical_offset, size, _ in QUEUE_ENTRY.iter_unpack(data):
            if size not in QUEUE_HOLE_SIZES:
                yield from _dump_entry(reader, queue, number, physical_offset, conditions)
            number += 1


def _dump_entry(
    reader: StoreReader, queue: ConsumeQueue, number: int, physical_offset: int, conditions: DumpFilter
) -> Iterator[Message | StoreFinding]:
    details: dict[str, Any] = {"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": number}
    try:
        stored = reader.message_at(physical_offset)
        if stored is None:
            raise MessageFormatError("no message starts where the queue entry points")
        message = decode_message(stored)
    except (CorruptionError, MessageFormatError, FileNotFoundError) as error:
        base = reader.log.base_of(physical_offset)
        yield damage(Part.LOG, reader.log.path(base), physical_offset - base, str(error), **details)
        return
    if conditions.matches(message):
        yield message


def _dump_file(reader: StoreReader, base: int, conditions: DumpFilter) -> Iterator[Message | StoreFinding]:
    log, path = reader.log, reader.log.path(base)
    end = base + log.file_bytes
    offset = base
    while offset < end:
        stop = ScanEnd(end, "", True)
        for item in scan_log(log, offset, end):
            if isinstance(item, ScanEnd):
                stop = item
                break
            stored = log.mapped_file(base).view[item.physical_offset - base :][: item.size]
            message = decode_message(stored, check_crc=False)
            if conditions.matches(message):
                yield message
        if stop.physical_offset >= end:
            return
        next_message = reader.find_message_after(stop.physical_offset)
        if next_message is None and base == reader.bases[-1]:
            return  # the end of the log
        yield damage(Part.LOG, path, stop.physical_offset - base, stop.reason or "zeros")
        offset = end if next_message is None else next_message


def message_value(message: Message, body: str) -> dict[str, Any]:
    """Return a message for JSON. ``body``: "text" (base64 if it is not UTF-8), "base64", or "none".

    A body that is compressed with zlib is inflated, unless that fails; ``body_encoding`` says what ``body`` holds.
    """
    value: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "store_ms": message.store_timestamp,
        "born_ms": message.born_timestamp,
        "store_host": f"{message.store_host[0]}:{message.store_host[1]}",
        "born_host": f"{message.born_host[0]}:{message.born_host[1]}",
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "properties": message.properties,
    }
    if body != "none":
        value |= _body_value(message, body)
    return value


def _body_value(message: Message, form: str) -> dict[str, Any]:
    content, is_stored_form = message.body, False
    if message.sys_flag & COMPRESSED:
        try:
            content = message.decompressed_body()
        except MessageFormatError:
            is_stored_form = True
    value: dict[str, Any] = {"body_compressed": True} if is_stored_form else {}
    if form == "text" and not is_stored_form:
        try:
            return value | {"body": content.decode(), "body_encoding": "text"}
        except UnicodeDecodeError:
            pass
    return value | {"body": b64encode(content).decode(), "body_encoding": "base64"}
