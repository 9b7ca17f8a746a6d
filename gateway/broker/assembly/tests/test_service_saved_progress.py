"""Offsets that pops have moved, and what takeover.json says about them, after a crash between their writes."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import trio

from gateway.broker.consumers.consumer_offsets import parse_offsets
from gateway.broker.delayed.timer_takeover import TakeoverState
from gateway.broker.replication.progress_return import OffsetTable
from gateway.config.replication import SLAVE
from gateway.runtime.config_file import ConfigFile
from gateway.tests.cluster import Cluster, Node, settle, simulated
from gateway.tests.configs import change_config
from gateway.tests.popping import Client
from remoting.bodies.topics import TopicConfig
from remoting.declare import Request
from remoting.requests.groups import DeleteSubscriptionGroup
from remoting.requests.topics import DeleteTopicInBroker
from storage.files import MemoryFiles


class KilledFiles(MemoryFiles):
    """Files of a process that is killed after it has written a table; "" for none. The disk refuses another one."""

    last_table = ""
    refused_table = ""
    is_killed = False

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        if self.refused_table and path.endswith(self.refused_table):
            raise OSError("no write")
        if not self.is_killed:
            super().write_small(path, data, backup)
        if self.last_table and path.endswith(self.last_table):
            self.is_killed = True


@simulated
async def test_a_master_killed_while_it_stops_knows_which_offsets_pops_have_moved(cluster: Cluster) -> None:
    """Its slave has them wait for the log: what was revived is perhaps not copied yet."""
    files = KilledFiles()
    node = await cluster.add_broker(files=files)
    client = Client(cluster, node)
    await client.send(b"0")
    await client.ack(*await client.pop(queue_id=0))
    files.last_table = "consumerOffset.json"
    await node.stop()
    assert files.is_killed
    files.last_table, files.is_killed = "", False
    node = await cluster.add_broker(files=files)
    assert node.broker.offsets.query_offset("GID", "orders", 0) == 1
    assert node.broker.pop.state.reviver.popped_keys == {"orders@GID"}


@simulated
async def test_a_stop_writes_no_offsets_if_it_cannot_write_which_of_them_pops_have_moved(
    cluster: Cluster,
) -> None:
    files = KilledFiles()
    node = await cluster.add_broker(files=files)
    client = Client(cluster, node)
    await client.send(b"0")
    await client.pop(queue_id=0)
    files.refused_table = "takeover.json"
    with pytest.raises(OSError, match="no write"):
        node.service.close()
    content = files.read_small(f"{node.broker.store.config.config_path}/consumerOffset.json")
    assert content is None or parse_offsets(content).offset_table == {}
    files.refused_table = ""
    await node.stop()
    node = await cluster.add_broker(files=files)
    assert node.broker.offsets.query_offset("GID", "orders", 0) == 1
    assert node.broker.pop.state.reviver.popped_keys == {"orders@GID"}


DELETIONS = [
    DeleteTopicInBroker(topic="old"),
    DeleteSubscriptionGroup(group_name="old-group", clean_offset=True),
]


@pytest.mark.parametrize("deletion", DELETIONS, ids=["topic", "group"])
@simulated
async def test_a_deletion_writes_no_offsets_before_which_of_them_pops_have_moved(
    cluster: Cluster, deletion: Request[Any]
) -> None:
    """A save is under way, and waits for its first table."""
    files = KilledFiles()
    node = await cluster.add_broker(files=files)
    client, takeover = Client(cluster, node), node.broker.replication.takeover
    await client.send(b"0")
    await client.pop(queue_id=0)
    node.broker.topics.update([TopicConfig(topic_name="old", perm=6)])
    node.broker.offsets.commit_offset("old-group", "orders", 0, 1)
    is_writable = trio.Event()
    path = f"{node.broker.store.config.config_path}/consumerOffset.json"
    before = files.read_small(path)

    async def wait(work: Callable[[], object]) -> None:
        await is_writable.wait()
        work()

    takeover.file.run_blocking = wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.service._save_offsets)
        await settle()
        nursery.start_soon(cluster.dial(node.address).ask, deletion)
        await trio.sleep(1)
        assert files.read_small(path) == before
        is_writable.set()
    assert files.read_small(path) != before


@pytest.mark.parametrize("deletion", DELETIONS, ids=["topic", "group"])
@simulated
async def test_a_process_killed_after_a_deletion_knows_which_offsets_pops_have_moved(
    cluster: Cluster, deletion: Request[Any]
) -> None:
    files = KilledFiles()
    node = await cluster.add_broker(files=files)
    node.broker.topics.update([TopicConfig(topic_name="old", perm=6)])
    node.broker.offsets.commit_offset("old-group", "old", 0, 1)
    node.broker.offsets.commit_offset("GID", "orders", 0, 1)
    node.broker.replication.takeover.note_popped_keys(["orders@GID"])
    files.last_table = "consumerOffset.json"
    await cluster.dial(node.address).ask(deletion)
    assert files.is_killed
    root = node.broker.store.config.config_path
    assert TakeoverState(ConfigFile(files, f"{root}/takeover.json")).popped_keys == {"orders@GID"}


async def _slave_with_masters_pops(cluster: Cluster, files: KilledFiles) -> Node:
    node = await cluster.add_broker(files=files)
    await node.service.rebuild(lambda config: change_config(config, broker_role=SLAVE, broker_id=1))
    takeover, offsets = node.broker.replication.takeover, node.broker.offsets
    takeover.has_own_pops = True
    offsets.merge({"t@pops": {0: 18}})
    takeover.note_master_role("SYNC_MASTER")
    await node.service._save_offsets()
    takeover.note_popped_keys(["t@pops", "u@pops"])
    offsets.adopt_progress({"t@pops": {0: 15}, "u@pops": {0: 7}})
    takeover.note_pops()
    return node


async def _saved_until_killed(
    node: Node, files: KilledFiles, last_table: str, *, is_stopping: bool
) -> tuple[TakeoverState, OffsetTable]:
    """Save the progress, up to a table after which the process is killed; return what its files say then."""
    files.last_table = last_table
    if is_stopping:
        await node.stop()
    else:
        await node.service._save_offsets()
    assert files.is_killed == bool(last_table)
    root = node.broker.store.config.config_path
    content = files.read_small(f"{root}/consumerOffset.json")
    assert content is not None
    return TakeoverState(ConfigFile(files, f"{root}/takeover.json")), parse_offsets(content).offset_table


@pytest.mark.parametrize("is_stopping", [False, True])
@pytest.mark.parametrize("last_table", ["takeover.json", "consumerOffset.json", ""])
@simulated
async def test_a_slave_killed_while_it_saves_does_not_take_its_own_pops_for_its_masters(
    cluster: Cluster, last_table: str, is_stopping: bool
) -> None:
    files = KilledFiles()
    node = await _slave_with_masters_pops(cluster, files)
    saved, offsets = await _saved_until_killed(node, files, last_table, is_stopping=is_stopping)
    assert offsets.keys() - saved.popped_keys == set()
    assert saved.has_own_pops or offsets == {"t@pops": {0: 15}, "u@pops": {0: 7}}
    assert saved.has_own_pops == bool(last_table)


@pytest.mark.parametrize("is_stopping", [False, True])
@pytest.mark.parametrize("last_table", ["takeover.json", "consumerOffset.json", ""])
@pytest.mark.parametrize("is_master", [False, True])
@simulated
async def test_offsets_that_are_removed_are_of_pops_until_their_file_is_without_them(
    cluster: Cluster, is_master: bool, last_table: str, is_stopping: bool
) -> None:
    """A crash in between would leave them as offsets that consumers committed, which no deletion reaches any more."""
    files = KilledFiles()
    node = await cluster.add_broker(files=files)
    if not is_master:
        await node.service.rebuild(lambda config: change_config(config, broker_role=SLAVE, broker_id=1))
    takeover, offsets = node.broker.replication.takeover, node.broker.offsets
    takeover.note_popped_keys(["t@pops", "u@pops"])
    offsets.adopt_progress({"t@pops": {0: 15}, "u@pops": {0: 7}})
    await node.service._save_offsets()
    offsets.remove_keys({"u@pops"})
    if is_master:
        takeover.change_popped_keys(frozenset(), {"u@pops"})
    else:
        takeover.replace_popped_keys(["t@pops"])
    saved, saved_offsets = await _saved_until_killed(node, files, last_table, is_stopping=is_stopping)
    assert saved_offsets.keys() - saved.popped_keys == set()
    if not last_table:
        assert saved_offsets.keys() == saved.popped_keys == {"t@pops"}


@simulated
async def test_keys_of_removed_offsets_stay_while_the_offsets_cannot_be_written(cluster: Cluster) -> None:
    files = KilledFiles()
    node = await cluster.add_broker(files=files)
    takeover, offsets = node.broker.replication.takeover, node.broker.offsets
    takeover.note_popped_keys(["t@pops", "u@pops"])
    offsets.adopt_progress({"t@pops": {0: 15}, "u@pops": {0: 7}})
    await node.service._save_offsets()
    offsets.remove_keys({"u@pops"})
    takeover.replace_popped_keys(["t@pops"])
    files.refused_table = "consumerOffset.json"
    for _ in range(2):
        takeover.note_master_role("SYNC_MASTER" if takeover.master_role == "" else "")
        with pytest.raises(OSError, match="no write"):
            await node.service._save_offsets()
        path = f"{node.broker.store.config.config_path}/takeover.json"
        assert TakeoverState(ConfigFile(files, path)).popped_keys == {"t@pops", "u@pops"}
    files.refused_table = ""


class LongestTurn(trio.abc.Instrument):
    """Measures the processor time of the longest turn of the loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._started_s = time.thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._started_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest_s = max(self.longest_s, time.thread_time() - self._started_s)


