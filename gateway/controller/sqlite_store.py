"""The controller's state in one SQLite file, for a single controller.

The file is locked while it is open, so a second controller with the same file does not start. Each write is on the disk
before its answer leaves (``synchronous=FULL``). Without the file there are no elections until the brokers have
registered again; messages do not depend on it.
"""

import math
import os
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from gateway.controller.broker_set import BrokerSet
from gateway.controller.store import ControllerMember, Entry, StoreUnavailable, Term, TermOver
from gateway.runtime.run_blocking import RunBlocking

FILE_NAME: Final = "controller.sqlite"
_TERM: Final = Term("the only controller", 0, math.inf)
_BUSY_TIMEOUT_S: Final = 1.0
T = TypeVar("T")


class StateInUse(OSError):
    """The file is open in another process, or cannot be used."""


def open_sqlite_store(directory: str, run_blocking: RunBlocking) -> "SqliteStore":
    """Open or create the file in a directory; an empty name stands for a store in memory. Raises StateInUse."""
    if not directory:
        return SqliteStore(_connect(":memory:"), run_blocking)
    path = os.path.join(directory, FILE_NAME)
    try:
        os.makedirs(directory, exist_ok=True)
        return SqliteStore(_connect(path), run_blocking)
    except (OSError, sqlite3.Error) as error:
        text = str(error)
        if isinstance(error, sqlite3.OperationalError) and "locked" in text:
            text = "another controller uses it"
        raise StateInUse(f"cannot open the controller's state in {path}: {text}") from error


def _connect(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        # In this mode the first write takes the lock of the file and keeps it.
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA journal_mode=DELETE")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("BEGIN EXCLUSIVE")
        database.execute(
            "CREATE TABLE IF NOT EXISTS broker_sets (name TEXT PRIMARY KEY, version INTEGER NOT NULL, state BLOB)"
        )
        database.execute("COMMIT")
    except BaseException:
        database.close()
        raise
    return database


class SqliteStore:
    """A store whose only controller always leads. A deleted entry stays as a row without a state."""

    def __init__(self, database: sqlite3.Connection, run_blocking: RunBlocking) -> None:
        self._database = database
        self._run_blocking = run_blocking
        self._lock = threading.Lock()
        self._leader: ControllerMember | None = None

    async def begin_term(self, member: ControllerMember) -> Term:
        self._leader = member
        return _TERM

    async def renew(self, term: Term) -> Term:
        return term

    async def end_term(self, term: Term) -> None:
        self._leader = None

    async def read_leader(self) -> ControllerMember | None:
        return self._leader

    async def read_all(self) -> dict[str, Entry]:
        rows = await self._run(
            lambda: self._database.execute(
                "SELECT name, version, state FROM broker_sets WHERE state IS NOT NULL"
            ).fetchall()
        )
        return {name: Entry(BrokerSet.from_json(state), version, len(state)) for name, version, state in rows}

    async def compare_and_put(self, term: Term, name: str, version: int, broker_set: BrokerSet | None) -> int:
        state = None if broker_set is None else broker_set.to_json()
        return await self._run(lambda: self._put(name, version, state))

    def _put(self, name: str, version: int, state: bytes | None) -> int:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            row = self._database.execute(
                "SELECT version, state FROM broker_sets WHERE name = ?", (name,)
            ).fetchone()
            stored_version, stored_state = row or (0, None)
            if version != (stored_version if stored_state is not None else 0):
                raise TermOver(f"the entry of {name} has the version {stored_version}, not {version}")
            new_version: int = stored_version + 1
            self._database.execute(
                "INSERT OR REPLACE INTO broker_sets (name, version, state) VALUES (?, ?, ?)",
                (name, new_version, state),
            )
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        return new_version if state is not None else 0

    async def _run(self, work: Callable[[], T]) -> T:
        def locked() -> T:
            with self._lock:
                return work()

        try:
            result: Any = await self._run_blocking(locked)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"SQLite: {error}") from error
        return result  # type: ignore[no-any-return]

    async def close(self) -> None:
        await self._run(self._database.close)
