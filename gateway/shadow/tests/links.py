"""A link between a played client and a played upstream; no tests."""

import trio

from codec.command import Command, encode_command
from codec.frames import FrameSplitter
from gateway.shadow.proxy.addresses import AddressBook
from gateway.shadow.proxy.context import Context, Upstream
from gateway.shadow.proxy.counters import Counts
from gateway.shadow.proxy.link import Link
from gateway.shadow.proxy.settings import ListenSettings
from gateway.shadow.traffic.exchange import ALL_CODES, Hub
from remoting.tests.virtual import Kernel, settle

THEIRS = "10.1.0.1:10911"
HERE = "10.0.0.9"
FREE_PORT = 20911


class TrioClock:
    """The clock of the scheduler."""

    def now_ms(self):
        return 1_700_000_000_000 + round(trio.current_time() * 1000)

    def monotonic(self):
        return trio.current_time()


class Played(Kernel):
    """An end of the link that reads and writes as the test says."""

    reactive = True

    def __init__(self, reactive=True, **more):
        super().__init__(**more)
        self.reactive = reactive

    def frames(self):
        """What was sent to it, whole frames only."""
        return FrameSplitter().feed(bytes(self.sent))


class LinkBench:
    """One link, run in a nursery. `client` and `upstream` are the ends as the gateway's transports."""

    def __init__(
        self,
        nursery,
        *,
        hub=None,
        reactive=True,
        client_room=None,
        upstream_room=None,
        dial_target=None,
        **settings,
    ):
        self.hub = hub or Hub()
        self.opened = []
        self.book = AddressBook("auto", self._open)
        self.book.add(THEIRS, FREE_PORT)
        self.counts = Counts()
        self.context = Context(
            Upstream(THEIRS, "broker-a"),
            self.hub,
            self.book,
            ListenSettings(**settings),
            self.counts,
            TrioClock(),
            dial_target,
        )
        self.client = Played(reactive, room=client_room)
        self.upstream = Played(reactive, room=upstream_room)
        self.link = Link(1, self.client, self.upstream, self.context, nursery)
        self.over = trio.Event()
        nursery.start_soon(self._run)

    def _open(self, address):
        self.opened.append(address)
        return FREE_PORT + 10 * len(self.opened)

    async def _run(self):
        await self.link.run()
        self.over.set()

    async def ask(self, *frames):
        """The client sends these bytes; what the upstream has received by then."""
        for frame in frames:
            self.client.arrive(frame)
        await settle()
        return bytes(self.upstream.sent)

    async def answer(self, *frames):
        """The upstream sends these bytes; what the client has received by then."""
        for frame in frames:
            self.upstream.arrive(frame)
        await settle()
        return bytes(self.client.sent)


class Watcher:
    """An observer that keeps everything."""

    def __init__(self, codes=ALL_CODES):
        self._codes = codes
        self.seen = []

    def codes(self):
        return self._codes

    def observe(self, exchange):
        self.seen.append(exchange)


class Keeper(Watcher):
    """A holder that holds every answer."""

    def __init__(self, codes=ALL_CODES):
        super().__init__(codes)
        self.releases = []

    def hold_answer(self, exchange, release):
        self.seen.append(exchange)
        self.releases.append(release)
        return True


def request(code=310, opaque=1, *, ext=None, body=b"", flag=0, binary=False):
    return encode_command(Command(code, opaque, flag, ext or {"b": "orders"}, body, binary=binary))


def answer(code=0, opaque=1, *, ext=None, body=b"", binary=False):
    return encode_command(Command(code, opaque, 1, ext or {"queueId": "0"}, body, binary=binary))
