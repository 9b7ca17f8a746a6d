"""Changes of a broker's role by request: status, promotion, demotion, and the planned hand-over to a slave.

Theory of operation
-------------------
Problem: at no moment may two brokers of one name store messages, and whatever was acknowledged must be in the log of
the one that goes on. The operator's command talks to one broker; brokers of this project talk to each other.

**Hand-over** (`HandOverBroker`, sent to the master, which conducts it):

1. The slave has to be nearly in step already, so that what follows takes tenths of a second.
2. The master rests: background tasks that store messages end, requests are held, waiting answers are sent. Only
   requests that read, with which the slave copies log and tables, are served.
3. When the slave's log ends where the master's does, the master saves that it is a slave now: if it crashes from here
   on, it comes back as one. It orders the promotion (`ChangeBrokerRole` with the end of the log). The slave copies the
   tables once more and becomes the master.
4. The master becomes a slave of it, under the id that the slave had. What it held, and what stock clients send to its
   address until they have a new route, it passes on (`relay.py`).

If the slave refuses, or cannot be reached, before step 3, the master goes on. If the answer of step 3 is lost, the
slave may be a master or become one: the master withdraws the order, asks for the slave's role, and stores nothing until
it knows. The slave asks its master whether the order stands just before it closes its store, and says from before that
until the end that it changes its role. So an order that arrives late, or once more, promotes nobody. If it does not
learn that within `UNKNOWN_S`, it stays fenced, because two masters are worse than none.

**Take-over** (`ChangeBrokerRole` sent to a slave by an operator): refused while the master accepts connections. After a
take-over the former master, when it is back, is demoted; its log is then cut to where it is the same as the new one.

Changes run one after the other, in a task of their own: a change ends the tasks and the requests of the broker.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import trio

from codec.command import Command
from codec.constants import MASTER_ID, ResponseCode
from gateway.broker.assembly.saved_role import SavedRole, with_role
from gateway.broker.replication.master_lookup import parse_address
from gateway.broker.replication.relay import RELAY_S, Relay
from gateway.broker.replication.replicas_manager import RoleHints
from gateway.config.process import BrokerConfig
from gateway.config.replication import ASYNC_MASTER, SLAVE, SYNC_MASTER, Role
from gateway.namesrv.addresses import join_address
from remoting.connection import Connection
from remoting.errors import REQUEST_FAILURES, RemotingClosed, RemotingTimeout, RequestError, first_leaf
from remoting.handler_table import Call, HandlerTable
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.groups import GetAllSubscriptionGroupConfig
from remoting.requests.ha import NotifyBrokerRoleChanged
from remoting.requests.offsets import GetAllConsumerOffset, GetAllDelayOffset
from remoting.requests.pop import GetAllMessageRequestMode
from remoting.requests.replication import (
    GetReplicatedAccounts,
    GetReplicatedTables,
    OpenReplication,
    RaiseConsumerOffsets,
)
from remoting.requests.roles import (
    BrokerRoleReply,
    BrokerRoleStatus,
    ChangeBrokerRole,
    ConnectedSlave,
    CopyTables,
    GetBrokerRole,
    HandOverBroker,
)
from remoting.requests.timers import GetTimerCheckPoint, GetTimerMetrics
from remoting.requests.topics import GetAllTopicConfig, GetTopicStatsInfo
from storage.errors import StoreError

if TYPE_CHECKING:
    from gateway.broker.assembly.service import BrokerService

log = logging.getLogger(__name__)

ROLE_REQUESTS: Final = frozenset(
    {GetBrokerRole.code, ChangeBrokerRole.code, HandOverBroker.code, NotifyBrokerRoleChanged.code}
)
"""Requests that are answered also while the parts are replaced, and by a fenced broker."""
COPYING: Final = frozenset(
    request.code
    for request in (
        GetBrokerRuntimeInfo,
        GetAllTopicConfig,
        GetTopicStatsInfo,
        GetAllSubscriptionGroupConfig,
        GetAllConsumerOffset,
        GetAllDelayOffset,
        GetAllMessageRequestMode,
        GetTimerCheckPoint,
        GetTimerMetrics,
        GetReplicatedAccounts,
        GetReplicatedTables,
        OpenReplication,
        RaiseConsumerOffsets,
    )
)
"""Requests with which a slave copies its master's log and tables, and returns the progress of its consumers."""
MAX_ORDERS: Final = 4
MAX_BEHIND_BYTES: Final = 8 * 1024 * 1024
"""Largest distance of a slave at which its master begins to hand over: about a tenth of a second of copying."""
POLL_S: Final = 0.02
FOLLOW_S: Final = 1.0
PROBE_TIMEOUT_S: Final = 3.0
PROMOTION_TIMEOUT_S: Final = 30.0
UNKNOWN_S: Final = 60.0
Dial = Callable[[str, int], AbstractAsyncContextManager[Connection]]


