"""Telemetry, Heartbeat and NotifyClientTermination: the RPCs by which a client reports itself.

Source: ClientActivity, GrpcClientSettingsManager, 5.4.0.
"""

from typing import Final

from gateway.auth.access_control import AccessDenied
from gateway.grpc_front import messages
from gateway.grpc_front.clients import CONSUMERS, Clients, GrpcClient, topics_of
from gateway.grpc_front.cluster import ServedCluster
from gateway.grpc_front.conversion import set_ms
from gateway.grpc_front.framing import GrpcError, GrpcStatus
from gateway.grpc_front.names import check_group, check_topic
from gateway.grpc_front.rpc import Method, Rpc, unary
from gateway.grpc_front.statuses import OK, StatusError, make_status, status_of
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError

PRODUCER_ATTEMPTS: Final = 3
PRODUCER_FIRST_BACKOFF_MS: Final = 10
PRODUCER_MAX_BACKOFF_MS: Final = 1000
PRODUCER_BACKOFF_FACTOR: Final = 2.0
RECEIVE_BATCH_SIZE: Final = 32
MAX_POLL_MS: Final = 20_000
_STANDARD_RETRIES_S: Final = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""Source: CustomizedRetryPolicy, 5.4.0."""


class ClientMethods:
    """The RPCs by which a client reports itself."""

    def __init__(self, cluster: ServedCluster, clients: Clients) -> None:
        self._cluster = cluster
        self._clients = clients

    def methods(self) -> dict[str, Method]:
        """Return the RPCs by name."""
        return {
            "Telemetry": Method(
                messages.TelemetryCommand, self.telemetry, lambda status: [], reads_stream=True
            ),
            "Heartbeat": unary(messages.HeartbeatRequest, messages.HeartbeatResponse, self.heartbeat),
            "NotifyClientTermination": unary(
                messages.NotifyClientTerminationRequest,
                messages.NotifyClientTerminationResponse,
                self.notify_client_termination,
            ),
        }

    # -- settings ------------------------------------------------------------------------------------------

    async def telemetry(self, rpc: Rpc, _: None) -> None:
        """Take the settings of a client, and keep the stream open for what brokers ask of it."""
        client: GrpcClient | None = None
        try:
            async for command in rpc.requests:
                if command.WhichOneof("command") == "settings":
                    registered = await self._take_settings(rpc, command.settings)
                    if registered is None:
                        return
                    client = registered
        finally:
            if client is not None and client.telemetry is rpc:
                client.telemetry = None

    async def _take_settings(self, rpc: Rpc, settings: messages.Settings) -> GrpcClient | None:
        """Register a client and tell it the settings that count. None if it was refused."""
        if not rpc.client_id.strip():
            refusal = make_status(messages.CLIENT_ID_REQUIRED, "client id cannot be empty")
            rpc.send(messages.TelemetryCommand(status=refusal))
            return None
        try:
            self._check_settings(settings)
            await self._cluster.load_sender(rpc.sender)
            client = await self._clients.join(rpc, settings)
            await self._cluster.load(topics_of(settings), client.group if client.is_consumer else "")
            merged = self.merged_settings(client)
        except AccessDenied as error:
            rpc.send(messages.TelemetryCommand(status=status_of(error)))
            return None
        except (StatusError, RequestError, RemotingClosed, RemotingTimeout) as error:
            status = status_of(error)
            is_client_fault = messages.BAD_REQUEST <= status.code < messages.INTERNAL_ERROR
            raise GrpcError(
                GrpcStatus.INVALID_ARGUMENT if is_client_fault else GrpcStatus.INTERNAL,
                f"process client telemetryCommand failed. {status.message}",
            ) from error
        rpc.send(messages.TelemetryCommand(status=OK, settings=merged))
        return client

    @staticmethod
    def _check_settings(settings: messages.Settings) -> None:
        match settings.WhichOneof("pub_sub"):
            case "publishing":
                for topic in settings.publishing.topics:
                    check_topic(topic)
            case "subscription":
                check_group(settings.subscription.group)
                if settings.client_type not in CONSUMERS:
                    name = name_of_type(settings.client_type)
                    raise StatusError(
                        messages.UNRECOGNIZED_CLIENT_TYPE,
                        f"clients of type {name} are not served here, only PRODUCER, PUSH_CONSUMER and SIMPLE_CONSUMER",
                    )
            case _:
                raise GrpcError(
                    GrpcStatus.INVALID_ARGUMENT, "there is no publishing or subscription data in settings"
                )

    def merged_settings(self, client: GrpcClient) -> messages.Settings:
        """Return the settings of a client with those that the server decides."""
        merged = messages.Settings()
        merged.CopyFrom(client.settings)
        policy = merged.backoff_policy
        if client.is_consumer:
            group = self._cluster.find_group(client.group) or SubscriptionGroupConfig(group_name=client.group)
            merged.subscription.fifo = group.consume_message_orderly
            merged.subscription.receive_batch_size = RECEIVE_BATCH_SIZE
            set_ms(merged.subscription.long_polling_timeout, MAX_POLL_MS)
            policy.max_attempts = group.retry_max_times + 1
            _set_retries(policy, group)
        else:
            merged.publishing.validate_message_type = True
            merged.publishing.max_body_size = self._cluster.max_message_bytes
            policy.max_attempts = PRODUCER_ATTEMPTS
            backoff = policy.exponential_backoff
            set_ms(backoff.initial, PRODUCER_FIRST_BACKOFF_MS)
            set_ms(backoff.max, PRODUCER_MAX_BACKOFF_MS)
            backoff.multiplier = PRODUCER_BACKOFF_FACTOR
        merged.metric.on = False
        return merged

    # -- heartbeats ----------------------------------------------------------------------------------------

    async def heartbeat(self, rpc: Rpc, request: messages.HeartbeatRequest) -> messages.HeartbeatResponse:
        """Record that a client is alive."""
        client = self._require_client(rpc)
        if client.is_consumer:
            check_group(request.group)
        await client.register(rpc)
        self._clients.note_connection(client, rpc.connection)
        return messages.HeartbeatResponse(status=OK)

    async def notify_client_termination(
        self, rpc: Rpc, request: messages.NotifyClientTerminationRequest
    ) -> messages.NotifyClientTerminationResponse:
        """Remove a client that stops."""
        client = self._require_client(rpc)
        if client.is_consumer:
            check_group(request.group)
        try:
            await client.unregister(rpc)
        except AccessDenied:
            raise
        except Exception:
            self._clients.remove(client)
            raise
        self._clients.remove(client)
        return messages.NotifyClientTerminationResponse(status=OK)

    def _require_client(self, rpc: Rpc) -> GrpcClient:
        client = self._clients.get(rpc.client_id)
        if client is None:
            raise StatusError(
                messages.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client"
            )
        return client


def name_of_type(client_type: int) -> str:
    """Return the name of a client type, which may be one that this protocol does not know."""
    return (
        messages.ClientType.Name(client_type)
        if client_type in messages.ClientType.values()
        else str(client_type)
    )


def _set_retries(policy: messages.RetryPolicy, group: SubscriptionGroupConfig) -> None:
    """Set the delays of a group between the attempts to consume a message."""
    group_policy = group.group_retry_policy
    if group_policy.type == "EXPONENTIAL" and group_policy.exponential_retry_policy is not None:
        exponential = group_policy.exponential_retry_policy
        set_ms(policy.exponential_backoff.initial, exponential.initial)
        set_ms(policy.exponential_backoff.max, exponential.max)
        policy.exponential_backoff.multiplier = exponential.multiplier
        return
    custom = (
        None if group_policy.customized_retry_policy is None else group_policy.customized_retry_policy.next
    )
    policy.customized_backoff.ClearField("next")
    for delay_ms in custom or [seconds * 1000 for seconds in _STANDARD_RETRIES_S]:
        set_ms(policy.customized_backoff.next.add(), delay_ms)
