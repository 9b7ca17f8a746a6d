"""Finds the master that a slave follows: the address of its HA port, and the one that answers requests.

``haMasterAddress`` names the HA port for good; if no namesrv names the other port, the follower looks for it, so such a
slave needs no namesrv. Without it the addresses come from the answers to the slave's registrations: a namesrv knows
them while a broker of the same name and the id 0 is registered. An answer without an address changes nothing, so that a
slave keeps its connection while the namesrv forgets a master for a moment.
Source: BrokerController.handleRegisterBrokerResult, 5.4.0.
"""

import logging
from dataclasses import dataclass
from typing import Final

import trio

from codec.java_numbers import parse_integer_or

log = logging.getLogger(__name__)

MAX_PORT: Final = 65_535
Address = tuple[str, int]


def parse_address(text: str) -> Address:
    """Parse ``host:port``; an IPv6 host stands in brackets. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    number = parse_integer_or(port, -1)
    if not colon or not host or not 0 < number <= MAX_PORT:
        raise ValueError(f"{text} is not host:port")
    return host.strip("[]"), number


@dataclass(frozen=True, slots=True)
class Master:
    """The master's addresses: its HA port, and the port that answers requests, None while that one is unknown."""

    ha_address: Address
    address: Address | None = None


class MasterLookup:
    """The present master of one slave. `changed` is set, and replaced, whenever that is another one."""

    def __init__(self, fixed_ha_address: str = "") -> None:
        self._fixed = parse_address(fixed_ha_address) if fixed_ha_address else None
        self.master: Master | None = None if self._fixed is None else Master(self._fixed)
        self.changed = trio.Event()

    @property
    def is_fixed(self) -> bool:
        """True if ``haMasterAddress`` names the HA port."""
        return self._fixed is not None

    def note_registration(self, ha_address: str | None, master_address: str | None) -> None:
        """Take the addresses of a namesrv's answer over; those that it lacks, or that are no addresses, stay.

        Only the HA address of another master does not stay: the log would come from one broker, and its ends and the
        tables from another.
        """
        before = self.master
        ha, requests = _parse_or_none(ha_address), _parse_or_none(master_address)
        if self._fixed is not None:
            ha = self._fixed
        elif ha is None and before is not None:
            if requests is not None and before.address not in (None, requests):
                self._change(None)
                return
            ha = before.ha_address
        if ha is None:
            return
        if requests is None and before is not None and before.ha_address == ha:
            requests = before.address
        self._change(Master(ha, requests))

    def set_master(self, master: Master | None) -> None:
        """Follow another master, or none, as a controller or an operator decides."""
        self._change(master)

    def _change(self, master: Master | None) -> None:
        if master == self.master:
            return
        self.master = master
        if master is not None:
            extra = {"ha_address": _show(master.ha_address), "address": _show(master.address)}
            log.info("master of this slave", extra=extra)
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    async def wait_for_master(self) -> Master:
        """Return the present master, as soon as there is one."""
        while self.master is None:
            await self.changed.wait()
        return self.master


async def cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    """Cancel ``scope`` when an event is set, such as that of another master."""
    await event.wait()
    scope.cancel()


def _parse_or_none(text: str | None) -> Address | None:
    if not text:
        return None
    try:
        return parse_address(text)
    except ValueError as error:
        log.warning("address of the master cannot be used", extra={"reason": str(error)})
        return None


def _show(address: Address | None) -> str:
    return "" if address is None else f"{address[0]}:{address[1]}"
