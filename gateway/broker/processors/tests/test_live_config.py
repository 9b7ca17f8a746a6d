"""Settings that may change while the broker runs reach every part that uses them.

The tests find the modules that read a live key in the source. Each such module must be in `HOLDERS`, with the place
where its configuration is in a running broker, or its key in `COPIES`, if a part holds the value alone.
"""

import gc
import re
import socket
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gateway.broker.limits.quotas import ALL_TOPICS, BYTES, MESSAGES, PULL, SEND, QuotaKey
from gateway.broker.messages.store_settings import build_store_config
from gateway.config.keys import Key, keys_of, with_values
from gateway.config.process import BrokerConfig
from gateway.tests.broker_world import World
from gateway.tests.configs import change_config
from remoting.errors import RequestError
from remoting.requests.admin import DeleteExpiredCommitlog, GetBrokerConfig, UpdateBrokerConfig
from remoting.requests.topics import CleanExpiredConsumequeue
from storage.files import MemoryFiles
from toolkit.values import Choice, WholeNumber

LIVE = {name: each for name, each in keys_of(BrokerConfig).items() if each.is_live}
BROKER = Path(__file__).parents[2]
HOLDERS = {
    "assembly/metrics.py": "config",
    "assembly/registration.py": "config",
    "assembly/service.py": "config",
    "consumers/broadcast_offsets.py": "broadcasts._config",
    "consumers/client_registry.py": "clients.limits",
    "filters/consumer_filters.py": "consumer_filters.limits",
    "consumers/consumer_offsets.py": "offsets.limits",
    "filters/filter_cache.py": "filter_cache.limits",
    "limits/flow_control.py": "flow_control._config",
    "consumers/group_table.py": "groups.limits",
    "pop/pop_handler.py": "pop.pop_handler.config",
    "pop/pop_offsets.py": "pop.state.pop_offsets.config",
    "pop/queries.py": "pop.queries.config",
    "pop/request_checks.py": "pop.state.checks.config",
    "pop/queue_assignment.py": "pop.request_modes.limits",
    "pop/reviver.py": "pop.state.reviver.config",
    "pop/waiting_pops.py": "pop.state.waiting_pops.config",
    "replication/replicas_manager.py": "config",
    "requests/pull_handler.py": "pull_handler._config",
    "consumers/queue_locks.py": "queue_locks.limits",
    "requests/send_handler.py": "send_handler._config",
    "delayed/timer_delivery.py": "timer_delivery._config",
    "delayed/timer_scheduler.py": "timer_delivery.scheduler._config",
    "topics/topic_table.py": "topics.limits",
    "transactions/transaction_checks.py": "transaction_checks._config",
    "transactions/end_transaction.py": "transactions._config",
}
"""The place where a running broker holds the configuration that a module reads.

Request processors read the broker's own.
"""
START_ONLY = {
    "assembly/build.py",
    "messages/store_settings.py",
    "limits/quotas.py",
    "topics/topic_recovery.py",
}
"""Modules that copy values; `COPIES` names where to."""
COPIES = {
    "autoCreateTopicEnable": "topics.auto_create",
    "autoCreateSubscriptionGroup": "groups.auto_create",
    "brokerIP1": "hosts._advertise",
    "advertisedPort": "hosts._advertised_port",
    "notifyConsumerIdsChangedEnable": "clients.notify_changes",
    "useServerSideResetOffset": "offsets.server_side_reset",
    "transactionOpMsgMaxSize": "transactions.op_messages.max_bytes",
    "quotaBurstSeconds": "flow_control.quotas._burst_s",
    "enableCreateSysGroup": "groups.create_system_groups",
    "flushIntervalCommitLog": "group_commit._interval_ms",
    "syncFlushTimeout": "answer_gate._for_disk.timeout_ms",
    "deleteWhen": "store._retention.config.delete_when",
    "deleteFileBatchMax": "store._retention.config.delete_files_max",
    "maxFilterMessageSize": "store.config.max_filter_message_bytes",
    "maxTransferBytesOnMessageInMemory": "store.config.max_transfer_bytes_in_memory",
    "maxTransferCountOnMessageInMemory": "store.config.max_transfer_count_in_memory",
    "maxTransferBytesOnMessageInDisk": "store.config.max_transfer_bytes_on_disk",
    "maxTransferCountOnMessageInDisk": "store.config.max_transfer_count_on_disk",
    "accessMessageInMemoryMaxRatio": "store.config.access_in_memory_percent",
    "maxMessageSize": "store._max_message_bytes",
    "maxMsgsNumBatch": "store.config.max_query_messages",
    "fileReservedTime": "store._retention.config.file_reserved_hours",
    "diskMaxUsedSpaceRatio": "store._retention.config.disk_max_used_percent",
    "diskSpaceCleanForciblyRatio": "store._retention.config.disk_clean_forcibly_percent",
    "diskSpaceWarningLevelRatio": "store._retention.config.disk_warning_percent",
    "cleanFileForciblyEnable": "store._retention.config.clean_forcibly_enable",
    "haSendHeartbeatInterval": "replication.server.settings.ha_send_heartbeat_interval_ms",
    "haHousekeepingInterval": "replication.server.settings.ha_housekeeping_interval_ms",
    "haTransferBatchSize": "replication.server.settings.ha_transfer_batch_bytes",
    "haFlowControlEnable": "replication.server.settings.ha_flow_control_enable",
    "maxHaTransferByteInSecond": "replication.server.settings.max_ha_transfer_bytes_per_s",
    "maxQueuesPerTopic": "topics.limits.max_queues_per_topic",
}
QUOTAS = {
    "sendQuotaMessages": QuotaKey(SEND, MESSAGES, ALL_TOPICS),
    "sendQuotaBytes": QuotaKey(SEND, BYTES, ALL_TOPICS),
    "pullQuotaMessages": QuotaKey(PULL, MESSAGES, ALL_TOPICS),
    "pullQuotaBytes": QuotaKey(PULL, BYTES, ALL_TOPICS),
}


