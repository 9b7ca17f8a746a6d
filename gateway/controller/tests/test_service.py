"""A whole controller over connections in memory: requests of brokers and operators, and connections that close."""

import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from codec.constants import ResponseCode
from gateway.config.controller import ControllerConfig
from gateway.controller.etcd_store import EtcdStore
from gateway.controller.liveness import ReplicaKey
from gateway.controller.service import ControllerService, build_store
from gateway.controller.sqlite_store import SqliteStore
from gateway.controller.store import Term
from remoting.client import open_client
from remoting.connection import Connection
from remoting.declare import Request
from remoting.errors import RequestError
from remoting.limits import ConnectionLimits
from remoting.requests.controller import (
    ControllerApplyBrokerId,
    ControllerElectMaster,
    ControllerGetMetadataInfo,
    ControllerGetReplicaInfo,
    ControllerGetSyncStateData,
    GetControllerConfig,
    UpdateControllerConfig,
)
from remoting.requests.namesrv import BrokerHeartbeat
from remoting.server import ServerLimits, open_listeners
from storage.clock import SystemClock


async def run_at_once(work: Callable[[], Any]) -> Any:
    return work()


@asynccontextmanager
async def running(config: ControllerConfig | None = None) -> AsyncIterator[tuple[ControllerService, int]]:
    """Run a controller with its state in memory."""
    listeners: list[socket.socket] = open_listeners("127.0.0.1", 0)
    port = listeners[0].getsockname()[1]
    service = ControllerService(
        config or ControllerConfig(peers="n0-127.0.0.1:0"),
        port,
        SystemClock(),
        ConnectionLimits(),
        ServerLimits(),
        memory=True,
        run_blocking=run_at_once,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run, listeners)
        while service.controller.leadership.term is None:
            await trio.sleep(0.01)
        yield service, port
        await service.stop()
        nursery.cancel_scope.cancel()


def play(story: Callable[[ControllerService, Connection, int], Awaitable[None]]) -> None:
    async def run() -> None:
        with trio.fail_after(20):
            async with running() as (service, port), open_client("127.0.0.1", port) as client:
                await story(service, client, port)

    trio.run(run)


def with_body(request: Request[Any], body: bytes) -> Request[Any]:
    request.body = body
    return request


def apply_id(broker_id: int) -> ControllerApplyBrokerId:
    return ControllerApplyBrokerId(
        cluster_name="C", broker_name="a", applied_broker_id=broker_id, register_check_code=f"h:{broker_id};1"
    )


def heartbeat(broker_id: int | None, timeout_ms: int | None = None) -> BrokerHeartbeat:
    return BrokerHeartbeat(
        cluster_name="C",
        broker_addr="h:1",
        broker_name="a",
        broker_id=broker_id,
        heartbeat_timeout_mills=timeout_ms,
    )


def test_it_describes_its_group_with_the_port_that_it_has() -> None:
    async def story(service: ControllerService, client: Connection, port: int) -> None:
        answer = await client.ask(ControllerGetMetadataInfo())
        assert (answer.controller_leader_id, answer.is_leader) == ("n0", True)
        assert answer.controller_leader_address == f"127.0.0.1:{port}"
        assert answer.peers == f"n0:127.0.0.1:{port};"

    play(story)


def test_a_broker_is_dead_when_its_connection_closes() -> None:
    async def story(service: ControllerService, client: Connection, port: int) -> None:
        for broker_id in (1, 2):
            await client.ask(apply_id(broker_id))
        async with open_client("127.0.0.1", port) as broker:
            assert (await broker.ask_command(heartbeat(1).to_command(), 5)).remark == "Heart beat success"
            await client.ask(ControllerElectMaster(cluster_name="C", broker_name="a", broker_id=1))
            await client.ask(heartbeat(2))
        reply = await client.ask(ControllerGetReplicaInfo(broker_name="a"))
        while reply.master_broker_id is not None:
            await trio.sleep(0.01)
            reply = await client.ask(ControllerGetReplicaInfo(broker_name="a"))
        assert reply.master_epoch == 2
        answer = await client.ask(with_body(ControllerGetSyncStateData(), b'["a"]'))
        info = answer.data.replicas_info_table["a"]
        assert [(item.broker_id, item.alive) for item in info.in_sync_replicas] == [(1, False)]
        assert [(item.broker_id, item.alive) for item in info.not_in_sync_replicas] == [(2, True)]

    play(story)


