"""Test helper: a primary and a target that preserves its offsets, in memory and in virtual time."""

from typing import Any

import trio

from codec.message import Message, iter_messages
from gateway.broker.broker import Broker
from gateway.shadow.replication.feed_set import FeedSet
from gateway.shadow.replication.settings import QueueCopySettings
from gateway.shadow.tests.two_clusters import ClusterView
from remoting.bodies.topics import TopicConfig
from storage.append import NewMessage
from storage.files import MemoryFiles

PRESERVED_FIELDS = (
    "topic", "queue_id", "queue_offset", "body", "properties", "flag", "sys_flag", "born_timestamp", "born_host",
    "store_timestamp", "reconsume_times", "prepared_transaction_offset",
)  # fmt: skip
BROKER = "broker-a"


class ReplicatedClusters:
    """Both clusters, and the feeds between them. `topics` selects the topics to replicate."""

    def __init__(self, primary: ClusterView, target: ClusterView, **settings: Any) -> None:
        self.primary, self.target = primary, target
        self.settings = QueueCopySettings(**{"wait_ms": 1000, "discover_ms": 1000, **settings})
        self.topics = {"t"}
        self.feeds = FeedSet(primary, target, self.settings, lambda name: name, self.selects_queue)
        self.files = MemoryFiles()

    def selects_queue(self, broker: str, topic: str, queue_id: int) -> bool:
        return topic in self.topics

    def broker_of(self, side: ClusterView) -> Broker:
        return next(node.broker for node in side.simulated.nodes.values() if node.registrar)

    async def start(self, nursery: trio.Nursery, queues: int = 2) -> None:
        """Create topic `t` at the primary, start the target, and run the feeds."""
        await self.restart_target()
        self.broker_of(self.primary).topics.update([topic("t", queues)])
        nursery.start_soon(self.feeds.run)

    async def crash_target(self) -> None:
        """Crash the target's broker; `restart_target` starts it again."""
        node = next(node for node in self.target.simulated.nodes.values() if node.registrar)
        await node.crash()
        for connection in self.target._connections.values():
            connection.close("the process is gone")

    async def restart_target(self) -> None:
        nodes = self.target.simulated.nodes
        node = next(node for node in nodes.values() if node.registrar)
        if not node.ended.is_set():
            await node.stop()
        del nodes[node.address]
        await self.target.add_broker(BROKER, host=node.address[0], files=self.files, mirror_target=True)

    def send(
        self, *bodies: bytes, topic: str = "t", queue_id: int = 0, properties: bytes = b"UNIQ_KEY\x01u\x02"
    ) -> None:
        """Store messages at the primary without an exchange."""
        broker = self.broker_of(self.primary)
        for body in bodies:
            broker.store.append(NewMessage(topic, queue_id, body, properties))
        broker.long_polls.mark_grown(topic, queue_id)
        broker.long_polls.answer_marked()

    def stored_messages(
        self, side: ClusterView, topic: str = "t", queue_id: int = 0
    ) -> list[tuple[Any, ...]]:
        """Return the messages of a queue, as tuples of the fields that must be the same on both sides."""
        store = self.broker_of(side).store
        offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        found: list[Message] = []
        while offset < end:
            result = store.read(topic, queue_id, offset, 32)
            found += iter_messages(b"".join(bytes(chunk) for chunk in result.chunks))
            offset = result.next_offset
        return [tuple(getattr(message, name) for name in PRESERVED_FIELDS) for message in found]

    def queues_equal(self, topic: str = "t", queues: int = 2) -> bool:
        """Tell whether both sides have the same messages in all queues."""
        return all(
            self.stored_messages(self.primary, topic, queue)
            == self.stored_messages(self.target, topic, queue)
            for queue in range(queues)
        )

    async def wait_until_equal(self, topic: str = "t", queues: int = 2) -> None:
        """Wait in virtual time until both sides have the same messages."""
        with trio.fail_after(120):
            while not self.queues_equal(topic, queues):
                await trio.sleep(0.05)


def topic(name: str, queues: int = 2, **more: Any) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, **more)