def change(world: World, text: str) -> None:
    request = UpdateBrokerConfig()
    request.body = text.encode()
    world.ask(request)


def other_value(key: Key) -> Any:
    """Return a value in the key's range that is not its default."""
    setting = key.setting
    if isinstance(setting.default, bool):
        return not setting.default
    if isinstance(setting.default, int):
        assert isinstance(setting.value_type, WholeNumber)
        return setting.default + (1 if setting.default == setting.value_type.low else -1)
    if key.name == "deleteWhen":
        return "05;17"
    if not isinstance(setting.value_type, Choice):
        return "127.0.0.9"
    return next(word for word in setting.value_type.words if word != setting.default)


def text_of(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def modules_reading(key: Key) -> Iterator[str]:
    reads = re.compile(rf"(config|limits|flow|pop|store)\.{key.attribute.rpartition('.')[2]}\b")
    for path in sorted(BROKER.rglob("*.py")):
        name = path.relative_to(BROKER)
        if "tests" in name.parts or name.as_posix() == "processors/live_config.py":
            continue
        if reads.search(path.read_text()):
            yield name.as_posix()


def places_of(key: Key) -> list[str]:
    """Return where a running broker holds the value of a key, for every module that reads it."""
    places = []
    for module in modules_reading(key):
        if module in START_ONLY:
            assert key.name in COPIES or key.name in QUOTAS, f"{module} copies {key.name}"
        else:
            assert module in HOLDERS or module.startswith("processors/"), f"add {module} to HOLDERS"
            holder = HOLDERS.get(module, "config")
            field = key.attribute.removeprefix("limits.") if holder.endswith(".limits") else key.attribute
            places.append(f"{holder}.{field}")
    return [*places, COPIES[key.name]] if key.name in COPIES else places


@pytest.mark.parametrize("name", LIVE)
def test_a_change_reaches_every_part_that_uses_the_key(name: str) -> None:
    world, key = World(), LIVE[name]
    value = other_value(key)
    places = places_of(key)
    assert places or name in QUOTAS, "no part uses the key, so it must not be live"
    for place in places:
        assert attrgetter(place)(world.broker) != value
    change(world, f"{name}={text_of(value)}")
    for place in places:
        assert attrgetter(place)(world.broker) == value, place
    if name in QUOTAS:
        assert world.broker.flow_control.quotas._buckets[QUOTAS[name]].per_second == value


def test_no_part_keeps_the_configuration_from_before() -> None:
    world = World()
    old = world.broker.config
    parts = [old, old.store, old.flow, old.pop, old.limits, old.replication]
    changes = [
        "traceOn=false",
        "fileReservedTime=9",
        "sendQuotaBytes=9",
        "popPollingSize=9",
        "maxTopics=9999",
        "haTransferBatchSize=32768",
    ]
    change(world, "\n".join(changes))
    known = [id(each) for each in (old, parts, world.broker.config)]
    holders = [
        holder
        for part in parts
        for holder in gc.get_referrers(part)
        if id(holder) not in known and not isinstance(holder, FrameType)
    ]
    assert [type(holder).__name__ for holder in holders] == []


def test_the_store_takes_every_live_key_that_its_settings_are_made_of() -> None:
    made_from = build_store_config(BrokerConfig(), memory=False)
    for name, key in LIVE.items():
        if not key.attribute.startswith("store."):
            continue
        changed = with_values(BrokerConfig(), {name: other_value(key)})
        if build_store_config(changed, memory=False) != made_from:
            world = World()
            before = world.broker.store.config
            change(world, f"{name}={text_of(other_value(key))}")
            assert world.broker.store.config != before, name


class FullDisk(MemoryFiles):
    """Files on a disk of which ``used`` is in use."""

    used = 0.5

    def disk_used_ratio(self, path: str) -> float:
        return self.used


def world_of_many_files() -> World:
    """Return a broker whose commit log has several full files, and which does not delete at this hour."""
    files = FullDisk()
    world = World(files, delete_when="")
    for _ in range(40):
        world.put(body=bytes(1 << 20))
    world.broker.store.write_checkpoint()
    return world


@pytest.mark.parametrize(
    ("text", "hours", "deletes"),
    [
        ("", 1, False),
        ("diskSpaceCleanForciblyRatio=40", 0, True),
        ("diskSpaceCleanForciblyRatio=40\ncleanFileForciblyEnable=false", 0, False),
        ("diskMaxUsedSpaceRatio=40", 0, False),
        ("diskMaxUsedSpaceRatio=40\nfileReservedTime=1", 2, True),
        ("diskMaxUsedSpaceRatio=40", 2, False),
    ],
)
def test_files_are_deleted_by_the_changed_rules(text: str, hours: int, deletes: bool) -> None:
    world = world_of_many_files()
    world.clock.pass_ms(hours * 3_600_000)
    world.put()
    if text:
        change(world, text)
    assert bool(world.broker.store.delete_expired()) == deletes


@pytest.mark.parametrize("request_type", [DeleteExpiredCommitlog, CleanExpiredConsumequeue])
def test_an_administrator_deletes_no_more_files_at_once_than_the_changed_maximum(
    request_type: type[DeleteExpiredCommitlog | CleanExpiredConsumequeue],
) -> None:
    """Also where a checkpoint is written in between, since not all of these files are covered yet."""
    world = World(FullDisk(), delete_when="")
    store = world.broker.store
    change(world, "deleteFileBatchMax=2\ndiskMaxUsedSpaceRatio=40\nfileReservedTime=1")
    for number in range(30):
        world.put(body=bytes(1 << 20))
        if number == 5:
            store.write_checkpoint()
    world.clock.pass_ms(2 * 3_600_000)
    world.put()
    for round_number in (1, 2):
        world.ask(request_type())
        assert store.min_physical_offset == 2 * round_number * store.commit_log.file_bytes


def test_sends_are_refused_above_the_changed_level() -> None:
    world = world_of_many_files()
    world.broker.store.delete_expired()
    assert not world.broker.store.disk_full
    change(world, "diskSpaceWarningLevelRatio=40")
    world.broker.store.delete_expired()
    with pytest.raises(RequestError, match="disk is full"):
        world.put()


def test_a_message_of_the_changed_size_is_stored_or_refused() -> None:
    world = World()
    change(world, "maxMessageSize=100")
    with pytest.raises(RequestError, match="body length limit 100B"):
        world.put(body=bytes(101))
    change(world, "maxMessageSize=101")
    world.put(body=bytes(101))


def test_a_store_in_memory_does_not_take_messages_longer_than_its_files() -> None:
    world = World()
    at_start = world.broker.store.config.max_message_bytes
    change(world, f"maxMessageSize={64 << 20}")
    assert world.broker.store.config.max_message_bytes == at_start


def test_files_are_deleted_at_the_changed_hour() -> None:
    world = world_of_many_files()
    world.clock.pass_ms(100 * 3_600_000)
    world.put()
    assert not world.broker.store.delete_expired()
    change(world, "deleteWhen=" + ";".join(f"{hour:02}" for hour in range(24)))
    assert world.broker.store.delete_expired()


def test_as_many_keys_are_found_as_the_changed_limit() -> None:
    world = World()
    for _ in range(5):
        world.put(properties={"KEYS": "k"})
    change(world, "maxMsgsNumBatch=3")
    assert len(world.broker.store.query_by_key("t", "k", 10, 0, 1 << 62)) == 3


def test_sends_create_topics_after_the_change_although_there_was_no_default_topic() -> None:
    world = World(auto_create_topic_enable=False)
    assert world.broker.topics.create_for_send("new", "TBW102", 4) is None
    change(world, "autoCreateTopicEnable=true")
    assert world.topic("new", 4).write_queue_nums == 4


def test_a_key_read_at_the_start_only_is_refused_with_what_to_do() -> None:
    world = World()
    fields = {each.attribute.rpartition(".")[2]: name for name, each in keys_of(BrokerConfig).items()}
    assert "defaultTopicQueueNums" in fields.values()
    for name, key in keys_of(BrokerConfig).items():
        if name not in LIVE and name not in ("configBlackList", "listenPort"):
            with pytest.raises(RequestError, match=rf"{name}.*(change the file and restart|no effect yet)"):
                change(world, f"{name}={text_of(key.setting.default)}1")
    assert world.broker.config == change_config(world.broker.config)


def test_keys_that_keep_their_values_are_accepted_and_others_refused_with_them() -> None:
    world = World()
    before, listed = world.broker.config, bytes(world.ask(GetBrokerConfig()).body).decode()
    unchangeable = ("configBlackList=", "rocketmqHome=")
    change(world, "\n".join(line for line in listed.splitlines() if not line.startswith(unchangeable)))
    assert world.broker.config == before
    change(world, "listenPort=10911\nbrokerRole=ASYNC_MASTER\nfileReservedTime=9")
    assert world.broker.config.store.file_reserved_hours == 9
    with pytest.raises(RequestError, match="brokerRole"):
        change(world, "brokerRole=SLAVE\nfileReservedTime=8")
    assert world.broker.config.store.file_reserved_hours == 9


def test_a_new_address_is_stored_with_messages_and_must_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def gethostbyname(name: str) -> str:
        if name != "broker.example":
            raise OSError("no such name")
        return "10.1.2.3"

    monkeypatch.setattr(socket, "gethostbyname", gethostbyname)
    world = World()
    change(world, "brokerIP1=broker.example")
    assert world.broker.hosts.own_address()[0] == "10.1.2.3"
    with pytest.raises(RequestError, match=r"brokerIP1: nowhere\.example cannot be resolved"):
        change(world, "brokerIP1=nowhere.example\nfileReservedTime=1")
    assert world.broker.config.broker_ip == "broker.example"


def test_other_settings_change_while_the_name_of_the_broker_cannot_be_resolved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.1.2.3")
    change(world, "brokerIP1=broker.example")

    def fail(name: str) -> str:
        raise OSError("no name server")

    monkeypatch.setattr(socket, "gethostbyname", fail)
    change(world, "brokerIP1=broker.example\nfileReservedTime=9")
    assert world.broker.config.store.file_reserved_hours == 9
    assert world.broker.hosts.own_address()[0] == "10.1.2.3"


def test_a_changed_listen_port_is_announced():
    """Containers learn their published port after the start, and tell the broker in this way."""
    world = World()
    before = world.broker.config.listen_port
    change(world, f"listenPort={before}\nbrokerIP1=10.0.0.7")
    assert world.broker.config.advertised_port == 0
    change(world, "listenPort=32768")
    assert (world.broker.config.listen_port, world.broker.config.advertised_port) == (before, 32768)
    with pytest.raises(RequestError, match="advertisedPort"):
        change(world, "listenPort=65536")
    change(world, f"listenPort={before}")
    assert world.broker.config.advertised_port == 0
    world.broker.config = change_config(world.broker.config, config_black_list="listenPort")
    with pytest.raises(RequestError, match="black list"):
        change(world, "listenPort=32769")
