import faulthandler
import gc
import json
import os

import pytest
import trio

from codec.topics import DEFAULT_TOPIC
from gateway.broker.processors.live_config import apply_broker_config
from gateway.config.metrics_export import MetricsExportConfig
from gateway.config.process import ListenerLimits, NamesrvConfig, ProcessConfig, ServeConfig
from gateway.process.parts import format_address
from gateway.process.server import Server, run, run_in_thread
from gateway.process.tests.test_http_endpoint import fetch
from gateway.runtime import process as process_module
from gateway.runtime.stop_signals import StopSignals
from gateway.tests.cluster import bodies, message, pull
from gateway.tests.configs import broker_config, change_config
from remoting.client import open_client
from remoting.errors import RemotingClosed
from remoting.reactor import Reactor
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.server import open_listeners
from storage.errors import StoreFull
from toolkit.exit_codes import ExitCode

NO_EXPORT = MetricsExportConfig()


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """Keep a server from changing settings of the whole process."""
    for name in ("freeze", "set_threshold"):
        monkeypatch.setattr(gc, name, lambda *values: None)
    monkeypatch.setattr(StopSignals, "install", lambda self: None)
    monkeypatch.setattr(faulthandler, "enable", lambda: None)
    for name in ("give_back_large_blocks", "raise_file_limit"):
        monkeypatch.setattr(process_module, name, lambda: None)


def config(
    tmp_path,
    *,
    memory=True,
    brokers=1,
    namesrv=0,
    http_port=-1,
    metrics_export=NO_EXPORT,
    controller=None,
    **settings,
):
    return ServeConfig(
        process=ProcessConfig(
            host="127.0.0.1", memory=memory, ready_file=str(tmp_path / "ready"), http_port=http_port,
            metrics_export=metrics_export,
        ),
        limits=ListenerLimits(drain_s=30),
        namesrv=NamesrvConfig(listen_port=namesrv),
        brokers=tuple(
            broker_config(
                broker_name=f"broker-{number}", listen_port=0, store_path_root_dir=str(tmp_path / str(number)),
                mapped_file_size_commit_log_bytes=1 << 20, **settings,
            )
            for number in range(brokers)
        ),
        controller=controller,
    )  # fmt: skip


def served(tmp_path, test, run_blocking=run_in_thread, **settings):
    """Run ``test(facts of the ready line, server, nursery)`` beside a real server and stops it with a signal."""

    async def main():
        server = Server(config(tmp_path, **settings), run_blocking)
        ended = trio.Event()

        async def serve():
            await server.run()
            ended.set()

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                while not (tmp_path / "ready").exists():
                    await trio.sleep(0.002)
                await test(json.loads((tmp_path / "ready").read_text()), server, nursery)
                server._signals.record_signal(15)
                await ended.wait()
        (tmp_path / "ready").unlink()

    trio.run(main)


def address(text):
    host, _, port = text.rpartition(":")
    return host, int(port)


def test_one_process_serves_routes_and_messages_over_tcp(tmp_path, capsys):
    async def test(facts, server, nursery):
        async with open_client(*address(facts["namesrv"])) as namesrv:
            route = (await namesrv.ask(GetRouteInfoByTopic(topic=DEFAULT_TOPIC))).data
        assert {each.broker_addrs[0] for each in route.broker_datas} == set(facts["brokers"].values())
        assert facts["pid"] == os.getpid()
        for broker in facts["brokers"].values():
            async with open_client(*address(broker)) as producer, open_client(*address(broker)) as consumer:
                await producer.ask(message(body=broker.encode()))
                assert bodies(await consumer.ask(pull())) == [broker.encode()]
                answers = []

                async def wait(client=consumer, found=answers):
                    found.append(await client.ask(pull(offset=1, wait_ms=15_000), 20))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait)
                    await trio.sleep(0.01)
                    await producer.ask(message(body=b"woken"))
                assert bodies(answers[0]) == [b"woken"]

    served(tmp_path, test, brokers=2)
    (line,) = capsys.readouterr().out.splitlines()
    assert set(json.loads(line)) == {"event", "pid", "namesrv", "brokers"}


