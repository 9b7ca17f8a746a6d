"""Send the messages of one task: batched where allowed, to many queues at once, in order within each queue.

Theory of operation: encoded messages wait in piles, one per destination, until a pile is large enough for a send (a
shipment). Each queue is a lane, with at most one send in flight, for two reasons: a broker with several sending threads
could otherwise reorder sends, and a send that is repeated after a failure must be stored before later ones. Lanes do
not wait for each other. A send whose answer was lost, or a task that Spark retries, may store messages twice;
duplicates carry the same ids (`dedup_ids`).
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Self

from codec.batch import encode_batch
from codec.command import Command
from codec.constants import STORED_CODES, ResponseCode
from codec.topics import DEFAULT_TOPIC, RETRY_PREFIX
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.send import SendBatchMessage, SendMessageV2
from spark.endpoint import Address, Connections
from spark.errors import EndpointError, RowError
from spark.sink.options import SinkSpec
from spark.sink.row_encoder import OutgoingMessage
from spark.sink.write_queues import PublishInfoCache, WriteQueue

_RETRY_CODES: Final = frozenset({1, 2, 14, 16, 17, 204, 205, 215, 1500})
"""Refusals worth a retry: those of DefaultMQProducer.retryResponseCodes, 5.4.0, and FLOW_CONTROL."""
_FAILURES: Final = (RemotingClosed, RemotingTimeout, EndpointError, OSError)
_MAX_BATCH_TOPIC_LENGTH: Final = 127
_ENTRY_OVERHEAD_BYTES: Final = 22
_MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Limit on the bytes waiting in all piles together; above it all piles are sent, however small."""
_MAX_IN_FLIGHT_BYTES: Final = 16 * 1024 * 1024
MIN_SPREAD_MESSAGES: Final = 16
"""Minimum number of messages per queue when a pile is spread over queues, as each queue costs a send."""

Lane = tuple[str, str, int]
_PileKey = tuple[str, str, int] | tuple[str, None, None]
"""A lane, or a topic whose rows may go to any queue."""


@dataclass(slots=True)
class SendCounts:
    """Totals of a task. `resent` messages were sent more than once and may be duplicates."""

    messages: int = 0
    sends: int = 0
    resent: int = 0


@dataclass(slots=True)
class _Pile:
    """Messages waiting to be sent together."""

    messages: list[OutgoingMessage] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True)
class Shipment:
    """Messages of one send. If `fixed`, the queue must not change. `number` counts sends for `StagingSender`."""

    queue: WriteQueue
    fixed: bool
    messages: list[OutgoingMessage]
    size: int
    number: int = 0


@dataclass(slots=True)
class _InFlightSend:
    """A send whose answer is outstanding."""

    shipment: Shipment
    client: BlockingClient
    opaque: int


