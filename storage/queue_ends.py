"""The file of queue ends: where the queues began and ended when it was written. By it recovery notices lost files.

Recovery finds the queues by their folders. A queue whose folder is lost would begin anew, at offsets that were given
out before, and one whose last file is lost would go back to the end of the file before. The file of ends is written at
each clean close, and at a checkpoint if there are new queues or messages have expired. It is deleted when a topic is
deleted, so that a queue is never at an earlier offset than it says. After a crash it holds the ends of the last of
these: the log has all later messages, unless more have expired since. Official brokers do not write it. If one has used
the store since, the file is invalid, which shows in the checkpoint's time. Without the file nothing is compared.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from codec import fastjson
from codec.errors import JsonError
from codec.java_numbers import I32, parse_integer_or, read_json_integer
from storage.consume_queue import ConsumeQueue
from storage.errors import StoreFull
from storage.files import Files

log = logging.getLogger(__name__)

FILE_NAME: Final = "queueends.json"
Range = tuple[int, int]
"""The first readable queue offset, and the one that the next message gets."""


@dataclass(frozen=True, slots=True)
class QueueRanges:
    """The ranges of queues, by topic and queue id, while the commit log began at ``log_start``."""

    log_start: int = 0
    ranges: dict[tuple[str, int], Range] = field(default_factory=dict)


def encode_queue_ends(ends: Iterable[tuple[ConsumeQueue, int]], log_start: int, checkpoint_ms: int) -> bytes:
    """Return the content of the file: the ranges of all queues, with the checkpoint's time.

    ``ends``: the offset up to which the entries of each queue are on the disk. A queue whose expired entries are still
    to be hidden may lose files without another change of ``log_start``. So it counts as one that begins at its end.
    """
    ranges: dict[str, dict[str, Range]] = {}
    for queue, end in ends:
        first = queue.min_offset if queue.expired_before >= log_start else end
        ranges.setdefault(queue.topic, {})[str(queue.queue_id)] = (first, end)
    return fastjson.dumps({"checkpoint": checkpoint_ms, "logStart": log_start, "queues": ranges})


def write_queue_ends(files: Files, root: str, content: bytes) -> None:
    """Write the file durably. On a full disk it is left out."""
    path = queue_ends_path(root)
    try:
        files.write_small(path, content)
    except StoreFull as error:
        _leave_out(files, path, error)


def replace_queue_ends(files: Files, root: str, content: bytes) -> None:
    """Write the file without waiting for the disk; `flush_queue_ends` must follow. On a full disk it is left out.

    A power cut in between may leave a file that cannot be read, which is as good as none.
    """
    path = queue_ends_path(root)
    try:
        files.replace_small(path, content, None)
    except StoreFull as error:
        _leave_out(files, path, error)


def flush_queue_ends(files: Files, root: str) -> None:
    """Block until the file, or its deletion, is on the disk. A file that cannot be flushed is left out."""
    path = queue_ends_path(root)
    try:
        files.flush_small(path)
    except (StoreFull, OSError) as error:
        _leave_out(files, path, error)


def _leave_out(files: Files, path: str, error: Exception) -> None:
    log.warning("ends of queues not written", extra={"path": path, "reason": str(error)})
    files.delete(path)


def queue_ends_path(root: str) -> str:
    """Return the path of the file."""
    return f"{root}/{FILE_NAME}"


def delete_queue_ends(files: Files, root: str) -> None:
    """Forget the ends, because a queue will begin anew."""
    files.delete(queue_ends_path(root))


def read_queue_ends(files: Files, root: str, checkpoint_ms: int | None) -> QueueRanges:
    """Return what was written last; nothing if there is no file, or it cannot be read, which is logged.

    ``checkpoint_ms`` is the time in the checkpoint if the last run closed the store cleanly, else None. If the file
    has another time, an official broker has written to the store since.
    """
    path = f"{root}/{FILE_NAME}"
    data = files.read_small(path)
    if data is None:
        return QueueRanges()
    try:
        content = fastjson.loads(data, fastjson.MAX_TRUSTED_VALUES)
        if checkpoint_ms not in (None, content["checkpoint"]):
            return QueueRanges()
        ranges = {
            (topic, parse_integer_or(number, -1, I32)): (read_json_integer(first), read_json_integer(end))
            for topic, queues in content["queues"].items()
            for number, (first, end) in queues.items()
        }
        return QueueRanges(read_json_integer(content["logStart"]), ranges)
    except (JsonError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = {"path": path, "reason": str(error)}
        log.warning("file cannot be read, missing queues go unnoticed", extra=reason)
        return QueueRanges()
