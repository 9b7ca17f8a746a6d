"""A whole broker in memory that is called through its handlers: every request travels as bytes of header and body."""

import gc
from collections.abc import Sequence
from typing import Any, TypeVar

import trio

from codec.command import Command, decode_frame
from codec.message import Message, decode_message
from gateway.broker.assembly.build import BrokerBuilder
from gateway.broker.processors import all_handlers
from gateway.tests.broker_fakes import FakeClock, FakeConnection, run_inline
from gateway.tests.configs import broker_config
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from remoting.bodies.topics import TopicConfig
from remoting.declare import Header, Request
from remoting.errors import RequestError
from remoting.requests.client import HeartBeat, HeartbeatReply
from storage.append import NewMessage
from storage.files import Files, MemoryFiles

Reply = TypeVar("Reply", bound=Header | None)

CLIENT_VERSION = 493


class World:
    """One broker named b1 of cluster c1 on virtual time."""

    def __init__(self, files: Files | None = None, clock: FakeClock | None = None, **settings: Any) -> None:
        self.clock = clock or FakeClock()
        self.files: Files = files or MemoryFiles()
        config = broker_config(
            broker_name="b1", broker_cluster_name="c1", store_path_root_dir="/store", **settings
        )
        self.broker = BrokerBuilder(
            memory=True,
            clock=self.clock,
            run_blocking=run_inline,
            port=lambda: 10911,
            files=self.files,
        ).build(config)
        self.handlers = all_handlers().bind(self.broker)
        self.connection = FakeConnection()

    def ask(
        self, request: Request[Reply], connection: FakeConnection | None = None, version: int = CLIENT_VERSION
    ) -> Reply:
        """Return the typed reply. Raise RequestError for a refusal, raised by the handler or written as an answer."""
        command = request.to_command(7)
        command.version = version
        connection = connection or self.connection
        answer = self.handlers[request.code](connection, command)
        if answer is None and connection.spawned:
            connection.run_spawned()
            answer = connection.written.pop()
        return request.read_reply(answer_of(answer))

    def ask_async(self, request: Request[Reply], connection: FakeConnection | None = None) -> Reply:
        """Ask as `ask` does, a handler that waits for a client."""
        connection = connection or self.connection

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                connection.nursery = nursery
                assert self.handlers[request.code](connection, request.to_command(7)) is None

        trio.run(main)
        return request.read_reply(answer_of(connection.written.pop()))

    def put(
        self,
        topic: str = "t",
        queue_id: int = 0,
        body: bytes = b"hello",
        properties: dict[str, str] | None = None,
        **more: Any,
    ) -> tuple[int, int]:
        """Store a message and return (queue offset, physical offset)."""
        message = NewMessage(topic, queue_id, body, dict(properties or {}), **more)
        return self.broker.writer.write(message)[:2]

    def stored(self, topic: str, queue_id: int = 0) -> list[Message]:
        """Return every message of a queue."""
        store = self.broker.store
        ends = range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
        return [decode_message(store.read(topic, queue_id, offset, 1).chunks[0]) for offset in ends]

    def topic(self, name: str = "t", queues: int = 4) -> TopicConfig:
        """Return a topic, created if it is new."""
        config = self.broker.topics.create_for_send(name, "TBW102", queues)
        assert config is not None
        return config

    def beat(
        self,
        connection: FakeConnection | None,
        *topics: str,
        group: str | None = "g",
        client_id: str = "c1",
        producers: Sequence[str] = (),
        fingerprint: int = 0,
        without: bool = False,
        **more: Any,
    ) -> HeartbeatReply:
        """Send a heartbeat of a consumer (unless there are no topics and no group) and of producers."""
        subscriptions = [SubscriptionData(topic=topic, sub_string="*", sub_version=1) for topic in topics]
        consumer = ConsumerData(
            group_name=group or "",
            consume_type=more.get("consume_type", "CONSUME_PASSIVELY"),
            message_model=more.get("message_model", "CLUSTERING"),
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=subscriptions,
        )
        data = HeartbeatData(
            client_id=client_id,
            consumer_data_set=[consumer] if group else [],
            producer_data_set=[ProducerData(group_name=name) for name in producers],
            heartbeat_fingerprint=fingerprint,
            without_sub=without,
        )
        return self.ask(HeartBeat(data=data), connection)


def answer_of(frame: bytes) -> Command:
    """Decode the command in an answer's bytes."""
    answer = decode_frame(frame, 4, len(frame))
    assert answer.is_response
    assert answer.opaque == 7
    return answer


def count_garbage_of_refusals(world: World, request: Request[Any]) -> int:
    """Have a request refused, and return the number of objects that only a garbage collection frees then."""
    handler = world.handlers[request.code]

    def is_refused() -> bool:
        try:
            handler(world.connection, request.to_command(7))
        except RequestError:
            return True
        return False

    assert is_refused()
    gc.collect()
    gc.disable()
    try:
        assert is_refused()
        return gc.collect()
    finally:
        gc.enable()
