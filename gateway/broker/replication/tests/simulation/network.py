"""A network on virtual time: connections with delays, partitions that swallow bytes, hosts that vanish."""

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

import trio

from remoting.transport import Address, Buffer

MAX_UNREAD_BYTES: Final = 32 * 1024
MIN_WINDOW_BYTES: Final = 4096
MAX_DELAYS_S: Final = (0.004, 0.04)
END: Final = b"end of the stream"


class Pipe:
    """The bytes on their way from one end of a connection to the other."""

    def __init__(self, network: "Network", source: str, target: str, port: int) -> None:
        self._network = network
        self._link = source, target, port
        self._parts: deque[tuple[float, bytes]] = deque()  # time of arrival, bytes
        self._bytes = 0
        self._last_s = 0.0
        self._changed = trio.Event()
        self.is_broken = False

    @property
    def room(self) -> int:
        room = MAX_UNREAD_BYTES - self._bytes
        return room if room >= MIN_WINDOW_BYTES else 0

    def put(self, data: bytes) -> None:
        """Send bytes, which may arrive in several parts."""
        randomness = self._network.randomness
        while True:
            size = len(data) if randomness.random() < 0.7 else randomness.randint(0, len(data))
            self._last_s = max(self._last_s, trio.current_time() + self._network.delay())
            self._parts.append((self._last_s, data[:size]))
            self._bytes += size
            data = data[size:]
            if not data:
                break
        self.wake()

    def put_end(self) -> None:
        self._last_s = max(self._last_s, trio.current_time() + self._network.delay())
        self._parts.append((self._last_s, END))
        self.wake()

    @property
    def is_carrying(self) -> bool:
        """True while bytes are on their way."""
        return bool(self._bytes) and not self.is_broken

    def wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def break_off(self) -> None:
        """Lose what is on its way; both ends see an error."""
        self.is_broken = True
        self.wake()

    async def wait_for_change(self) -> None:
        await self._changed.wait()

    async def take(self, max_bytes: int) -> bytes:
        """Return some of the next bytes; b"" at the end. Raises OSError."""
        while True:
            if self.is_broken:
                raise ConnectionResetError("connection reset")
            arrives_s = self._parts[0][0] if self._parts else trio.current_time() + 1e9
            if arrives_s <= trio.current_time() and not self._network.is_cut(*self._link):
                break
            with trio.move_on_at(arrives_s if arrives_s > trio.current_time() else trio.current_time() + 1e9):
                await self._changed.wait()
        _, data = self._parts.popleft()
        if data is END:
            self._parts.appendleft((0, END))
            return b""
        data = self._join_arrived(data, max_bytes)
        if not data:
            return await self.take(max_bytes)
        size = min(max_bytes, len(data))
        if self._network.randomness.random() < 0.3:
            size = self._network.randomness.randint(1, size)
        if size < len(data):
            self._parts.appendleft((0, data[size:]))
        self._bytes -= size
        self.wake()
        return data[:size]

    def _join_arrived(self, data: bytes, max_bytes: int) -> bytes:
        """Return the bytes with those that have arrived after them, which one read takes together."""
        while len(data) < max_bytes and self._parts:
            arrives_s, more = self._parts[0]
            if arrives_s > trio.current_time() or more is END:
                break
            self._parts.popleft()
            data += more
        return data


