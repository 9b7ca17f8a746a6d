"""Sessions between a scripted client and a scripted upstream, for tests."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio.testing import MockClock

from codec.command import Command, encode_command
from codec.frames import FrameSplitter
from gateway.shadow.proxy.address_book import AddressBook
from gateway.shadow.proxy.listener_context import (
    ListenerContext,
    ListenerCounters,
    TargetDialer,
    UpstreamAddress,
)
from gateway.shadow.proxy.session_driver import SessionDriver
from gateway.shadow.proxy.settings import ListenSettings
from gateway.shadow.traffic.exchange import ALL_CODES, Codes, Exchange, Hub
from remoting.tests.virtual import Kernel, settle

PRIMARY_ADDRESS = "10.1.0.1:10911"
GATEWAY_HOST = "10.0.0.9"
FREE_PORT = 20911


class TrioClock:
    """A clock that follows trio's."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(trio.current_time() * 1000)

    def monotonic(self) -> float:
        return trio.current_time()


class ScriptedPeer(Kernel):
    """A transport of the gateway whose other end reads and writes as the test says."""

    reactive = True

    def __init__(self, reactive: bool = True, **more: Any) -> None:
        super().__init__(**more)
        self.reactive = reactive

    def received_commands(self) -> list[Command]:
        """Complete frames that were sent to it, decoded."""
        return FrameSplitter().feed(bytes(self.sent))


def make_context(
    hub: Hub, book: AddressBook, *, dial_target: TargetDialer | None = None, **settings: Any
) -> ListenerContext:
    """The context of a listener for the one broker of a primary."""
    return ListenerContext(
        UpstreamAddress(PRIMARY_ADDRESS, "broker-a"),
        hub,
        book,
        ListenSettings(**settings),
        ListenerCounters(),
        TrioClock(),
        dial_target,
    )


class SessionBench:
    """One session that runs in a nursery. `client` and `upstream` are its scripted peers."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        hub: Hub | None = None,
        reactive: bool = True,
        client_room: int | None = None,
        upstream_room: int | None = None,
        dial_target: TargetDialer | None = None,
        **settings: Any,
    ) -> None:
        self.hub = hub or Hub()
        self.opened: list[str] = []
        self.book = AddressBook("auto", self._open_port)
        self.book.add_listener(PRIMARY_ADDRESS, FREE_PORT)
        self.context = make_context(self.hub, self.book, dial_target=dial_target, **settings)
        self.counters = self.context.counters
        self.client = ScriptedPeer(reactive, room=client_room)
        self.upstream = ScriptedPeer(reactive, room=upstream_room)
        self.session = SessionDriver(1, self.client, self.upstream, self.context, nursery)
        self.ended = trio.Event()
        nursery.start_soon(self._run)

    def _open_port(self, address: str) -> int:
        self.opened.append(address)
        return FREE_PORT + 10 * len(self.opened)

    async def _run(self) -> None:
        await self.session.run()
        self.ended.set()

    async def send_from_client(self, *frames: bytes) -> bytes:
        """Send bytes from the client; return everything that the upstream has received by then."""
        for frame in frames:
            self.client.arrive(frame)
        await settle()
        return bytes(self.upstream.sent)

    async def send_from_upstream(self, *frames: bytes) -> bytes:
        """Send bytes from the upstream; return everything that the client has received by then."""
        for frame in frames:
            self.upstream.arrive(frame)
        await settle()
        return bytes(self.client.sent)


class RecordingObserver:
    """An observer that keeps every exchange."""

    def __init__(self, codes: Codes = ALL_CODES) -> None:
        self._codes = codes
        self.seen: list[Exchange] = []

    def codes(self) -> Codes:
        return self._codes

    def observe(self, exchange: Exchange) -> None:
        self.seen.append(exchange)


class HoldingHolder(RecordingObserver):
    """A holder that holds every answer that it may hold, and keeps those exchanges."""

    def __init__(self, codes: Codes = ALL_CODES) -> None:
        super().__init__(codes)
        self.releases: list[Callable[..., Any]] = []

    def holdable_codes(self) -> Codes:
        return self._codes

    def observe(self, exchange: Exchange, release: Callable[..., Any] | None = None) -> bool:  # type: ignore[override]
        if release is None:
            return False
        self.seen.append(exchange)
        self.releases.append(release)
        return True


def run_with_nursery(test: Callable[[trio.Nursery], Awaitable[None]]) -> None:
    """Run ``test(nursery)`` in virtual time."""

    async def run_test() -> None:
        async with trio.open_nursery() as nursery:
            await test(nursery)
            nursery.cancel_scope.cancel()

    trio.run(run_test, clock=MockClock(autojump_threshold=0))


def request(
    code: int = 310,
    opaque: int = 1,
    *,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    flag: int = 0,
    binary: bool = False,
) -> bytes:
    return encode_command(Command(code, opaque, flag, ext or {"b": "orders"}, body, binary=binary))


def answer(
    code: int = 0,
    opaque: int = 1,
    *,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    binary: bool = False,
) -> bytes:
    return encode_command(Command(code, opaque, 1, ext or {"queueId": "0"}, body, binary=binary))
