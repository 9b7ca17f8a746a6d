"""Hands the role of a master under controllers to another replica: before the process ends, or by request.

Theory of operation
-------------------
Problem: a master whose process ends is replaced within moments, but until then sends fail. Those of stock clients fail
for up to 30 s longer, because they ask for routes so rarely. A planned change must not be seen by anybody.

1. The successor is chosen: the replica that the request names, or of those that the controller calls alive and in sync
   the one that has acknowledged most.
2. This master rests (`BrokerService.rest`): background tasks that store messages end, and requests are held.
3. When the successor's log ends where this one does, it copies the tables once more: consumer offsets are otherwise
   copied every few seconds only. An official replica cannot be asked to.
4. The controller is asked to elect the successor (1002). This broker obeys the answer as any newer role
   (`replicas_manager.py`): it becomes a slave, and passes on what it held and what clients still send to it.

If anything fails before the election, or its answer does not come, the master goes on. If another one was elected all
the same, the lease says so before this one stores a message, and the change is an unplanned one: nothing is lost. If
the controllers give this broker another role before that, new parts serve by then, and nothing is to be undone.

A process that ends then passes messages on for `LINGER_S` more, if it has producers (`ControllerMode.step_down`).
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson
import trio

from codec.constants import ResponseCode
from gateway.broker.assembly.role_control import COPYING, HandOverOrders, RoleLinks, split_address
from gateway.broker.replication.controller_links import ControllerLinks
from gateway.broker.replication.replicas_manager import ReplicasManager
from gateway.config.replication import Role
from remoting.bodies.ha import ReplicaIdentity
from remoting.errors import REQUEST_FAILURES, RequestError, first_leaf
from remoting.requests.controller import ControllerGetSyncStateData
from remoting.requests.roles import CopyTables

if TYPE_CHECKING:
    from gateway.broker.assembly.service import BrokerService

log = logging.getLogger(__name__)

LINGER_S: Final = 35.0
"""Time for which a former master passes messages on before its process ends: clients ask for routes every 30 s."""
CATCH_UP_S: Final = 5.0
"""Longest time for which the successor may take to have the whole log."""
TABLES_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Successor:
    """The replica that is to become master."""

    broker_id: int
    address: str


class SteppingDown:
    """Carries out the orders of one broker to hand over."""

    def __init__(
        self,
        service: "BrokerService",
        links: RoleLinks,
        controllers: ControllerLinks,
        manager: ReplicasManager,
    ) -> None:
        self._service = service
        self._links = links
        self._controllers = controllers
        self._manager = manager

    async def run(self, orders: HandOverOrders) -> None:
        """Carry out orders, one after the other, until cancelled."""
        while True:
            order = await orders.receive()
            try:
                await self.hand_over(order.address)
            except Exception as error:  # noqa: BLE001 - becomes the answer
                leaf = first_leaf(error)
                order.failure = leaf if isinstance(leaf, Exception) else error
                extra = {"broker": self._service.broker.config.broker_name, "reason": _text_of(error)}
                log.warning("master not handed over", extra=extra)
            finally:
                order.is_done.set()

    async def hand_over(self, address: str) -> None:
        """Have the replica at an address, or the best one with "", become master.

        Does nothing at a slave. Raises what went wrong, perhaps as a group; this broker then goes on as master.
        """
        service, broker = self._service, self._service.broker
        config = broker.config
        if config.role is not Role.MASTER or not service.is_open or service.fence_reason:
            return
        successor = await self._choose_successor(address)
        service.require_parts(broker)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.refuse_held_in_time)
            try:
                await service.rest(COPYING)
                await self._wait_until_in_step(successor)
                service.require_parts(broker)
                await self._have_tables_copied(successor)
                service.require_parts(broker)
                term = await self._manager.have_elected(successor.broker_id)
            except Exception:  # not the end of the process
                if service.keeps_parts(broker):
                    service.resume()
                raise
            # The change of the role limits by itself how long requests are held.
            nursery.cancel_scope.cancel()
        # Another broker is elected: whatever goes wrong from here on, this one must not serve as master again.
        await self._manager.wait_for_role(term.epoch)
        extra = {"broker": config.broker_name, "master": successor.address, "epoch": term.epoch}
        log.warning("broker handed over and became slave", extra=extra)

    async def _choose_successor(self, address: str) -> Successor:
        """Return the replica to elect. Raises RequestError if there is none, or the named one is none of them."""
        config = self._service.broker.config
        request = ControllerGetSyncStateData()
        request.body = orjson.dumps([config.broker_name])
        reply = await self._controllers.ask_leader(request)
        info = reply.data.replicas_info_table.get(config.broker_name)
        replicas = [] if info is None else info.in_sync_replicas
        own_id = None if config.controlled is None else config.controlled.broker_id
        candidates = [replica for replica in replicas if replica.alive and replica.broker_id != own_id]
        if address:
            candidates = [replica for replica in candidates if replica.broker_address == address]
        if not candidates:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"{address or 'no other replica of ' + config.broker_name} is alive and in sync, as the controller "
                "sees it, so this broker stays the master",
            )
        best = max(candidates, key=self._rank)
        return Successor(best.broker_id or 0, best.broker_address or "")

    def _rank(self, replica: ReplicaIdentity) -> tuple[int, int]:
        broker_id = replica.broker_id or 0
        return self._acknowledged_by(broker_id), -broker_id

    def _acknowledged_by(self, broker_id: int) -> int:
        """Return the end of what a replica has acknowledged, -1 while it is not connected."""
        replicas = self._service.broker.replication.server.replicas
        return max(
            (replica.acknowledged for replica in replicas if replica.broker_id == broker_id), default=-1
        )

    async def _wait_until_in_step(self, successor: Successor) -> None:
        """Wait until the successor has the whole log. Raises RequestError."""
        log_end = self._service.broker.store.max_physical_offset
        with trio.move_on_after(CATCH_UP_S):
            while self._acknowledged_by(successor.broker_id) < log_end:  # noqa: ASYNC110 - polled for a moment only
                await trio.sleep(POLL_S)
            return
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"{successor.address} has the log up to {self._acknowledged_by(successor.broker_id)} of {log_end}, and "
            "gets no further",
        )

    async def _have_tables_copied(self, successor: Successor) -> None:
        """Have the successor copy the tables now. Without that it has them as of some seconds ago."""
        try:
            with trio.fail_after(TABLES_TIMEOUT_S):
                async with self._links.dial(*split_address(successor.address)) as connection:
                    await connection.ask(CopyTables(), TABLES_TIMEOUT_S, self._links.sign)
        except* (trio.TooSlowError, *REQUEST_FAILURES) as problems:
            extra = {"successor": successor.address, "reason": _text_of(problems)}
            log.info("tables not copied once more before the hand-over", extra=extra)


def _text_of(error: BaseException) -> str:
    leaf = first_leaf(error)
    return str(leaf) or type(leaf).__name__