class HandOverOrder:
    """An order to hand over to the replica at ``address``, to the best one with "". ``failure`` as of `RoleOrder`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_done = trio.Event()
        self.failure: Exception | None = None


class HandOverOrders:
    """The orders for a broker under controllers to hand over. `SteppingDown` carries them out."""

    def __init__(self) -> None:
        self._order, self._orders = trio.open_memory_channel[HandOverOrder](MAX_ORDERS)

    async def receive(self) -> HandOverOrder:
        """Wait for the next order."""
        return await self._orders.receive()

    async def place(self, address: str) -> None:
        """Have an order carried out. Raises RequestError with what went wrong; another exception is a defect."""
        order = HandOverOrder(address)
        try:
            self._order.send_nowait(order)
        except trio.WouldBlock:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "too many changes of the role wait") from None
        await order.is_done.wait()
        if order.failure is not None:
            if isinstance(order.failure, RequestError):
                raise order.failure
            raise _refused(f"the master does not change: {order.failure}") from order.failure


@dataclass(frozen=True, slots=True)
class RoleLinks:
    """Ways to other brokers, how requests to them are signed, and where a role is kept; None where nothing is kept.

    ``hints`` hears of notifications of controllers, and ``hand_overs`` of orders to hand over; both are None outside of
    controller mode.
    """

    dial: Dial
    sign: Callable[[Command], None] | None = None
    saved_role: SavedRole | None = None
    hints: RoleHints | None = None
    hand_overs: HandOverOrders | None = None


class RoleOrder:
    """A change to be carried out: ``failure`` is what went wrong, None if nothing did, once ``is_done`` is set."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.work = work
        self.is_done = trio.Event()
        self.failure: Exception | None = None


@asynccontextmanager
async def no_peer(host: str, port: int) -> AsyncIterator[Connection]:
    """Refuse a connection to another broker: there is no way to any."""
    raise RemotingClosed(f"there is no way to {host}:{port}")
    yield


NO_LINKS: Final = RoleLinks(no_peer)


class Unknown(RequestError):
    """It is not known whether a slave has become master."""


