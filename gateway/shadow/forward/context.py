"""What all links of one listener share. A record without behaviour."""

from dataclasses import dataclass

from gateway.shadow.exchange import Hub
from gateway.shadow.forward.addresses import AddressBook
from gateway.shadow.forward.counts import Counts
from gateway.shadow.forward.settings import ListenSettings
from storage.clock import Clock


@dataclass(slots=True)
class Upstream:
    """Where the links of a listener lead: `broker` is "" for a namesrv, `address` "host:port"."""

    address: str
    broker: str = ""


@dataclass(slots=True)
class Context:
    """The surroundings of a link."""

    upstream: Upstream
    hub: Hub
    book: AddressBook
    settings: ListenSettings
    counts: Counts
    clock: Clock
