"""Test helper: real servers and a real shadow gateway over TCP, all in one trio program."""

import contextlib
import json
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import trio

from gateway.config.process import ListenerLimits, NamesrvConfig, ProcessConfig, ServeConfig
from gateway.process.server import Server
from gateway.runtime.process import leaves
from gateway.runtime.stop_signals import StopSignals
from gateway.shadow.config import ShadowConfig, load_config
from gateway.shadow.server import ShadowServer
from gateway.tests.cluster import message
from gateway.tests.configs import broker_config
from remoting.client import open_client
from remoting.requests.topics import GetTopicStatsInfo

START_S = 20.0
Facts = dict[str, Any]
T = TypeVar("T")


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


@contextlib.asynccontextmanager
async def served_cluster(directory: Any, *, namesrv_port: int = 0, **settings: Any) -> AsyncIterator[Facts]:
    """Run a namesrv and a broker in memory; yield the ready line."""
    directory.mkdir(exist_ok=True)
    ready = directory / "ready"
    ready.unlink(missing_ok=True)
    config = ServeConfig(
        process=ProcessConfig(host="127.0.0.1", memory=True, ready_file=str(ready)),
        limits=ListenerLimits(drain_s=1),
        namesrv=NamesrvConfig(listen_port=namesrv_port),
        brokers=(broker_config(listen_port=0, store_path_root_dir=str(directory), **settings),),
    )
    async with _running(Server(config), ready) as facts:
        yield facts


@contextlib.asynccontextmanager
async def served_gateway(directory: Any, *sets: str) -> AsyncIterator[tuple[ShadowServer, Facts]]:
    """Run a gateway with these settings; yield it with its ready line. Raises what prevents its start."""
    directory.mkdir(exist_ok=True)
    ready = directory / "gateway-ready"
    ready.unlink(missing_ok=True)
    server = ShadowServer(gateway_config(*sets), str(ready))
    async with _running(server, ready) as facts:
        yield server, facts


def gateway_config(*sets: str) -> ShadowConfig:
    given = [
        "listen.host=127.0.0.1", "listen.namesrv_port=0", "listen.broker_port=0", "console.port=0",
        "listen.drain_s=0.1",
        "mirroring.drain_ms=100",
    ]  # fmt: skip
    return load_config(None, [*given, *sets])


@contextlib.asynccontextmanager
async def _running(server: Server | ShadowServer, ready: Any) -> AsyncIterator[Facts]:
    failures: list[Exception] = []
    ended = trio.Event()

    async def run() -> None:
        try:
            await server.run()
        except Exception as error:  # noqa: BLE001 - raised by the test
            failures.append(error)
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        with trio.fail_after(START_S):
            while not ready.exists() and not ended.is_set():
                await trio.sleep(0.005)
        if not failures:
            try:
                yield json.loads(ready.read_text())
            finally:
                with trio.CancelScope(shield=True):
                    server._signals.record_signal(15)
                    with trio.move_on_after(START_S):
                        await ended.wait()
                nursery.cancel_scope.cancel()
    for failure in failures:
        raise next(leaves(failure))


@contextlib.contextmanager
def in_thread(open_servers: Callable[[], contextlib.AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Run servers in a trio program of another thread, for tests of commands; yield what ``open_servers`` yields."""
    started: queue.Queue[tuple[T, trio.lowlevel.TrioToken, trio.Event]] = queue.Queue()
    failures: list[BaseException] = []

    async def main() -> None:
        async with open_servers() as facts:
            stop = trio.Event()
            started.put((facts, trio.lowlevel.current_trio_token(), stop))
            await stop.wait()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:  # noqa: BLE001 - raised by the test
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        with contextlib.suppress(queue.Empty):
            facts, token, stop = started.get(timeout=0.05)
            try:
                yield facts
            finally:
                token.run_sync_soon(stop.set)
                thread.join()
            break
    for failure in failures:
        raise failure


def without_signals(monkeypatch: Any) -> None:
    """Keep servers in the test's process from handling its signals."""
    monkeypatch.setattr(StopSignals, "install", lambda self: None)


async def send_messages(broker: str, topic: str, count: int) -> None:
    async with open_client(*address(broker)) as producer:
        for number in range(count):
            await producer.ask(message(topic, b"%d" % number, key=f"{number:032X}"))


async def count_messages(broker: str, topic: str) -> int:
    async with open_client(*address(broker)) as client:
        table = (await client.ask(GetTopicStatsInfo(topic=topic))).data.offset_table
    return sum(each.max_offset - each.min_offset for each in table.values())
