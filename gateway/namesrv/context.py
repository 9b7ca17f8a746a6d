"""The parts of a namesrv, as its handlers receive them: tables, files, and a cache of encoded answers.

`gateway.namesrv.service` listens and runs the periodic scan and the writers of files.
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import trio

from codec.command import Command
from gateway.config.live import list_values
from gateway.config.process import NamesrvConfig
from gateway.namesrv.child_broker import ChildBrokers
from gateway.namesrv.kv_config import KvConfig
from gateway.namesrv.registration import LargeRegistrations
from gateway.namesrv.route_table import RouteTable
from gateway.namesrv.text_file import AtomicTextFile, CoalescedFile, TextFile
from gateway.runtime.run_blocking import RunBlocking
from remoting.connection import Connection
from remoting.handler_table import Finish, Observe
from storage.clock import Clock

MAX_BYTES: Final = 32 * 1024 * 1024


class AnswerCache:
    """Encoded answers that stay valid until the route table changes.

    A route with a thousand brokers takes 16 ms to encode, a list of 200,000 topics 10 ms; clients ask for the same ones
    again and again. Bodies are stored by key, at most ``max_bytes`` of them; the oldest make room for new ones.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bodies: dict[Hashable, bytes] = {}
        self._bytes = 0
        self._version = 0

    def get(self, key: Hashable, version: int, encode: Callable[[], bytes]) -> bytes:
        """Return the body that was encoded at this version of the table, or encode it."""
        if version != self._version:
            self._bodies.clear()
            self._bytes = 0
            self._version = version
        body = self._bodies.get(key)
        if body is None:
            body = encode()
            self._store(key, body)
        return body

    def _store(self, key: Hashable, body: bytes) -> None:
        if len(body) > self._max_bytes:
            return
        self._bytes += len(body)
        self._bodies[key] = body
        while self._bytes > self._max_bytes:
            oldest = next(iter(self._bodies))
            self._bytes -= len(self._bodies.pop(oldest))


MAX_ROUTES_PER_TURN: Final = 10_000
"""Routes of brokers removed at once, which takes about 10 ms."""


def ignore_outcome(connection: Connection, command: Command) -> Finish:
    """Observe nothing, for a namesrv without an audit log."""
    return lambda _: None


@dataclass(slots=True)
class Namesrv:
    """The parts of a namesrv. ``config`` is replaced when a request changes it.

    Without files, changes of settings and of the KV configuration are lost when the process ends.
    """

    config: NamesrvConfig
    clock: Clock
    routes: RouteTable
    child_brokers: ChildBrokers
    answers: AnswerCache
    kv_answers: AnswerCache
    kv_config: KvConfig
    large_registrations: LargeRegistrations
    started_at: float
    observe_registration: Observe
    """Observes registrations that add or move a broker, and those that fail."""
    departed: deque[Connection] = field(default_factory=deque)
    """Closed connections with registered brokers that are not all removed yet."""
    has_departed: trio.Event = field(default_factory=trio.Event)
    kv_file: CoalescedFile | None = None
    settings_file: CoalescedFile | None = None
    process_values: Mapping[str, str] = field(default_factory=dict)
    """Settings of the process under their official keys, for the listing of the configuration."""

    @property
    def files(self) -> list[CoalescedFile]:
        """The files that need a task that writes them."""
        return [file for file in (self.kv_file, self.settings_file) if file is not None]


def build_namesrv(
    config: NamesrvConfig,
    clock: Clock,
    *,
    memory: bool = False,
    run_blocking: RunBlocking = trio.to_thread.run_sync,
    process_values: Mapping[str, str] = MappingProxyType({}),
    observe_registration: Observe = ignore_outcome,
) -> Namesrv:
    """Build a namesrv without brokers; with ``memory`` no files are read or written.

    Raises ValueError when kvConfig.json cannot be read.
    """
    files: tuple[TextFile, TextFile] | None = None
    if not memory:
        files = AtomicTextFile(config.kv_config_path), AtomicTextFile(config.config_store_path)
    return assemble_namesrv(config, clock, files, run_blocking, process_values, observe_registration)


def assemble_namesrv(
    config: NamesrvConfig,
    clock: Clock,
    files: tuple[TextFile, TextFile] | None,
    run_blocking: RunBlocking,
    process_values: Mapping[str, str] = MappingProxyType({}),
    observe_registration: Observe = ignore_outcome,
) -> Namesrv:
    """Build a namesrv on the files of the KV configuration and of the settings, if there are any."""
    kv = KvConfig(files[0].read() if files else None)
    routes = RouteTable(clock.monotonic)
    namesrv = Namesrv(
        config=config,
        clock=clock,
        routes=routes,
        child_brokers=ChildBrokers(routes),
        answers=AnswerCache(),
        kv_answers=AnswerCache(),
        kv_config=kv,
        large_registrations=LargeRegistrations(run_blocking),
        started_at=clock.monotonic(),
        observe_registration=observe_registration,
        process_values=process_values,
    )
    if files is not None:
        namesrv.kv_file = CoalescedFile(files[0], kv.encoder, run_blocking)
        namesrv.settings_file = CoalescedFile(
            files[1], lambda: list_values(namesrv.config).encode, run_blocking
        )
    apply_config(namesrv, config)
    return namesrv


def apply_config(namesrv: Namesrv, config: NamesrvConfig) -> None:
    """Put a configuration into effect."""
    namesrv.config = config
    namesrv.kv_config.limits = config.limits
    namesrv.routes.reconfigure(
        config.limits,
        delete_missing_topics=config.delete_topic_with_broker_registration,
        acting_master=config.support_acting_master,
    )


async def scan_silent_brokers(namesrv: Namesrv) -> None:
    """Remove all silent brokers in slices, and close their connections.

    A network that fails silences a thousand brokers at once, with 300,000 routes.
    """
    while True:
        version = namesrv.routes.version
        close_silent_brokers(namesrv, MAX_ROUTES_PER_TURN)
        if namesrv.routes.version == version:
            return
        await trio.lowlevel.checkpoint()


def remove_brokers_of(namesrv: Namesrv, connection: Connection) -> None:
    """Remove the brokers of a closed connection: some at once, and further ones by `remove_departed`."""
    if not namesrv.routes.unregister_owned_by(connection, MAX_ROUTES_PER_TURN):
        namesrv.departed.append(connection)
        namesrv.has_departed.set()


async def remove_departed(namesrv: Namesrv) -> None:
    """Remove the brokers of closed connections in slices, until cancelled. One connection may have a thousand."""
    while True:
        namesrv.has_departed = trio.Event()
        while namesrv.departed:
            await trio.lowlevel.checkpoint()
            if namesrv.routes.unregister_owned_by(namesrv.departed[0], MAX_ROUTES_PER_TURN):
                namesrv.departed.popleft()
        await namesrv.has_departed.wait()


def close_silent_brokers(namesrv: Namesrv, max_routes: int | None = None) -> None:
    """Remove silent brokers and close their connections; with ``max_routes`` about as many routes."""
    for owner in namesrv.routes.expire_silent_brokers(max_routes):
        close = getattr(owner, "close", None)
        if close is not None:
            close("broker expired")
