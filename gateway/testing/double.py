"""`RocketMQ`: the servers of a test in a thread of this process, with a blocking interface for any other thread."""

import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import trio

from codec.message import Message
from gateway.broker.broker import Broker
from gateway.config.process import ServeConfig
from gateway.config.sources import ConfigError, SourceValue, load_config
from gateway.testing import contents
from gateway.testing.aio import AsyncRocketMQ
from gateway.testing.contents import DEFAULT_TIMEOUT_S, WaitTimeout
from gateway.testing.faults import FaultTable
from gateway.testing.servers import InMemoryServers, open_servers

__all__ = ["RocketMQ", "WaitTimeout"]

Result = TypeVar("Result")

START_TIMEOUT_S: Final = 60.0
SMALL_FILES: Final = ("mappedFileSizeCommitLog=67108864", "maxHashSlotNum=5000", "maxIndexNum=20000")
"""Settings before those of a test: memory is reserved file by file."""


class RocketMQ:
    """A namesrv and brokers in memory on free ports of this machine, for the duration of a ``with`` block.

    They run in a thread of their own with its own event loop, so tests may be plain functions, or coroutines of
    asyncio or trio. The methods block; coroutines that share their event loop with a client under test use the same
    methods of `aio` instead. ``settings`` are keys of `rmq-gateway config` with their values, for example
    ``{"defaultTopicQueueNums": "1"}``. ``faults`` injects faults.
    """

    def __init__(
        self, *, brokers: int = 1, settings: Mapping[str, str] | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.faults = FaultTable()
        self.aio = AsyncRocketMQ(self)
        config = _build_config(brokers, dict(settings or {}), host)
        self._loop = _LoopThread(config, self.faults)

    def __enter__(self) -> Self:
        self._loop.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Start the servers, where a ``with`` block does not fit; `close` must follow."""
        return self.__enter__()

    def close(self) -> None:
        """Stop the servers. Does nothing when they are stopped."""
        self._loop.stop()

    # -- addresses ----------------------------------------------------------------------------------------------

    @property
    def namesrv_address(self) -> str:
        """host:port of the namesrv, which is all that a client needs."""
        return self._servers.namesrv_address

    @property
    def broker_address(self) -> str:
        """host:port of the first broker."""
        return next(iter(self.broker_addresses.values()))

    @property
    def broker_addresses(self) -> dict[str, str]:
        """host:port of every broker by its name."""
        return self._servers.broker_addresses

    @property
    def grpc_address(self) -> str:
        """host:port for clients of 5.x that speak gRPC. The port is opened when it is first asked for."""
        return self._await(self._servers.open_grpc)

    # -- topics and messages ------------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        queues: int = 4,
        *,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic on every broker. Without it a topic is created when the first message is sent."""
        self._call(
            contents.create_topic, self._servers.brokers, topic, queues, ordered, dict(attributes or {})
        )

    def messages(self, topic: str) -> list[Message]:
        """Return all messages of a topic, oldest first, with bodies as they were sent.

        Messages that wait (delayed ones, retries, open transactions) are not in their topic yet.
        """
        return self._call(lambda: contents.read_messages(self._servers.brokers, topic))

    def wait_for(self, topic: str, count: int = 1, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[Message]:
        """Wait until a topic has ``count`` messages or more, and return them. Raises WaitTimeout."""
        return self._await(contents.wait_for_messages, self._running_brokers, topic, count, timeout_s)

    def consumer_lag(self, group: str, topic: str | None = None) -> int:
        """Return the number of messages that a group has not consumed, of one topic or of all that it reads.

        It follows the offsets that consumers commit, which most clients do every few seconds.
        """
        return self._call(lambda: contents.consumer_lag(self._servers.brokers, group, topic))

    def wait_until_consumed(
        self, group: str, topic: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Wait until a group has consumed every message. Raises WaitTimeout."""
        self._await(contents.wait_until_consumed, self._running_brokers, group, topic, timeout_s)

    # -- time and faults ----------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Move the servers' time ahead, and return when everything that became due is delivered.

        Delayed messages, retries, timer messages and popped messages whose invisible time is over are in their topics
        then, and each producer with an open transaction was asked once.
        """
        self._await(self._servers.advance, seconds)

    def stop_broker(self, name: str | None = None, *, keep_route: bool = False) -> None:
        """Stop a broker as if its machine went away; with ``keep_route`` the namesrv does not notice.

        The name may be left out when only one broker runs.
        """
        self._await(lambda: self._servers.stop_broker(name, keep_route=keep_route))

    def start_broker(self, name: str | None = None) -> None:
        """Start a stopped broker on its former port, with the messages it had."""
        self._await(self._servers.start_broker, name)

    def reset(self) -> None:
        """Forget messages, topics, groups, offsets, faults and moved time; the addresses stay.

        All connections are closed; a client that still runs connects again.
        """
        self._await(self._servers.reset)

    def _running_brokers(self) -> list[Broker]:
        return self._servers.brokers

    # -- the thread of the servers ------------------------------------------------------------------------------

    @property
    def _servers(self) -> InMemoryServers:
        return self._loop.servers

    def _call(self, function: Callable[..., Result], *args: Any) -> Result:
        async def call() -> Result:
            return function(*args)

        return self._loop.run(call)

    def _await(self, function: Callable[..., Awaitable[Result]], *args: Any) -> Result:
        return self._loop.run(function, *args)


def _build_config(brokers: int, settings: dict[str, str], host: str) -> ServeConfig:
    fixed = {
        "memoryStore": "true",
        "brokers": str(brokers),
        "bindAddress": host,
        "namesrv.listenPort": "0",
        "broker.listenPort": "0",
        "brokerIP1": settings.pop("brokerIP1", "auto"),
    }
    flags = [SourceValue(key, value, "RocketMQ") for key, value in fixed.items()]
    config = load_config(
        "serve", sets=[*SMALL_FILES, *(f"{key}={value}" for key, value in settings.items())], flags=flags
    )
    _refuse_what_is_not_served(config)
    return config


def _refuse_what_is_not_served(config: ServeConfig) -> None:
    """Raise ConfigError for settings of parts that only the server as a process has."""
    process = config.process
    unserved = {
        "httpPort": process.http_port >= 0,
        "controlPort": process.control_port >= 0,
        "brokerProcesses": process.processes,
        "metricsExporterType": process.metrics_export.pushes,
        "readyFile": bool(process.ready_file),
    }
    names = [name for name, is_set in unserved.items() if is_set]
    if names:
        raise ConfigError(
            f"RocketMQ(settings=…): {', '.join(names)} would have no effect in the test double. Leave it out, "
            "or start the server as a process: rmq-gateway serve --memory"
        )


_LoopParts = tuple[trio.lowlevel.TrioToken, trio.Nursery, InMemoryServers]
"""The event loop of the servers, the nursery for work on it, and the servers."""


class _LoopThread:
    """A thread with the event loop of the servers."""

    def __init__(self, config: ServeConfig, faults: FaultTable) -> None:
        self._config = config
        self._faults = faults
        self._thread: threading.Thread | None = None
        self._started: Future[_LoopParts] = Future()
        self._stopping: trio.Event | None = None

    @property
    def servers(self) -> InMemoryServers:
        return self._require_running()[2]

    def _require_running(self) -> _LoopParts:
        if self._thread is None:
            raise RuntimeError("the servers are not running: use RocketMQ in a `with` block, or call start()")
        return self._started.result(START_TIMEOUT_S)

    def start(self) -> None:
        """Start the thread, and return when the servers can be reached. Raises what prevents the start."""
        if self._thread is not None:
            raise RuntimeError("the servers are running already")
        self._started = Future()
        # A daemon, so that a process whose test forgot to close it can end.
        self._thread = threading.Thread(target=self._run_loop, name="rocketmq-for-tests", daemon=True)
        self._thread.start()
        try:
            self._started.result(START_TIMEOUT_S)
        except BaseException:
            self._thread.join()
            self._thread = None
            raise

    def stop(self) -> None:
        """Stop the servers and wait for the thread's end."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        token = self._started.result()[0]
        assert self._stopping is not None
        token.run_sync_soon(self._stopping.set)
        thread.join()

    def run(self, function: Callable[..., Awaitable[Result]], *args: Any) -> Result:
        """Run a coroutine function on the event loop and return its result, or raise what it raised.

        Raises RuntimeError when the servers are closed before it ends.
        """
        token, nursery, _ = self._require_running()
        result: Future[Result] = Future()

        async def perform() -> None:
            try:
                result.set_result(await function(*args))
            except Exception as error:  # noqa: BLE001 - raised in the thread that waits
                result.set_exception(error)
            finally:
                # Cancelled: another thread closes the servers, or their event loop fails.
                if not result.done():
                    result.set_exception(RuntimeError("the servers were closed meanwhile"))

        token.run_sync_soon(nursery.start_soon, perform)
        return result.result()

    def _run_loop(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(_single_cause(error))

    async def _serve(self) -> None:
        stopping = self._stopping = trio.Event()
        async with open_servers(self._config, self._faults) as servers, trio.open_nursery() as nursery:
            self._started.set_result((trio.lowlevel.current_trio_token(), nursery, servers))
            await stopping.wait()
            nursery.cancel_scope.cancel()


def _single_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
