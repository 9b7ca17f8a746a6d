"""Stores of the official broker that keep queues or tables in RocksDB are refused, by the broker as well."""

from pathlib import Path

import pytest

from storage.rocksdb import RocksDBStore
from storage.store import MessageStore
from storage.tests.support import small_config
from storage.tools.store_reader import StoreReader


def database(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("CURRENT", "MANIFEST-000005", "OPTIONS-000007", "000004.log", "IDENTITY", "LOCK"):
        (folder / name).write_text("MANIFEST-000005\n")


@pytest.mark.parametrize(
    "place", ["consumequeue", "config/topics", "config/consumerOffsets", "config/metadata", "config/rdb"]
)
def test_queues_or_tables_in_rocksdb_are_refused_before_anything_is_written(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "commitlog").mkdir()
    database(tmp_path / place)
    before = sorted(tmp_path.rglob("*"))
    for start in (MessageStore.open, StoreReader):
        with pytest.raises(RocksDBStore, match="rocksDBConfigToJson") as refused:
            start(small_config(root=str(tmp_path)))
        assert refused.value.folders == [place]
    assert sorted(tmp_path.rglob("*")) == before


def test_the_database_that_every_official_store_has_does_not_matter(tmp_path: Path) -> None:
    database(tmp_path / "rocksdbstore")
    MessageStore.open(small_config(root=str(tmp_path))).close()
    StoreReader(small_config(root=str(tmp_path))).close()
