"""Sends the messages of one task: together where that is allowed, to many queues at once, each queue in order.

At most one send of a queue is under way, so that a broker with several sending threads cannot change their order, and
so that what is sent again after a failure comes before what follows. Queues do not wait for each other.

Not responsible for what the messages are, nor for a task that is tried again: a send that failed after the broker had
stored it is sent twice, with the same ids.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Self

from codec.batch import encode_batch
from codec.command import Command
from codec.constants import STORED, ResponseCode
from codec.topics import DEFAULT_TOPIC, RETRY_PREFIX
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.send import SendBatchMessage, SendMessageV2
from spark.endpoint import Address, Connections
from spark.errors import EndpointError, RowError
from spark.sink.options import SinkSpec
from spark.sink.queues import Publications, Queue
from spark.sink.rows import Outgoing

_RETRY_CODES: Final = frozenset({1, 2, 14, 16, 17, 204, 205, 215, 1500})
"""Refusals that another try may not meet: those of DefaultMQProducer.retryResponseCodes, 5.4.0, and FLOW_CONTROL."""
_FAILURES: Final = (RemotingClosed, RemotingTimeout, EndpointError, OSError)
_LONGEST_BATCH_TOPIC: Final = 127
_ENTRY_BYTES: Final = 22
_WAITING_BYTES: Final = 16 * 1024 * 1024
"""What may wait to be sent, of all queues together, before it is sent as it is."""
_UNDER_WAY_BYTES: Final = 16 * 1024 * 1024

Lane = tuple[str, str, int]
_Place = tuple[str, str, int] | tuple[str, None, None]
"""A lane, or a topic whose queue does not matter."""


@dataclass(slots=True)
class Counts:
    """What became of a task's rows; `resent` were sent more than once, and may be there twice."""

    messages: int = 0
    sends: int = 0
    resent: int = 0


@dataclass(slots=True)
class _Pile:
    """Messages that wait to be sent together."""

    messages: list[Outgoing] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True)
class Shipment:
    """Messages of one send. A fixed queue is never left for another; `number` is for who counts sends."""

    queue: Queue
    fixed: bool
    messages: list[Outgoing]
    size: int
    number: int = 0


@dataclass(slots=True)
class _UnderWay:
    """A send whose answer is missing."""

    shipment: Shipment
    client: BlockingClient
    opaque: int