def test_a_stop_closes_connections_and_elects_nobody() -> None:
    async def story(service: ControllerService, client: Connection, port: int) -> None:
        for broker_id in (1, 2):
            await client.ask(apply_id(broker_id))
        async with open_client("127.0.0.1", port) as master, open_client("127.0.0.1", port) as slave:
            await master.ask(heartbeat(1))
            await slave.ask(heartbeat(2))
            await client.ask(ControllerElectMaster(cluster_name="C", broker_name="a", broker_id=1))
            await service.stop()
            # The connections end one after the other.
            live = service.controller.liveness.live_broker(ReplicaKey("C", "a", 1))
            if live is not None and live.connection is not None:
                service.controller.forget_connection(live.connection)
            await trio.sleep(0.1)
        assert (service.controller.counts.elections, service.controller.counts.lost_masters) == (1, 0)

    play(story)


def test_a_heartbeat_without_an_id_is_refused() -> None:
    async def story(service: ControllerService, client: Connection, port: int) -> None:
        with pytest.raises(RequestError, match="Heart beat with empty brokerId") as refusal:
            await client.ask(heartbeat(None))
        assert refusal.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST

    play(story)


def test_an_answer_has_a_bounded_number_of_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.controller.processors.MAX_REPLICAS_PER_ANSWER", 2, raising=False)

    async def story(service: ControllerService, client: Connection, port: int) -> None:
        for broker_id in (1, 2):
            await client.ask(apply_id(broker_id))
        answer = await client.ask(with_body(ControllerGetSyncStateData(), b'["a"]'))
        assert len(answer.data.replicas_info_table["a"].not_in_sync_replicas) == 2
        await client.ask(apply_id(3))
        with pytest.raises(RequestError, match="more than 2 replicas") as refusal:
            await client.ask(with_body(ControllerGetSyncStateData(), b'["a"]'))
        assert refusal.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST

    play(story)


@pytest.mark.parametrize("body", [b"{", b"{}", b"[1]", b'["a", null]', b"7"])
def test_a_body_that_is_not_a_list_of_names_is_refused(body: bytes) -> None:
    async def story(service: ControllerService, client: Connection, port: int) -> None:
        with pytest.raises(RequestError, match="not a list of broker names"):
            await client.ask(with_body(ControllerGetSyncStateData(), body))

    play(story)


def test_live_settings_change_and_others_do_not() -> None:
    async def story(service: ControllerService, client: Connection, port: int) -> None:
        await client.ask(with_body(UpdateControllerConfig(), b"enableElectUncleanMaster=true\n"))
        assert service.controller.config.enable_elect_unclean_master
        with pytest.raises(RequestError, match="Can not update config in black list") as refusal:
            await client.ask(with_body(UpdateControllerConfig(), b"configBlackList=a"))
        assert refusal.value.code == ResponseCode.NO_PERMISSION
        with pytest.raises(RequestError, match="cannot be changed while the server runs"):
            await client.ask(with_body(UpdateControllerConfig(), b"scanInactiveMasterInterval=700"))
        text = (await client.ask(GetControllerConfig())).body.decode()
        assert "enableElectUncleanMaster=true" in text
        assert "controllerType=DLedger" in text
        assert "controllerEtcdPassword" in text

    play(story)


def test_names_are_bounded() -> None:
    async def story(service: ControllerService, client: Connection, port: int) -> None:
        request = apply_id(1)
        for name, refusal in (
            ("", "broker names have 1 to 256 characters"),
            ("n" * 257, "brokerName has more than 256 characters"),
        ):
            request.broker_name = name
            with pytest.raises(RequestError, match=refusal):
                await client.ask(request)

    play(story)