class RoleControl:
    """Carries out the changes of one broker's role."""

    def __init__(self, service: "BrokerService", links: RoleLinks) -> None:
        self._service = service
        self._links = links
        self._order, self._orders = trio.open_memory_channel[RoleOrder](MAX_ORDERS)
        self._is_changing = False
        self._hand_over_id = ""
        self._always_takes_over_name = service.broker.config.takes_over_name
        self.waiting: Counter[Connection] = Counter()
        """Number of requests of each connection that wait for a change, which must not wait for them."""

    async def run(self) -> None:
        """Carry out changes until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                order = await self._orders.receive()
                self._is_changing = True
                try:
                    await order.work()
                except Exception as error:  # noqa: BLE001 - becomes the answer
                    leaf = first_leaf(error)
                    order.failure = leaf if isinstance(leaf, Exception) else error
                    log.warning("role of the broker not changed", extra={"reason": str(order.failure)})
                self._is_changing = False
                order.is_done.set()
                if self._service.relay is not None and self._service.relay.begin():
                    nursery.start_soon(self._service.relay.run)

    async def carry_out(self, connection: Connection, work: Callable[[], Awaitable[None]]) -> BrokerRoleReply:
        """Have a change carried out after those that came before, also if the connection closes.

        Raises RequestError with what went wrong, also if too many wait; another exception is a defect.
        """
        order = RoleOrder(work)
        try:
            self._order.send_nowait(order)
        except trio.WouldBlock:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "too many changes of the role wait") from None
        self.waiting[connection] += 1
        try:
            await order.is_done.wait()
        finally:
            self.waiting[connection] -= 1
            if not self.waiting[connection]:
                del self.waiting[connection]
        if isinstance(order.failure, (StoreError, *REQUEST_FAILURES)) and not isinstance(
            order.failure, RequestError
        ):
            raise _refused(f"the role is not changed: {order.failure}") from order.failure
        if order.failure is not None:
            raise order.failure
        return BrokerRoleReply(data=self.status())

    def status(self) -> BrokerRoleStatus:
        """Return the role of the broker now."""
        service, broker = self._service, self._service.broker
        config, is_open = broker.config, service.is_open
        serves = is_open and not service.fence_reason
        is_changing = self._is_changing or self._orders.statistics().current_buffer_used > 0
        status = BrokerRoleStatus(
            broker_name=config.broker_name,
            cluster=config.broker_cluster_name,
            broker_id=config.broker_id,
            broker_role=config.replication.broker_role,
            is_serving=serves and not is_changing,
            state="changing its role" if is_changing else "serving" if serves else "fenced",
            reason=service.role_trouble,
            ha_port=config.ha_address_port,
            hand_over_id=self._hand_over_id,
        )
        if is_open:
            status.log_start = broker.store.min_physical_offset
            status.log_end = broker.store.max_physical_offset
        if serves:
            self._describe_replication(status)
        return status

    def _describe_replication(self, status: BrokerRoleStatus) -> None:
        replication = self._service.broker.replication
        slave, server = replication.slave, replication.server
        if slave is not None:
            follower = slave.follower
            status.state, status.reason = follower.state, follower.reason
            status.behind_bytes = follower.lag_bytes
            status.master_address = replication.master_address
            status.master_role = replication.takeover.master_role
        else:
            status.slaves = [
                ConnectedSlave(
                    address="{}:{}".format(*replica.remote[:2]),
                    acknowledged=replica.acknowledged,
                    behind_bytes=max(0, status.log_end - replica.acknowledged),
                )
                for replica in server.replicas
            ]

    def _refuse_under_controller(self) -> None:
        config = self._service.broker.config
        if config.controlled is not None:
            raise _refused(
                f"a controller chooses the master of {config.broker_name}: use rmq-gateway broker promote, which asks "
                "it"
            )

    async def copy_tables(self) -> None:
        """Copy the master's tables now. Raises RequestError."""
        slave = self._service.broker.replication.slave
        if slave is None or not self._service.is_open:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is not a slave that copies")
        try:
            await slave.table_sync.copy_once()
        except (OSError, ValueError, RemotingClosed, RemotingTimeout) as error:
            raise _refused(f"the tables cannot be copied: {error}") from error

    def note_notification(self) -> None:
        """Have the controllers asked who is master, if they decide about it."""
        if self._links.hints is not None:
            self._links.hints.note()

    # -- one broker changes --------------------------------------------------------------------------------------

    async def change(self, request: ChangeBrokerRole) -> None:
        """Carry out a request. Raises RequestError, or what went wrong."""
        self._refuse_under_controller()
        check_role(request.broker_role, request.broker_id)
        if request.broker_role == SLAVE:
            await self.demote(request)
        else:
            await self.promote(request)

    async def promote(self, request: ChangeBrokerRole) -> None:
        """Make this slave the master. A master gets the other kind of answers (SYNC_MASTER or not)."""
        service = self._service
        config = service.broker.config
        if config.role is Role.MASTER and service.is_open and not service.fence_reason:
            if config.replication.broker_role != request.broker_role:
                await self._rebuild(request.broker_role, MASTER_ID)
            return
        if request.log_end is not None:
            await self._copy_the_rest(request.log_end)
            await self._refuse_a_withdrawn_order(request)
        elif not request.force:
            await self._refuse_while_the_master_lives()
        await self._service.apply_copied_progress()
        # A former master that hands over, or that an operator gave up, is still registered by the id 0.
        takes_over = request.force or request.log_end is not None
        service.pass_on_to(None)
        await self._rebuild(request.broker_role, MASTER_ID, takes_over_name=takes_over)
        log.warning("broker became master", extra={"broker": config.broker_name})

    async def _copy_the_rest(self, log_end: int) -> None:
        """Have everything that the master has before this slave takes over."""
        slave = self._service.broker.replication.slave
        if slave is None or not self._service.is_open:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is not a slave that copies")
        await slave.table_sync.sync_once()
        end = self._service.broker.store.max_physical_offset
        if end != log_end:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the log of this slave ends at {end}, and the master's at {log_end}",
            )

    async def _refuse_a_withdrawn_order(self, request: ChangeBrokerRole) -> None:
        """Ask the master whether it still hands over by this order. Raises RequestError, or one of REQUEST_FAILURES."""
        address = split_address(self._service.broker.replication.master_address)
        with trio.fail_after(PROBE_TIMEOUT_S):
            async with self._links.dial(*address) as connection:
                master = await self._ask_status(connection)
        if not request.hand_over_id or master.hand_over_id != request.hand_over_id:
            raise _refused("the master does not hand over by this order any more")

    async def _refuse_while_the_master_lives(self) -> None:
        address = self._service.broker.replication.master_address
        if not address:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "the master's address is not known, so it may be alive. Stop it, and use --force",
            )
        if await self._accepts_connections(address):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the master at {address} is alive. Have it hand over (promote without --force), or stop it",
            )

    async def _accepts_connections(self, address: str) -> bool:
        try:
            with trio.fail_after(PROBE_TIMEOUT_S):
                async with self._links.dial(*split_address(address)):
                    return True
        except* (trio.TooSlowError, *REQUEST_FAILURES):
            pass
        return False

    async def demote(self, request: ChangeBrokerRole) -> None:
        """Make this broker a slave, which cuts its log to where it is the same as its master's."""
        self._service.pass_on_to(None)
        await self._rebuild(SLAVE, request.broker_id, ha_master_address=request.ha_master_address)
        extra = {"broker": self._service.broker.config.broker_name, "broker_id": request.broker_id}
        log.warning("broker became slave", extra=extra)

    async def _rebuild(
        self,
        broker_role: str,
        broker_id: int,
        *,
        ha_master_address: str | None = None,
        takes_over_name: bool = False,
        needed: bool = False,
    ) -> None:
        """Build the parts for another role, which is kept before they are used.

        If a change fails that is ``needed``, the broker must not go on in its present role.
        """
        saved_role = self._links.saved_role
        changed: list[BrokerConfig] = []

        def change_config(config: BrokerConfig) -> BrokerConfig:
            config = with_role(config, broker_role, broker_id, ha_master_address=ha_master_address)
            config = replace(config, takes_over_name=takes_over_name or self._always_takes_over_name)
            changed.append(config)
            return config

        def save() -> None:
            if saved_role is not None:
                saved_role.save(changed[-1])

        await self._service.rebuild(change_config, save, needed=needed)

    # -- two brokers change ----------------------------------------------------------------------------------------

    async def hand_over(self, request: HandOverBroker) -> None:
        """Have a slave take over, and follow it. Raises one of REQUEST_FAILURES if this broker goes on."""
        if self._links.hand_overs is not None:
            await self._links.hand_overs.place(request.slave_address)
            return
        service, config = self._service, self._service.broker.config
        if config.role is not Role.MASTER or not service.is_open:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{config.broker_name} is not a master here")
        if service.fence_reason:
            raise _refused(f"{service.fence_reason}. A fenced broker does not hand over")
        address = split_address(request.slave_address)
        async with self._links.dial(*address) as connection:
            slave = await self._wait_until_near(connection, request)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(service.refuse_held_in_time)
                try:
                    await service.rest(COPYING)
                    log_end = service.broker.store.max_physical_offset
                    await self._wait_for_end(connection, log_end, request.timeout_millis / 1000)
                    await self._save_role(with_role(config, SLAVE, slave.broker_id, ha_master_address=""))
                    await self._promote_slave(connection, address, log_end)
                except Unknown:
                    # Nothing is stored: requests stay refused, as long as the process runs.
                    await service.fence(
                        f"it is not known whether {request.slave_address} has become master. Look with `rmq-gateway "
                        "broker status`, then demote or promote this broker"
                    )
                    raise
                except (
                    Exception
                ):  # not the end of the process: an order that was sent may still be carried out
                    await self._go_on_as_master(config)
                    raise
                finally:
                    nursery.cancel_scope.cancel()
        service.pass_on_to(Relay(address, self._links.dial, trio.current_time() + RELAY_S))
        # Another broker is the master now: whatever goes wrong here, this one must not serve as one again.
        await self._rebuild(SLAVE, slave.broker_id, ha_master_address="", needed=True)
        ha_address = join_address(address[0], slave.ha_port)
        service.broker.replication.note_master(ha_address, request.slave_address)
        # The slave had all of this log when it took over, so consumers may go on to read here.
        service.broker.replication.takeover.note_compared()
        extra = {"broker": config.broker_name, "master": request.slave_address}
        log.warning("broker handed over and became slave", extra=extra)
        # What was held is passed on once the new master, which may wait for its slaves, has one.
        with trio.move_on_after(FOLLOW_S):
            while not service.broker.replication.follows_master:  # noqa: ASYNC110 - nothing waits for it otherwise
                await trio.sleep(POLL_S)

    async def _save_role(self, config: BrokerConfig) -> None:
        """Keep the role of a configuration for the next start. Raises StoreFull, OSError."""
        saved_role = self._links.saved_role
        if saved_role is not None:
            await self._service.run_blocking(partial(saved_role.save, config))

    async def _go_on_as_master(self, config: BrokerConfig) -> None:
        """Serve again after a hand-over that failed; the slave stays one."""
        try:
            # First, because a crash after the first acknowledged message would otherwise leave a slave with it.
            await self._save_role(config)
        except (StoreError, OSError) as error:
            # It still has the role of a slave on the disk, from before the promotion was ordered.
            extra = {"broker": config.broker_name, "reason": str(error)}
            log.error("role not saved, so this master will start as a slave", extra=extra)
        finally:
            self._service.resume()

    async def _wait_until_near(self, connection: Connection, request: HandOverBroker) -> BrokerRoleStatus:
        """Wait until the slave is nearly in step, and return its status. Raises RequestError."""
        config = self._service.broker.config
        end_s = trio.current_time() + request.timeout_millis / 1000
        while True:
            slave = await self._ask_status(connection)
            if (slave.broker_name, slave.cluster) != (config.broker_name, config.broker_cluster_name):
                raise _refused(f"{request.slave_address} is {slave.broker_name} of {slave.cluster}")
            if slave.broker_role != SLAVE:
                raise _refused(f"{request.slave_address} is not a slave")
            behind = self._service.broker.store.max_physical_offset - slave.log_end
            if slave.state == "copying" and behind <= MAX_BEHIND_BYTES:
                return slave
            if trio.current_time() >= end_s:
                raise _refused(
                    f"{request.slave_address} is {behind} bytes behind ({slave.state} {slave.reason}). Wait until it "
                    "has caught up"
                )
            await trio.sleep(POLL_S)

    async def _wait_for_end(self, connection: Connection, log_end: int, timeout_s: float) -> None:
        """Wait until the slave's log ends where this one does."""
        slave_end = -1
        with trio.move_on_after(timeout_s):
            while slave_end != log_end:
                slave_end = (await self._ask_status(connection)).log_end
                if slave_end != log_end:
                    await trio.sleep(POLL_S)
            return
        raise _refused(f"the slave has the log up to {slave_end} of {log_end}, and gets no further")

    async def _ask_status(self, connection: Connection) -> BrokerRoleStatus:
        return (await connection.ask(GetBrokerRole(), PROBE_TIMEOUT_S, self._links.sign)).data

    async def _promote_slave(self, connection: Connection, address: tuple[str, int], log_end: int) -> None:
        """Order the promotion. Raises RequestError if the slave stays one, Unknown if that is not known."""
        role = self._service.broker.config.replication.broker_role
        self._hand_over_id = str(uuid4())
        request = ChangeBrokerRole(
            broker_role=role, broker_id=MASTER_ID, log_end=log_end, hand_over_id=self._hand_over_id
        )
        try:
            await connection.ask(request, PROMOTION_TIMEOUT_S, self._links.sign)
        except Exception as error:
            # Before the slave is asked: from now on it either refuses the order, or says that it changes its role.
            self._hand_over_id = ""
            if await self._is_master_now(address):
                return
            if isinstance(error, RequestError):
                raise
            raise _refused(f"the slave did not take over: {error}") from error
        finally:
            self._hand_over_id = ""

    async def _is_master_now(self, address: tuple[str, int]) -> bool:
        """Ask a slave that was to take over for its role, until it is settled. Raises Unknown."""
        end_s = trio.current_time() + UNKNOWN_S
        while trio.current_time() < end_s:
            try:
                async with self._links.dial(*address) as connection:
                    status = await self._ask_status(connection)
                    if status.is_serving:
                        return status.broker_role != SLAVE
            except* REQUEST_FAILURES as problems:
                log.debug("role of the slave unknown", extra={"reason": str(problems.exceptions[0])})
            await trio.sleep(1)
        remark = f"{address[0]}:{address[1]} does not say whether it is the master"
        raise Unknown(ResponseCode.SYSTEM_ERROR, remark)


