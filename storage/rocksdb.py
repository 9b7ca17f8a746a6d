"""Recognises stores that keep queues or tables in RocksDB, which this broker cannot read.

With ``storeType=defaultRocksDB`` the official broker has a database in ``consumequeue`` and its tables in databases
below ``config``; with ``configManagerVersion=V2`` the tables are in ``config/rdb``. Every 5.4 broker creates
``rocksdbstore`` as well, whatever its settings, so that folder says nothing.

Source: RocksDBConsumeQueueStore, RocksDBConsumerOffsetManager.rocksdbConfigFilePath, ConfigStorage, 5.4.0.
"""

from typing import Final

from storage.errors import StoreError
from storage.files import Files

DATABASE_FILE: Final = "CURRENT"
"""A file that every RocksDB database has, and no folder of topics or tables."""
_QUEUE_FOLDERS: Final = ("consumequeue", "consumequeue_r")
_TABLE_FOLDERS: Final = tuple(
    f"config/{name}" for name in ("topics", "subscriptionGroups", "consumerOffsets", "metadata", "rdb")
)


class RocksDBStore(StoreError):
    """The store keeps queues or tables in RocksDB; the text says how to convert it."""

    def __init__(self, root: str, folders: list[str]) -> None:
        super().__init__(
            f"{root} keeps data in RocksDB ({', '.join(folders)}), which is not supported. To convert it: while the "
            "official broker runs, export its tables with `mqadmin rocksDBConfigToJson -b HOST:PORT`; stop that "
            "broker; move these folders out of the store. Queues are then built again from the commit log."
        )
        self.folders = folders


def refuse_rocksdb(files: Files, root: str) -> None:
    """Raise RocksDBStore if a store has a RocksDB database where this broker expects queues or tables."""
    folders = [*_QUEUE_FOLDERS, *_TABLE_FOLDERS]
    databases = [folder for folder in folders if DATABASE_FILE in files.list(f"{root}/{folder}")]
    if databases:
        raise RocksDBStore(root, databases)