def test_stopping_answers_waiting_clients_and_keeps_what_is_on_disk(tmp_path):
    ended = []

    async def wait(broker, task_status=trio.TASK_STATUS_IGNORED):
        async with open_client(*address(broker)) as client:
            await client.ask(message())
            task_status.started()
            assert (await client.ask(pull(offset=1, wait_ms=15_000), 20)).code == 19
            ended.append(broker)

    async def first(facts, server, nursery):
        (broker,) = facts["brokers"].values()
        await nursery.start(wait, broker)

    async def second(facts, server, nursery):
        (broker,) = facts["brokers"].values()
        async with open_client(*address(broker)) as client:
            assert bodies(await client.ask(pull())) == [b"hello"]

    served(tmp_path, first, memory=False)
    assert ended
    assert not (tmp_path / "0" / "abort").exists()
    served(tmp_path, second, memory=False)


def test_a_second_signal_ends_the_waiting_for_a_disk_that_does_not_answer(tmp_path, monkeypatch):
    async def stall(work):
        await trio.sleep_forever()

    # With a reactor, flushes have a thread of their own, which a test could not let stall for ever.
    monkeypatch.setattr(Reactor, "is_available", lambda: False)

    async def test(facts, server, nursery):
        (broker,) = facts["brokers"].values()
        async with open_client(*address(broker)) as client:
            client.send_oneway(message())
            nursery.start_soon(lost, client)
            gate = server._brokers.services[0].broker.answer_gate
            while not gate.held_count:
                await trio.sleep(0.002)
            server._signals.record_signal(15)
            await trio.sleep(0.05)
            assert gate.held_count
            assert not client.closed

    async def lost(client):
        with pytest.raises(RemotingClosed):
            await client.ask(message(), 20)

    served(tmp_path, test, run_blocking=stall, flush_disk_type="SYNC_FLUSH")


def test_a_taken_port_ends_the_process_with_its_status(tmp_path, capsys):
    (taken,) = open_listeners("127.0.0.1", 0)
    with taken:
        port = taken.getsockname()[1]
        assert run(config(tmp_path, namesrv=port)) == ExitCode.FAILED
    assert capsys.readouterr().err == (
        f"Error: cannot listen on 127.0.0.1:{port} (namesrv.listenPort): address already in use. "
        "Use another port, or 0 for a free one.\n"
    )


def test_accounts_are_written_although_a_broker_cannot_close(tmp_path, monkeypatch):
    written = []
    server = Server(config(tmp_path))
    monkeypatch.setattr(server._parts.access, "persist", lambda: written.append("accounts"))

    async def fail(*_):
        raise StoreFull("no room")

    monkeypatch.setattr(server, "_start", fail)
    with pytest.raises(ExceptionGroup):
        trio.run(server.run)
    assert written == ["accounts"]


def test_wrong_settings_of_the_store_end_the_process_with_its_status(tmp_path, capsys):
    (tmp_path / "0").write_text("a file where the store should be")
    assert run(config(tmp_path, memory=False)) == ExitCode.FAILED
    assert capsys.readouterr().err.startswith("Error: ")


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1:"), (None, "127.0.0.1:"), ("::1", "[::1]:")]
)
def test_addresses_are_shown_as_clients_dial_them(host, shown):
    (listener,) = open_listeners(host, 0)
    with listener:
        assert format_address(listener) == f"{shown}{listener.getsockname()[1]}"


def test_nobody_is_told_that_it_is_ready_when_the_ready_file_cannot_be_written(tmp_path, capsys):
    (tmp_path / "ready.part").mkdir()
    assert run(config(tmp_path)) == ExitCode.FAILED
    output = capsys.readouterr()
    assert "ready.part" in output.err
    assert not output.out


def test_the_host_in_the_list_of_namesrvs_is_the_advertised_one_at_present(tmp_path):
    async def test(facts, server, _):
        assert server._brokers.advertised_host() == "auto"
        broker = server._brokers.services[0].broker
        apply_broker_config(broker, change_config(broker.config, broker_ip="10.7.7.7"))
        assert server._brokers.advertised_host() == "10.7.7.7"

    served(tmp_path, test)


def test_health_and_metrics_of_all_parts_are_served_over_http(tmp_path):
    async def test(facts, server, nursery):
        def get(path):
            return trio.to_thread.run_sync(fetch, f"http://{facts['http']}{path}", {})

        async with open_client(*address(facts["brokers"]["broker-0"])) as broker:
            await broker.ask(message())
            assert await get("/readyz") == (200, {"ready": True})
            status, text = await get("/metrics")
        assert status == 200
        assert 'rocketmq_gateway_connections{part="broker-0"} 1.0' in text
        assert 'rocketmq_gateway_connections{part="namesrv"} 0.0' in text
        assert 'rocketmq_gateway_task_failing{part="broker-0",task="long polls"} 0.0' in text
        assert "rocketmq_gateway_loop_stalls_total" in text

    served(tmp_path, test, http_port=0)
