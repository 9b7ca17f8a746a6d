"""Shortens the log of a closed store: what a slave does with messages that its master never had.

Theory of operation
-------------------
**Problem.** A former master comes back as a slave, and its log ends with messages that the new master does not have.
Everything from the first of them on has to go before the master's bytes follow: messages, queue and index entries,
timer records, and the notes of deletions. Otherwise these would point to other messages later.

**Invariant.** When `cut_store` returns, the disk holds no message at or after the cut, and a power cut brings none
back. Nothing that points to one is used: the store cannot be opened without dropping it.

What is cut may be the only copy of messages: a master with ASYNC_FLUSH loses its last ones with the power of its
machine, and cuts off what only its slave still has. So no cut begins before `_set_aside` has copied the bytes to
``damaged/cut-<offset>-<number>``, durably: a folder that ``rmq-gateway store dump`` reads. The file ``cut.json`` in it
is written last, so a folder without one is unfinished, and the next cut deletes it. A broker deletes finished ones
after ``cutCopiesReservedHours`` (`delete_old_copy`).

**Steps.** The file ``cut`` in the store's folder says that a cut is under way, and to where. It is written after the
bytes were set aside, and removed by the next opening of the store. While it exists, opening the store begins with
`finish_cut`, so that a crash at any step leaves either the old store or the shortened one. Every step may be repeated.

1. Remove the file of queue ends, by which recovery would miss what is cut. Lower the checkpoint, and write the
   ``abort`` file: recovery then trusts nothing from the cut on, or builds all queues anew if topics were deleted after
   the cut.
2. The log: delete later files, the last first, and put zeros after the cut in the file that holds it.
3. The timer files: give each slot with cut messages a new chain of the other ones, as `TimerStore.rewrite_slot` does.
   Go back to the first message of the timer topic that has to be read again, and to the first slot of which a delivery
   is cut: a timer may fire twice, but none is lost.
4. When the store is opened, recovery truncates the queues, the index and the notes of deletions to the end of the log,
   as after a crash, and writes the checkpoint. Only then the file ``cut`` is removed (`forget_cut`), durably: if it
   came back, the next opening would cut what the master has sent since.
"""

import logging
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import Final, NamedTuple

from codec import fastjson
from codec.constants import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from codec.errors import JsonError
from codec.java_numbers import I64, read_json_integer
from codec.properties import TIMER_OUT_MS, find_integer
from codec.topics import TIMER_TOPIC
from storage.checkpoint import StoreCheckpoint
from storage.commit_log import CommitLog
from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue, QueueFilePool
from storage.deleted_topics import DeletedTopics
from storage.errors import CorruptionError, StoreError, StoreFull
from storage.files import Files
from storage.layout import (
    BLANK_BYTES,
    LONG,
    PHYSICAL_OFFSET_AT,
    QUEUE_ENTRY_BYTES,
    START,
    mapped_file_name,
    mapped_file_offsets,
)
from storage.log_scan import ScanEnd, ScannedMessage, scan_log
from storage.queue_ends import delete_queue_ends, queue_ends_path
from storage.recovery import REBUILDING
from storage.timer_checkpoint import TimerCheckpoint, TimerProgress
from storage.timer_log import MAGIC_DELETE, MAGIC_PART, TimerLog, TimerRecord
from storage.timer_wheel import SLOT, TimerWheel, WheelSlot

log = logging.getLogger(__name__)

CUT_FILE: Final = "cut"
PROGRESS_FILE: Final = "progressaftercut"
"""Says, after a cut, that tables of progress may still refer to what was cut."""
ASIDE_FILE: Final = "cut.json"
"""The last file of a folder with bytes that were set aside."""
_COPY_BYTES: Final = 1 << 20
_DEFAULT_PRECISION_MS: Final = 1000
_DEFAULT_TIMER_FILE_BYTES: Final = 100 << 20
_NOT_DELIVERED: Final = (0, -1)
_OUT_MS: Final = TIMER_OUT_MS.encode()
_NO_TIME_MS: Final = 1 << 62
"""No message is cut, only the end of a file: nothing was delivered after it."""


class Cut(NamedTuple):
    """A cut under way.

    ``end`` is its physical offset, ``time_ms`` the store time of the first cut message, ``timers_from_ms`` a time
    before which all timer messages were delivered by messages that stay.
    """

    end: int
    time_ms: int
    timers_from_ms: int
    timer_topic: str


