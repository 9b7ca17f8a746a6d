"""Messages that wait outside the log until their writer says that they count: their files, and who has published what.

Below `<store>/staged/<writer>/`: one file per piece of messages, the intent while a batch is being published, and the
mark of the last batch that was. Every file is written whole, or not at all.

Not responsible for appending the messages, nor for what may be staged.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from storage.files import Files

INTENT: Final = "intent"
MARK: Final = "mark"
_PIECES: Final = "pieces"


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Messages of one queue, as a batch send's body has them; hosts are packed, times in ms."""

    topic: str
    queue_id: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    body: bytes

    def encode(self) -> bytes:
        """A line of JSON and the body."""
        head: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__ if name != "body"}
        head.update(born_host=self.born_host.hex(), store_host=self.store_host.hex())
        return json.dumps(head).encode() + b"\n" + self.body

    @classmethod
    def decode(cls, data: bytes) -> "StagedPart":
        """The reverse of `encode`."""
        line, _, body = data.partition(b"\n")
        head = json.loads(line)
        for name in ("born_host", "store_host"):
            head[name] = bytes.fromhex(head[name])
        return cls(**head, body=body)


@dataclass(slots=True)
class PublishIntent:
    """A batch whose publishing began: `stages` are the names and numbers of pieces, in order.

    `floors` say by topic and queue where the queue ended then: what is published is behind.
    """

    batch: int
    stages: list[tuple[str, int]]
    stream: bool
    floors: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(slots=True)
class PublishedMark:
    """The last batch that was published. That of a `stream` is kept, since its writer may come back at any time."""

    batch: int
    stream: bool


class StagedFiles:
    """The files of all writers of one store. Writers' and stages' names are letters, digits and dashes.

    Calls block for the disk; those for different writers may come from different threads.
    """

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = f"{root}/staged"

    def list_writers(self) -> list[str]:
        """Everybody who has something here."""
        return self._files.list(self._root)

    def write_part(self, writer: str, batch: int, stage: str, number: int, piece: bytes) -> None:
        """Keeps a piece, durably; the same once more replaces it. Raises StoreFull."""
        self._files.write_small(self._path(writer, batch, stage, number), piece)

    def read_part(self, writer: str, batch: int, stage: str, number: int) -> bytes | None:
        """A piece; None when it is not there."""
        return self._files.read_small(self._path(writer, batch, stage, number))

    def part_bytes(self, writer: str, batch: int, stage: str, number: int) -> int | None:
        """Bytes of a piece; None when it is not there."""
        return self._files.size(self._path(writer, batch, stage, number))

    def total_bytes(self) -> int:
        """What all pieces take."""
        sizes = (self._files.size(path) for writer in self.list_writers() for path, _ in self._pieces(writer))
        return sum(size or 0 for size in sizes)

    def read_intent(self, writer: str) -> PublishIntent | None:
        """What this writer's publishing under way is about."""
        found = self._files.read_small(f"{self._root}/{writer}/{INTENT}")
        if found is None:
            return None
        values = json.loads(found)
        values["stages"] = [(name, count) for name, count in values["stages"]]
        return PublishIntent(**values)

    def write_intent(self, writer: str, intent: PublishIntent) -> None:
        """From when this returns, the batch will be published, whatever happens. Raises StoreFull."""
        self._files.write_small(f"{self._root}/{writer}/{INTENT}", json.dumps(asdict(intent)).encode())

    def read_mark(self, writer: str) -> PublishedMark | None:
        """What this writer published last; None for nothing yet."""
        found = self._files.read_small(f"{self._root}/{writer}/{MARK}")
        return None if found is None else PublishedMark(**json.loads(found))

    def finish_batch(self, writer: str, mark: PublishedMark) -> int:
        """The batch is published: notes that, and forgets the pieces of it and those before; returns their bytes."""
        self._files.write_small(f"{self._root}/{writer}/{MARK}", json.dumps(asdict(mark)).encode())
        self._files.delete(f"{self._root}/{writer}/{INTENT}")
        return self.delete_parts(writer, mark.batch)

    def delete_parts(self, writer: str, until_batch: int) -> int:
        """Removes the pieces of batches up to this one; returns their bytes."""
        freed = 0
        for path, batch in self._pieces(writer):
            if batch <= until_batch:
                freed += self._files.size(path) or 0
                self._files.delete(path)
        return freed

    def delete_abandoned(self, before_ms: int) -> int:
        """Removes pieces and marks nobody touched since; returns the bytes of the pieces.

        What is being published stays, and so do the marks of streams.
        """
        freed = 0
        for writer in self.list_writers():
            if self.read_intent(writer) is not None:
                continue
            for path, _ in self._pieces(writer):
                if self._files.modified_ms(path) < before_ms:
                    freed += self._files.size(path) or 0
                    self._files.delete(path)
            self._clean_mark(writer, before_ms)
        return freed

    def _clean_mark(self, writer: str, before_ms: int) -> None:
        directory = f"{self._root}/{writer}"
        mark = self.read_mark(writer)
        gone = mark is None or (
            not mark.stream and self._files.modified_ms(f"{directory}/{MARK}") < before_ms
        )
        if gone and not self._files.list(f"{directory}/{_PIECES}"):
            self._files.delete_tree(directory)

    def _path(self, writer: str, batch: int, stage: str, number: int) -> str:
        return f"{self._root}/{writer}/{_PIECES}/{batch}.{stage}.{number}"

    def _pieces(self, writer: str) -> list[tuple[str, int]]:
        """Paths and batches; what a killed process left half written is among them."""
        directory = f"{self._root}/{writer}/{_PIECES}"
        return [(f"{directory}/{name}", int(name.split(".")[0])) for name in self._files.list(directory)]
