"""One cluster as a command sees it: a connection for each address it asks, and typed requests over them.

Connections are blocking, because a command without an event loop starts faster; threads ask several brokers at a time.
Servers use the client in `gateway/shadow/clusters`.
"""

import ssl
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from codec.errors import FrameError
from codec.hosts import format_host
from gateway.admin.errors import AdminError, NotFound, NotReached, Refused
from gateway.admin.settings import ConnectionSettings, load_credentials
from remoting.blocking import BlockingClient
from remoting.declare import Header, Request
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from toolkit.settings import SettingsError
from toolkit.suggestions import suggest_name
from toolkit.values import Addresses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from codec.command import Command
    from remoting.bodies.routes import ClusterInfo, TopicRouteData

Reply = TypeVar("Reply", bound=Header | None)
Item = TypeVar("Item")
T = TypeVar("T")

MASTER_ID: Final = 0
MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of an answer; that of a broker with 100,000 topics has 40 MiB."""
_MAX_THREADS: Final = 16


class AdminClient:
    """The namesrvs and brokers of one cluster. Close it, or use it as a context manager.

    Each method that asks raises NotReached or Refused.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        """Read certificates and secrets, and ask an address server for the namesrvs, if one is set.

        No namesrv or broker is connected yet. Raises SettingsError, and NotReached for the address server.
        """
        self.namesrvs = settings.find_namesrvs()
        self._namesrvs_in_turn = list(dict.fromkeys(self.namesrvs))
        self.timeout_s = settings.timeout_s
        self.tls = _tls_context(settings)
        self.tls_name = settings.tls_server_name or None
        self._sign = _signer(settings)
        self._connections: dict[str, BlockingClient] = {}
        self._cluster: ClusterInfo | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- the cluster ---------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> "ClusterInfo":
        """The brokers and clusters that a namesrv knows; requested once."""
        if self._cluster is None:
            from remoting.requests.namesrv import GetBrokerClusterInfo

            self._cluster = self.ask_namesrv(GetBrokerClusterInfo()).data
        return self._cluster

    @property
    def masters(self) -> "Mapping[str, str]":
        """The address to ask by broker name: that of the master, or of the replica that acts for it."""
        return {
            name: data.broker_addrs.get(MASTER_ID) or data.broker_addrs[min(data.broker_addrs)]
            for name, data in sorted(self.cluster.broker_addr_table.items())
            if data.broker_addrs
        }

    def choose_brokers(self, brokers: Sequence[str] = (), cluster: str | None = None) -> list[str]:
        """Return the broker names that flags choose, all without flags. Raises NotFound for an unknown name."""
        clusters = self.cluster.cluster_addr_table
        if cluster is not None and cluster not in clusters:
            raise NotFound(f'--cluster: "{cluster}" is not known{suggest_name(cluster, clusters)}')
        candidates = [name for name in self.masters if cluster is None or name in clusters[cluster]]
        for name in brokers:
            if name not in candidates:
                raise NotFound(f'--broker: "{name}" is not known{suggest_name(name, candidates)}')
        if not candidates:
            raise NotFound(f"{', '.join(self.namesrvs)}: no broker is registered. Start one, or see its log.")
        return list(brokers) or candidates

    def route(self, topic: str) -> "TopicRouteData":
        """Return the brokers and queues of a topic. Raises NotFound, with a suggestion."""
        route = self.find_route(topic)
        if route is None:
            raise NotFound(f'topic "{topic}" does not exist{self._suggest_topic(topic)}')
        return route

    def find_route(self, topic: str) -> "TopicRouteData | None":
        """Return the brokers and queues of a topic; None if the namesrv does not know it."""
        from codec.constants import ResponseCode
        from remoting.requests.namesrv import GetRouteInfoByTopic

        try:
            return self.ask_namesrv(GetRouteInfoByTopic(topic=topic)).data
        except Refused as refused:
            if refused.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return None

    def _suggest_topic(self, topic: str) -> str:
        from remoting.requests.namesrv import GetAllTopicListFromNameserver

        try:
            topics = self.ask_namesrv(GetAllTopicListFromNameserver()).data.topic_list
        except AdminError:
            return ""
        return suggest_name(topic, topics, list_all=False) or '. See the names with "rmq-gateway topic list".'

    # -- asking --------------------------------------------------------------------------------------------------

    def ask_namesrv(self, request: Request[Reply]) -> Reply:
        """Ask the first namesrv that can be reached. Raises the error of the last one.

        One that did not answer is asked after the others from then on, so that its timeout passes only once.
        """
        problem: AdminError | None = None
        for address in self._namesrvs_in_turn[:]:
            try:
                return self.ask(address, request)
            except NotReached as error:
                problem = error
                self._namesrvs_in_turn.remove(address)
                self._namesrvs_in_turn.append(address)
        if len(self.namesrvs) > 1:
            raise NotReached(f"no namesrv answers ({', '.join(self.namesrvs)}). The last error: {problem}")
        assert problem is not None
        raise problem

    def ask_namesrvs(self, request: Request[Reply]) -> list[Reply]:
        """Ask each namesrv in turn."""
        return [self.ask(address, request) for address in self.namesrvs]

    def ask_broker(self, broker: str, request: Request[Reply], *, timeout_s: float | None = None) -> Reply:
        """Ask the master of a broker name. Raises NotFound for a name that is not registered."""
        return self.ask(self.master(broker), request, timeout_s=timeout_s)

    def master(self, broker: str) -> str:
        """Return the address of a broker. Raises NotFound."""
        address = self.masters.get(broker)
        if address is None:
            raise NotFound(f'broker "{broker}" is not registered{suggest_name(broker, self.masters)}')
        return address

    def ask(self, address: str, request: Request[Reply], *, timeout_s: float | None = None) -> Reply:
        """Send a request to an address and return its reply."""
        (reply,) = self.ask_many(address, [request], timeout_s=timeout_s)
        if isinstance(reply, Refused):
            raise reply
        return reply

    def ask_many(
        self, address: str, requests: Sequence[Request[Reply]], *, timeout_s: float | None = None
    ) -> list[Reply | Refused]:
        """Send many requests at once; for a refused one the list contains Refused. Raises NotReached."""
        answers = self._exchange(address, requests, timeout_s)
        replies: list[Reply | Refused] = []
        for request, answer in zip(requests, answers, strict=True):
            try:
                replies.append(request.read_reply(answer))
            except RequestError as error:
                replies.append(Refused(address, request, error.code, error.remark))
            except RemotingClosed as error:
                raise NotReached(f"{address}: {error}. Try again.") from error
        return replies

    def _exchange(
        self, address: str, requests: Sequence[Request[Any]], timeout_s: float | None
    ) -> "list[Command]":
        connection = self.connect(address)
        try:
            return connection.send_commands(
                [request.to_command() for request in requests], timeout_s=timeout_s
            )
        except RemotingTimeout:
            reason = f"{address} did not answer {requests[0].NAME} within {timeout_s or self.timeout_s:g} s. "
            self._forget(address)
            raise NotReached(f"{reason}Wait longer with --timeout.") from None
        except FrameError as error:  # such as the answer of an HTTP server
            self._forget(address)
            raise NotReached(
                f"{address} answers in another protocol ({error}). It is not a RocketMQ server: check host and port."
            ) from error
        except RemotingClosed:
            self._forget(address)
            advice = (
                "Try again."
                if self.tls
                else "Try again; if it happens each time, the server may require TLS (--tls), "
                "or it is not a RocketMQ server."
            )
            raise NotReached(f"{address} closed the connection before it answered. {advice}") from None

    def _forget(self, address: str) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def connect(self, address: str) -> BlockingClient:
        """Return the connection to an address, opening it at the first use. Raises NotReached."""
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = self.dial(address)
        return connection

    def dial(self, address: str) -> BlockingClient:
        """Open another connection to an address, which the caller closes. Raises NotReached."""
        try:
            ((host, port),) = Addresses()(address)
        except ValueError:
            raise NotReached(
                f'"{address}" is not an address: the broker has to advertise host:port.'
            ) from None
        try:
            return BlockingClient(
                host,
                port,
                timeout_s=self.timeout_s,
                tls=self.tls,
                tls_name=self.tls_name,
                sign=self._sign,
                max_frame_bytes=MAX_FRAME_BYTES,
            )
        except ssl.SSLCertVerificationError as error:
            raise NotReached(
                f"{address}: the server's certificate is not accepted: {error.verify_message}. Name the authority "
                "that signed it with --tls-ca, and the name in it with --tls-server-name."
            ) from error
        except ssl.SSLError as error:
            raise NotReached(
                f"{address}: the TLS handshake failed ({error.reason}). Is the port one with TLS?"
            ) from error
        except (RemotingTimeout, RemotingClosed, OSError) as error:
            raise self._not_reached(format_host((host, port)), error) from error

    def _not_reached(self, address: str, error: Exception) -> NotReached:
        reason = (
            "it did not accept the connection in time"
            if isinstance(error, RemotingTimeout)
            else _reason(error)
        )
        if address in self.namesrvs:
            return NotReached(
                f"namesrv {address} cannot be reached: {reason}. Is it running? Set its address with --namesrv.",
                reason,
            )
        return NotReached(
            f"broker {address} cannot be reached: {reason}. The broker advertises this address; it has to be one "
            "that clients can reach (brokerIP1, or --advertise).",
            reason,
        )

    def map_brokers(self, brokers: Iterable[str], function: Callable[[str], T]) -> list[T]:
        """Call a function with each broker name, several at a time.

        A connection must not be shared between threads, so all requests to a broker have to be in its call.
        """
        names = list(brokers)
        if len(names) > 1:
            _ = self.masters  # requested once, not by each thread
        return map_in_threads(names, function)


