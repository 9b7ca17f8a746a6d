"""Tables of plain Parquet files, one directory per batch, which any reader reads correctly at any moment.

    <root>/messages                 symbolic link to the current generation, which holds only finished batches
    <root>/_generations/messages-000001/app=<app id>/batch=000000000007/topic=orders/dt=2026-01-31/….parquet
    <root>/_staging/messages/…      batches being written
    <root>/_locks/messages…

Theory of operation: readers follow the link, so nothing incomplete may ever be below it.

1. Append writes a batch below `_staging`, syncs its files and directories, and renames it into the current generation.
   A crash before the rename leaves only a staged directory, which the next append deletes. A repeated append finds
   the batch in the generation and does nothing.
2. Compaction builds a new generation beside the current one: merged files, and hard links to files that are large
   enough. A crash leaves a generation that nobody reads, and that the next compaction deletes.
3. Under the append lock, compaction links the files that were appended in the meantime, then replaces the link
   atomically. The old generation stays until the next compaction, for readers that are still using it.

Everything must be on one local or shared POSIX file system with links and locks.
"""

import fcntl
import os
import re
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from spark.errors import TableError
from spark.tables.parquet_files import WrittenFile, fsync_path, sort_rows, write_file, write_parquet
from spark.tables.table import (
    DEFAULT_KEEP_HOURS,
    DEFAULT_TARGET_BYTES,
    AppendResult,
    CompactResult,
    sum_rows_by_topic,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.pull.unread import Unread

HIVE_COLUMNS: Final = pa.schema(
    [("app", pa.string()), ("batch", pa.string()), ("topic", pa.string()), ("dt", pa.date32())]
)
"""Columns encoded in directory names. Readers have no use for the first two."""

_BATCH_DIRECTORY: Final = re.compile(r"batch=(\d{12})(?:-(\d{12}))?")


class DirectoryTable:
    """The table `name` below `root`."""

    format = "directory"

    def __init__(self, root: str, name: str) -> None:
        if "://" in root:
            raise TableError(f"{root}: the format directory needs a file system path; use delta")
        self.root = Path(root).absolute()
        self.name = name
        self.link = self.root / name
        if self.link.is_dir() and not self.link.is_symlink():
            raise TableError(
                f"{self.link} is not a table of this format: it is a directory, not a link to a generation"
            )

    @property
    def path(self) -> str:
        return str(self.link)

    def exists(self) -> bool:
        return self.link.is_symlink() and any(self.generation.glob("app=*/batch=*"))

    @property
    def generation(self) -> Path:
        """Directory that the link points to. Its files stay until the compaction after the next one."""
        return self.root / os.readlink(self.link)

    # -- appending

    def append(self, app_id: str, batch_id: int, rows: "DataFrame | Unread") -> AppendResult:
        self._create_first_generation()
        if batch_id <= self.last_batch(app_id):
            return AppendResult(already_present=True)
        staging = self.root / "_staging" / self.name / app_id
        shutil.rmtree(staging, ignore_errors=True)  # left by a run that crashed
        attempt = staging / uuid.uuid4().hex
        attempt.mkdir(parents=True)
        written = write_parquet(rows, str(attempt), f"part-{batch_id:012d}")
        self._publish_batch(attempt, written, app_id, batch_id)
        shutil.rmtree(staging, ignore_errors=True)
        counts = sum_rows_by_topic((file.topic, file.rows) for file in written)
        return AppendResult(counts, len(written), sum(file.size_bytes for file in written))

    def last_batch(self, app_id: str) -> int:
        """Return the newest batch id of an application, or -1 without any."""
        return greatest_batch_id(
            os.listdir(parent) if (parent := self.generation / f"app={app_id}").is_dir() else []
        )

    def _publish_batch(self, attempt: Path, written: list[WrittenFile], app_id: str, batch_id: int) -> None:
        """Move the files of successful task attempts into the table. Files of failed attempts stay behind."""
        ready = attempt.with_name(f"{attempt.name}-ready")
        for file in written:
            target = ready / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(attempt / file.path, target)
        if not written:
            return
        fsync_tree(ready)
        # Under the lock, so that compaction neither replaces the generation nor misses the batch.
        with self._hold_lock("append"):
            parent = self.generation / f"app={app_id}"
            parent.mkdir(exist_ok=True)
            if batch_id > self.last_batch(app_id):
                os.rename(ready, parent / f"batch={batch_id:012d}")
                fsync_path(str(parent))

    def _create_first_generation(self) -> None:
        with self._hold_lock("append"):
            if not self.link.is_symlink():
                first = Path("_generations", f"{self.name}-000001")
                (self.root / first).mkdir(parents=True, exist_ok=True)
                os.symlink(first, self.link)

    # -- reading

    def read(self, session: "SparkSession") -> "DataFrame":
        from pyspark.sql.pandas.types import from_arrow_schema

        self._require_existing()
        schema = from_arrow_schema(self.dataset().schema, prefer_timestamp_ntz=True)
        frame = session.read.schema(schema).parquet(str(self.generation))
        return frame.drop("app", "batch")

    def files(self) -> list[str]:
        if not self.link.is_symlink():
            return []
        return sorted(str(path) for path in self.generation.rglob("*.parquet"))

    def dataset(self) -> ds.Dataset:
        self._require_existing()
        dataset: ds.Dataset = ds.dataset(
            str(self.generation), format="parquet", partitioning=ds.partitioning(HIVE_COLUMNS, flavor="hive")
        )
        return dataset

    def _require_existing(self) -> None:
        if not self.exists():
            raise TableError(f"{self.link}: the table is empty, nothing has been appended")

    # -- compaction

    def compact(
        self, target_bytes: int = DEFAULT_TARGET_BYTES, keep_hours: float = DEFAULT_KEEP_HOURS
    ) -> CompactResult:
        if not self.exists():
            return CompactResult(0, 0)
        with self._hold_lock("compact", wait=False):
            old = self.generation
            # Left by an earlier compaction: the previous generation, and perhaps one that a crash left incomplete.
            self._delete_other_generations(old)
            before = _files_by_app(old)
            count = sum(map(len, before.values()))
            if not any(group_small_files(files, target_bytes) for files in before.values()):
                return CompactResult(count, count)
            new = self._next_generation(old)
            for app, files in before.items():
                self._compact_app(old / app, new / app, files, target_bytes)
            after = sum(1 for _ in new.rglob("*.parquet"))
            self._activate_generation(old, new, {path for files in before.values() for path in files})
        return CompactResult(count, after)

    def _delete_other_generations(self, current: Path) -> None:
        for path in current.parent.glob(f"{self.name}-*"):
            if path != current and re.fullmatch(rf"{re.escape(self.name)}-\d{{6}}", path.name):
                shutil.rmtree(path)

    def _next_generation(self, old: Path) -> Path:
        new = old.with_name(f"{self.name}-{int(old.name.rpartition('-')[2]) + 1:06d}")
        new.mkdir()
        return new

    def _compact_app(self, old: Path, new: Path, files: list[Path], target_bytes: int) -> None:
        """Merge all batches of an application into one directory, named after the first and the last."""
        merged = group_small_files(files, target_bytes)
        ids = sorted(number for path in files for number in _batch_ids(path.relative_to(old).parts[0]))
        batch = new / f"batch={ids[0]:012d}-{ids[-1]:012d}"
        merged_paths = {path for group in merged for path in group}
        for path in files:
            if path not in merged_paths:
                _hard_link(path, batch.joinpath(*path.relative_to(old).parts[1:]))
        for group in merged:
            target = batch.joinpath(*group[0].relative_to(old).parts[1:-1])
            target.mkdir(parents=True, exist_ok=True)
            merge_files(group, target)

    def _activate_generation(self, old: Path, new: Path, compacted: set[Path]) -> None:
        """Make a new generation the current one, with the files that were appended in the meantime."""
        with self._hold_lock("append"):
            for path in old.rglob("*.parquet"):
                if path not in compacted:
                    _hard_link(path, new / path.relative_to(old))
            fsync_tree(new)
            new_link = self.root / "_generations" / f"{self.name}.link"
            new_link.unlink(missing_ok=True)
            os.symlink(new.relative_to(self.root), new_link)
            os.replace(new_link, self.link)
            fsync_path(str(self.root))

    @contextmanager
    def _hold_lock(self, what: str, wait: bool = True) -> Iterator[None]:
        """Hold a file lock, which the kernel releases if the process is killed.

        Without `wait`, raises TableError if another process holds it.
        """
        path = self.root / "_locks" / f"{self.name}.{what}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise TableError(f"{self.link}: locked by another process ({what})") from None
            yield


def greatest_batch_id(names: list[str]) -> int:
    """Return the greatest batch id among directory names, or -1 without any."""
    return max((_batch_ids(name)[-1] for name in names if _BATCH_DIRECTORY.fullmatch(name)), default=-1)


def _batch_ids(name: str) -> tuple[int, int]:
    match = _BATCH_DIRECTORY.fullmatch(name)
    if match is None:
        raise TableError(f"{name} is not a batch directory")
    return int(match[1]), int(match[2] or match[1])


def _files_by_app(generation: Path) -> dict[str, list[Path]]:
    """Return the files by application directory, in the order of batches."""
    return {
        app.name: files
        for app in sorted(generation.glob("app=*"))
        if (files := sorted(app.rglob("*.parquet")))
    }


def _hard_link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(source, target)


def fsync_tree(top: Path) -> None:
    """Sync all directories below `top`, so that the names of its files, which are synced already, are on the disk."""
    for directory, _, _ in os.walk(top):
        fsync_path(directory)
    fsync_path(str(top.parent))


def group_small_files(files: Iterable[Path], target_bytes: int) -> list[list[Path]]:
    """Return groups of files to be merged, each of one topic and day, in their given order.

    Files larger than half the target size, and files without a partner, are left alone.
    """
    small: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for path in files:
        size_bytes = uncompressed_bytes(path)
        if size_bytes <= target_bytes // 2:
            small[path.parts[-3:-1]].append((path, size_bytes))
    groups = (group for sized in small.values() for group in group_neighbours(sized, target_bytes))
    return [group for group in groups if len(group) > 1]


def group_neighbours(sized: Iterable[tuple[Path, int]], target_bytes: int) -> list[list[Path]]:
    """Group neighbouring files, each group as large as the target size allows."""
    groups: list[list[Path]] = []
    room = 0
    for path, size_bytes in sized:
        if not groups or size_bytes > room:
            groups.append([])
            room = target_bytes
        groups[-1].append(path)
        room -= size_bytes
    return groups


def uncompressed_bytes(path: Path) -> int:
    """Return the size of a file's columns before compression, bytes."""
    metadata = pq.read_metadata(path)
    return sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))


def merge_files(group: list[Path], directory: Path) -> None:
    """Merge files into one, sorted by queue and offset, and wait until it is on the disk."""
    tables = [pq.ParquetFile(path).read() for path in group]
    table = sort_rows(pa.concat_tables(tables, promote_options="default"))
    target = directory / f"part-{uuid4().hex}.parquet"
    with target.open("wb") as sink:
        write_file(table, sink)
    fsync_path(str(target))
