"""The SQLite file: what is written survives, in the order of versions, and only one controller has it open."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.controller.broker_set import BrokerSet
from gateway.controller.sqlite_store import FILE_NAME, SqliteStore, StateInUse, open_sqlite_store
from gateway.controller.store import ControllerMember, StoreUnavailable, TermOver

FIRST = BrokerSet("C", "a").with_replica(1, "h:1", "x")
ME = ControllerMember("n0", "h:9878")


async def run_at_once(work: Callable[[], Any]) -> Any:
    return work()


def open_store(directory: Path) -> SqliteStore:
    return open_sqlite_store(str(directory), run_at_once)


def test_entries_survive_and_are_written_by_version(tmp_path: Path) -> None:
    async def write() -> None:
        store = open_store(tmp_path)
        term = await store.begin_term(ME)
        assert await store.read_leader() == ME
        version = await store.compare_and_put(term, "a", 0, FIRST)
        for wrong in (0, version + 1):
            with pytest.raises(TermOver):
                await store.compare_and_put(term, "a", wrong, FIRST.with_master(1))
        assert await store.compare_and_put(term, "a", version, FIRST.with_master(1)) > version
        await store.close()

    async def read() -> None:
        store = open_store(tmp_path)
        entries = await store.read_all()
        assert {name: entry.broker_set for name, entry in entries.items()} == {"a": FIRST.with_master(1)}
        term = await store.begin_term(ME)
        assert await store.compare_and_put(term, "a", entries["a"].version, None) == 0
        assert await store.read_all() == {}
        assert await store.compare_and_put(term, "a", 0, FIRST) > entries["a"].version
        await store.close()

    trio.run(write)
    trio.run(read)


def test_a_second_controller_does_not_open_the_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StateInUse, match="another controller uses it"):
        open_store(tmp_path)
    trio.run(store.close)
    trio.run(open_store(tmp_path).close)


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 100)
    with pytest.raises(StateInUse, match="cannot open the controller's state"):
        open_store(tmp_path)


def test_a_write_that_fails_is_an_unavailable_store(tmp_path: Path) -> None:
    async def fails() -> None:
        store = open_store(tmp_path)
        term = await store.begin_term(ME)
        await store.close()
        with pytest.raises(StoreUnavailable):
            await store.compare_and_put(term, "a", 0, FIRST)

    trio.run(fails)


def test_without_a_directory_the_state_is_in_memory() -> None:
    async def write() -> None:
        store = open_sqlite_store("", run_at_once)
        await store.compare_and_put(await store.begin_term(ME), "a", 0, FIRST)
        assert list(await store.read_all()) == ["a"]
        await store.close()

    trio.run(write)
