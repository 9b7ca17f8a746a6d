"""Merge small Parquet files of one topic and day into large ones, with rows in order."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from spark.tables.parquet_files import fsync_path, sort_rows, write_file


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
    found: list[list[Path]] = []
    room = 0
    for path, size_bytes in sized:
        if not found or size_bytes > room:
            found.append([])
            room = target_bytes
        found[-1].append(path)
        room -= size_bytes
    return found


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