def cut_store(config: StoreConfig, files: Files, end: int, timer_topic: str = TIMER_TOPIC) -> None:
    """Remove everything at and after a physical offset from a closed store, durably; blocks.

    The bytes are set aside first. A message must start at ``end``, or the log end there. Raises StoreError where none
    does, StoreInUse, StoreFull where there is no room to set the bytes aside, and then nothing is cut. After another
    StoreFull or FlushFailed this may be called again, and the next opening of the store goes on as well.
    """
    unlock = files.lock(config.root + "/lock")
    try:
        begun = _read_mark(config, files)
        if begun is not None and begun.end == end:
            finish_cut(config, files)
            return
        commit_log = _open_log(config, files)
        try:
            if commit_log is None or not commit_log.first_base <= end <= commit_log.max_offset:
                raise StoreError(f"the log does not hold physical offset {end}, it cannot be cut there")
            _check_message_start(commit_log, end)
            time_ms = commit_log.first_store_timestamp(end) or _NO_TIME_MS
            timers_from_ms = min(time_ms, _first_delivery_ms(commit_log, end))
            _set_aside(config, files, commit_log, end)
        finally:
            if commit_log is not None:
                commit_log.close()
        log.warning(
            "cutting the log", extra={"root": config.root, "physical_offset": end, "time_ms": time_ms}
        )
        mark = {"end": end, "time": time_ms, "timersFrom": timers_from_ms, "timerTopic": timer_topic}
        files.write_small(_mark_path(config), fastjson.dumps(mark))
        finish_cut(config, files)
    finally:
        unlock()


def finish_cut(config: StoreConfig, files: Files) -> None:
    """Carry out a cut that was begun, if there is one; blocks. The caller holds the store's lock.

    Raises CorruptionError if the file ``cut`` cannot be read, StoreFull, FlushFailed.
    """
    cut = _read_mark(config, files)
    if cut is None:
        return
    delete_queue_ends(files, config.root)
    files.flush(queue_ends_path(config.root))
    checkpoint = StoreCheckpoint(files, config.checkpoint_path)
    checkpoint.lower(cut.end, cut.time_ms)
    checkpoint.close()
    deleted_topics = DeletedTopics(files, config.root)
    if topics := deleted_topics.topics_deleted_after(cut.end):
        # Whether the master deleted these topics as well is not known here. Their messages before the cut get queue
        # entries again; if it did, its notes remove them. If it is lost before it says so, a promotion finishes the
        # deletion: the topics are not in the table then.
        files.write_small(config.abort_path, REBUILDING)
        deleted_topics.announce(topics)
        deleted_topics.forget_after(cut.end)
    elif files.read_small(config.abort_path) is None:
        files.write_small(config.abort_path, files.boot_id().encode())
    _cut_log(config, files, cut.end)
    commit_log = _open_log(config, files)
    if commit_log is not None:
        try:
            _cut_timers(config, files, commit_log, cut)
        finally:
            commit_log.close()
    log.info("log is cut", extra={"root": config.root, "physical_offset": cut.end})


def forget_cut(config: StoreConfig, files: Files) -> None:
    """Remove the file ``cut`` durably, after recovery has truncated everything to the end of the log.

    Before that, record that the progress of consumers and deliveries has not been limited to that end yet.
    """
    path = _mark_path(config)
    if files.read_small(path) is not None:
        files.write_small(progress_path(config), b"{}")
        files.delete(path)
        files.flush(path)


def progress_path(config: StoreConfig) -> str:
    """Return the path of `PROGRESS_FILE`."""
    return f"{config.root}/{PROGRESS_FILE}"


def _mark_path(config: StoreConfig) -> str:
    return f"{config.root}/{CUT_FILE}"


def _read_mark(config: StoreConfig, files: Files) -> Cut | None:
    data = files.read_small(_mark_path(config))
    if data is None:
        return None
    try:
        content = fastjson.loads(data, fastjson.MAX_TRUSTED_VALUES)
        end, time_ms, timers_from_ms = (
            read_json_integer(content[name]) for name in ("end", "time", "timersFrom")
        )
        return Cut(end, time_ms, timers_from_ms, str(content["timerTopic"]))
    except (JsonError, ValueError, TypeError, KeyError) as error:
        raise CorruptionError(_mark_path(config), 0, f"a cut of the log cannot be read: {error}") from error


