"""Tells brokers of the result of an election, each in a task of its own, so that none waits for another.

A broker gets at most the newest result: one that is still being delivered is dropped for a newer one. Brokers also ask
by themselves every few seconds, so a lost notification costs time and nothing else.

Source: ControllerManager.NotifyService, 5.4.0.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from codec.command import Command
from gateway.controller.broker_set import BrokerSet, parse_address
from remoting.bodies.ha import SyncStateSet
from remoting.client import open_client
from remoting.errors import RemotingClosed, RemotingTimeout, first_leaf
from remoting.requests.ha import NotifyBrokerRoleChanged

log = logging.getLogger(__name__)

DELIVERY_TIMEOUT_S: Final = 3.0
Sign = Callable[[Command], None]
Deliver = Callable[[str, Command], Awaitable[None]]
"""Sends a command to an address and waits until it has arrived. Raises OSError, ValueError, RemotingClosed or
RemotingTimeout."""


async def deliver_command(address: str, command: Command) -> None:
    """Open a connection, send the command and wait for the answer."""
    host, port = parse_address(address)
    async with open_client(host, port) as connection:
        await connection.ask_command(command, DELIVERY_TIMEOUT_S)


@dataclass(slots=True)
class _Delivery:
    epoch: int
    scope: trio.CancelScope


class Notifications:
    """Notifications in progress, by address. ``sign`` adds credentials to a command."""

    def __init__(self, sign: Sign | None = None, deliver: Deliver = deliver_command) -> None:
        self._sign = sign
        self._deliver = deliver
        self._in_progress: dict[str, _Delivery] = {}
        self.sent = self.failed = 0

    def send(self, nursery: trio.Nursery, address: str, broker_set: BrokerSet) -> None:
        """Tell the broker at an address who is master now; return at once."""
        before = self._in_progress.get(address)
        if before is not None and before.epoch < broker_set.master_epoch:
            before.scope.cancel()
        scope = trio.CancelScope(deadline=trio.current_time() + DELIVERY_TIMEOUT_S)
        delivery = _Delivery(broker_set.master_epoch, scope)
        self._in_progress[address] = delivery
        nursery.start_soon(self._send, address, broker_set, delivery)

    async def _send(self, address: str, broker_set: BrokerSet, delivery: _Delivery) -> None:
        is_delivered, reason = False, "no answer in time"
        # An address that was stored before addresses were checked may be text that neither the resolver nor UTF-8 can
        # encode: a ValueError. It must not end the nursery, and with it the controller.
        try:
            with delivery.scope:
                command = role_change(broker_set).to_command()
                if self._sign is not None:
                    self._sign(command)
                await self._deliver(address, command)
                is_delivered = True
        except* (OSError, ValueError, RemotingClosed, RemotingTimeout) as problems:
            leaf = first_leaf(problems)
            reason = str(leaf) or type(leaf).__name__
        finally:
            if self._in_progress.get(address) is delivery:
                del self._in_progress[address]
        if is_delivered:
            self.sent += 1
            return
        self.failed += 1
        log.warning(
            "broker not notified of its role",
            extra={"broker": broker_set.name, "address": address, "reason": reason},
        )


def role_change(broker_set: BrokerSet) -> NotifyBrokerRoleChanged:
    """Return the notification of a set that has a master."""
    return NotifyBrokerRoleChanged(
        master_address=broker_set.master_address,
        master_epoch=broker_set.master_epoch,
        sync_state_set_epoch=broker_set.sync_set_epoch,
        master_broker_id=broker_set.master_id,
        data=SyncStateSet(
            sync_state_set=sorted(broker_set.sync_set), sync_state_set_epoch=broker_set.sync_set_epoch
        ),
    )