class Sender:
    """Takes messages one by one; `finish` returns when all are stored. Every method raises EndpointError, RowError."""

    splits = True
    """Whether messages a broker refuses together are sent one by one, to find the guilty ones."""

    def __init__(
        self,
        spec: SinkSpec,
        partition: int,
        connections: Connections | None = None,
        only_broker: str | None = None,
    ) -> None:
        self._spec = spec
        self._connections = connections or Connections(spec.endpoint)
        self._publications = Publications(self._connections, only_broker)
        self._clients: dict[Address, BlockingClient] = {}
        self._piles: dict[_Place, _Pile] = {}
        self._under_way: dict[Lane, _UnderWay] = {}
        self._waiting_bytes = 0
        self._under_way_bytes = 0
        self._turn = partition
        self.counts = Counts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connections.close()

    def add_all(self, messages: Iterable[Outgoing]) -> None:
        """Sends what is enough for a send, keeps the rest."""
        for message in messages:
            self._add(message)

    def finish(self) -> Counts:
        """Sends what is left, and waits until all is stored."""
        self._ship_all()
        for lane in list(self._under_way):
            self._settle(lane)
        return self.counts

    # -- putting together -----------------------------------------------------------------------------------------

    def _add(self, message: Outgoing) -> None:
        place = self._place(message)
        pile = self._piles.get(place)
        if pile is None:
            pile = self._piles[place] = _Pile()
        size = _ENTRY_BYTES + len(message.body) + len(message.properties)
        alone = self._goes_alone(message, size)
        if pile.messages and (alone or not self._fits(pile, message, size)):
            self._ship(place, pile)
        pile.messages.append(message)
        pile.size += size
        self._waiting_bytes += size
        if alone:
            self._ship(place, pile)
        elif self._waiting_bytes > _WAITING_BYTES:
            self._ship_all()

    def _place(self, message: Outgoing) -> _Place:
        topic = message.topic
        if message.queue_id is not None:
            queue = self._publications.of(topic).named(message.queue_id, message.broker)
        elif message.key_hash is not None:
            queue = self._publications.of(topic).by_hash(message.key_hash)
        else:
            return topic, None, None
        return topic, queue.broker, queue.queue_id

    def _goes_alone(self, message: Outgoing, size: int) -> bool:
        return (
            message.timed
            or size > self._spec.batch_bytes
            or message.topic.startswith(RETRY_PREFIX)
            or len(message.topic) > _LONGEST_BATCH_TOPIC
        )

    def _fits(self, pile: _Pile, message: Outgoing, size: int) -> bool:
        return pile.size + size <= self._spec.batch_bytes and pile.messages[0].sys_flag == message.sys_flag

    def _ship_all(self) -> None:
        for place, pile in self._piles.items():
            if pile.messages:
                self._ship(place, pile)

    def _ship(self, place: _Place, pile: _Pile) -> None:
        topic, broker, queue_id = place
        messages, size = pile.messages, pile.size
        pile.messages, pile.size = [], 0
        self._waiting_bytes -= size
        fixed = queue_id is not None
        queue = self._next_queue(topic)
        if queue_id is not None:
            queue = self._publications.of(topic).named(queue_id, broker)
        self._post(Shipment(queue, fixed, messages, size))

    def _next_queue(self, topic: str, not_at: str | None = None) -> Queue:
        """The next of a topic's queues, at another broker if it has one."""
        queues = self._publications.of(topic).queues
        others = [queue for queue in queues if queue.address and queue.broker != not_at]
        choice = others or queues
        self._turn += 1
        return choice[self._turn % len(choice)]

    # -- sending --------------------------------------------------------------------------------------------------

    def _post(self, shipment: Shipment) -> None:
        queue = shipment.queue
        lane = (queue.topic, queue.broker, queue.queue_id)
        if lane in self._under_way:
            self._settle(lane)
        while self._under_way and self._under_way_bytes > _UNDER_WAY_BYTES:
            self._settle(next(iter(self._under_way)))
        try:
            client = self._client(queue)
        except EndpointError as error:
            self._again(shipment, error)
            return
        try:
            opaque = client.post(self._command(shipment))
        except _FAILURES as error:
            self._drop(queue, client, error)
            self._again(shipment, error)
            return
        self._under_way[lane] = _UnderWay(shipment, client, opaque)
        self._under_way_bytes += shipment.size

    def _settle(self, lane: Lane) -> None:
        """Waits until what is under way to a queue is stored."""
        sent = self._under_way.pop(lane)
        self._under_way_bytes -= sent.shipment.size
        try:
            self._stored(sent.shipment, sent.client, sent.opaque)
        except (*_FAILURES, RequestError) as error:
            self._drop(sent.shipment.queue, sent.client, error)
            self._again(sent.shipment, error)

    def _stored(self, shipment: Shipment, client: BlockingClient, opaque: int) -> None:
        answer = client.answer(opaque, timeout_s=self._spec.timeout_s)
        self._read(shipment, answer)
        self.counts.messages += len(shipment.messages)
        self.counts.sends += 1

    def _again(self, shipment: Shipment, failure: Exception) -> None:
        """Sends it until it is stored or there is no hope."""
        pause_s = self._spec.retry_interval_s
        for attempt in count(1):
            self._give_up_on(shipment, failure)
            if isinstance(failure, RequestError) and failure.code == ResponseCode.MESSAGE_ILLEGAL:
                self._one_by_one(shipment)
                return
            if attempt > self._spec.retries:
                what = f"{len(shipment.messages)} messages to {_named(shipment.queue)}"
                raise EndpointError(f"{what}: {failure} (tried {attempt} times)") from failure
            time.sleep(pause_s)
            pause_s *= 2
            try:
                self._once_more(shipment)
                return
            except (*_FAILURES, RequestError) as error:
                failure = error

    def _once_more(self, shipment: Shipment) -> None:
        self._move(shipment)
        client = self._client(shipment.queue)
        self.counts.resent += len(shipment.messages)
        try:
            self._stored(shipment, client, client.post(self._command(shipment)))
        except (*_FAILURES, RequestError) as error:
            self._drop(shipment.queue, client, error)
            raise

    def _give_up_on(self, shipment: Shipment, failure: Exception) -> None:
        """Raises for a refusal that will not change."""
        if not isinstance(failure, RequestError) or failure.code in _RETRY_CODES:
            return
        rows = [message.row for message in shipment.messages]
        if failure.code == ResponseCode.MESSAGE_ILLEGAL and len(rows) > 1 and self.splits:
            return
        which = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"
        raise RowError(
            f"{which}, to {_named(shipment.queue)}: {failure.remark} (code {failure.code})"
        ) from None

    def _one_by_one(self, shipment: Shipment) -> None:
        """A broker that refuses messages together takes all but the guilty ones alone."""
        for message in shipment.messages:
            self._post(Shipment(shipment.queue, shipment.fixed, [message], len(message.body)))

    def _drop(self, queue: Queue, client: BlockingClient, failure: Exception) -> None:
        """Forgets a connection that failed, unless there is another one by now."""
        if (
            not isinstance(failure, RequestError)
            and queue.address
            and self._clients.get(queue.address) is client
        ):
            del self._clients[queue.address]
            self._connections.drop(queue.address)

    def _move(self, shipment: Shipment) -> None:
        """To where its queue is now, or to another one if it may go there."""
        queue = shipment.queue
        self._publications.forget(queue.topic)
        if shipment.fixed:
            shipment.queue = self._publications.of(queue.topic).named(queue.queue_id, queue.broker)
        else:
            shipment.queue = self._next_queue(queue.topic, not_at=queue.broker)

    def _client(self, queue: Queue) -> BlockingClient:
        if queue.address is None:
            raise EndpointError(f"The broker[{queue.broker}] not exist")
        if queue.address not in self._clients:
            self._clients[queue.address] = self._connections.to(queue.address)
        return self._clients[queue.address]

    def _command(self, shipment: Shipment) -> Command:
        return send_request(self._spec.producer_group, shipment.queue, shipment.messages).to_command()

    def _read(self, shipment: Shipment, answer: Command) -> None:
        """Raises RequestError for a refusal."""
        if answer.code not in STORED:
            raise RequestError(answer.code, answer.remark)


def send_request(group: str, queue: Queue, messages: list[Outgoing]) -> SendMessageV2 | SendBatchMessage:
    """The send of these messages of one queue, of a single one as it is."""
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


def _named(queue: Queue) -> str:
    return f"queue {queue.queue_id} of {queue.topic} at {queue.broker}"