async def _longest_turn_s(node: Node) -> float:
    turn = LongestTurn()
    trio.lowlevel.add_instrument(turn)
    await node.service._save_offsets()
    trio.lowlevel.remove_instrument(turn)
    return turn.longest_s


@simulated
async def test_many_offsets_that_pops_have_moved_are_saved_in_turns(cluster: Cluster) -> None:
    node = await cluster.add_broker()
    reviver, offsets = node.broker.pop.state.reviver, node.broker.offsets
    offsets.merge({f"topic@group{number}": {0: 1} for number in range(300_000)})
    reviver.prune_popped_keys(list(offsets.table))
    node.broker.replication.takeover.note_popped_keys(offsets.table)
    await node.service._save_offsets()
    client = Client(cluster, node)
    longest_s = []
    for number in range(5):
        await client.send(b"a message")
        await client.pop(group=f"GID{number}", queue_id=0)
        longest_s.append(await _longest_turn_s(node))
        assert f"orders@GID{number}" in node.broker.replication.takeover.popped_keys
    print("longest turns, ms:", [round(1000 * turn_s, 1) for turn_s in longest_s])
    assert min(longest_s) < 0.025


@simulated
async def test_saving_ends_although_pops_go_on(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of pops that come meanwhile are for the next time; those of before are all taken."""
    monkeypatch.setattr("gateway.broker.pop.reviver.KEYS_PER_SLICE", 2)
    node = await cluster.add_broker()
    client, takeover = Client(cluster, node), node.broker.replication.takeover
    await client.send(*(b"%d" % number for number in range(3)))
    for number in range(5):
        await client.pop(group=f"GID{number}", queue_id=0)
    earlier_keys = {f"orders@GID{number}" for number in range(5)}
    slices = node.service._commit_pops()
    count = 0
    for count, _ in enumerate(slices, 1):
        assert count <= 3
        for number in range(3):
            await client.pop(group=f"LATER{count}{number}", queue_id=0)
    assert count == 3
    assert takeover.popped_keys == earlier_keys
    # As after a cancellation: nothing is lost.
    slices = node.service._commit_pops()
    next(slices)
    slices.close()
    await node.service._save_offsets()
    assert takeover.popped_keys == node.broker.pop.state.reviver.popped_keys
    assert len(takeover.popped_keys) == 5 + 9
