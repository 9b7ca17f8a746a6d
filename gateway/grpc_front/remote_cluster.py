"""The brokers of any cluster as a gRPC front sees them: those that a namesrv knows, ours or official ones of 5.x.

Nothing here depends on the process: a cluster is the addresses of its namesrvs and a function that opens connections.

Topics, their types and groups are read from the servers (`loading_cache.py`): the queues of a topic from the namesrv,
its type and the groups from a broker. The masters of all brokers are asked for every `MASTERS_MAX_AGE_S`, and at once
when a broker cannot be reached or refuses as a former master does. A request whose connection cannot be opened
is sent to the new master, if there is one by then; any other request that fails is the client's to repeat, because the
broker may have carried it out.
Source: ClusterTopicRouteService, ClusterMetadataService, 5.4.0.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import trio

from codec.command import Command
from codec.constants import MASTER_ID, ResponseCode
from codec.hosts import format_host, parse_host
from codec.java_numbers import quoted
from gateway.auth.access_control import AccessDenied, Accounts
from gateway.auth.account_table import User, parse_users
from gateway.broker.processors.accounts import MASKED_PASSWORD
from gateway.grpc_front.access import RpcSender
from gateway.grpc_front.broker_link import BrokerLink, OnRequest
from gateway.grpc_front.cluster import ServedBroker, ServedCluster
from gateway.grpc_front.loading_cache import LoadingCache
from gateway.grpc_front.remote_link import BrokerSession, RemoteBroker, RemoteLink
from gateway.grpc_front.remote_users import RemoteUsers
from remoting.acl import sign_request
from remoting.bodies.auth import UserInfo
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.routes import TopicRouteData
from remoting.bodies.topics import TopicConfig
from remoting.connection import Connection, Handler
from remoting.connection_state import StateSlot
from remoting.declare import Header, Request
from remoting.errors import REQUEST_FAILURES, RemotingClosed, RemotingTimeout, RequestError
from remoting.frame_connection import FrameConnection
from remoting.limits import ConnectionLimits
from remoting.local_connection import ignore_request
from remoting.requests.auth import AuthGetUser, AuthGetUserReply
from remoting.requests.groups import GetSubscriptionGroupConfig
from remoting.requests.namesrv import GetBrokerClusterInfo, GetRouteInfoByTopic
from remoting.requests.replication import GetReplicatedAccounts, GetReplicatedAccountsReply
from remoting.requests.topics import GetTopicConfig
from remoting.transport import Address, Opener
from storage.clock import Clock

log = logging.getLogger(__name__)

Reply = TypeVar("Reply", bound=Header | None)
Sign = Callable[[Command], None]
TopicBrokers = list[tuple[ServedBroker, TopicConfig]]
CopiedUsers = dict[str, User]

DEFAULT_MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
OPEN_TIMEOUT_S: Final = 3.0
REQUEST_TIMEOUT_S: Final = 3.0
"""Longest wait for an answer to a request of the front itself, and for a broker that registers a client."""
MASTERS_MAX_AGE_S: Final = 30.0
MASTERS_MIN_AGE_S: Final = 1.0
"""Least time between two requests for all masters, however many connections fail."""
AVOIDED_S: Final = 5.0
"""Time for which unordered messages go to other brokers after one could not be reached."""
COPIED_USERS_MAX_AGE_S: Final = 5.0
MAX_BROKERS: Final = 1024
"""Brokers that are known at a time: anybody can register any number of them with a namesrv."""
UNNAMED_BROKER_S: Final = 120.0
"""Time for which a broker that no namesrv names and no topic uses is still known."""
MAX_ASKED_BROKERS: Final = 3
"""Brokers that are asked for the same group or user, one after the other."""
CONNECTION_LIMITS: Final = ConnectionLimits(max_frame_bytes=64 * 1024 * 1024)
"""A broker decides how large the answer to a pop is."""
MOVED_CODES: Final = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
    )
)
"""Refusals by which a broker may say that it is not the master any more, or that a topic has changed."""
CLOSED_TEXTS: Final = ("is forbidden", "subscription group no permission")
"""Texts of refusals that are about the topic or group, whoever the sender is. Source: SendMessageProcessor, 5.4.0."""
_MASTERS: Final = "masters"
_USERS: Final = "users"
_SESSIONS: Final = StateSlot[dict[str, BrokerSession]]("sessions with the brokers")


def split_address(address: str) -> Address:
    """Return host and port of "host:port" or "[v6]:port". Raises OSError, as a failed connection does."""
    try:
        return parse_host(address)
    except ValueError as error:
        raise OSError(str(error)) from None


class RemoteCluster(ServedCluster):
    """The brokers that namesrvs know. ``open_transport`` connects to any of their addresses, with TLS or without.

    ``sign`` signs the requests of the front itself. ``accounts`` verify RPCs; with ``asks_for_users`` those of the
    brokers do. Without either, RPCs are passed on unsigned. ``record_outcome`` is told each time whether a namesrv
    could name the masters.
    """

    loads_tables = True

    def __init__(
        self,
        namesrvs: Sequence[Address],
        open_transport: Opener,
        clock: Clock,
        nursery: trio.Nursery,
        *,
        sign: Sign | None = None,
        accounts: Accounts | None = None,
        asks_for_users: bool = False,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        record_outcome: Callable[[Exception | None], None] = lambda error: None,
    ) -> None:
        super().__init__(clock, nursery)
        self._record_outcome = record_outcome
        self._namesrvs = list(namesrvs)
        self._open_transport = open_transport
        self._sign_own = sign
        self._max_message_bytes = max_message_bytes
        self._users = RemoteUsers(nursery, self._load_user) if asks_for_users else None
        self._copied_users = LoadingCache[CopiedUsers]("users", nursery, self._copy_users)
        self._accounts: Accounts | None = self._users or accounts
        self._brokers: dict[str, RemoteBroker] = {}
        self._sessions: set[BrokerSession] = set()
        self._leftovers: dict[str, BrokerSession] = {}
        self._own_connections: dict[Address, FrameConnection] = {}
        self._topics = LoadingCache[TopicBrokers]("topic", nursery, self._load_topic)
        self._groups = LoadingCache[SubscriptionGroupConfig]("group", nursery, self._load_group)
        self._masters = LoadingCache[int]("masters", nursery, self._load_masters, max_age_s=MASTERS_MAX_AGE_S)
        """The number of brokers whose masters the namesrvs named; the masters themselves are in the brokers."""
        nursery.start_soon(self._follow_masters)

    @property
    def session_count(self) -> int:
        """Number of connections to brokers on behalf of clients."""
        return len(self._sessions)

    # -- who may do what -----------------------------------------------------------------------------------

    @property
    def guards(self) -> list[Accounts]:
        """The accounts by which RPCs are verified; none without access control."""
        return [] if self._accounts is None else [self._accounts]

    async def load_sender(self, sender: RpcSender) -> None:
        """Make sure that the accounts can tell whether they know the sender.

        Raises AccessDenied for an RPC without a sender that the brokers would trust for the address of this front.
        """
        if self._users is None:
            if self._accounts is not None:
                sender.check_unsigned(self._accounts)
            return
        if not sender.claimed_user:
            raise AccessDenied("username cannot be null.")
        await self._users.ensure(sender.claimed_user)

    def sign(self, command: Command, sender: RpcSender) -> None:
        """Sign a request as the sender of its RPC. Raises AccessDenied."""
        if self._accounts is not None and (credentials := sender.credentials(self._accounts)) is not None:
            sign_request(command, credentials)

    async def check_route(self, peer: Connection, topic: str, sender: RpcSender) -> None:
        """Let the namesrv decide whether a sender may know a topic. Without access control `load` has asked it."""
        if self._accounts is not None:
            request = _route_request(topic)
            try:
                await self._ask_namesrv(request, lambda command: self.sign(command, sender))
            except RequestError as refusal:
                raise self.explain_refusal(request, refusal) from refusal

    async def _load_user(self, name: str) -> UserInfo | None:
        """Ask a broker for a user with its password. Raises what the last one that was asked raises.

        Brokers of this project show passwords to nobody who asks for one user, but slaves, which are super users as the
        front is, copy all accounts from them.
        """
        await self._masters.ensure(_MASTERS)
        info = cast(AuthGetUserReply, await self._ask_brokers(AuthGetUser(username=name))).data
        if info is not None and info.password == MASKED_PASSWORD:
            user = (await self._read_copied_users()).get(name)
            if user is None:
                return None
            return UserInfo(username=name, password=user.password, user_status=user.status.value)
        return info

    async def _read_copied_users(self) -> CopiedUsers:
        """Return the users of a copy that is not too old. Raises what its request to a broker raises."""
        if self._copied_users.age_s(_USERS) >= COPIED_USERS_MAX_AGE_S:
            await self._copied_users.reload(_USERS)
        return self._copied_users.get(_USERS) or {}

    async def _copy_users(self, _: str) -> CopiedUsers:
        reply = cast(GetReplicatedAccountsReply, await self._ask_brokers(GetReplicatedAccounts()))
        return parse_users(reply.data.users.encode()) if reply.data.users else {}

    async def _ask_brokers(self, request: Request[Any]) -> Any:
        if not self._brokers:
            raise RemotingClosed("no broker is known")
        return await self._ask_any(_by_failure(self._brokers.values()), request)

    # -- topics and groups ---------------------------------------------------------------------------------

    async def load(self, topics: Iterable[str], group: str = "") -> None:
        """Make sure that topics, and a consumer group, can be read without waiting."""
        hosts: list[ServedBroker] = []
        for topic in topics:
            await self._topics.ensure(topic)
            hosts += [broker for broker, _ in self.brokers_of(topic)]
        if group:
            await self._groups.ensure(group, hosts)

    def brokers_of(self, topic: str) -> TopicBrokers:
        """Return the brokers that have a topic, each with its configuration there."""
        return self._topics.get(topic) or []

    def find_group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a consumer group."""
        return self._groups.get(group)

    def writable_queues(self, topic: str, *, is_ordered: bool) -> list[tuple[ServedBroker, int]]:
        """Return the brokers that take messages of a topic, with the number of its queues on each.

        A broker that could not be reached just now gets no unordered messages, as long as there are others.
        """
        writable = super().writable_queues(topic, is_ordered=is_ordered)
        if is_ordered or len(writable) == 1:
            return writable
        now_s = trio.current_time()
        healthy = [item for item in writable if cast(RemoteBroker, item[0]).avoided_until_s <= now_s]
        return healthy or writable

    async def _load_topic(self, topic: str) -> TopicBrokers | None:
        try:
            route = (await self._ask_namesrv(_route_request(topic))).data
        except RequestError as refusal:
            if refusal.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise
        self._note_brokers(route)
        queues = [
            (broker, queue_data)
            for queue_data in route.queue_datas
            if (broker := self._brokers.get(queue_data.broker_name)) is not None
        ]
        declared = await self._read_topic([broker for broker, _ in queues], topic)
        if declared is None:
            return None
        return [
            (
                broker,
                TopicConfig(
                    topic_name=topic,
                    read_queue_nums=queue_data.read_queue_nums,
                    write_queue_nums=queue_data.write_queue_nums,
                    perm=queue_data.perm,
                    order=declared.order,
                    attributes=declared.attributes,
                ),
            )
            for broker, queue_data in queues
        ]

    async def _read_topic(self, brokers: list[RemoteBroker], topic: str) -> TopicConfig | None:
        """Return a topic as one of its brokers has it, with its type; None if none has it."""
        request = GetTopicConfig(topic=topic)
        reply = await self._ask_any(_by_failure(brokers), request, ResponseCode.TOPIC_NOT_EXIST)
        return None if reply is None else cast(TopicConfig, reply.data)

    async def _load_group(self, group: str, hosts: list[RemoteBroker]) -> SubscriptionGroupConfig | None:
        """Return a group as a broker has it; ``hosts`` are asked first. None if it has none, or must not be read."""
        request = GetSubscriptionGroupConfig(group=group)
        others = [broker for broker in self._brokers.values() if broker not in hosts]
        brokers = [*_by_failure(hosts), *_by_failure(others)]
        try:
            reply = await self._ask_any(brokers, request, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        except RequestError as refusal:
            log.info("group cannot be read", extra={"group": quoted(group), "reason": str(refusal)})
            return None
        return None if reply is None else reply.data

    # -- masters -------------------------------------------------------------------------------------------

    async def _follow_masters(self) -> None:
        while True:
            await self._find_masters()
            await trio.sleep(MASTERS_MAX_AGE_S)

    async def _find_masters(self) -> None:
        """Ask for the masters of all brokers, unless that was done just now. A failure is logged."""
        if self._masters.age_s(_MASTERS) >= MASTERS_MIN_AGE_S:
            try:
                await self._masters.reload(_MASTERS)
            except REQUEST_FAILURES as error:
                self._record_outcome(error)
            else:
                self._record_outcome(None)

    async def _load_masters(self, _: str) -> int:
        info = (await self._ask_namesrv(GetBrokerClusterInfo())).data
        broker_table = info.broker_addr_table or {}
        for name, data in broker_table.items():
            self._note_broker(name, data.broker_addrs)
        self._forget_brokers()
        return len(broker_table)

    def _forget_brokers(self) -> None:
        """Forget brokers that no namesrv names any more and no topic uses, so that they keep no others out.

        Only some time after they were named last: a namesrv that was restarted knows them again after their next
        registration, and a topic that is being loaded uses them soon.
        """
        oldest_s = trio.current_time() - UNNAMED_BROKER_S
        unnamed = [name for name, broker in self._brokers.items() if broker.named_s < oldest_s]
        if unnamed:
            used = {broker.name for brokers in self._topics.contents() for broker, _ in brokers}
            for name in unnamed:
                if name not in used:
                    log.info("broker is forgotten", extra={"broker": quoted(name)})
                    del self._brokers[name]

    def _note_brokers(self, route: TopicRouteData) -> None:
        for data in route.broker_datas:
            self._note_broker(data.broker_name, data.broker_addrs)

    def _note_broker(self, name: str, addresses: Mapping[int, str]) -> None:
        """Take the address of a broker's master. Without one the former address stays: it may come back."""
        address = addresses.get(MASTER_ID)
        broker = self._brokers.get(name)
        if broker is None and address is not None and len(self._brokers) < MAX_BROKERS:
            broker = self._brokers[name] = RemoteBroker(name, address)
        if broker is None:
            return
        broker.named_s = trio.current_time()
        if address is not None and broker.address != address:
            log.info("master moved", extra={"broker": name, "former": broker.address, "address": address})
            broker.address = address
            broker.avoided_until_s = 0.0
            for session in list(self._sessions):
                # One that is being opened has the new address, or gets it when the former one fails.
                if session.broker is broker and session.connection is not None:
                    session.close("the master has moved")

    def note_failure(self, broker: RemoteBroker) -> None:
        """Avoid a broker that cannot be reached, and look for its new master."""
        broker.avoided_until_s = trio.current_time() + AVOIDED_S
        self.nursery.start_soon(self._find_masters)

    def explain_refusal(self, request: Request[Any], refusal: RequestError) -> RequestError:
        """Return a refusal as RPCs know it, after taking note of what may have caused it.

        The topic is read again, and the master looked for, if either may have changed. With access control a refusal
        for lack of permission counts as a denial of the sender, who must not change what belongs to others.
        """
        if refusal.code in MOVED_CODES:
            self._topics.expire(str(getattr(request, "topic", "")))
            self.nursery.start_soon(self._find_masters)
        if refusal.code != ResponseCode.NO_PERMISSION or self._accounts is None:
            return refusal
        remark = refusal.remark or ""
        return refusal if any(text in remark for text in CLOSED_TEXTS) else AccessDenied(remark)

    # -- brokers and links ---------------------------------------------------------------------------------

    @property
    def max_message_bytes(self) -> int:
        """Largest body of a message, as configured: brokers do not tell clients theirs."""
        return self._max_message_bytes

    def broker(self, name: str) -> RemoteBroker | None:
        """Return a broker by its name; None if no namesrv knows it."""
        return self._brokers.get(name)

    async def brokers_for(self, topics: Iterable[str]) -> Sequence[ServedBroker]:
        """Return the brokers that have at least one of the topics."""
        topics = list(topics)
        await self.load(topics)
        return list(dict.fromkeys(broker for topic in topics for broker, _ in self.brokers_of(topic)))

    async def call_each(
        self, brokers: Sequence[ServedBroker], call: Callable[[ServedBroker], Awaitable[None]]
    ) -> None:
        """Call all brokers at the same time. One that does not answer is left out, as long as any other does."""
        errors: list[Exception] = []

        async def call_one(broker: ServedBroker) -> None:
            try:
                with trio.move_on_after(REQUEST_TIMEOUT_S) as limit:
                    await call(broker)
                if limit.cancelled_caught:
                    self.note_failure(cast(RemoteBroker, broker))
                    errors.append(RemotingTimeout(f"no answer from broker {broker.name}"))
            except Exception as error:  # noqa: BLE001 - the first refusal is raised below
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for broker in brokers:
                nursery.start_soon(call_one, broker)
        for error in errors:
            if len(errors) == len(brokers) or not isinstance(error, RemotingTimeout | RemotingClosed):
                raise error

    def open_link(
        self, peer: Connection, broker: ServedBroker, on_request: OnRequest = ignore_request
    ) -> BrokerLink:
        """Open a link of its own; with ``on_request`` its connection stands for a member, and for no other one."""
        if on_request is ignore_request:
            return RemoteLink(self._leftover_session(broker) if peer.closed else self._session(peer, broker))
        session = self._session(peer, broker)
        if session.on_request is not None:
            session = self._new_session(broker)
        session.on_request = on_request
        return RemoteLink(session, is_member=True)

    def link(self, peer: Connection, broker: ServedBroker) -> BrokerLink:
        """Return the link that all RPCs of a connection share. Raises RemotingClosed if this is closed."""
        session = self._session(peer, broker)
        if session.shared_link is None:
            session.close("its client has gone")
            raise RemotingClosed("the connection of the client is closed")
        return session.shared_link

    def _session(self, peer: Connection, broker: ServedBroker) -> BrokerSession:
        """Return the session of a gRPC connection with a broker; a new one for each use after its end."""
        if peer.closed:
            return self._new_session(broker)
        sessions = peer.state.get(_SESSIONS)
        if sessions is None:
            sessions = peer.state[_SESSIONS] = {}
            peer.on_close(_close_shared_links)
        session = sessions.get(broker.name)
        if session is None or session.shared_link is None or session.shared_link.closed:
            session = sessions[broker.name] = self._new_session(broker)
            session.shared_link = RemoteLink(session)
        return session

    def _leftover_session(self, broker: ServedBroker) -> BrokerSession:
        """Return the session for what connections have left that are closed: one for all, as long as it is used."""
        session = self._leftovers.get(broker.name)
        if session is None or session.closed:
            session = self._leftovers[broker.name] = self._new_session(broker)
        return session

    def _new_session(self, broker: ServedBroker) -> BrokerSession:
        session = BrokerSession(cast(RemoteBroker, broker), self)
        self._sessions.add(session)
        return session

    def note_end(self, session: BrokerSession) -> None:
        """Forget a session that is closed."""
        self._sessions.discard(session)
        if self._leftovers.get(session.broker.name) is session:
            del self._leftovers[session.broker.name]

    def release_waiting(self) -> None:
        """Have receives that wait for messages answered without any."""
        for session in self._sessions:
            session.release_polls()

    # -- connections ---------------------------------------------------------------------------------------

    async def dial(self, broker: RemoteBroker, handlers: Mapping[int, Handler]) -> FrameConnection:
        """Connect to a broker's master, the new one if it has moved. Raises RemotingClosed, RemotingTimeout."""
        address = broker.address
        try:
            return await self._open(split_address(address), handlers)
        except (OSError, RemotingTimeout) as error:
            self.note_failure(broker)
            await self._find_masters()
            if broker.address == address:
                raise RemotingClosed(
                    f"broker {broker.name} at {address} cannot be reached: {error}"
                ) from error
        try:
            return await self._open(split_address(broker.address), handlers)
        except OSError as error:
            raise RemotingClosed(
                f"broker {broker.name} at {broker.address} cannot be reached: {error}"
            ) from error

    async def _open(self, address: Address, handlers: Mapping[int, Handler]) -> FrameConnection:
        """Open a connection. Raises OSError, RemotingTimeout."""
        with trio.move_on_after(OPEN_TIMEOUT_S) as limit:
            transport = await self._open_transport(*address)
        if limit.cancelled_caught:
            raise RemotingTimeout(f"no connection to {format_host(address)} within {OPEN_TIMEOUT_S} s")
        connection = FrameConnection(transport, handlers, self.nursery, CONNECTION_LIMITS)
        self.nursery.start_soon(connection.run)
        return connection

    async def _ask(self, address: Address, request: Request[Reply], sign: Sign | None) -> Reply:
        """Ask over a connection of the front itself. Raises what `REQUEST_FAILURES` lists."""
        connection = self._own_connections.get(address)
        if connection is None or connection.closed:
            connection = await self._open(address, {})
            former = self._own_connections.get(address)
            if former is not None and not former.closed:  # Another task was faster.
                connection.close("one is enough")
                connection = former
            self._own_connections[address] = connection
            connection.on_close(lambda closed: self._forget_own(address, closed))
        return await connection.ask(request, REQUEST_TIMEOUT_S, sign)

    def _forget_own(self, address: Address, connection: Connection) -> None:
        if self._own_connections.get(address) is connection:
            del self._own_connections[address]

    async def _ask_namesrv(self, request: Request[Reply], sign: Sign | None = None) -> Reply:
        """Ask the first namesrv that answers; one that does not is the last to be asked from then on.

        One that has just started knows no topics, so that a topic is missing only if no other has it.
        Raises RequestError, and RemotingClosed, RemotingTimeout of the last one.
        """
        problem: Exception = RemotingClosed("no namesrv is configured")
        missing: RequestError | None = None
        for namesrv in list(self._namesrvs):
            try:
                return await self._ask(namesrv, request, sign or self._sign_own)
            except RequestError as refusal:
                if refusal.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise  # The others would answer the same.
                missing = refusal
                continue
            except OSError as error:
                problem = RemotingClosed(f"namesrv {format_host(namesrv)} cannot be reached: {error}")
            except (RemotingTimeout, RemotingClosed) as error:
                problem = error
            self._namesrvs.remove(namesrv)
            self._namesrvs.append(namesrv)
        raise missing or problem

    async def _ask_any(
        self, brokers: Sequence[RemoteBroker], request: Request[Reply], missing_code: int = -1
    ) -> Any:
        """Ask some brokers one after the other until one answers; None if all refuse with ``missing_code``.

        Raises the problem of the last one that was asked.
        """
        problem: Exception | None = None
        for broker in brokers[:MAX_ASKED_BROKERS]:
            try:
                return await self._ask(split_address(broker.address), request, self._sign_own)
            except RequestError as refusal:
                if refusal.code != missing_code:
                    problem = refusal
            except (OSError, RemotingTimeout, RemotingClosed) as error:
                self.note_failure(broker)
                problem = RemotingClosed(
                    f"broker {broker.name} at {broker.address} cannot be reached: {error}"
                )
        if problem is not None:
            raise problem
        return None


def _by_failure(brokers: Iterable[RemoteBroker]) -> list[RemoteBroker]:
    """Return brokers in the order to ask them: the one that failed latest at the end."""
    return sorted(dict.fromkeys(brokers), key=lambda broker: broker.avoided_until_s)


def _route_request(topic: str) -> GetRouteInfoByTopic:
    return GetRouteInfoByTopic(topic=topic, accept_standard_json_only=True)


def _close_shared_links(peer: Connection) -> None:
    """Close the links of a connection that has ended."""
    for session in (peer.state.get(_SESSIONS) or {}).values():
        if session.shared_link is not None:
            session.shared_link.close("the client's connection has ended")