# -- the copy of what is cut --


def _set_aside(config: StoreConfig, files: Files, commit_log: CommitLog, end: int) -> None:
    """Copy everything at and after ``end`` to files of a folder of its own, durably; nothing if there are only zeros.

    Raises StoreFull, FlushFailed; the folder is deleted then.
    """
    above = f"{config.root}/damaged"
    folders = {name for name in files.list(above) if name.startswith("cut-")}
    for name in sorted(folders):
        if files.read_small(f"{above}/{name}/{ASIDE_FILE}") is None:
            files.delete_tree(f"{above}/{name}")
            folders.discard(name)
    number = next(number for number in count(1) if f"cut-{end:020d}-{number}" not in folders)
    folder = f"{above}/cut-{end:020d}-{number}"
    try:
        size_bytes = _copy_log(files, commit_log, end, f"{folder}/commitlog")
        if not size_bytes:
            return
        content = {"physicalOffset": end, "bytes": size_bytes, "time": round(time.time() * 1000)}
        files.write_small(f"{folder}/{ASIDE_FILE}", fastjson.dumps(content))
    except StoreFull:
        files.delete_tree(folder)
        raise
    log.error(
        "messages that the master does not have are cut off: a copy of them was set aside",
        extra={"physical_offset": end, "bytes": size_bytes, "copy": folder},
    )


def delete_old_copy(config: StoreConfig, files: Files, before_ms: int) -> bool:
    """Delete one folder with bytes that were set aside before a time; return False if there is none; blocks.

    A folder of an earlier version, which does not say its time, stays.
    """
    above = f"{config.root}/damaged"
    for name in sorted(files.list(above)):
        folder = f"{above}/{name}"
        if name.startswith("cut-") and _time_of_copy(files, folder) < before_ms:
            files.delete_tree(folder)
            log.info("copy of messages that were cut off deleted, it is old", extra={"copy": folder})
            return True
    return False


def _time_of_copy(files: Files, folder: str) -> int:
    """Return when bytes were set aside; a time that never comes if that cannot be read."""
    try:
        content = fastjson.loads(
            files.read_small(f"{folder}/{ASIDE_FILE}") or b"", fastjson.MAX_TRUSTED_VALUES
        )
        return read_json_integer(content["time"])
    except (JsonError, ValueError, TypeError, KeyError):
        return _NO_TIME_MS


def _copy_log(files: Files, commit_log: CommitLog, start: int, directory: str) -> int:
    """Copy the log from an offset on to files of the same names, durably; return the bytes up to the last that is set.

    Zeros are not copied: the new files are sparse, as those of the log are. Reading a last file stops at the first
    piece of zeros after the messages: all of a gigabyte would be mapped otherwise, which took 7 s. Raises StoreFull,
    FlushFailed.
    """
    last, paths = start, []
    scan = scan_log(commit_log, start, commit_log.max_offset, check_crc=False)
    scan_end = next(item for item in scan if isinstance(item, ScanEnd))
    unwritten_from = scan_end.physical_offset if scan_end.zeros else commit_log.max_offset
    if scan_end.zeros and unwritten_from - start > (free_bytes := files.free_bytes(directory)):
        size = unwritten_from - start
        raise StoreFull(f"no room for {size} bytes in {directory}, {free_bytes} are free", "no room on disk")
    for base in commit_log.bases():
        if base + commit_log.file_bytes <= start:
            continue
        source, target = commit_log.mapped_file(base), None
        position = max(0, start - base)
        readable = min(source.readable_until(position), commit_log.file_bytes)
        # Closed also when there is no room: a deleted file that is still mapped keeps its blocks.
        with ExitStack() as stack:
            while position < readable:
                piece_end = min(readable, position + _COPY_BYTES)
                piece = bytes(source.view[position:piece_end])
                size = len(piece.rstrip(b"\0"))
                if size:
                    if target is None:
                        paths.append(f"{directory}/{mapped_file_name(base)}")
                        target = files.open_mapped(paths[-1], commit_log.file_bytes)
                        stack.callback(target.close)
                    target.reserve(position, position + size)
                    target.buffer[position : position + size] = piece[:size]
                    last = base + position + size
                elif base + position >= unwritten_from:
                    break
                position = piece_end
    files.flush_many(paths)
    return last - start


# -- the log --


