"""Checks the tables below ``config`` and the checkpoint, and reads from them what other checks need."""

from collections.abc import Iterator
from typing import Any, Final

from codec import fastjson
from codec.errors import JsonError
from storage.checkpoint import CHECKPOINT_FIELDS, CONFIRM_OFFSET_AT
from storage.layout import LONG
from storage.tools.findings import Part, StoreFinding, damage, note
from storage.tools.store_reader import ReadOnlyFiles

TABLES: Final = (
    "topics", "subscriptionGroup", "consumerOffset", "delayOffset", "consumerFilter", "consumerOrderInfo",
    "messageRequestMode", "timermetrics", "lmqConsumerOffset", "broadcastOffset",
)  # fmt: skip
"""Table files of our broker and the official one; ``.json`` except timermetrics."""


def table_path(config_path: str, name: str) -> str:
    """Return the path of a table."""
    return f"{config_path}/{name}" + ("" if name == "timermetrics" else ".json")


def load_table(files: ReadOnlyFiles, config_path: str, name: str) -> dict[str, Any]:
    """Return a table, from its backup if it cannot be read itself, as the broker does; {} without either."""
    for path in (table_path(config_path, name), table_path(config_path, name) + ".bak"):
        try:
            value = parse_table(files.read_small(path))
        except ValueError:
            continue
        if value is not None:
            return value
    return {}


def parse_table(content: bytes | None) -> dict[str, Any] | None:
    """Parse a table's content; None for a file that is missing or empty. Raises ValueError."""
    if not content or not content.strip(b"\0 \r\n\t"):
        return None
    try:
        value = fastjson.loads(content, fastjson.MAX_TRUSTED_VALUES)
    except JsonError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


class Checkpoint:
    """The checkpoint file; zeros where it is missing or too short."""

    def __init__(self, files: ReadOnlyFiles, path: str) -> None:
        self._content = content = files.read_small(path) or b""
        self.path = path
        self.file_bytes = len(content)
        whole = len(content) >= CHECKPOINT_FIELDS.size
        fields = CHECKPOINT_FIELDS.unpack_from(content) if whole else (0, 0, 0, 0, 0)
        self.log_ms, self.queues_ms, self.index_ms, self.master_offset, self.confirm_offset = fields

    def encode(self, confirm_offset: int) -> bytes:
        """Return the content of the file with another confirmed offset."""
        return (
            self._content[:CONFIRM_OFFSET_AT]
            + LONG.pack(confirm_offset)
            + self._content[CHECKPOINT_FIELDS.size :]
        )

    def check(self, log_begin: int) -> Iterator[StoreFinding]:
        """Yield what is wrong with the file itself; the end of the log is checked by `LogCheck`."""
        if not self.file_bytes:
            if log_begin:
                yield note(Part.CHECKPOINT, self.path, 0, "the file is missing")
        elif self.file_bytes < CHECKPOINT_FIELDS.size:
            yield damage(Part.CHECKPOINT, self.path, self.file_bytes, f"it has only {self.file_bytes} bytes")
        for at, value in enumerate((self.log_ms, self.queues_ms, self.index_ms)):
            if value < 0:
                yield damage(Part.CHECKPOINT, self.path, 8 * at, f"a time is negative: {value} ms")
        if self.confirm_offset < 0:
            reason = f"the confirm offset is negative: {self.confirm_offset}"
            yield damage(Part.CHECKPOINT, self.path, CONFIRM_OFFSET_AT, reason)


def check_tables(files: ReadOnlyFiles, config_path: str) -> Iterator[StoreFinding]:
    """Yield the tables that cannot be read."""
    for name in TABLES:
        path = table_path(config_path, name)
        try:
            parse_table(files.read_small(path))
        except ValueError as error:
            yield damage(Part.TABLE, path, 0, f"{error}; {_describe_backup(files, path)}")


def _describe_backup(files: ReadOnlyFiles, path: str) -> str:
    try:
        usable = parse_table(files.read_small(path + ".bak")) is not None
    except ValueError:
        usable = False
    return "its backup is whole" if usable else "it has no backup that can be read"
