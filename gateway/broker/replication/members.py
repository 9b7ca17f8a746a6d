"""The brokers of one name that are registered: who of them is there, and which slave acts as master for reads.

With ``enableSlaveActingMaster`` a broker asks its namesrvs every second. If the master is not registered, the slave
with the lowest broker id acts as master: a namesrv with ``supportActingMaster`` shows it as the master, without the
permission to write, so that ordered consumers can lock their queues at it, and administrators find one.

Source: BrokerController.syncBrokerMemberGroup and updateMinBroker, 5.4.0. Deviation: an acting master only serves
requests that read and the locks of queues. In the official broker it also delivers delayed messages and timers, whose
copies it sends to another master (`EscapeBridge`), and with two masters some of them come twice.
"""

import logging
from collections.abc import Mapping
from typing import Final

from codec.constants import MASTER_ID

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S: Final = 1.0
"""Time between two heartbeats, and two questions for the members. Source: brokerHeartbeatInterval."""


class ReplicaGroup:
    """The members of the broker's group, as a namesrv listed them last. ``addresses`` is empty before that."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self.addresses: Mapping[int, str] = {}

    @property
    def lowest_id(self) -> int | None:
        """The lowest broker id that is registered; None while unknown."""
        return min(self.addresses, default=None)

    @property
    def acts_as_master(self) -> bool:
        """True at a slave that acts as master for reads."""
        return self._broker_id != MASTER_ID and self.lowest_id == self._broker_id

    def note_members(self, addresses: Mapping[int, str]) -> None:
        """Take over the addresses by broker id."""
        acted_before, lowest_before = self.acts_as_master, self.lowest_id
        self.addresses = dict(addresses)
        if self.lowest_id != lowest_before:
            data = {"broker_id": self._broker_id, "lowest": self.lowest_id, "before": lowest_before}
            log.info("lowest broker id changed", extra=data)
        if self.acts_as_master and not acted_before:
            log.warning("this slave acts as master for reads", extra={"broker_id": self._broker_id})
        elif acted_before and not self.acts_as_master:
            log.info("this slave acts as master no longer", extra={"broker_id": self._broker_id})
