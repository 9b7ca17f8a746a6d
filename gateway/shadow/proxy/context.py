"""What all links of one listener share. A record without behaviour."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.shadow.proxy.addresses import AddressBook
from gateway.shadow.proxy.counters import Counts
from gateway.shadow.proxy.settings import ListenSettings
from gateway.shadow.traffic.exchange import Hub
from remoting.transport import Transport
from storage.clock import Clock

Dial = Callable[[str], Awaitable[tuple[str, str, Transport]]]
"""Connects to the target's broker for one of the primary's, by name; its own name and address come with it.

Raises OSError, and LookupError when there is none.
"""


@dataclass(slots=True)
class Upstream:
    """Where the links of a listener lead: `broker` is "" for a namesrv, `address` "host:port"."""

    address: str
    broker: str = ""


@dataclass(slots=True)
class Context:
    """The surroundings of a link. Without ``dial_target`` everything goes to the primary."""

    upstream: Upstream
    hub: Hub
    book: AddressBook
    settings: ListenSettings
    counts: Counts
    clock: Clock
    dial_target: Dial | None = None
    target_reachable: bool = True
