"""Stand-ins for the clock, files and connections of broker parts."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from codec.command import Command
from codec.constants import ResponseCode
from gateway.runtime.config_file import ConfigFile
from remoting.connection import encode_failure
from remoting.connection_state import new_state
from remoting.declare import Request
from remoting.errors import RequestError
from remoting.limits import ConnectionLimits
from storage.files import Files, MemoryFiles


async def run_inline(work: Callable[[], Any]) -> Any:
    """Run blocking work at once."""
    return work()


class FakeClock:
    """A clock that only moves in tests' hands."""

    def __init__(self, ms: int = 1_700_000_000_000) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    def pass_ms(self, ms: int) -> None:
        self.ms += ms


class FakeConnection:
    """A connection that records the requests it was given and whether it was closed."""

    def __init__(
        self, remote: tuple[str, int] = ("10.0.0.1", 50000), local: tuple[str, int] = ("10.0.0.9", 10911)
    ) -> None:
        self.remote = remote
        self.local = local
        self.limits = ConnectionLimits()
        self.told: list[Any] = []
        self.closed: str | None = None
        self.state = new_state()
        self.written: list[bytes] = []
        self.asked: list[Command] = []
        self.answer: Command | Exception | None = None
        self.nursery: trio.Nursery | None = None
        self.spawned: list[Callable[[], Awaitable[Any]]] = []

    def send_oneway(self, request: Request[Any]) -> None:
        self.told.append(request)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def answer_late(self, command: Command, work: Callable[[], bytes | None]) -> bool:
        try:
            answer = work()
        except Exception as error:  # noqa: BLE001 - as in Connection.answer_late
            answer = encode_failure(command, error)
        if answer is not None and not command.is_oneway:
            self.write(answer)
        return answer is not None

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        if self.nursery is None:
            self.spawned.append(partial(function, *args))
        else:
            self.nursery.start_soon(function, *args)

    def spawn_alone(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        self.spawn(function, *args)

    def run_spawned(self) -> None:
        """Run the tasks that were spawned without a nursery, one after the other."""
        while self.spawned:
            trio.run(self.spawned.pop(0))

    async def ask_command(self, command: Command, timeout_s: float) -> Command:
        self.asked.append(command)
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer

    async def ask(self, request: Request[Any], timeout_s: float = 3.0) -> Any:
        return request.read_reply(await self.ask_command(request.to_command(), timeout_s))

    def close(self, reason: str = "") -> None:
        self.closed = reason

    def on_close(self, callback: Callable[[], None]) -> None:
        pass


class CountingPeer:
    """A connection of which only the number of outstanding requests matters."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.closed = False
        self.outstanding_requests = 0
        self.limit = limit

    def begin_request(self) -> None:
        if self.outstanding_requests >= self.limit:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "too many")
        self.outstanding_requests += 1

    def end_request(self) -> None:
        self.outstanding_requests -= 1


class TagQueues:
    """Queues of messages that have only tag hashes, for long polls."""

    def __init__(self) -> None:
        self.codes: dict[tuple[str, int], list[int]] = {}
        self.read = 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self.codes.get((topic, queue_id), ()))

    def read_tags_codes(self, topic: str, queue_id: int, start: int, end: int) -> list[int]:
        self.read += end - start
        return self.codes[topic, queue_id][start:end]


def memory_config_file(name: str = "table.json", files: Files | None = None) -> ConfigFile:
    """Return a configuration file in memory."""

    return ConfigFile(files or MemoryFiles(), f"/config/{name}", run_inline)
