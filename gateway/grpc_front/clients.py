"""Clients that have reported their settings: their group memberships, and the check-backs that brokers send them.

A client is known by its id. Its settings come with the first message of its Telemetry stream; from then on it is a
member of its groups on every broker, through a link that the broker takes for its connection. It leaves when it says
so, when its last HTTP/2 connection closes, or when the broker misses its heartbeats.
Source: GrpcChannelManager, GrpcClientChannel, GrpcClientSettingsManager, ClientActivity, 5.4.0.
"""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from codec.errors import MessageFormatError
from codec.java_numbers import quoted
from codec.message import decode_message
from gateway.auth.access_control import AccessDenied
from gateway.grpc_front import messages
from gateway.grpc_front.access import RpcSender
from gateway.grpc_front.broker_link import BrokerLink
from gateway.grpc_front.cluster import ServedBroker, ServedCluster
from gateway.grpc_front.conversion import subscription_to, to_grpc_message
from gateway.grpc_front.framing import GrpcError, GrpcStatus
from gateway.grpc_front.rpc import Rpc
from gateway.grpc_front.transactions import OpenTransaction, OpenTransactions
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from remoting.connection import Connection
from remoting.connection_state import StateSlot
from remoting.declare import Request
from remoting.requests.client import HeartBeat, UnregisterClient
from remoting.requests.transaction import CheckTransactionState

log = logging.getLogger(__name__)

MAX_CLIENTS_PER_CONNECTION: Final = 256
"""Clients that use one gRPC connection: each has connections of its own to the brokers."""
CONSUMERS = (messages.PUSH_CONSUMER, messages.SIMPLE_CONSUMER)


class GrpcClient:
    """One client. ``settings`` are those it reported; ``telemetry`` is its open stream, None without one."""

    def __init__(
        self, client_id: str, owner: str, cluster: ServedCluster, transactions: OpenTransactions
    ) -> None:
        self.client_id = client_id
        self.owner = owner
        """The user who registered the client; "" if nobody signed."""
        self.settings = messages.Settings()
        self.settings_ms = 0
        self.telemetry: Rpc | None = None
        self.connections: set[Connection] = set()
        self._cluster = cluster
        self._transactions = transactions
        self._links: dict[str, BrokerLink] = {}
        self._has_left = False

    @property
    def is_consumer(self) -> bool:
        """Tell whether the client is a consumer of a kind that is served."""
        return self.settings.client_type in CONSUMERS

    @property
    def group(self) -> str:
        """The consumer group in the settings of the client."""
        return str(self.settings.subscription.group.name)

    def check_owner(self, sender: RpcSender) -> None:
        """Refuse a wrong signature, and a sender other than the user who registered the client. Raises AccessDenied.

        Called before a link opens: a sender whom nobody has verified must cause no work at the brokers.
        """
        guards = self._cluster.guards
        for accounts in guards:
            sender.credentials(accounts)
        if guards and sender.claimed_user != self.owner:
            raise AccessDenied(f"the client id {quoted(self.client_id)} belongs to another user.")

    async def change_settings(self, rpc: Rpc, settings: messages.Settings) -> None:
        """Register the client with new settings, which count once every broker has accepted them.

        Raises StatusError, RequestError: then the former settings and memberships stay.
        """
        self.check_owner(rpc.sender)
        settings_ms = self._cluster.clock.now_ms()
        await self._send_heartbeat(rpc, settings, settings_ms)
        self.settings, self.settings_ms = settings, settings_ms

    # -- memberships ---------------------------------------------------------------------------------------

    async def register(self, rpc: Rpc) -> None:
        """Report the client to every broker, as a heartbeat does. Raises StatusError, RequestError."""
        self.check_owner(rpc.sender)
        await self._send_heartbeat(rpc, self.settings, self.settings_ms)

    async def _send_heartbeat(self, rpc: Rpc, settings: messages.Settings, settings_ms: int) -> None:
        beat = HeartBeat(data=self._heartbeat(settings, settings_ms))
        language = language_of(rpc)

        async def beat_at(broker: ServedBroker) -> None:
            await self._link(rpc.connection, broker).call(beat, rpc.sender, language=language)

        try:
            await self._cluster.call_each(await self._cluster.brokers_for(topics_of(settings)), beat_at)
        finally:
            if self._has_left:
                self.close()  # It left meanwhile, and this call may have opened links again.

    def _heartbeat(self, settings: messages.Settings, settings_ms: int) -> HeartbeatData:
        """Return the groups of the client. The producer group of 5.x clients is the topic."""
        if settings.client_type not in CONSUMERS:
            topics = [ProducerData(group_name=topic.name) for topic in settings.publishing.topics]
            return HeartbeatData(client_id=self.client_id, producer_data_set=topics)
        is_push = settings.client_type == messages.PUSH_CONSUMER
        consumer = ConsumerData(
            group_name=settings.subscription.group.name,
            consume_type="CONSUME_PASSIVELY" if is_push else "CONSUME_ACTIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=[
                subscription_to(entry.topic.name, entry.expression, settings_ms)
                for entry in settings.subscription.subscriptions
            ],
        )
        return HeartbeatData(client_id=self.client_id, consumer_data_set=[consumer])

    def _link(self, peer: Connection, broker: ServedBroker) -> BrokerLink:
        link = self._links.get(broker.name)
        if link is None or link.closed:
            link = self._links[broker.name] = self._cluster.open_link(
                peer, broker, partial(self._take_request, broker)
            )
        return link

    async def unregister(self, rpc: Rpc) -> None:
        """Leave all groups on every broker. Raises AccessDenied before anything is left."""
        self.check_owner(rpc.sender)
        group = self.group if self.is_consumer else None
        topics: list[str | None] = [topic.name for topic in self.settings.publishing.topics]

        async def leave_at(broker: ServedBroker) -> None:
            link = self._link(rpc.connection, broker)
            for topic in topics or [None]:
                leave = UnregisterClient(client_id=self.client_id, producer_group=topic, consumer_group=group)
                await link.call(leave, rpc.sender)

        await self._cluster.call_each(await self._cluster.brokers_for(topics_of(self.settings)), leave_at)

    def close(self) -> None:
        """Close the links, which ends all memberships, and end the Telemetry stream."""
        self._has_left = True
        links, self._links = self._links, {}
        for link in links.values():
            link.close("the client has left")
        if self.telemetry is not None:
            self.telemetry.stop_reading()

    # -- requests of the broker ----------------------------------------------------------------------------

    def _take_request(self, broker: ServedBroker, request: Request[Any]) -> None:
        """Pass a check-back on. 5.x clients need no other request: they do not balance queues, for instance."""
        if isinstance(request, CheckTransactionState):
            try:
                self._check_transaction(broker, request)
            except MessageFormatError as error:
                log.warning("half message cannot be passed on", extra={"reason": str(error)})

    def _check_transaction(self, broker: ServedBroker, check: CheckTransactionState) -> None:
        if self.telemetry is None:
            log.info("no Telemetry stream for a check-back", extra={"client": self.client_id})
            return
        half = decode_message(check.body)
        transaction_id = check.transaction_id or half.unique_key or ""
        transaction = OpenTransaction(broker.name, check.tran_state_table_offset, check.commit_log_offset)
        self._transactions.add(half.topic, transaction_id, transaction)
        self.telemetry.send(
            messages.TelemetryCommand(
                recover_orphaned_transaction_command=messages.RecoverOrphanedTransactionCommand(
                    message=to_grpc_message(half), transaction_id=transaction_id
                )
            )
        )


