"""The files of staged batches: messages that wait outside the log until their writer publishes them together.

The folder ``<store>/staged/<writer>/`` holds one file per part of a batch, the *intent* while a batch is being
published, and the *mark* of the batch published last. Every file is written atomically. Publishing lives in
`gateway/broker/requests/staged_batches.py`.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from codec.java_numbers import parse_integer_or
from storage.errors import CorruptionError
from storage.files import Files

T = TypeVar("T")

INTENT: Final = "intent"
MARK: Final = "mark"
_PARTS_FOLDER: Final = "pieces"


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Messages of one queue, encoded as the body of a batch send; hosts are packed, times in ms."""

    topic: str
    queue_id: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    body: bytes

    def encode(self) -> bytes:
        """Return a line of JSON and the body."""
        head: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__ if name != "body"}
        head.update(born_host=self.born_host.hex(), store_host=self.store_host.hex())
        return json.dumps(head).encode() + b"\n" + self.body

    @classmethod
    def decode(cls, data: bytes) -> "StagedPart":
        """Parse the bytes that `encode` returned."""
        line, _, body = data.partition(b"\n")
        head = json.loads(line)
        for name in ("born_host", "store_host"):
            head[name] = bytes.fromhex(head[name])
        return cls(**head, body=body)


@dataclass(slots=True)
class PublishIntent:
    """A batch whose publishing has begun. ``stages`` are the names and part counts of its stages, in order.

    ``floors`` hold, by topic and queue id, the end of each queue at that time: the batch's messages come after it.
    """

    batch: int
    stages: list[tuple[str, int]]
    stream: bool
    floors: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(slots=True)
class PublishedMark:
    """The last batch that was published. The mark of a ``stream`` never expires, since its writer may return at any
    time.
    """

    batch: int
    stream: bool


class StagedFiles:
    """The staged files of all writers of one store. Names of writers and stages are letters, digits and dashes.

    Calls block for the disk; those for different writers may come from different threads.
    """

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = f"{root}/staged"

    def list_writers(self) -> list[str]:
        """Return all writers that have files here."""
        return self._files.list(self._root)

    def write_part(self, writer: str, batch: int, stage: str, number: int, piece: bytes) -> None:
        """Write a part durably; a second write of the same part replaces it. Raises StoreFull."""
        self._files.write_small(self._path(writer, batch, stage, number), piece)

    def read_part(self, writer: str, batch: int, stage: str, number: int) -> bytes | None:
        """Return a part; None when it does not exist."""
        return self._files.read_small(self._path(writer, batch, stage, number))

    def part_bytes(self, writer: str, batch: int, stage: str, number: int) -> int | None:
        """Return the size of a part; None when it does not exist."""
        return self._files.size(self._path(writer, batch, stage, number))

    def has_parts(self, writer: str, batch: int) -> bool:
        """Tell whether a batch has parts here."""
        return any(number == batch for _, number in self._list_parts(writer))

    def total_bytes(self) -> int:
        """Return the size of all parts together."""
        sizes = (
            self._files.size(path) for writer in self.list_writers() for path, _ in self._list_parts(writer)
        )
        return sum(size or 0 for size in sizes)

    def read_intent(self, writer: str) -> PublishIntent | None:
        """Return the intent of the batch that a writer is publishing, if any. Raises CorruptionError."""
        return self._read_json(f"{self._root}/{writer}/{INTENT}", _parse_intent)

    def write_intent(self, writer: str, intent: PublishIntent) -> None:
        """Begin publishing: once this returns, the batch will be published, whatever happens. Raises StoreFull."""
        self._files.write_small(f"{self._root}/{writer}/{INTENT}", json.dumps(asdict(intent)).encode())

    def read_mark(self, writer: str) -> PublishedMark | None:
        """Return the mark of the batch that a writer published last; None if there was none. Raises CorruptionError."""
        return self._read_json(f"{self._root}/{writer}/{MARK}", lambda values: PublishedMark(**values))

    def _read_json(self, path: str, parse: Callable[[Any], T]) -> T | None:
        data = self._files.read_small(path)
        if data is None:
            return None
        try:
            return parse(json.loads(data))
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptionError(path, 0, f"it cannot be parsed: {error}") from error

    def finish_batch(self, writer: str, mark: PublishedMark) -> int:
        """Record that a batch is published; delete its parts and those of earlier batches, and return their bytes."""
        self._files.write_small(f"{self._root}/{writer}/{MARK}", json.dumps(asdict(mark)).encode())
        self._files.delete(f"{self._root}/{writer}/{INTENT}")
        return self.delete_parts(writer, mark.batch)

    def delete_parts(self, writer: str, until_batch: int) -> int:
        """Delete the parts of batches up to this one; return their bytes."""
        freed = 0
        for path, batch in self._list_parts(writer):
            if batch <= until_batch:
                freed += self._files.size(path) or 0
                self._files.delete(path)
        return freed

    def delete_abandoned(self, before_ms: int) -> int:
        """Delete parts and marks not modified since ``before_ms``; return the bytes of the parts.

        A batch that is being published stays, and so do the marks of streams.
        """
        freed = 0
        for writer in self.list_writers():
            if self.read_intent(writer) is not None:
                continue
            for path, _ in self._list_parts(writer):
                if self._files.modified_ms(path) < before_ms:
                    freed += self._files.size(path) or 0
                    self._files.delete(path)
            self._clean_mark(writer, before_ms)
        return freed

    def _clean_mark(self, writer: str, before_ms: int) -> None:
        directory = f"{self._root}/{writer}"
        mark = self.read_mark(writer)
        is_expired = mark is None or (
            not mark.stream and self._files.modified_ms(f"{directory}/{MARK}") < before_ms
        )
        if is_expired and not self._files.list(f"{directory}/{_PARTS_FOLDER}"):
            self._files.delete_tree(directory)

    def _path(self, writer: str, batch: int, stage: str, number: int) -> str:
        return f"{self._root}/{writer}/{_PARTS_FOLDER}/{batch}.{stage}.{number}"

    def _list_parts(self, writer: str) -> list[tuple[str, int]]:
        """Return path and batch number of all parts, including files that a killed process left half written."""
        directory = f"{self._root}/{writer}/{_PARTS_FOLDER}"
        parts = [
            (f"{directory}/{name}", parse_integer_or(name.split(".")[0], -1))
            for name in self._files.list(directory)
        ]
        return [(path, batch) for path, batch in parts if batch >= 0]


def _parse_intent(values: dict[str, Any]) -> PublishIntent:
    values["stages"] = [(name, count) for name, count in values["stages"]]
    return PublishIntent(**values)
