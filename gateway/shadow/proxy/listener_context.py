"""Everything that the sessions of one listener share: upstream, settings, counters, and the way to the target."""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from typing import NamedTuple, Self

from gateway.runtime.metrics import Metric, counter_metrics
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster
from gateway.shadow.clusters.cluster_pair import find_counterpart
from gateway.shadow.proxy.address_book import AddressBook
from gateway.shadow.proxy.memory_guard import MemoryGuard
from gateway.shadow.proxy.settings import ListenSettings
from gateway.shadow.traffic.exchange import Hub
from remoting.transport import Transport
from storage.clock import Clock

MEANINGS = {
    "connections": "Client connections accepted.",
    "unreachable": "Client connections closed because the primary could not be reached.",
    "requests": "Frames received from clients.",
    "answers": "Frames received from the primary, and from the target in its place.",
    "request_bytes": "Bytes of complete frames received from clients.",
    "answer_bytes": "Bytes of complete frames received from the primary.",
    "given_up": "Remembered requests given up without an answer, because of a limit on number, bytes or time.",
    "bad_frames": "Connections closed because of bytes that are not a frame.",
    "directed": "Requests sent to the target instead of the primary.",
    "target_unreachable": "Client connections closed because the target could not be reached.",
}


@dataclass(slots=True)
class ListenerCounters:
    """Counters since the listener was opened. The field names are part of metric names."""

    connections: int = 0
    unreachable: int = 0
    requests: int = 0
    answers: int = 0
    request_bytes: int = 0
    answer_bytes: int = 0
    given_up: int = 0
    bad_frames: int = 0
    directed: int = 0
    target_unreachable: int = 0

    @classmethod
    def sum_of(cls, parts: Iterable[Self]) -> Self:
        """Return the sums of the counters of several listeners."""
        counts = zip(*(astuple(part) for part in parts), strict=True)
        return cls(*map(sum, counts))

    def metrics(self, labels: dict[str, str]) -> Iterator[Metric]:
        """Yield a metric per counter, with these labels."""
        return counter_metrics(self, "forward", MEANINGS, labels)


class TargetConnection(NamedTuple):
    """A connection to a broker of the target, with the broker's own name and its address."""

    broker_name: str
    address: str
    transport: Transport


TargetDialer = Callable[[str], Awaitable[TargetConnection]]
"""Connects to the target's broker that stands for one of the primary's brokers, given by name.

Raises OSError, and LookupError if the target has no such broker.
"""


@dataclass(slots=True)
class UpstreamAddress:
    """Address ("host:port") of a namesrv or broker; `broker` is its name, "" for a namesrv."""

    address: str
    broker: str = ""


@dataclass(slots=True)
class ListenerContext:
    """The upstream, settings and services of one listener.

    Without ``dial_target`` all requests go to the primary. `target_reachable` tells whether the latest dial succeeded;
    the sessions share it, so that a change is logged once. ``memory`` bounds the sessions of all listeners together.
    """

    upstream: UpstreamAddress
    hub: Hub
    book: AddressBook
    settings: ListenSettings
    counters: ListenerCounters
    clock: Clock
    dial_target: TargetDialer | None = None
    memory: MemoryGuard = field(default_factory=lambda: MemoryGuard(math.inf, math.inf))
    target_reachable: bool = True


class TargetMasters:
    """The masters of a running target, by names of the primary's brokers.

    ``broker_pairs`` maps those names to names of the target's brokers. ``dial_address`` connects to an address.
    """

    def __init__(
        self,
        target: Cluster,
        broker_pairs: Mapping[str, str],
        dial_address: Callable[[str], Awaitable[Transport]],
    ) -> None:
        self._target = target
        self._broker_pairs = broker_pairs
        self._dial_address = dial_address

    async def dial(self, broker: str) -> TargetConnection:
        """Connect to a master; see `TargetDialer`.

        A broker that is unknown, or does not accept connections at its last known address, is looked up again.
        """
        try:
            return await self._connect(broker)
        except (OSError, LookupError):
            # The broker may be new, or its address may have changed since the last look-up.
            try:
                await self._target.refresh()
            except CLUSTER_ERRORS as error:
                raise OSError(f"the target's namesrv does not answer: {error}") from error
            return await self._connect(broker)

    async def _connect(self, broker: str) -> TargetConnection:
        name = find_counterpart(broker, self._target.brokers, self._broker_pairs)
        address = self._target.master(name)
        return TargetConnection(name, address, await self._dial_address(address))

    async def refresh(self) -> None:
        """Look the target's brokers up. Raises CLUSTER_ERRORS."""
        await self._target.refresh()

    def address_of(self, broker: str) -> str | None:
        """Return the address of a master as of the last look-up; None while the target has none for a broker."""
        try:
            return self._target.master(find_counterpart(broker, self._target.brokers, self._broker_pairs))
        except LookupError:
            return None