class MessageSender:
    """Sends messages; `wait_until_stored` returns when all are stored. Every method raises EndpointError, RowError."""

    splits_illegal_batches = True
    """If true, a batch that is refused as illegal is sent again message by message, to find the offending rows."""

    def __init__(
        self,
        spec: SinkSpec,
        partition: int,
        connections: Connections | None = None,
        only_broker: str | None = None,
    ) -> None:
        self._spec = spec
        self._connections = connections or Connections(spec.endpoint)
        self._publish_infos = PublishInfoCache(self._connections, only_broker)
        self._clients: dict[Address, BlockingClient] = {}
        self._piles: dict[_PileKey, _Pile] = {}
        self._in_flight: dict[Lane, _InFlightSend] = {}
        self._waiting_bytes = 0
        self._in_flight_bytes = 0
        self._round_robin = partition
        self.counts = SendCounts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connections.close()

    def send_all(self, messages: Iterable[OutgoingMessage]) -> None:
        """Add messages to their piles, sending piles that are large enough."""
        for message in messages:
            self._enqueue_message(message)

    def wait_until_stored(self) -> SendCounts:
        """Send all waiting messages, and wait until all messages are stored."""
        self._ship_all()
        for lane in list(self._in_flight):
            self._await_lane(lane)
        return self.counts

    # -- piles ----------------------------------------------------------------------------------------------------

    def _enqueue_message(self, message: OutgoingMessage) -> None:
        key = self._pile_key(message)
        pile = self._piles.get(key)
        if pile is None:
            pile = self._piles[key] = _Pile()
        size = _ENTRY_OVERHEAD_BYTES + len(message.body) + len(message.properties)
        goes_alone = self._goes_alone(message, size)
        if pile.messages and (goes_alone or not self._fits_pile(pile, message, size)):
            self._ship_pile(key, pile)
        pile.messages.append(message)
        pile.size += size
        self._waiting_bytes += size
        if goes_alone:
            self._ship_pile(key, pile)
        elif self._waiting_bytes > _MAX_WAITING_BYTES:
            self._ship_all()

    def _pile_key(self, message: OutgoingMessage) -> _PileKey:
        topic = message.topic
        if message.queue_id is not None:
            queue = self._publish_infos.publish_info(topic).queue_by_id(message.queue_id, message.broker)
        elif message.key_hash is not None:
            queue = self._publish_infos.publish_info(topic).queue_by_hash(message.key_hash)
        else:
            return topic, None, None
        return topic, queue.broker, queue.queue_id

    def _goes_alone(self, message: OutgoingMessage, size: int) -> bool:
        return (
            message.timed
            or size > self._spec.batch_bytes
            or message.topic.startswith(RETRY_PREFIX)
            or len(message.topic) > _MAX_BATCH_TOPIC_LENGTH
        )

    def _fits_pile(self, pile: _Pile, message: OutgoingMessage, size: int) -> bool:
        return pile.size + size <= self._spec.batch_bytes and pile.messages[0].sys_flag == message.sys_flag

    def _ship_all(self) -> None:
        for key, pile in self._piles.items():
            if pile.messages:
                self._ship_pile(key, pile, self._count_parts(key, pile))

    def _count_parts(self, key: _PileKey, pile: _Pile) -> int:
        """Return the number of sends for a pile that is not full: one per queue if its rows may go to any queue.

        In a single send, the few rows of a task would all go to one queue, and so would the rows of a small stream.
        """
        topic, _, queue_id = key
        if queue_id is not None:
            return 1
        queues = len(self._publish_infos.publish_info(topic).queues)
        return max(1, min(queues, len(pile.messages) // MIN_SPREAD_MESSAGES))

    def _ship_pile(self, key: _PileKey, pile: _Pile, parts: int = 1) -> None:
        """Empty a pile, and send its messages in parts of equal length."""
        topic, broker, queue_id = key
        messages, size, count = pile.messages, pile.size, len(pile.messages)
        pile.messages, pile.size = [], 0
        self._waiting_bytes -= size
        for part in range(parts):
            queue = self._next_queue(topic)
            if queue_id is not None:
                queue = self._publish_infos.publish_info(topic).queue_by_id(queue_id, broker)
            part_messages = messages[part * count // parts : (part + 1) * count // parts]
            share = (part + 1) * size // parts - part * size // parts
            self._post_shipment(Shipment(queue, queue_id is not None, part_messages, share))

    def _next_queue(self, topic: str, not_at: str | None = None) -> WriteQueue:
        """Return the topic's next queue, round robin, preferably at another broker than `not_at`."""
        queues = self._publish_infos.publish_info(topic).queues
        other_queues = [queue for queue in queues if queue.address and queue.broker != not_at]
        choice = other_queues or queues
        self._round_robin += 1
        return choice[self._round_robin % len(choice)]

    # -- sending --------------------------------------------------------------------------------------------------

    def _post_shipment(self, shipment: Shipment) -> None:
        queue = shipment.queue
        lane = (queue.topic, queue.broker, queue.queue_id)
        # One send per lane, so that messages keep their order.
        if lane in self._in_flight:
            self._await_lane(lane)
        while self._in_flight and self._in_flight_bytes > _MAX_IN_FLIGHT_BYTES:
            self._await_lane(next(iter(self._in_flight)))
        try:
            client = self._client_for(queue)
        except EndpointError as error:
            self._retry_shipment(shipment, error)
            return
        try:
            opaque = client.start_command(self._build_command(shipment))
        except _FAILURES as error:
            self._drop_client(queue, client, error)
            self._retry_shipment(shipment, error)
            return
        self._in_flight[lane] = _InFlightSend(shipment, client, opaque)
        self._in_flight_bytes += shipment.size

    def _await_lane(self, lane: Lane) -> None:
        """Wait until the send in flight to a queue is stored."""
        sent = self._in_flight.pop(lane)
        self._in_flight_bytes -= sent.shipment.size
        try:
            self._confirm_stored(sent.shipment, sent.client, sent.opaque)
        except (*_FAILURES, RequestError) as error:
            self._drop_client(sent.shipment.queue, sent.client, error)
            self._retry_shipment(sent.shipment, error)

    def _confirm_stored(self, shipment: Shipment, client: BlockingClient, opaque: int) -> None:
        answer = client.receive_answer(opaque, timeout_s=self._spec.timeout_s)
        self._check_answer(shipment, answer)
        self.counts.messages += len(shipment.messages)
        self.counts.sends += 1

    def _retry_shipment(self, shipment: Shipment, failure: Exception) -> None:
        """Send a failed shipment again until it is stored or retries are exhausted.

        Nothing else is sent meanwhile, so the shipment is stored before later messages of its lane.
        """
        pause_s = self._spec.retry_interval_s
        for attempt in count(1):
            self._raise_if_permanent(shipment, failure)
            # One illegal message spoils its batch; sent alone, the others are stored and the row can be named.
            if isinstance(failure, RequestError) and failure.code == ResponseCode.MESSAGE_ILLEGAL:
                self._post_one_by_one(shipment)
                return
            if attempt > self._spec.retries:
                what = f"{len(shipment.messages)} messages to {_describe_queue(shipment.queue)}"
                raise EndpointError(f"{what}: {failure} (after {attempt} attempts)") from failure
            time.sleep(pause_s)
            pause_s *= 2
            try:
                self._resend_once(shipment)
                return
            except (*_FAILURES, RequestError) as error:
                failure = error

    def _resend_once(self, shipment: Shipment) -> None:
        self._reroute_shipment(shipment)
        client = self._client_for(shipment.queue)
        self.counts.resent += len(shipment.messages)
        try:
            self._confirm_stored(shipment, client, client.start_command(self._build_command(shipment)))
        except (*_FAILURES, RequestError) as error:
            self._drop_client(shipment.queue, client, error)
            raise

    def _raise_if_permanent(self, shipment: Shipment, failure: Exception) -> None:
        """Raise RowError for a refusal that a retry would not change."""
        if not isinstance(failure, RequestError) or failure.code in _RETRY_CODES:
            return
        rows = [message.row for message in shipment.messages]
        if failure.code == ResponseCode.MESSAGE_ILLEGAL and len(rows) > 1 and self.splits_illegal_batches:
            return
        which = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"
        raise RowError(
            f"{which}, to {_describe_queue(shipment.queue)}: {failure.remark} (code {failure.code})"
        ) from None

    def _post_one_by_one(self, shipment: Shipment) -> None:
        """Send each message of a refused batch alone; only the offending ones are refused then."""
        for message in shipment.messages:
            self._post_shipment(Shipment(shipment.queue, shipment.fixed, [message], len(message.body)))

    def _drop_client(self, queue: WriteQueue, client: BlockingClient, failure: Exception) -> None:
        """Forget a connection that failed, unless it was already replaced."""
        if (
            not isinstance(failure, RequestError)
            and queue.address
            and self._clients.get(queue.address) is client
        ):
            del self._clients[queue.address]
            self._connections.drop_client(queue.address)

    def _reroute_shipment(self, shipment: Shipment) -> None:
        """Look up the present address of a shipment's queue, or choose another queue if it may change."""
        queue = shipment.queue
        self._publish_infos.forget_topic(queue.topic)
        if shipment.fixed:
            shipment.queue = self._publish_infos.publish_info(queue.topic).queue_by_id(
                queue.queue_id, queue.broker
            )
        else:
            shipment.queue = self._next_queue(queue.topic, not_at=queue.broker)

    def _client_for(self, queue: WriteQueue) -> BlockingClient:
        if queue.address is None:
            raise EndpointError(f"The broker[{queue.broker}] not exist")
        if queue.address not in self._clients:
            self._clients[queue.address] = self._connections.get_client(queue.address)
        return self._clients[queue.address]

    def _build_command(self, shipment: Shipment) -> Command:
        return send_request(self._spec.producer_group, shipment.queue, shipment.messages).to_command()

    def _check_answer(self, shipment: Shipment, answer: Command) -> None:
        """Raise RequestError for a refusal."""
        if answer.code not in STORED_CODES:
            raise RequestError(answer.code, answer.remark)


def send_request(
    group: str, queue: WriteQueue, messages: list[OutgoingMessage]
) -> SendMessageV2 | SendBatchMessage:
    """Return the request for messages of one queue; a single message is sent without batch encoding."""
    first = messages[0]
    fields: dict[str, Any] = {
        "producer_group": group,
        "topic": queue.topic,
        "default_topic": DEFAULT_TOPIC,
        "default_topic_queue_nums": 4,
        "queue_id": queue.queue_id,
        "sys_flag": first.sys_flag,
        "born_timestamp": int(time.time() * 1000),
        "reconsume_times": 0,
        "unit_mode": False,
        "broker_name": queue.broker,
    }
    if len(messages) == 1:
        properties = first.properties.decode()
        return SendMessageV2(**fields, flag=first.flag, properties=properties, batch=False, body=first.body)
    packed = encode_batch((message.flag, message.body, message.properties) for message in messages)
    return SendBatchMessage(**fields, flag=0, properties="", batch=True, body=packed)


def _describe_queue(queue: WriteQueue) -> str:
    return f"queue {queue.queue_id} of {queue.topic} at {queue.broker}"
