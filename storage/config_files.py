"""The broker's small tables on disk (topics.json and the like) with their backups; not what the tables
hold."""

import logging
from collections.abc import Callable
from typing import TypeVar

from storage.files import Files

log = logging.getLogger(__name__)

T = TypeVar("T")


def save_table(files: Files, path: str, data: bytes) -> None:
    """Replaces a table; the one before stays beside it as `<path>.bak`.

    A crash leaves the old table or the new one, never a part. Source: ConfigManager.persist, 5.4.0.
    """
    before = files.read_small(path)
    if before == data:
        return
    if before:
        files.write_small(path + ".bak", before)
    files.write_small(path, data)


def load_table(files: Files, path: str, decode: Callable[[bytes], T]) -> T | None:
    """The decoded table, or its backup where the table is missing, empty or unreadable; None without either.

    `decode` raises ValueError for what it cannot read. Source: ConfigManager.load, 5.4.0.
    """
    for place in (path, path + ".bak"):
        data = files.read_small(place)
        if not data:
            continue
        try:
            return decode(data)
        except ValueError as error:
            log.error("table is unreadable", extra={"path": place, "error": str(error)})
    return None