def check_role(broker_role: str, broker_id: int) -> None:
    """Raise RequestError for a role that no broker has."""
    if broker_role not in (ASYNC_MASTER, SYNC_MASTER, SLAVE):
        raise _refused(f"{broker_role} is not a role: expected {ASYNC_MASTER}, {SYNC_MASTER} or {SLAVE}")
    if (broker_role == SLAVE) != (broker_id > MASTER_ID):
        raise _refused(f"a master has the brokerId {MASTER_ID}, and a slave one above it, not {broker_id}")


def split_address(text: str) -> tuple[str, int]:
    """Parse host:port. Raises RequestError."""
    try:
        return parse_address(text)
    except ValueError:
        raise _refused(f"{text!r} is not host:port") from None


def _refused(remark: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)


handlers: HandlerTable[RoleControl] = HandlerTable()


@GetBrokerRole.on(handlers)
def get_role(control: RoleControl, request: GetBrokerRole) -> BrokerRoleReply:
    return BrokerRoleReply(data=control.status())


@ChangeBrokerRole.on(handlers)
async def change_role(control: RoleControl, request: ChangeBrokerRole, call: Call) -> BrokerRoleReply:
    return await control.carry_out(call.connection, partial(control.change, request))


@HandOverBroker.on(handlers)
async def hand_over(control: RoleControl, request: HandOverBroker, call: Call) -> BrokerRoleReply:
    return await control.carry_out(call.connection, partial(control.hand_over, request))


@CopyTables.on(handlers)
async def copy_tables(control: RoleControl, request: CopyTables) -> None:
    await control.copy_tables()


@NotifyBrokerRoleChanged.on(handlers)
def notify_role_changed(control: RoleControl, request: NotifyBrokerRoleChanged) -> None:
    """Answer with success, and ask the controllers themselves. Source: AdminBrokerProcessor.notifyBrokerRoleChanged.

    Deviation: the official broker takes over what the request says, whoever sends it.
    """
    control.note_notification()