class SimTransport:
    """One end of a connection; a `remoting.transport.Transport`."""

    def __init__(self, incoming: Pipe, outgoing: Pipe, remote: Address, local: Address) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self.remote = remote
        self.local = local
        self._is_closed = False

    async def receive(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if self._is_closed:
            return b""
        return await self._incoming.take(max_bytes)

    def watch(self, readable: Callable[[], None]) -> bool:
        return False

    def unwatch(self) -> None:
        """Nothing is watched here."""

    def receive_now(self, max_bytes: int) -> bytes:
        raise BlockingIOError

    def send_now(self, data: Buffer) -> int:
        if self._is_closed or self._outgoing.is_broken:
            raise ConnectionResetError("connection reset")
        size = min(len(data), self._outgoing.room)
        if size <= 0:
            raise BlockingIOError
        self._outgoing.put(bytes(memoryview(data)[:size]))
        return size

    async def send_all(self, data: Buffer) -> None:
        await trio.lowlevel.checkpoint()
        remaining = memoryview(data)
        while remaining:
            try:
                remaining = remaining[self.send_now(remaining) :]
            except BlockingIOError:
                await self._outgoing.wait_for_change()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._outgoing.put_end()
            self._incoming.wake()

    def vanish(self, *, silently: bool) -> None:
        """End with the host: the peer sees a reset, or nothing at all."""
        self._is_closed = True
        if not silently:
            self._outgoing.break_off()
            self._incoming.break_off()


class Network:
    """Hosts by name, what they listen on, and the links that are cut."""

    def __init__(self, randomness: random.Random) -> None:
        self.randomness = randomness
        self._max_delay_s = randomness.choice(MAX_DELAYS_S)
        self._cut: set[tuple[frozenset[str], int | None]] = set()
        self._cut_ways: Counter[tuple[str, str]] = Counter()
        self._listeners: dict[Address, Callable[[SimTransport], object]] = {}
        self._connections: list[tuple[SimTransport, SimTransport]] = []
        self._ports = 40_000

    def delay(self) -> float:
        return self.randomness.random() * self._max_delay_s

    def is_cut(self, one: str, other: str, port: int | None = None) -> bool:
        """Tell whether nothing gets from one host to the other one."""
        if not self._cut and not self._cut_ways:
            return False
        hosts = frozenset((one, other))
        if self._cut_ways[one, other] > 0:
            return True
        return (hosts, None) in self._cut or (hosts, port) in self._cut

    def cut(self, one: str, other: str, port: int | None = None) -> None:
        """Let nothing through between two hosts, or only nothing of the connections to a port."""
        self._cut.add((frozenset((one, other)), port))

    def heal(self, one: str, other: str, port: int | None = None) -> None:
        self._cut.discard((frozenset((one, other)), port))
        self._wake()

    def cut_way(self, source: str, target: str) -> None:
        """Let nothing through in one direction, until each such cut is healed."""
        self._cut_ways[source, target] += 1

    def heal_way(self, source: str, target: str) -> None:
        self._cut_ways[source, target] -= 1
        self._wake()

    def _wake(self) -> None:
        for ends in self._connections:
            for end in ends:
                end._incoming.wake()

    def listen(self, address: Address, accept: Callable[[SimTransport], object]) -> None:
        self._listeners[address] = accept

    def stop_listening(self, host: str) -> None:
        for address in [address for address in self._listeners if address[0] == host]:
            del self._listeners[address]

    async def connect(self, source: str, host: str, port: int) -> SimTransport:
        await trio.sleep(self.delay())
        if self.is_cut(source, host, port) or self.is_cut(host, source, port):
            await trio.sleep_forever()
        accept = self._listeners.get((host, port))
        if accept is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        self._ports += 1
        there, back = Pipe(self, source, host, port), Pipe(self, host, source, port)
        near = SimTransport(back, there, (host, port), (source, self._ports))
        far = SimTransport(there, back, (source, self._ports), (host, port))
        self._connections.append((near, far))
        accept(far)
        return near

    def end_connections(self, host: str, *, silently: bool) -> None:
        """End all connections of a host that stops; or only reset them."""
        remaining = []
        for ends in self._connections:
            own = [end for end in ends if end.local[0] == host]
            for end in own:
                end.vanish(silently=silently)
            if not own:
                remaining.append(ends)
        self._connections = remaining

    def reset_connections(self, one: str, other: str) -> None:
        """Reset the connections between two hosts, which may connect anew at once."""
        for ends in self._connections:
            if {ends[0].local[0], ends[1].local[0]} == {one, other}:
                for end in ends:
                    end._incoming.break_off()

    def is_carrying(self, one: str, other: str) -> bool:
        """Return True while bytes are on their way between two hosts."""
        return any(
            end._outgoing.is_carrying
            for ends in self._connections
            for end in ends
            if {ends[0].local[0], ends[1].local[0]} == {one, other}
        )

    async def reach(self, source: str, target: str) -> None:
        """Take the time that a message takes; for ever while the link is cut."""
        await trio.sleep(self.delay())
        if self.is_cut(source, target):
            await trio.sleep_forever()