@pytest.mark.parametrize(
    ("field", "wire_name"),
    [("cluster_name", "clusterName"), ("broker_name", "brokerName"), ("broker_addr", "brokerAddr")],
)
def test_the_fields_of_a_heartbeat_are_bounded(field: str, wire_name: str) -> None:
    async def story(service: ControllerService, client: Connection, port: int) -> None:
        request = heartbeat(1)
        setattr(request, field, "n" * 257)
        with pytest.raises(RequestError, match=f"{wire_name} has more than 256 characters") as refusal:
            await client.ask(request)
        assert refusal.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        assert service.controller.liveness.alive_keys() == []

    play(story)


def test_a_heartbeat_counts_for_at_most_ten_minutes() -> None:
    async def story(service: ControllerService, client: Connection, port: int) -> None:
        await client.ask(heartbeat(1, (1 << 63) - 1))
        live = service.controller.liveness.live_broker(ReplicaKey("C", "a", 1))
        assert live is not None
        assert live.heartbeat.timeout_s == 600

    play(story)


def test_metrics_count_what_happens() -> None:
    async def story(service: ControllerService, client: Connection, port: int) -> None:
        await client.ask(apply_id(1))
        await client.ask(heartbeat(1))
        await client.ask(ControllerElectMaster(cluster_name="C", broker_name="a", broker_id=1))
        values = {metric.name: metric.value for metric in service.controller.metrics() if metric}
        assert (values["controller_leads"], values["controller_terms_total"]) == (1, 1)
        assert values["controller_store_failing"] == 0
        assert values["controller_live_brokers"] == 1
        assert values["controller_broker_sets"] == 1
        assert values["controller_elections_total"] == 1
        assert values["controller_missing_masters"] == 0
        assert values["controller_missing_successors"] == 1
        assert values["controller_out_of_sync_replicas"] == 0
        await client.ask(apply_id(2))
        values = {metric.name: metric.value for metric in service.controller.metrics() if metric}
        assert values["controller_out_of_sync_replicas"] == 1
        of_names = {
            metric.name: (metric.value, metric.labels)
            for metric in service.controller.metrics()
            if metric and metric.labels
        }
        assert of_names == {
            "controller_master_epoch": (1, {"broker": "a"}),
            "controller_in_sync_replicas": (1, {"broker": "a"}),
        }

    play(story)


def test_settings_choose_the_store(tmp_path: Path) -> None:
    config = ControllerConfig(store_path=str(tmp_path / "state"))
    store = build_store(config, run_at_once, lambda: 0.0, memory=False)
    assert isinstance(store, SqliteStore)
    trio.run(store.close)
    assert json.dumps([path.name for path in (tmp_path / "state").iterdir()]) == '["controller.sqlite"]'
    config = ControllerConfig(etcd="http://127.0.0.1:1;https://e")
    assert not isinstance(build_store(config, run_at_once, lambda: 0.0, memory=False), SqliteStore)


def test_a_term_ends_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the controller would go on leading for a while, although another one was elected in that time."""
    now_s = time.clock_gettime
    suspended_s = [0.0]
    monkeypatch.setattr(
        time, "clock_gettime", lambda clock: now_s(clock) + suspended_s[0] * (clock == time.CLOCK_BOOTTIME)
    )
    config = ControllerConfig(etcd="http://127.0.0.1:1")
    service = ControllerService(config, 9878, SystemClock(), ConnectionLimits(), ServerLimits())
    store = service._store
    assert isinstance(store, EtcdStore)
    term = Term("lease", 1, store._expires_at_s(store._monotonic()))
    service.controller.leadership._term = term
    assert service.controller.leadership.term is term
    suspended_s[0] = config.lease_s
    assert service.controller.leadership.term is None
    assert store._expires_at_s(store._monotonic()) > term.expires_at_s + suspended_s[0] - 1