def map_in_threads(items: Sequence[Item], function: Callable[[Item], T]) -> list[T]:
    """Call a function with each item, several at a time, and return the results in the order of the items."""
    if len(items) < 2:
        return [function(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(items), _MAX_THREADS)) as threads:
        return list(threads.map(function, items))


def _reason(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    return (getattr(cause, "strerror", None) or str(cause)).lower()


def _tls_context(settings: ConnectionSettings) -> ssl.SSLContext | None:
    """Return the context of the connections, None without TLS. Raises SettingsError."""
    if not settings.tls:
        return None
    from pathlib import Path

    from remoting.tls import client_context

    try:
        return client_context(
            ca_file=Path(settings.tls_ca) if settings.tls_ca else None,
            verify=not settings.tls_insecure,
            certificate_file=Path(settings.tls_cert) if settings.tls_cert else None,
            key_file=Path(settings.tls_key) if settings.tls_key else None,
        )
    except OSError as error:
        files = ", ".join(filter(None, (settings.tls_ca, settings.tls_cert, settings.tls_key)))
        reason = error.strerror or str(error)
        raise SettingsError(f"--tls-ca, --tls-cert, --tls-key: {files} cannot be used: {reason}") from error


def _signer(settings: ConnectionSettings) -> "Callable[[Command], None] | None":
    credentials = load_credentials(settings)
    if credentials is None:
        return None
    from remoting.acl import make_signer

    return make_signer(credentials)
