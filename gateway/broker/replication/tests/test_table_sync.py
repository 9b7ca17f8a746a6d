"""A slave's tables follow those of its master: nothing vanishes meanwhile, and no offset goes back."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import trio

from codec.constants import ResponseCode
from codec.topics import TRANS_GROUP
from gateway.auth.access_control import Accounts
from gateway.auth.account_table import ACLS_FILE, USERS_FILE, PolicyTable, User, UserTable, UserType
from gateway.auth.accounts import StoredAccounts
from gateway.broker.broker import Broker
from gateway.broker.pop.receipts import REVIVE_GROUP, SEEN_GROUP
from gateway.broker.replication import table_sync
from gateway.broker.replication.master_lookup import Master
from gateway.broker.replication.parts import PeerLinks
from gateway.config.replication import ReplicationSettings
from gateway.tests.broker_fakes import memory_config_file
from gateway.tests.cluster import Cluster, Node, message, settle, simulated
from remoting.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.heartbeat import SubscriptionData
from remoting.bodies.pop import SetMessageRequestModeRequestBody
from remoting.bodies.topics import TopicConfig
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.requests.replication import GetReplicatedAccounts, GetReplicatedTables, RaiseConsumerOffsets
from remoting.requests.timers import GetTimerMetrics
from remoting.requests.topics import DeleteTopicInBroker
from storage.append import NewMessage
from storage.replica_log import ReplicaLog
from storage.store import MessageStore

HA = ("10.0.1.1", 10912)
OWN_GROUPS = (TRANS_GROUP, REVIVE_GROUP, SEEN_GROUP)
FULL_COPY_S = table_sync.TABLES_INTERVAL_S + table_sync.TIMER_INTERVAL_S + 1


async def refuse(host: str, port: int) -> None:
    raise ConnectionRefusedError("the log is not copied here")


class Pair:
    """A master, and a slave that copies its tables only. ``is_copying`` is what its follower would say."""

    def __init__(self, cluster: Cluster, master: Node, slave: Node) -> None:
        self.cluster = cluster
        self.master_node, self.slave_node = master, slave
        self.master: Broker = master.broker
        self.slave: Broker = slave.broker
        parts = self.slave.replication.slave
        assert parts is not None
        self.lookup, self.sync = parts.lookup, parts.table_sync
        self.is_copying = True
        self.sync._is_copying = lambda: self.is_copying

    async def copy(self) -> None:
        """Wait until everything was copied once more."""
        await trio.sleep(FULL_COPY_S)


async def pair_of(cluster: Cluster, accounts: tuple[Accounts | None, Accounts | None] = (None, None)) -> Pair:
    links = PeerLinks(refuse, cluster.client)
    master = await cluster.add_broker(host="10.0.1.1", accounts=accounts[0])
    slave = await cluster.add_broker(
        host="10.0.1.2",
        accounts=accounts[1],
        broker_id=1,
        links=links,
        replication=ReplicationSettings(broker_role="SLAVE"),
    )
    slave.broker.replication.slave.lookup.set_master(Master(HA, ("10.0.1.1", 10911)))
    pair = Pair(cluster, master, slave)
    pair.sync.note_compared(HA)
    return pair


@simulated
async def test_topics_and_groups_are_the_masters_with_their_versions(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    pair.master.topics.update([TopicConfig(topic_name="t", read_queue_nums=3, write_queue_nums=2, perm=6)])
    pair.master.groups.update([SubscriptionGroupConfig(group_name="g", retry_max_times=3)])
    pair.master.groups.set_forbidden("g", "t", True)
    await pair.copy()
    assert pair.slave.topics.table == pair.master.topics.table
    assert pair.slave.topics.version == pair.master.topics.version
    assert pair.slave.groups.table == pair.master.groups.table
    assert pair.slave.groups.forbidden == pair.master.groups.forbidden
    assert pair.slave.groups.version == pair.master.groups.version
    pair.master.topics.delete("t")
    pair.master.groups.delete("g")
    await pair.copy()
    assert "t" not in pair.slave.topics
    assert "g" not in pair.slave.groups


@simulated
async def test_no_topic_or_group_vanishes_while_tables_are_copied(cluster: Cluster, monkeypatch) -> None:
    monkeypatch.setattr(table_sync, "PAGE_ENTRIES", 7)
    pair = await pair_of(cluster)
    topics = [f"topic-{number:03}" for number in range(100)]
    for name in topics:
        pair.master.topics.update([TopicConfig(topic_name=name, perm=6)])
        pair.master.groups.update([SubscriptionGroupConfig(group_name=name)])
    await pair.copy()
    missing: list[str] = []
    end = trio.current_time() + 3 * FULL_COPY_S

    async def watch() -> None:
        while trio.current_time() < end:
            missing.extend(
                name for name in topics if name not in pair.slave.topics or name not in pair.slave.groups
            )
            await trio.lowlevel.checkpoint()
            await trio.sleep(0.001)

    async def change() -> None:
        number = 0
        while trio.current_time() < end:
            pair.master.topics.update([TopicConfig(topic_name=f"new-{number % 50}", perm=4 + number % 3)])
            number += 1
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        nursery.start_soon(change)
    assert missing == []
    await pair.copy()
    assert pair.slave.topics.table == pair.master.topics.table


@simulated
async def test_consumer_offsets_only_go_forward(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    pair.master.offsets.commit_offset("g", "t", 0, 5)
    pair.master.offsets.commit_offset("g", "t", 1, 50)
    pair.slave.offsets.commit_offset("g", "t", 0, 9)
    pair.slave.offsets.commit_offset("g", "other", 2, 1)
    await pair.copy()
    assert pair.slave.offsets.table["t@g"] == {0: 9, 1: 50}
    assert pair.slave.offsets.table["other@g"] == {2: 1}
    pair.master.offsets.commit_offset("g", "t", 1, 20)
    await pair.copy()
    assert pair.slave.offsets.query_offset("g", "t", 1) == 50


@simulated
async def test_offsets_of_a_deleted_group_go_with_it(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    pair.master.groups.update([SubscriptionGroupConfig(group_name="g")])
    pair.master.offsets.commit_offset("g", "t", 0, 5)
    await pair.copy()
    assert pair.slave.offsets.query_offset("g", "t", 0) == 5
    pair.master.groups.delete("g")
    pair.master.offsets.remove_group("g")
    await pair.copy()
    assert pair.slave.offsets.query_offset("g", "t", 0) == -1


@simulated
async def test_delay_offsets_and_request_modes_are_copied(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    pair.master.delay_service.offsets |= {1: 7, 2: 3}
    pair.slave.delay_service.offsets |= {2: 9}
    mode = SetMessageRequestModeRequestBody(topic="t", consumer_group="g", mode="POP", pop_share_queue_num=2)
    pair.master.pop.request_modes.set_mode(mode)
    await pair.copy()
    assert pair.slave.delay_service.offsets == {1: 7, 2: 3}, "only the master delivers"
    assert pair.slave.pop.request_modes.find_mode("t", "g") == mode


@simulated
async def test_progress_of_a_former_master_goes_back_to_that_of_its_master(cluster: Cluster) -> None:
    """It counts what was revived, decided and delivered in the part of the log that was cut."""
    pair = await pair_of(cluster)
    for group in (REVIVE_GROUP, TRANS_GROUP):
        pair.master.offsets.commit_offset(group, "t", 0, 2, by_broker=True)
        pair.slave.offsets.commit_offset(group, "t", 0, 8, by_broker=True)
    await pair.copy()
    for group in (REVIVE_GROUP, TRANS_GROUP):
        assert pair.slave.offsets.query_offset(group, "t", 0) == 2


@simulated
async def test_the_role_of_the_master_is_remembered(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    takeover = pair.slave.replication.takeover
    assert takeover.master_role == ""
    await pair.copy()
    assert takeover.master_role == "ASYNC_MASTER"
    assert b"ASYNC_MASTER" in takeover.to_json()


@simulated
async def test_the_offset_of_a_group_that_pops_waits_for_the_record_of_the_pop(cluster: Cluster) -> None:
    """A slave that is promoted before would skip the message: nobody could revive it."""
    pair = await pair_of(cluster)
    pair.master.offsets.commit_offset("pops", "t", 0, 5)
    pair.master.offsets.commit_offset("pulls", "t", 0, 5)
    pair.master.pop.state.reviver.popped_keys.add("t@pops")
    pair.master.store.append(NewMessage("t", 0, b"the record of a pop", b""))
    await pair.copy()
    assert pair.slave.offsets.query_offset("pulls", "t", 0) == 5
    assert pair.slave.offsets.query_offset("pops", "t", 0) == -1
    copy_log(pair)
    await pair.copy()
    assert pair.slave.offsets.query_offset("pops", "t", 0) == 5


@simulated
async def test_many_empty_queues_leave_turns_to_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.store._QUEUES_PER_TURN", 10)
    pair = await pair_of(cluster)
    ends = {("old", queue_id): 17 for queue_id in range(90)}
    pair.master.store.begin_empty_queues_at(ends)
    sizes = []
    begin = pair.slave.store.begin_empty_queues_at

    def count(part: Mapping[tuple[str, int], int]) -> None:
        sizes.append(len(part))
        begin(part)

    monkeypatch.setattr(pair.slave.store, "begin_empty_queues_at", count)
    turns = [queue for queue in pair.master.store.ends_of_empty_queues() if queue is None]
    await pair.copy()
    assert len(turns) == 9
    assert sizes[:5] == [20, 20, 20, 20, 10]
    assert max(sizes) == 20
    assert {key: pair.slave.store.max_offset(*key) for key in ends} == ends


@simulated
async def test_filters_and_ordered_pops_are_copied_between_brokers_of_this_project(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    subscription = SubscriptionData(topic="t", sub_string="a > 1", sub_version=3, expression_type="SQL92")
    pair.master.consumer_filters.register("g", [subscription])
    pair.master.pop.state.ordered_pops.record_pop("a1", "t", "g", 0, 1000, 60_000, [4, 5])
    await pair.copy()
    copied = pair.slave.consumer_filters.get("t", "g")
    assert copied is not None
    assert (copied.expression, copied.version) == ("a > 1", 3)
    pops = pair.slave.pop.state.ordered_pops.table
    assert pops == pair.master.pop.state.ordered_pops.table
    assert pops


@pytest.mark.parametrize("has_expired", [False, True])
@simulated
async def test_a_deleted_topic_is_deleted_with_its_queues(cluster: Cluster, has_expired: bool) -> None:
    pair = await pair_of(cluster)
    client = cluster.dial(pair.master_node.address)
    await client.ask(message("t", b"old"))
    # The same log, as if it had been copied.
    view = pair.master.store.message_at(0)
    assert view is not None
    pair.slave.store.append_preserving_offsets("t", 0, 0, view)
    pair.slave.offsets.commit_offset("g", "t", 0, 1)
    await pair.copy()
    assert pair.slave.store.max_offset("t", 0) == 1
    if has_expired:
        pair.slave.store.commit_log.first_base = pair.slave.store.max_physical_offset
    await client.ask(DeleteTopicInBroker(topic="t"))
    await pair.copy()
    assert pair.slave.store.max_offset("t", 0) == 0
    assert pair.slave.offsets.query_offset("g", "t", 0) == -1
    assert pair.slave.store.deletion_notes == pair.master.store.deletion_notes


@simulated
async def test_the_timer_checkpoint_is_remembered(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    timers = pair.master.timer_delivery
    assert timers is not None
    await pair.copy()
    state = pair.slave.replication.takeover
    position = timers._timer_store.position
    assert (state.read_ms, state.queue_offset) == (position.read_ms, position.queue_offset)
    timers.metrics.adjust_count("t", 3, 1000)
    await pair.copy()
    reply = await cluster.dial(pair.slave_node.address).ask(GetTimerMetrics())
    assert b'"count":3' in reply.body


@simulated
async def test_tables_are_saved_and_copied_again_after_a_master_was_away(cluster: Cluster, caplog) -> None:
    pair = await pair_of(cluster)
    await pair.copy()
    await pair.master_node.stop()
    await trio.sleep(60)
    assert [record.message for record in caplog.records].count("tables of the master not copied") == 1
    again = await cluster.add_broker(host="10.0.1.1", files=pair.master.store.files)
    again.broker.topics.update([TopicConfig(topic_name="later", perm=6)])
    await pair.copy()
    assert "later" in pair.slave.topics
    await settle()


@pytest.mark.parametrize("is_ours", [True, False])
@simulated
async def test_progress_made_at_the_slave_reaches_the_master(cluster: Cluster, is_ours: bool) -> None:
    pair = await pair_of(cluster)
    if not is_ours:
        for request in (GetReplicatedTables, RaiseConsumerOffsets):
            del pair.master_node.service.handlers[request.code]
    for _ in range(9):
        await cluster.dial(pair.master_node.address).ask(message())
    pair.master.groups.update([SubscriptionGroupConfig(group_name="g")])
    pair.master.offsets.commit_offset("g", "orders", 0, 2)
    await pair.copy()
    # As long as the master is away, consumers commit at the slave, a new group among them.
    pair.slave.groups.find_or_create("new")
    pair.slave.offsets.commit_offset("g", "orders", 0, 7)
    pair.slave.offsets.commit_offset("new", "orders", 0, 3)
    await pair.copy()
    assert pair.master.offsets.query_offset("g", "orders", 0) == 7
    assert pair.master.offsets.query_offset("new", "orders", 0) == (3 if is_ours else -1)
    pair.master.offsets.commit_offset("g", "orders", 0, 1)
    await pair.copy()
    assert pair.master.offsets.query_offset("g", "orders", 0) == 1, "it was moved back there on purpose"


def new_accounts() -> StoredAccounts:
    return StoredAccounts(
        UserTable(memory_config_file(USERS_FILE)), PolicyTable(memory_config_file(ACLS_FILE))
    )


@simulated
async def test_users_and_policies_are_copied(cluster: Cluster) -> None:
    accounts, copies = new_accounts(), new_accounts()
    accounts.users.put(User("alice", "secret"))
    accounts.users.put(User("root", "key", UserType.SUPER))
    entry = PolicyEntryInfo(resource="Topic:t", actions=["Pub"], decision="Allow")
    await accounts.put_entries("User:alice", AclInfo(policies=[PolicyInfo(entries=[entry])]))
    pair = await pair_of(cluster, (accounts, copies))
    await pair.copy()
    assert copies.users.users == accounts.users.users
    assert copies.policy_table.to_json() == accounts.policy_table.to_json()
    assert b"alice" in copies.policy_table.to_json()
    await accounts.delete_user("alice")
    await pair.copy()
    assert set(copies.users.users) == {"root"}
    assert copies.policy_table.policies == {}


@simulated
async def test_only_a_super_user_copies_the_passwords_of_all(cluster: Cluster) -> None:
    accounts = new_accounts()
    accounts.users.put(User("alice", "secret"))
    accounts.users.put(User("root", "key", UserType.SUPER))
    pair = await pair_of(cluster, (accounts, new_accounts()))
    codes = []
    for user in ("alice", "root"):
        command = GetReplicatedAccounts().to_command()
        command.ext["AccessKey"] = user
        codes.append((await cluster.dial(pair.master_node.address).ask_command(command, 5)).code)
    assert codes == [ResponseCode.NO_PERMISSION, ResponseCode.SUCCESS]


@simulated
async def test_a_master_without_accounts_leaves_those_of_its_slave(cluster: Cluster) -> None:
    copies = new_accounts()
    copies.users.put(User("root", "key", UserType.SUPER))
    pair = await pair_of(cluster, (None, copies))
    await pair.copy()
    assert set(copies.users.users) == {"root"}


@simulated
async def test_a_topic_whose_messages_have_come_is_copied_at_once_but_asked_for_once(
    cluster: Cluster,
) -> None:
    pair = await pair_of(cluster)
    await pair.copy()
    pair.master.topics.update([TopicConfig(topic_name="t", perm=6)])
    pair.sync.note_topic("t")
    await trio.sleep(2 * table_sync.MISSING_TOPIC_PAUSE_S)
    assert "t" in pair.slave.topics
    synced_at = pair.sync.synced_at
    pair.sync.note_topic("t")
    pair.sync.note_topic("deleted")
    await trio.sleep(2 * table_sync.MISSING_TOPIC_PAUSE_S)
    assert pair.sync.synced_at != synced_at
    synced_at = pair.sync.synced_at
    pair.sync.note_topic("deleted")
    await trio.sleep(table_sync.TABLES_INTERVAL_S / 2)
    assert pair.sync.synced_at == synced_at


@simulated
async def test_the_offset_of_pops_that_were_cut_is_replaced_by_a_lower_one(cluster: Cluster) -> None:
    """A former master had popped, and the record of it was cut: nobody would get the messages."""
    pair = await pair_of(cluster)
    pair.master.pop.state.reviver.popped_keys.add("t@pops")
    pair.master.offsets.commit_offset("pops", "t", 0, 15)
    pair.slave.offsets.merge({"t@pops": {0: 18}, "t@pulls": {0: 18}})
    pair.master.offsets.commit_offset("pulls", "t", 0, 15)
    pair.slave.replication.takeover.has_own_pops = True
    await pair.copy()
    assert pair.slave.offsets.query_offset("pops", "t", 0) == 15
    assert pair.slave.offsets.query_offset("pulls", "t", 0) == 18
    # Once only: from now on a greater offset is that of consumers that read here.
    pair.slave.offsets.merge({"t@pops": {0: 17}})
    await pair.copy()
    assert pair.slave.offsets.query_offset("pops", "t", 0) == 17


@simulated
async def test_the_master_need_not_know_a_group_whose_pops_were_cut(cluster: Cluster) -> None:
    """The group has popped at the former master only, after the last copy of its tables."""
    pair = await pair_of(cluster)
    pair.master.offsets.commit_offset("pops", "t", 0, 15)
    pair.slave.offsets.merge({"t@pops": {0: 18}, "u@pops": {0: 3}, "t@pulls": {0: 18}})
    takeover = pair.slave.replication.takeover
    takeover.note_popped_keys(["t@pops", "u@pops", "v@pops"])
    takeover.has_own_pops = True
    await pair.copy()
    assert pair.slave.offsets.query_offset("pops", "t", 0) == 15
    assert pair.slave.offsets.queue_offsets("pops", "u") is None
    assert pair.slave.offsets.query_offset("pulls", "t", 0) == 18


@simulated
async def test_a_group_found_to_pop_while_its_offset_waits_keeps_its_offset(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    takeover = pair.slave.replication.takeover
    takeover.has_own_pops = True
    pair.master.offsets.commit_offset("pops", "t", 0, 3)
    pair.master.store.append(NewMessage("t", 0, b"a message", b""))
    await pair.copy()
    takeover.note_popped_keys(["t@pops"])
    assert takeover.has_own_pops
    copy_log(pair)
    await trio.sleep(2 * table_sync.COPIED_POLL_S)
    assert not takeover.has_own_pops
    assert pair.slave.offsets.query_offset("pops", "t", 0) == 3


@simulated
async def test_a_slave_remembers_the_groups_that_popped_at_its_master(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    pair.master.pop.state.reviver.popped_keys.add("t@pops")
    pair.master.offsets.commit_offset("pops", "t", 0, 0)
    await pair.copy()
    assert pair.slave.replication.takeover.popped_keys == {"t@pops"}


@simulated
async def test_a_slave_forgets_the_groups_that_popped_and_are_gone(cluster: Cluster) -> None:
    """Otherwise takeover.json would grow with each group and topic that is created and deleted."""
    pair = await pair_of(cluster)
    popped_keys = pair.master.pop.state.reviver.popped_keys
    popped_keys |= {"t@pops", "t@before"}
    for group in ("pops", "before"):
        pair.master.offsets.commit_offset(group, "t", 0, 0)
    await pair.copy()
    takeover = pair.slave.replication.takeover
    assert takeover.popped_keys == popped_keys
    popped_keys.remove("t@before")
    pair.master.offsets.remove_group("before")
    await pair.copy()
    # Its offset is still here: the master may be another one, which does not know that the group pops.
    assert takeover.popped_keys == {"t@pops", "t@before"}
    pair.slave.offsets.remove_group("before")
    await pair.copy()
    assert takeover.popped_keys == {"t@pops"}


@simulated
async def test_a_group_that_pops_for_the_first_time_during_a_copy_is_known_to_pop(cluster: Cluster) -> None:
    """Its offset comes with the tables, and the record of the pop has not been copied yet."""
    pair = await pair_of(cluster)
    await pair.copy()
    sync_groups = pair.sync._sync_groups

    async def pop_meanwhile(connection: Connection) -> list[str]:
        pair.master.offsets.commit_offset("pops", "t", 0, 5)
        pair.master.pop.state.reviver.popped_keys.add("t@pops")
        pair.master.store.append(NewMessage("t", 0, b"the record of a pop", b""))
        pair.sync._sync_groups = sync_groups
        return await sync_groups(connection)

    pair.sync._sync_groups = pop_meanwhile
    await pair.copy()
    assert pair.slave.offsets.query_offset("pops", "t", 0) == -1
    copy_log(pair)
    await pair.copy()
    assert pair.slave.offsets.query_offset("pops", "t", 0) == 5


@simulated
async def test_offsets_that_a_broker_moved_are_not_returned_to_the_master(cluster: Cluster) -> None:
    """They are those of another master, whose last messages the present one does not have: it would skip them."""
    pair = await pair_of(cluster)
    pair.master.topics.update([TopicConfig(topic_name="t", perm=6)])
    for number in range(6):
        pair.master.store.append(NewMessage("t", 0, b"%d" % number, b""))
    await pair.copy()
    takeover, reviver = pair.slave.replication.takeover, pair.slave.pop.state.reviver
    takeover.note_popped_keys(["t@FORMER"])
    reviver.popped_keys.add("t@OWN")
    groups = ("FORMER", "OWN", *OWN_GROUPS)
    for group in (*groups, "pulls"):
        pair.slave.offsets.commit_offset(group, "t", 0, 5)
    await pair.copy()
    assert {group: pair.master.offsets.query_offset(group, "t", 0) for group in groups} == dict.fromkeys(
        groups, -1
    )
    assert pair.master.offsets.query_offset("pulls", "t", 0) == 5


@simulated
async def test_after_a_slow_copy_the_next_one_does_not_wait_for_minutes(cluster: Cluster) -> None:
    pair = await pair_of(cluster)

    async def run_slowly(work: Callable[[], Any]) -> Any:
        await trio.sleep(30)
        return work()

    run_blocking, pair.sync._run_blocking = pair.sync._run_blocking, run_slowly
    await trio.sleep(table_sync.TABLES_INTERVAL_S + 1)
    pair.sync._run_blocking = run_blocking
    await trio.sleep(40)
    pair.master.topics.update([TopicConfig(topic_name="t", perm=6)])
    await trio.sleep(table_sync.MAX_INTERVAL_S + table_sync.TIMER_INTERVAL_S)
    assert "t" in pair.slave.topics


def copy_log(pair: Pair, until: int = 1 << 62) -> None:
    """Copy the master's log up to a physical offset, which no follower does here."""
    source, replica = pair.master.store.commit_log, ReplicaLog(pair.slave.store)
    view, base, end = source.file_containing(replica.end)
    replica.receive(replica.end, view[replica.end - base : min(end, until) - base])
    while replica.undispatched_bytes:
        replica.dispatch(100)


