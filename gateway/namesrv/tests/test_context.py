"""Building a namesrv, with files or without."""

from pathlib import Path

import pytest
import trio
import trio.testing

from gateway.config.process import NamesrvConfig
from gateway.namesrv.context import (
    build_namesrv,
    close_silent_brokers,
    remove_brokers_of,
    remove_departed,
    scan_silent_brokers,
)
from gateway.namesrv.registration import Registration
from gateway.tests.broker_fakes import FakeConnection
from remoting.bodies.routes import QueueData
from remoting.tests.longest_turn import short_turns


class Clock:
    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def test_key_values_survive_a_restart(tmp_path: Path) -> None:
    config = NamesrvConfig(kv_config_path=str(tmp_path / "kv" / "kvConfig.json"))
    namesrv = build_namesrv(config, Clock())

    async def put() -> None:
        namesrv.kv_config.put("n", "k", "v")
        assert namesrv.kv_file is not None
        written = namesrv.kv_file.request_write()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(namesrv.kv_file.run)
            await written.wait()
            nursery.cancel_scope.cancel()

    trio.run(put)
    assert build_namesrv(config, Clock()).kv_config.get("n", "k") == "v"
    memory = build_namesrv(config, Clock(), memory=True)
    assert memory.kv_config.get("n", "k") is None
    assert memory.files == []


def test_a_damaged_file_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("{")
    with pytest.raises(ValueError, match=r"."):
        build_namesrv(NamesrvConfig(kv_config_path=str(tmp_path / "kv")), Clock())


def test_switches_reach_the_table() -> None:
    config = NamesrvConfig(support_acting_master=True, delete_topic_with_broker_registration=True)
    table = build_namesrv(config, Clock(), memory=True).routes
    for topics in ("TU", "TV"):
        queues = {name: QueueData(broker_name="b") for name in topics}
        given = Registration(
            cluster="C", broker_name="b", broker_id=1, address="b:1", queues=queues, acting_master=True
        )
        table.register(given)
    assert table.topic_list().topic_list == ["T", "V"]
    route = table.topic_route("T", "")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "b:1"}


def test_owners_that_cannot_be_closed_are_left_alone() -> None:
    clock = Clock()
    namesrv = build_namesrv(NamesrvConfig(), clock, memory=True)
    queues = {name: QueueData(broker_name="b") for name in "TU"}
    namesrv.routes.register(
        Registration(cluster="C", broker_name="b", broker_id=0, address="b:1", queues=queues), object()
    )
    clock.seconds = 121
    close_silent_brokers(namesrv)
    assert namesrv.routes.topic_list().topic_list == []


def test_a_thousand_silent_brokers_are_forgotten_in_short_turns() -> None:
    clock = Clock()
    namesrv = build_namesrv(NamesrvConfig(), clock, memory=True)
    for number in range(1000):
        name = f"b{number}"
        data = QueueData(broker_name=name)
        queues = {f"T{topic}": data for topic in range(300)}
        namesrv.routes.register(
            Registration(cluster="C", broker_name=name, broker_id=0, address=f"{name}:1", queues=queues),
            object(),
        )
    clock.seconds = 121

    async def scan() -> None:
        with short_turns():
            await scan_silent_brokers(namesrv)

    trio.run(scan)
    assert namesrv.routes.topic_list().topic_list == []


def test_a_connection_that_registered_a_thousand_brokers_is_forgotten_in_short_turns() -> None:
    namesrv = build_namesrv(NamesrvConfig(), Clock(), memory=True)
    connection, other = FakeConnection(), FakeConnection()
    for number in range(1000):
        name = f"b{number}"
        data = QueueData(broker_name=name)
        queues = {f"T{topic}": data for topic in range(300)}
        owner = other if number == 700 else connection
        namesrv.routes.register(
            Registration(cluster="C", broker_name=name, broker_id=0, address=f"{name}:1", queues=queues),
            owner,
        )

    async def close() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(remove_departed, namesrv)
            await trio.testing.wait_all_tasks_blocked()
            with short_turns():
                await trio.lowlevel.checkpoint()
                remove_brokers_of(namesrv, connection)
                while len(namesrv.routes.cluster_info("").broker_addr_table) > 1:
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    trio.run(close)
    route = namesrv.routes.topic_route("T1", "")
    assert route is not None
    assert [data.broker_name for data in route.broker_datas] == ["b700"]
    assert not namesrv.departed
