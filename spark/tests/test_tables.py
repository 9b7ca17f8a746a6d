"""Tables without Spark: each batch once, with any reader, wherever a run crashes."""

import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from spark.errors import TableError
from spark.tables import Table, open_table
from spark.tables.delta_rs import DeltaRsTable
from spark.tables.directory_table import DirectoryTable, greatest_batch_id, group_neighbours, merge_files
from spark.tables.layout import partition_directory
from spark.tables.table_formats import choose_format as chosen
from spark.tests.frames import Frame, rows

APP = "0b5c9ad4-5c3e-4a4c-8f53-2f9c6f0c8a11"
ODD = "%RETRY%a|b group"


class Killed(BaseException):
    """Simulates a crash."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, as the power is not cut here."""
    monkeypatch.setattr(os, "fsync", lambda _handle: None)


@pytest.fixture(params=["delta", "directory"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return open_table(str(tmp_path), "messages", request.param)


def counts(table: Table) -> Counter[tuple[str, int, int]]:
    """Count each place with pyarrow, DuckDB and the files themselves, which must agree."""
    columns = ["topic", "queueId", "queueOffset", "body"]
    found = table.dataset()
    by_arrow = [tuple(row.values()) for row in found.to_table(columns=columns).to_pylist()]
    by_duck = duckdb.sql(f"select {', '.join(columns)} from found").fetchall()
    assert sorted(by_duck) == sorted(by_arrow)
    assert sum(pq.read_metadata(path).num_rows for path in table.files()) == len(by_arrow)
    if table.format == "directory":
        assert sorted(glob(table, columns)) == sorted(by_arrow)
    assert all(row[3] == f"{row[0]}/{row[1]}/{row[2]}".encode() for row in by_arrow)
    return Counter(row[:3] for row in by_arrow)


def glob(table: Table, columns: list[str]) -> list[tuple[Any, ...]]:
    """Read the table as someone who knows only the directory."""
    types = "{'topic': VARCHAR, 'dt': DATE, 'app': VARCHAR, 'batch': VARCHAR}"
    source = f"read_parquet('{table.path}/**/*.parquet', hive_partitioning=true, hive_types={types})"
    return duckdb.sql(f"select {', '.join(columns)} from {source}").fetchall()


def once(topic: str, queue: int, offsets: range) -> Counter[tuple[str, int, int]]:
    return Counter({(topic, queue, offset): 1 for offset in offsets})


def test_batches_are_appended_once(table: Table) -> None:
    assert not table.exists()
    told = table.append(APP, 0, Frame(rows("a", 0, range(5)), rows(ODD, 1, range(7)), []))
    assert (told.rows, told.files, told.already_present) == ({"a": 5, ODD: 7}, 2, False)
    assert told.size_bytes == sum(os.path.getsize(path) for path in table.files())
    again = table.append(APP, 0, Frame(rows("a", 0, range(5)), rows(ODD, 1, range(7))))
    assert (again.rows, again.already_present) == ({}, True)
    table.append(APP, 1, Frame(rows("a", 0, range(5, 9))))
    assert table.append(APP, 0, Frame(rows("a", 0, range(5)))).already_present
    table.append("another", 0, Frame(rows("a", 9, range(2))))
    expected = once("a", 0, range(9)) | once(ODD, 1, range(7)) | once("a", 9, range(2))
    assert counts(table) == expected


def test_an_empty_batch_leaves_nothing(table: Table) -> None:
    assert table.append(APP, 0, Frame([])).rows == {}
    assert table.files() == []
    table.append(APP, 1, Frame(rows("a", 0, range(2))))
    assert counts(table) == once("a", 0, range(2))


def test_what_was_never_appended_to_says_so(tmp_path: Path) -> None:
    for kind in ("delta", "directory"):
        empty = open_table(str(tmp_path), "nothing", kind)
        assert empty.files() == []
        assert empty.compact().files_before == 0
        with pytest.raises(TableError, match="nothing has been appended"):
            empty.dataset()


def test_rows_are_in_order_by_topic_and_day(table: Table) -> None:
    mixed = rows("a", 1, [5, 3]) + rows("a", 0, [9]) + rows("b", 0, [1], day=1) + rows("a", 1, [1], day=1)
    table.append(APP, 0, Frame(mixed))
    found = {
        path[path.index("topic=") :].rpartition("/")[0]: pq.ParquetFile(path).read().to_pylist()
        for path in table.files()
    }
    places = {name: [(row["queueId"], row["queueOffset"]) for row in part] for name, part in found.items()}
    assert places == {
        "topic=a/dt=2026-01-31": [(0, 9), (1, 3), (1, 5)],
        "topic=a/dt=2026-02-01": [(1, 1)],
        "topic=b/dt=2026-02-01": [(0, 1)],
    }


def test_a_run_that_ends_while_it_writes_leaves_nothing_to_see(table: Table) -> None:
    table.append(APP, 0, Frame(rows("a", 0, range(3))))

    def die(number: int) -> None:
        if number == 1:
            raise Killed

    with pytest.raises(Killed):
        table.append(APP, 1, Frame(rows("a", 0, range(3, 6)), rows("a", 1, range(3)), fail=die))
    assert counts(table) == once("a", 0, range(3))
    table.append(APP, 1, Frame(rows("a", 0, range(3, 6)), rows("a", 1, range(3))))
    assert counts(table) == once("a", 0, range(6)) | once("a", 1, range(3))


def test_files_of_failed_attempts_are_not_published(tmp_path: Path) -> None:
    table = open_table(str(tmp_path), "messages", "directory")

    class Twice(Frame):
        """Run the first partition twice, as if a task's result had been lost."""

        def mapInArrow(self, function: Any, ddl: str) -> Any:
            Frame(self.partitions[0]).mapInArrow(function, ddl).collect()
            broken = next((tmp_path / "_staging").rglob("*.parquet"))
            broken.write_bytes(b"PAR1 unfinished")
            return super().mapInArrow(function, ddl)

    table.append(APP, 0, Twice(rows("a", 0, range(3))))
    assert counts(table) == once("a", 0, range(3))
    assert not list((tmp_path / "_staging").rglob("*.parquet"))


def fill(table: Table, batches: int = 6) -> Counter[tuple[str, int, int]]:
    for batch in range(batches):
        fresh = range(batch * 4, batch * 4 + 4)
        table.append(APP, batch, Frame(rows("a", 0, fresh), rows(ODD, 1, fresh)))
    return once("a", 0, range(batches * 4)) | once(ODD, 1, range(batches * 4))


def test_compaction_makes_few_files_and_batches_stay_known(table: Table) -> None:
    expected = fill(table)
    done = table.compact(keep_hours=0)
    assert (done.files_before, done.files_after, len(table.files())) == (12, 2, 2)
    assert counts(table) == expected
    assert table.append(APP, 5, Frame(rows("a", 0, range(20, 24)))).already_present
    table.append(APP, 6, Frame(rows("a", 0, range(24, 30))))
    table.append("another", 0, Frame(rows("a", 5, range(3))))
    expected = expected | once("a", 0, range(24, 30)) | once("a", 5, range(3))
    assert counts(table) == expected
    table.compact(keep_hours=0)
    assert counts(table) == expected
    assert table.append(APP, 6, Frame(rows("a", 0, range(24, 30)))).already_present
    assert table.compact(keep_hours=0).files_after == len(table.files())


def test_compacted_directories_have_rows_in_order(tmp_path: Path) -> None:
    table = open_table(str(tmp_path), "messages", "directory")
    for batch in range(3):
        fresh = range(batch * 4, batch * 4 + 4)
        table.append(APP, batch, Frame(rows("a", 1, fresh), rows("a", 0, fresh)))
    table.compact()
    (path,) = table.files()
    found = pq.ParquetFile(path).read(["queueId", "queueOffset"]).to_pylist()
    assert found == [{"queueId": q, "queueOffset": o} for q in (0, 1) for o in range(12)]


STEPS = [
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.replace",
    "spark.tables.directory_table.merge_files",
    "spark.tables.directory_table.fsync_tree",
    "spark.tables.directory_table.fsync_path",
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("late", [False, True])
def test_a_compaction_that_ends_anywhere_leaves_readers_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, late: bool
) -> None:
    """A crash before or after any call of any step leaves readers with all rows once."""
    done = False
    for number in range(1, 40):
        root = tmp_path / str(number)
        table = open_table(str(root), "messages", "directory")
        expected = fill(table, 3)
        table.append(APP, 3, Frame(rows("big", 0, range(400))))  # left alone, so it is linked
        expected |= once("big", 0, range(400))
        with monkeypatch.context() as patch:
            done = not dies_at(patch, step, number, late, partial(table.compact, 4000))
        assert counts(table) == expected
        table.append(APP, 4, Frame(rows("a", 0, range(12, 15))))
        expected |= once("a", 0, range(12, 15))
        table.compact(target_bytes=4000)
        assert counts(table) == expected
        assert len(table.files()) == 3
        shutil.rmtree(root)
        if done:
            break
    assert done


def dies_at(patch: pytest.MonkeyPatch, step: str, number: int, late: bool, run: Any) -> bool:
    """Run with a crash at the number-th call of a function; return false if there were fewer."""
    module, _, name = step.rpartition(".")
    target: Any = os if module == "os" else __import__(module, fromlist=["x"])
    real = getattr(target, name)
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not late:
            raise Killed
        result = real(*args, **kwargs)
        if calls == number:
            raise Killed
        return result

    patch.setattr(target, name, counted)
    try:
        run()
    except Killed:
        return True
    return False


def test_what_is_appended_during_a_compaction_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_table(str(tmp_path), "messages", "directory")
    expected = fill(table)
    from spark.tables import directory_table as module

    todo = [6]

    def slow(group: list[Path], where: Path) -> None:
        merge_files(group, where)
        if todo:
            table.append(APP, todo.pop(), Frame(rows("a", 7, range(5))))

    monkeypatch.setattr(module, "merge_files", slow)
    table.compact()
    assert counts(table) == expected | once("a", 7, range(5))
    assert table.append(APP, 6, Frame(rows("a", 7, range(5)))).already_present


def test_a_reader_underway_may_finish_after_a_compaction(tmp_path: Path) -> None:
    table = open_table(str(tmp_path), "messages", "directory")
    fill(table)
    underway = table.dataset()
    table.compact()
    assert underway.count_rows() == 48


def test_one_compaction_at_a_time(tmp_path: Path) -> None:
    table = DirectoryTable(str(tmp_path), "messages")
    fill(table)
    with table._hold_lock("compact"), pytest.raises(TableError, match="another process"):
        table.compact()


def test_delta_tables_pass_their_checkpoint(tmp_path: Path) -> None:
    table = open_table(str(tmp_path), "messages", "delta")
    for batch in range(25):
        table.append(APP, batch, Frame(rows("a", 0, [batch])))
    assert (Path(table.path) / "_delta_log" / "_last_checkpoint").exists()
    assert counts(table) == once("a", 0, range(25))
    assert table.append(APP, 24, Frame(rows("a", 0, [24]))).already_present


def test_delta_knows_what_is_in_a_file(tmp_path: Path) -> None:
    table = open_table(str(tmp_path), "messages", "delta")
    table.append(APP, 0, Frame(rows("a", 3, range(10, 20))))
    (told,) = DeltaTable(table.path).get_add_actions(flatten=True).to_struct_array().to_pylist()
    assert (told["num_records"], told["min.queueOffset"], told["max.queueOffset"]) == (10, 10, 19)
    assert told["max.storeTimestamp"].second == 19


def test_delta_takes_an_address(tmp_path: Path) -> None:
    table = DeltaRsTable(f"file://{tmp_path}/messages")
    expected = fill(table, 2)
    assert counts(table) == expected


def test_delta_refuses_other_columns(tmp_path: Path) -> None:
    table = open_table(str(tmp_path), "messages", "delta")
    table.append(APP, 0, Frame(rows("a", 0, range(3))))
    other = Frame(rows("a", 0, range(3)))
    other.schema = StructType(other.schema.fields[:-1])
    with pytest.raises(TableError, match="different columns"):
        table.append(APP, 1, other)


@pytest.mark.parametrize(
    ("wanted", "present", "delta", "found"),
    [
        ("auto", None, True, "delta"),
        ("auto", None, False, "directory"),
        ("auto", "directory", True, "directory"),
        ("directory", None, True, "directory"),
        ("delta", "delta", True, "delta"),
        ("delta", None, False, "not installed"),
        ("auto", "delta", False, "not installed"),
        ("delta", "directory", True, "has the format directory"),
        ("iceberg", None, True, "invalid format iceberg"),
    ],
)
def test_the_format_is_what_is_there_or_what_is_best(
    wanted: str, present: str | None, delta: bool, found: str
) -> None:
    if found in ("delta", "directory"):
        assert chosen(wanted, present, delta) == found
    else:
        with pytest.raises(TableError, match=found):
            chosen(wanted, present, delta)


def test_a_table_keeps_its_format(tmp_path: Path) -> None:
    open_table(str(tmp_path), "messages", "directory").append(APP, 0, Frame(rows("a", 0, range(3))))
    assert open_table(str(tmp_path), "messages").format == "directory"
    assert open_table(str(tmp_path), "others").format == "delta"
    with pytest.raises(TableError, match="has the format"):
        open_table(str(tmp_path), "messages", "delta")
    (tmp_path / "plain").mkdir()
    with pytest.raises(TableError, match="not a table of this format"):
        open_table(str(tmp_path), "plain", "directory")
    with pytest.raises(TableError, match="needs a file system path"):
        open_table("s3://bucket", "messages", "directory")


def test_names() -> None:
    assert partition_directory("%RETRY%a", "2026-01-31") == "topic=%25RETRY%25a/dt=2026-01-31"
    assert partition_directory("a=b:c/d", "2026-01-31") == "topic=a%3Db%3Ac%2Fd/dt=2026-01-31"
    assert greatest_batch_id([]) == -1
    assert greatest_batch_id(["batch=000000000004", "batch=000000000000-000000000009", ".hidden"]) == 9
    sized = [(Path("a"), 4), (Path("b"), 4), (Path("c"), 4), (Path("d"), 40), (Path("e"), 1)]
    assert [[path.name for path in each] for each in group_neighbours(sized, 10)] == [
        ["a", "b"],
        ["c"],
        ["d"],
        ["e"],
    ]


def test_directories_are_read_by_pyarrow_without_us(tmp_path: Path) -> None:
    table = open_table(str(tmp_path), "messages", "directory")
    expected = fill(table)
    found = ds.dataset(table.path, partitioning="hive").to_table()
    assert found.num_rows == sum(expected.values())