@simulated
async def test_progress_of_the_master_itself_waits_until_its_log_is_copied(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    master, slave = pair.master, pair.slave
    await cluster.dial(pair.master_node.address).ask(message())
    slave.replication.takeover.forget_progress()
    master.delay_service.offsets |= {1: 7}
    for group in (TRANS_GROUP, REVIVE_GROUP, SEEN_GROUP, "g"):
        master.offsets.commit_offset(group, "orders", 0, 1)
    await pair.copy()
    assert slave.offsets.query_offset("g", "orders", 0) == 1
    assert [slave.offsets.query_offset(group, "orders", 0) for group in OWN_GROUPS] == [-1, -1, -1]
    assert slave.delay_service.offsets == {}
    assert slave.replication.takeover.read_ms == -1
    copy_log(pair)
    await trio.sleep(1)
    # The master's log grows again, but what the slave has heard refers to what it has copied now.
    await cluster.dial(pair.master_node.address).ask(message())
    assert [slave.offsets.query_offset(group, "orders", 0) for group in OWN_GROUPS] == [1, 1, 1]
    assert slave.delay_service.offsets == {1: 7}
    assert slave.replication.takeover.read_ms >= 0


async def pair_with_waiting_progress(cluster: Cluster) -> Pair:
    """Return a pair whose slave has copied a delay offset, and not the message of before it."""
    pair = await pair_of(cluster)
    await cluster.dial(pair.master_node.address).ask(message())
    pair.master.delay_service.offsets |= {1: 7}
    await pair.copy()
    return pair


@simulated
async def test_a_slave_that_is_always_late_takes_over_older_progress(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    client = cluster.dial(pair.master_node.address)
    await client.ask(message())
    pair.master.delay_service.offsets |= {1: 7}
    await pair.copy()
    await client.ask(message())
    pair.master.delay_service.offsets |= {1: 8}
    await pair.copy()
    copy_log(pair, until=pair.master.store.physical_offset_at("orders", 0, 1))
    await trio.sleep(1)
    assert pair.slave.delay_service.offsets == {1: 7}


@simulated
async def test_progress_of_a_former_master_is_forgotten(cluster: Cluster) -> None:
    pair = await pair_with_waiting_progress(cluster)
    copied = whole_message(pair, 0)
    await cluster.add_broker(host="10.0.1.3")
    pair.lookup.set_master(Master(("10.0.1.3", 10912), ("10.0.1.3", 10911)))
    pair.sync.note_compared(("10.0.1.3", 10912))
    await pair.copy()
    pair.slave.store.append_preserving_offsets("orders", 0, 0, copied)
    await pair.copy()
    assert pair.slave.delay_service.offsets == {}


@simulated
async def test_progress_waits_until_the_log_is_compared_with_that_of_the_master(cluster: Cluster) -> None:
    """A former master's log is as long, but the message that the new one has delivered is not in it."""
    pair = await pair_of(cluster)
    master = await cluster.add_broker(host="10.0.1.3")
    await cluster.dial(master.address).ask(message(body=b"delivered"))
    master.broker.delay_service.offsets |= {1: 7}
    master.broker.offsets.commit_offset(REVIVE_GROUP, "orders", 0, 5)
    pair.slave.store.append(NewMessage("orders", 0, b"never confirmed" * 100, b""))
    takeover = pair.slave.replication.takeover
    takeover.read_ms = 1234
    pair.lookup.set_master(Master(("10.0.1.3", 10912), ("10.0.1.3", 10911)))
    await pair.copy()
    assert "orders" in pair.slave.topics
    assert pair.slave.delay_service.offsets == {}
    assert pair.slave.offsets.query_offset(REVIVE_GROUP, "orders", 0) == -1
    assert takeover.read_ms == 1234
    await pair.sync.apply_all_copied()
    assert pair.slave.delay_service.offsets == {}
    pair.sync.note_compared(("10.0.1.3", 10912))
    await pair.copy()
    assert pair.slave.delay_service.offsets == {1: 7}
    assert pair.slave.offsets.query_offset(REVIVE_GROUP, "orders", 0) == 5
    assert takeover.read_ms == 0


@simulated
async def test_no_progress_is_taken_from_a_master_that_came_back_with_another_log(cluster: Cluster) -> None:
    """It has the same address, and its log is as long, but the slave does not or cannot copy it."""
    pair = await pair_of(cluster)
    await cluster.dial(pair.master_node.address).ask(message())
    copy_log(pair)
    pair.master.delay_service.offsets |= {1: 7}
    await pair.copy()
    assert pair.slave.delay_service.offsets == {1: 7}
    pair.is_copying = False
    takeover = pair.slave.replication.takeover
    takeover.read_ms = 1234
    pair.master.delay_service.offsets |= {1: 8}
    pair.master.offsets.commit_offset(REVIVE_GROUP, "orders", 0, 5)
    await pair.copy()
    assert pair.slave.delay_service.offsets == {1: 7}
    assert pair.slave.offsets.query_offset(REVIVE_GROUP, "orders", 0) == -1
    assert takeover.read_ms == 1234
    pair.is_copying = True
    await pair.copy()
    assert pair.slave.delay_service.offsets == {1: 8}
    assert pair.slave.offsets.query_offset(REVIVE_GROUP, "orders", 0) == 5
    assert takeover.read_ms != 1234


@simulated
async def test_progress_is_copied_soon_after_the_log_is_compared(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    pair.is_copying = False
    pair.master.delay_service.offsets |= {1: 7}
    await pair.copy()
    assert pair.slave.delay_service.offsets == {}
    pair.is_copying = True
    pair.sync.note_compared(HA)
    await trio.sleep(2 * table_sync.MISSING_TOPIC_PAUSE_S)
    assert pair.slave.delay_service.offsets == {1: 7}


@simulated
async def test_progress_that_was_taken_before_the_master_died_is_applied_at_a_take_over(
    cluster: Cluster,
) -> None:
    pair = await pair_with_waiting_progress(cluster)
    assert pair.slave.delay_service.offsets == {}
    pair.is_copying = False
    copy_log(pair)
    assert await pair.sync.apply_all_copied()
    assert pair.slave.delay_service.offsets == {1: 7}


@pytest.mark.parametrize("trouble", ["not compared", "not copying"])
@simulated
async def test_no_slave_takes_over_whose_log_is_not_known_to_be_the_masters(
    cluster: Cluster, trouble: str
) -> None:
    pair = await pair_of(cluster)
    await cluster.dial(pair.master_node.address).ask(message())
    copy_log(pair)
    if trouble == "not copying":
        pair.is_copying = False
    else:
        pair.sync.note_compared(("10.0.1.3", 10912))
    with pytest.raises(RequestError, match="not compared with the master's"):
        await pair.sync.sync_once()
    pair.is_copying = True
    pair.sync.note_compared(HA)
    await pair.sync.sync_once()


def whole_message(pair: Pair, physical_offset: int) -> memoryview:
    view = pair.master.store.message_at(physical_offset)
    assert view is not None
    return view


@simulated
async def test_a_master_that_refuses_progress_is_copied_all_the_same(
    cluster: Cluster, caplog, monkeypatch
) -> None:
    pair = await pair_of(cluster)
    await pair.copy()

    async def refuse_progress(connection: object, offsets: object) -> None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "too many groups")

    monkeypatch.setattr(pair.sync, "_send_progress", refuse_progress)
    pair.slave.offsets.commit_offset("g", "orders", 0, 7)
    pair.master.delay_service.offsets |= {1: 7}
    await pair.copy()
    await pair.copy()
    assert pair.slave.delay_service.offsets == {1: 7}
    messages = [record.message for record in caplog.records]
    assert messages.count("the master refuses progress of consumers") == 1
    assert "tables of the master not copied" not in messages


@simulated
async def test_a_queue_whose_messages_have_expired_goes_on_at_the_slave_where_it_ended(
    cluster: Cluster,
) -> None:
    pair = await pair_of(cluster)
    client = cluster.dial(pair.master_node.address)
    await client.ask(message())
    pair.master.store.begin_empty_queues_at({("old", 3): 17})
    assert pair.master.store.min_offset("old", 3) == pair.master.store.max_offset("old", 3) == 17
    await pair.copy()
    assert pair.slave.store.max_offset("old", 3) == 0, "messages of it may still come"
    copy_log(pair)
    await trio.sleep(1)
    assert pair.slave.store.max_offset("old", 3) == 17
    assert pair.slave.store.max_offset("orders", 0) == 1
    # It stays so, and a restart does not forget it.
    await pair.slave_node.stop()
    again = MessageStore.open(pair.slave.store.config, pair.slave.store.files)
    assert again.max_offset("old", 3) == 17


@simulated
async def test_a_queue_whose_messages_have_expired_at_an_official_master_goes_on_where_it_ended(
    cluster: Cluster,
) -> None:
    pair = await pair_of(cluster)
    del pair.master_node.service.handlers[GetReplicatedTables.code]
    await cluster.dial(pair.master_node.address).ask(message())
    names = [f"old-{number:02}" for number in range(30)]
    pair.master.topics.update(
        [TopicConfig(topic_name=name, read_queue_nums=2, write_queue_nums=4, perm=6) for name in names]
    )
    pair.master.store.begin_empty_queues_at({(name, 3): 17 for name in names})
    for _ in range(4):
        await pair.copy()
    assert pair.slave.store.max_offset("old-00", 3) == 0, "messages of it may still come"
    copy_log(pair)
    for _ in range(8):
        await pair.copy()
    assert {pair.slave.store.max_offset(name, 3) for name in names} == {17}
    assert pair.slave.store.max_offset("old-00", 2) == 0
    assert pair.slave.store.max_offset("orders", 0) == 1


@simulated
async def test_offsets_are_copied_in_parts_between_which_others_get_their_turn(
    cluster: Cluster, monkeypatch
) -> None:
    monkeypatch.setattr(table_sync, "KEYS_PER_SLICE", 10)
    pair = await pair_of(cluster)
    sizes: list[int] = []
    merge, run_blocking, parsed = pair.slave.offsets.merge, pair.sync._run_blocking, []

    async def noted_run(work: Callable[[], Any]) -> Any:
        parsed.append(work)
        return await run_blocking(work)

    monkeypatch.setattr(pair.sync, "_run_blocking", noted_run)

    def noted_merge(offsets: Mapping[str, dict[int, int]]) -> int:
        sizes.append(len(offsets))
        return merge(offsets)

    monkeypatch.setattr(pair.slave.offsets, "merge", noted_merge)
    for number in range(95):
        pair.master.offsets.commit_offset("g", f"t{number}", 0, 5)
    pair.master.offsets.commit_offset(TRANS_GROUP, "t", 0, 6)
    await pair.copy()
    assert pair.slave.offsets.table == pair.master.offsets.table
    assert max(sizes) == 10
    assert parsed, "parsed in a thread"


@simulated
async def test_progress_of_before_a_lost_connection_is_not_applied_to_other_messages(
    cluster: Cluster,
) -> None:
    pair = await pair_with_waiting_progress(cluster)
    copied = bytes(whole_message(pair, 0))
    await pair.master_node.stop()
    await pair.copy()
    pair.slave.store.append_preserving_offsets("orders", 0, 0, memoryview(copied))
    await trio.sleep(1)
    assert pair.slave.delay_service.offsets == {}


def copy_log_without_queues(pair: Pair) -> ReplicaLog:
    source, replica = pair.master.store.commit_log, ReplicaLog(pair.slave.store)
    view, base, end = source.file_containing(0)
    replica.receive(0, view[: end - base])
    return replica


@simulated
async def test_progress_is_applied_at_a_take_over_once_the_queues_are_complete(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    await cluster.dial(pair.master_node.address).ask(message())
    pair.master.delay_service.offsets |= {1: 7}
    replica = copy_log_without_queues(pair)

    async def complete_queues() -> None:
        await trio.sleep(1)
        replica.dispatch(100)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(complete_queues)
        await pair.sync.sync_once()
        assert pair.slave.delay_service.offsets == {1: 7}


@simulated
async def test_a_slave_whose_queues_do_not_get_complete_does_not_take_over(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    await cluster.dial(pair.master_node.address).ask(message())
    copy_log_without_queues(pair)
    with pytest.raises(RequestError, match="queues are not complete yet"):
        await pair.sync.sync_once()


@simulated
async def test_progress_of_a_lost_master_waits_for_the_queues_of_what_is_copied(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    await cluster.dial(pair.master_node.address).ask(message())
    pair.master.delay_service.offsets |= {1: 7}
    replica = copy_log_without_queues(pair)
    await pair.copy()
    await pair.master_node.stop()
    await pair.copy()
    assert pair.slave.delay_service.offsets == {}
    replica.dispatch(100)
    assert await pair.sync.apply_all_copied()
    assert pair.slave.delay_service.offsets == {1: 7}


@simulated
async def test_deletions_are_noted_in_one_write_outside_the_event_loop(cluster: Cluster, monkeypatch) -> None:
    pair = await pair_of(cluster)
    client = cluster.dial(pair.master_node.address)
    topics = [f"t{number}" for number in range(5)]
    for topic in topics:
        await client.ask(message(topic))
    copy_log(pair)
    for topic in topics:
        pair.slave.offsets.commit_offset("g", topic, 0, 1)
        await client.ask(DeleteTopicInBroker(topic=topic))
    run_blocking, is_outside, writes = pair.sync._run_blocking, False, []

    async def noted_run(work: Callable[[], Any]) -> Any:
        nonlocal is_outside
        is_outside = True
        try:
            return await run_blocking(work)
        finally:
            is_outside = False

    write = pair.slave.store._deleted_topics._write

    def noted_write(deletions: dict[bytes, tuple[int, int]]) -> None:
        writes.append(is_outside)
        write(deletions)

    monkeypatch.setattr(pair.sync, "_run_blocking", noted_run)
    monkeypatch.setattr(pair.slave.store._deleted_topics, "_write", noted_write)
    await pair.copy()
    assert writes == [True]
    assert pair.slave.store.deletion_notes == pair.master.store.deletion_notes
    assert [pair.slave.store.max_offset(topic, 0) for topic in topics] == [0] * 5
    assert [pair.slave.offsets.query_offset("g", topic, 0) for topic in topics] == [-1] * 5


@simulated
async def test_a_copy_waits_for_the_one_before(cluster: Cluster) -> None:
    """Its deletions are newer: those of the earlier copy must not be noted after them."""
    pair = await pair_of(cluster)
    client = cluster.dial(pair.master_node.address)
    await client.ask(message("t"))
    await client.ask(DeleteTopicInBroker(topic="t"))
    copy_log(pair)
    run_blocking, is_started, may_run, runs = pair.sync._run_blocking, trio.Event(), trio.Event(), []

    async def run_late(work: Callable[[], Any]) -> Any:
        runs.append(work)
        if len(runs) == 1:
            is_started.set()
            await may_run.wait()
        return await run_blocking(work)

    pair.sync._run_blocking = run_late
    await is_started.wait()
    await client.ask(message("t"))
    await client.ask(DeleteTopicInBroker(topic="t"))
    copy_log(pair)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.sync.copy_once)
        await trio.sleep(1)
        may_run.set()
    await settle()
    assert pair.slave.store.deletion_notes == pair.master.store.deletion_notes
    assert pair.slave.store.max_offset("t", 0) == 0


@simulated
async def test_a_copy_does_not_wait_for_one_that_hangs(cluster: Cluster) -> None:
    pair = await pair_of(cluster)
    pair.master.topics.update([TopicConfig(topic_name="t", perm=6)])
    sync_private_tables, is_hanging, copies = pair.sync._sync_private_tables, trio.Event(), []

    async def hang_once(connection: Connection) -> Any:
        copies.append(connection)
        if len(copies) == 1:
            is_hanging.set()
            await trio.sleep_forever()
        return await sync_private_tables(connection)

    pair.sync._sync_private_tables = hang_once
    await is_hanging.wait()
    with trio.fail_after(1):
        await pair.sync.copy_once()
    assert "t" in pair.slave.topics
    await pair.copy()
    assert len(copies) > 2