def _log_bases(config: StoreConfig, files: Files) -> list[int]:
    """Return the first offsets of the log files, without a last one that was only just created."""
    directory = config.commit_log_path
    bases = mapped_file_offsets(files.list(directory))
    while bases and not files.size(f"{directory}/{mapped_file_name(bases[-1])}"):
        bases.pop()
    return bases


def _open_log(config: StoreConfig, files: Files) -> CommitLog | None:
    """Return the log for reading up to the end of its last file; None without files. Nothing is created."""
    bases = _log_bases(config, files)
    if not bases:
        return None
    commit_log = CommitLog(files, config.commit_log_path, config.commit_log_file_bytes, 0)
    commit_log.file_bytes = files.size(commit_log.path(bases[0])) or commit_log.file_bytes
    commit_log.first_base, commit_log.base = bases[0], bases[-1]
    commit_log.position = commit_log.file_bytes
    return commit_log


def _check_message_start(commit_log: CommitLog, end: int) -> None:
    """Raise StoreError if neither a message nor a blank marker starts here, nor the unwritten rest of a file."""
    if end == commit_log.max_offset:
        return
    base = commit_log.base_of(end)
    mapped, position = commit_log.mapped_file(base), end - base
    room = commit_log.file_bytes - position
    if room < BLANK_BYTES or mapped.readable_until(position) < position + PHYSICAL_OFFSET_AT + 8:
        size = magic = own_offset = 0
    else:
        size, magic = START.unpack_from(mapped.view, position)
        own_offset = LONG.unpack_from(mapped.view, position + PHYSICAL_OFFSET_AT)[0] if room >= 36 else -1
    is_message = magic in (MAGIC_V1, MAGIC_V2) and own_offset == end
    if is_message or (magic == MAGIC_BLANK and size == room) or size == magic == 0:
        return
    raise StoreError(f"no message starts at physical offset {end}, the log cannot be cut there")


def _first_delivery_ms(commit_log: CommitLog, end: int) -> int:
    """Return the earliest time for which a message at or after ``end`` was delivered by a timer."""
    return min(
        (
            find_integer(message.properties, _OUT_MS, _NO_TIME_MS, I64)
            for message in scan_log(commit_log, end, commit_log.max_offset, check_crc=False)
            if isinstance(message, ScannedMessage)
        ),
        default=_NO_TIME_MS,
    )


def _cut_log(config: StoreConfig, files: Files, end: int) -> None:
    """Delete the log files after the cut, the last first, and put zeros after it in its own file."""
    commit_log = _open_log(config, files)
    if commit_log is None:
        return
    try:
        for base in reversed(commit_log.bases()):
            path = commit_log.path(base)
            if base > max(end, commit_log.first_base):
                files.delete(path)
                files.flush(path)
            elif end < base + commit_log.file_bytes:
                # Zeros also where the bytes look unused: after a power cut old ones may be there again.
                commit_log.mapped_file(base).zero_from(max(0, end - base))
                files.flush(path)
    finally:
        commit_log.close()


# -- timers --


