"""The background task that builds the index: it keeps up under constant load, in short slices."""

import trio
import trio.testing

from codec.properties import encode_properties
from gateway.broker.messages import index_builder
from gateway.broker.messages.index_builder import IndexBuilder
from gateway.tests.cluster import message, simulated
from remoting.tests.virtual import counting_turns
from storage.append import NewMessage
from storage.config import memory_config
from storage.files import MemoryFiles
from storage.store import MessageStore


def open_store() -> MessageStore:
    return MessageStore.open(memory_config(256 << 20, file_bytes=64 << 20), MemoryFiles())


def put(store, count, body=b"x" * 100):
    for _ in range(count):
        store.append(NewMessage("t", 0, body, encode_properties({"KEYS": "k"})))


@simulated
async def test_the_index_follows_a_load_that_never_rests(cluster):
    node = await cluster.add_broker()
    client, index = cluster.dial(node.address), node.broker.store.index
    behind = []
    for _ in range(400):
        await client.ask(message(properties={"KEYS": "k1"}))
        await trio.sleep(0.01)
        behind.append(index.unindexed_bytes)
    assert max(behind) < node.broker.store.max_physical_offset / 5
    assert index.files


def test_steps_grow_until_they_keep_up(monkeypatch):
    monkeypatch.setattr(index_builder, "BYTES_PER_SLICE", 256 * 1024)
    store = open_store()
    builder = IndexBuilder(store)
    behind = []

    async def main():
        for _ in range(60):
            put(store, 1000)
            await builder.run_step()
            behind.append(store.index.unindexed_bytes)

    trio.run(main)
    assert max(behind) <= 12 * index_builder.BYTES_PER_SLICE
    assert max(behind[30:]) - min(behind[30:]) <= 2 * index_builder.BYTES_PER_SLICE, "it does not grow"


def test_others_have_their_turn_after_every_slice():
    store = open_store()
    put(store, 5000)
    builder = IndexBuilder(store)

    async def main():
        async with counting_turns() as turns:
            await builder.run_step()
            await builder.run_step()
        assert turns.count >= 5000 // builder.slice_messages - 1

    trio.run(main)
    assert store.index.unindexed_bytes == 0, "nothing was stored between the steps, so all was indexed"


def test_turns_of_an_overloaded_broker_are_longer_but_bounded(monkeypatch):
    monkeypatch.setattr(index_builder, "MAX_BACKLOG_BYTES", 0)
    monkeypatch.setattr(index_builder, "BYTES_PER_SLICE", 256 * 1024)
    store = open_store()
    put(store, 30_000)
    turns, checkpoint = [0], trio.lowlevel.checkpoint
    build_index = MessageStore.build_index

    def count_slice(self, *limits):
        turns[-1] += 1
        return build_index(self, *limits)

    async def end_turn():
        turns.append(0)
        await checkpoint()

    monkeypatch.setattr(MessageStore, "build_index", count_slice)
    monkeypatch.setattr(trio.lowlevel, "checkpoint", end_turn)
    trio.run(IndexBuilder(store).run_step)
    assert 2 < max(turns) <= index_builder.MAX_SLICES_PER_TURN
    assert len(turns) > 2


def test_nothing_is_indexed_while_messages_are_still_to_be_copied():
    store, is_catching_up = open_store(), True
    builder = IndexBuilder(store, lambda: is_catching_up)

    async def main():
        nonlocal is_catching_up
        put(store, 10)
        with trio.move_on_after(60):
            await builder.run()
        assert store.index.unindexed_bytes == store.max_physical_offset
        is_catching_up = False
        with trio.move_on_after(60):
            await builder.run()
        assert store.index.unindexed_bytes == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