CLIENTS: Final = StateSlot[set[GrpcClient]]("gRPC clients")
"""The clients that use a connection."""


class Clients:
    """All clients by their ids."""

    def __init__(self, cluster: ServedCluster, transactions: OpenTransactions) -> None:
        self._cluster = cluster
        self._transactions = transactions
        self._by_id: dict[str, GrpcClient] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[GrpcClient]:
        return iter(list(self._by_id.values()))

    def get(self, client_id: str) -> GrpcClient | None:
        """Return the client of this id; None if it has reported no settings."""
        return self._by_id.get(client_id)

    async def join(self, rpc: Rpc, settings: messages.Settings) -> GrpcClient:
        """Return the client of a Telemetry stream, registered with its settings.

        Raises GrpcError, StatusError, RequestError. Nothing changes before every broker has accepted the settings: a
        client id is no secret, and whoever names one must not end the memberships or check-backs of its owner.
        """
        client = self._by_id.get(rpc.client_id)
        users = rpc.connection.state.get(CLIENTS) or set()
        if client not in users and len(users) >= MAX_CLIENTS_PER_CONNECTION:
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"the limit of {MAX_CLIENTS_PER_CONNECTION} clients of one connection is reached",
            )
        if client is None:
            client = GrpcClient(rpc.client_id, rpc.sender.claimed_user, self._cluster, self._transactions)
            self.note_connection(client, rpc.connection)  # Those that are joining count for the limit.
            try:
                await client.change_settings(rpc, settings)
            except BaseException:
                self.remove(client)
                raise
            namesake = self._by_id.get(rpc.client_id)
            if namesake is not None:
                self.remove(namesake)
            self._by_id[rpc.client_id] = client
        else:
            await client.change_settings(rpc, settings)
        self.note_connection(client, rpc.connection)
        client.telemetry = rpc
        return client

    def note_connection(self, client: GrpcClient, connection: Connection) -> None:
        """Note that a client uses a connection; without any it is gone."""
        if connection in client.connections:
            return
        client.connections.add(connection)
        users = connection.state.get(CLIENTS)
        if users is not None:
            users.add(client)
            return
        connection.state[CLIENTS] = {client}
        connection.on_close(self._forget_connection)

    def _forget_connection(self, connection: Connection) -> None:
        for client in connection.state.pop(CLIENTS, set()):
            client.connections.discard(connection)
            if not client.connections:
                self.remove(client)

    def remove(self, client: GrpcClient) -> None:
        """Forget a client, and end its memberships."""
        if self._by_id.get(client.client_id) is client:
            del self._by_id[client.client_id]
        # A connection may live on, and bring any number of clients.
        for connection in client.connections:
            (connection.state.get(CLIENTS) or set()).discard(client)
        client.connections.clear()
        client.close()


def language_of(rpc: Rpc) -> str:
    """Return the language of a client as the remoting protocol names it."""
    return rpc.metadata.get("x-mq-language", "OTHER").upper()


def topics_of(settings: messages.Settings) -> list[str]:
    """Return the topics that a client sends to, or subscribes to."""
    if settings.client_type in CONSUMERS:
        return [entry.topic.name for entry in settings.subscription.subscriptions]
    return [topic.name for topic in settings.publishing.topics]
