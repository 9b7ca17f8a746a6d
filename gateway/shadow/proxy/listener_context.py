"""Everything that the sessions of one listener share."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gateway.shadow.proxy.address_book import AddressBook
from gateway.shadow.proxy.listener_counters import ListenerCounters
from gateway.shadow.proxy.memory_guard import MemoryGuard
from gateway.shadow.proxy.settings import ListenSettings
from gateway.shadow.traffic.exchange import Hub
from remoting.transport import Transport
from storage.clock import Clock

TargetDialer = Callable[[str], Awaitable[tuple[str, str, Transport]]]
"""Connects to the target's broker that stands for one of the primary's brokers, given by name.

Returns the target broker's own name, its address, and the connection. Raises OSError, and LookupError if the target
has no such broker.
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
