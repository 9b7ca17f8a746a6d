"""Delivery `staged`: tasks leave messages at an rmq-gateway broker, and the driver's commit makes it publish them.

Theory of operation: one broker stages and publishes a whole write, so it alone knows which batches were published. It
answers a second commit of a batch with 0 messages. Therefore executors and the driver may die at any moment:

- A task dies while staging: Spark retries it under a new stage name, and the old stage is never published.
- The driver dies before its commit: the batch is re-run, and staged again under new names.
- The driver or the broker dies during the commit: the commit is repeated, and publishes at most once.

The broker's side is `gateway.broker.staging`.
"""

import hashlib
import time
import uuid
from collections.abc import Iterable
from typing import Final

from codec.batch import encode_batch
from codec.command import Command
from codec.constants import ResponseCode
from remoting.bodies.routes import ClusterInfo
from remoting.errors import RequestError
from remoting.requests.namesrv import GetBrokerClusterInfo
from remoting.requests.staging import (
    GetStagingState,
    PublishStaged,
    StageMessages,
    StagePieces,
    StagesBody,
)
from spark.endpoint import Address, Connections, master_address
from spark.errors import ColumnError, EndpointError, OptionError
from spark.sink.message_sender import MessageSender, Shipment
from spark.sink.options import SINK, SinkSpec
from spark.sink.row_encoder import OutgoingMessage

_DELAY_COLUMNS: Final = ("delayLevel", "delayMs", "deliverAt")


def writer_name(write: str) -> str:
    """Return the name under which the broker knows a query or batch write."""
    return hashlib.blake2b(write.encode(), digest_size=16).hexdigest()


def check_staged(spec: SinkSpec, columns: Iterable[str]) -> str:
    """Return the staging broker. Raises OptionError if there is none, ColumnError, EndpointError."""
    for column in columns:
        if column in _DELAY_COLUMNS:
            raise ColumnError(
                f"column {column} cannot be used with delivery=staged: staged messages cannot be delayed"
            )
    with Connections(spec.endpoint) as connections:
        info = connections.request_name_server(GetBrokerClusterInfo()).data
        broker = _choose_broker(spec, info)
        try:
            connections.request_from(_broker_address(info, broker), GetStagingState(writer=writer_name(SINK)))
        except RequestError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise EndpointError(f"delivery=staged at broker {broker}: {error}") from error
            raise OptionError(
                f"{SINK}: delivery=staged needs an rmq-gateway with stagedPublish=true, but broker {broker} answered: "
                f"{(error.remark or '').strip()}"
            ) from error
    return broker


def _choose_broker(spec: SinkSpec, info: ClusterInfo) -> str:
    brokers = sorted(info.broker_addr_table)
    broker = spec.staging_broker or (brokers[0] if len(brokers) == 1 else None)
    if broker is None:
        raise OptionError(
            f"{SINK}: delivery=staged publishes at one broker: set option stagingBroker ({', '.join(brokers)})"
        )
    if broker not in brokers:
        raise OptionError(
            f"{SINK}: option stagingBroker={broker}: there are {', '.join(brokers) or 'no brokers'}"
        )
    return broker


def _broker_address(info: ClusterInfo, broker: str) -> Address:
    """Return the address of a broker's master. Raises EndpointError if it is not known now."""
    data = info.broker_addr_table.get(broker)
    address = None if data is None else master_address(data)
    if address is None:
        raise EndpointError(f"The broker[{broker}] not exist")
    return address


class StagingSender(MessageSender):
    """Stages messages at the broker instead of sending them. `stage` and `pieces` identify the staged messages."""

    splits_illegal_batches = False

    def __init__(
        self,
        spec: SinkSpec,
        partition: int,
        broker: str,
        writer: str,
        batch: int,
        connections: Connections | None = None,
    ) -> None:
        super().__init__(spec, partition, connections, only_broker=broker)
        self.stage = str(uuid.uuid4())
        self.pieces = 0
        self._writer = writer
        self._batch = batch
        self._published = False

    def send_all(self, messages: Iterable[OutgoingMessage]) -> None:
        """Stage messages like `MessageSender.send_all`, or skip them if the batch was published before."""
        if not self._published:
            super().send_all(messages)

    def _post_shipment(self, shipment: Shipment) -> None:
        shipment.number = self.pieces
        self.pieces += 1
        super()._post_shipment(shipment)

    def _build_command(self, shipment: Shipment) -> Command:
        request = self._stage_request(shipment)
        request.body = encode_batch(
            (message.flag, message.body, message.properties) for message in shipment.messages
        )
        return request.to_command()

    def _check_answer(self, shipment: Shipment, answer: Command) -> None:
        if self._stage_request(shipment).read_reply(answer).published >= self._batch:
            self._published = True

    def _stage_request(self, shipment: Shipment) -> StageMessages:
        return StageMessages(
            writer=self._writer,
            batch=self._batch,
            stage=self.stage,
            number=shipment.number,
            topic=shipment.queue.topic,
            queue_id=shipment.queue.queue_id,
            sys_flag=shipment.messages[0].sys_flag,
            born_timestamp=int(time.time() * 1000),
        )


def publish_batch(
    spec: SinkSpec, broker: str, writer: str, batch: int, stages: Iterable[tuple[str, int]], *, stream: bool
) -> int:
    """Publish a batch; return how many messages appeared, 0 if it was published before. Raises EndpointError.

    A restarted broker completes a commit it had begun; repeating the commit then returns 0.
    """
    body = StagesBody(stages=[StagePieces(name=name, pieces=pieces) for name, pieces in stages if pieces])
    request = PublishStaged(writer=writer, batch=batch, stream=stream, data=body)
    with Connections(spec.endpoint) as connections:

        def attempt() -> int:
            info = connections.request_name_server(GetBrokerClusterInfo()).data
            address = _broker_address(info, broker)
            try:
                return connections.get_client(address).ask(request, timeout_s=spec.publish_timeout_s).messages
            except RequestError:
                raise
            except Exception:
                connections.drop_client(address)
                raise

        try:
            return spec.endpoint.run_with_retries(attempt, f"publishing batch {batch} at broker {broker}")
        except RequestError as error:
            raise EndpointError(f"publishing batch {batch} at broker {broker}: {error}") from error