def _cut_timers(config: StoreConfig, files: Files, commit_log: CommitLog, cut: Cut) -> None:
    """Take the records of cut messages out of the wheel, and let the others be read and delivered again if need be."""
    check_path, wheel_path = f"{config.config_path}/timercheck", f"{config.root}/timerwheel"
    if not files.size(check_path):
        return
    if cut.end <= commit_log.first_base:
        # Nothing is left. Records of expired messages would point to others if the log began anew before them.
        log_path = f"{config.root}/timerlog"
        paths = [wheel_path, check_path, *(f"{log_path}/{name}" for name in files.list(log_path))]
        for path in paths:
            files.delete(path)
        files.flush_many(paths)
        return
    checkpoint = TimerCheckpoint(files, check_path)
    wheel_bytes = files.size(wheel_path) or SLOT.size
    # With a precision of 1 the wheel's times are the numbers of the slots.
    wheel = TimerWheel(files, wheel_path, 1, wheel_bytes // SLOT.size)
    timer_log = _open_timer_log(config, files)
    try:
        position = checkpoint.position

        def is_whole(record: TimerRecord) -> bool:
            if record.physical_offset >= cut.end or record.size <= 0 or record.physical_offset < 0:
                return record.physical_offset >= cut.end
            try:
                message = commit_log.message_at(record.physical_offset)
            except CorruptionError:
                return False
            return message is None or len(message) == record.size

        timer_log.recover(timer_log.first, position.log_position, is_whole)
        precision_ms = _rewrite_slots(files, wheel, timer_log, cut.end)
        read_ms = cut.timers_from_ms // precision_ms * precision_ms
        queue_offset = _queue_offset_at(config, files, cut)
        progress = checkpoint.load_progress() or TimerProgress(
            position.queue_offset, position.read_ms, *_NOT_DELIVERED, timer_log.end, cut.end
        )
        delivered_up_to = (
            (progress.due_ms, progress.position) if progress.read_ms < read_ms else _NOT_DELIVERED
        )
        checkpoint.save_progress(
            min(progress.queue_offset, queue_offset),
            min(progress.read_ms, read_ms),
            *delivered_up_to,
            timer_log.end,
            cut.end,
        )
        checkpoint.write_position(
            replace(
                position,
                read_ms=min(position.read_ms, read_ms),
                queue_offset=min(position.queue_offset, queue_offset),
                master_queue_offset=min(position.master_queue_offset, queue_offset),
                log_position=timer_log.end,
            )
        )
    finally:
        for part in (checkpoint, wheel, timer_log):
            part.close()


def _open_timer_log(config: StoreConfig, files: Files) -> TimerLog:
    directory = f"{config.root}/timerlog"
    bases = mapped_file_offsets(files.list(directory))
    file_bytes = files.size(f"{directory}/{mapped_file_name(bases[0])}") if bases else None
    return TimerLog(files, directory, file_bytes or _DEFAULT_TIMER_FILE_BYTES)


def _rewrite_slots(files: Files, wheel: TimerWheel, timer_log: TimerLog, end: int) -> int:
    """Give each slot that has records of cut messages a chain without them, durably; return the wheel's precision."""
    precision_ms = _DEFAULT_PRECISION_MS
    new_slots = []
    for slot in list(wheel.used_slots()):
        chain = list(timer_log.chain_from(slot.last)) if slot.last >= 0 else []
        if chain and slot.time_ms:
            precision_ms = chain[0].slot_time_ms // slot.time_ms or precision_ms
        remaining = [record for record in reversed(chain) if record.physical_offset < end]
        if len(remaining) < len(chain):
            new_slots.append(_append_chain(timer_log, slot, remaining))
    # Each step is on the disk before the next: a slot never leads to records that are not there.
    timer_log.flush()
    for slot in new_slots:
        wheel.write_slot(slot)
    wheel.flush()
    # Whoever builds the wheel anew from the log ignores these records.
    for record in list(timer_log.records_from(timer_log.first)):
        if record.physical_offset >= end and not record.magic & MAGIC_PART:
            timer_log.set_magic(record.position, record.magic | MAGIC_PART)
    timer_log.flush()
    return precision_ms


def _append_chain(timer_log: TimerLog, slot: WheelSlot, records: list[TimerRecord]) -> WheelSlot:
    """Append records as a new chain, all but the last with MAGIC_PART; return the slot that leads to it."""
    first = previous = -1
    messages = 0
    for number, record in enumerate(records, 1):
        magic = record.magic | MAGIC_PART if number < len(records) else record.magic & ~MAGIC_PART
        position = timer_log.make_room()
        timer_log.append(record._replace(position=position, previous=previous, magic=magic))
        first, previous = position if first < 0 else first, position
        messages += -1 if record.magic & MAGIC_DELETE else 1
    return slot._replace(first=first, last=previous, messages=messages)


def _queue_offset_at(config: StoreConfig, files: Files, cut: Cut) -> int:
    """Return the queue offset of the first message of the timer topic that is cut."""
    directory = f"{config.consume_queue_path}/{cut.timer_topic}/0"
    bases = mapped_file_offsets(files.list(directory))
    if not bases:
        return 0
    pool = QueueFilePool(files, 4)
    queue = ConsumeQueue(cut.timer_topic, 0, directory, config.consume_queue_file_entries, 0, pool, files)
    size = files.size(queue.path(bases[0] // QUEUE_ENTRY_BYTES))
    if not size:
        return 0
    queue.file_bytes, queue.file_entries = size, size // QUEUE_ENTRY_BYTES
    queue.bases = [base // QUEUE_ENTRY_BYTES for base in bases]
    try:
        return queue.count_before(cut.end)
    finally:
        pool.close()
