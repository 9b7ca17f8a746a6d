"""A primary, and a target that keeps its offsets, in memory on virtual time; no tests."""

import trio

from codec.message import iter_messages
from gateway.shadow.replication.feed_set import FeedSet
from gateway.shadow.replication.settings import ReplicationSettings
from remoting.bodies.topics import TopicConfig
from storage.files import MemoryFiles

PRESERVED_FIELDS = (
    "topic", "queue_id", "queue_offset", "body", "properties", "flag", "sys_flag", "born_timestamp", "born_host",
    "store_timestamp", "reconsume_times", "prepared_transaction_offset",
)  # fmt: skip
BROKER = "broker-a"


class ReplicatedClusters:
    """Both brokers, and the feeds between them; ``wanted`` may be changed."""

    def __init__(self, primary, target, **settings):
        self.primary, self.target = primary, target
        self.settings = ReplicationSettings(**{"wait_ms": 1000, "discover_ms": 1000, **settings})
        self.topics = {"t"}
        self.feeds = FeedSet(primary, target, self.settings, lambda name: name, self.selects_queue)
        self.files = MemoryFiles()

    def selects_queue(self, broker, topic, queue_id):
        return topic in self.topics

    def broker_of(self, side):
        return next(node.broker for node in side.simulated.nodes.values() if node.registrar)

    async def start(self, nursery, queues=2):
        """A topic at the primary, a target that may be mirrored to, and the feeds at work."""
        await self.restart_target()
        self.broker_of(self.primary).topics.update([topic("t", queues)])
        nursery.start_soon(self.feeds.run)

    async def crash_target(self):
        """Ends it without closing anything; a test calls `restart_target` then."""
        node = next(node for node in self.target.simulated.nodes.values() if node.registrar)
        await node.crash()
        for connection in self.target._connections.values():
            connection.close("the process is gone")

    async def restart_target(self):
        nodes = self.target.simulated.nodes
        node = next(node for node in nodes.values() if node.registrar)
        if not node.ended.is_set():
            await node.stop()
        del nodes[node.address]
        await self.target.add_broker(BROKER, host=node.address[0], files=self.files, mirror_target=True)

    def send(self, *bodies, topic="t", queue_id=0, properties=b"UNIQ_KEY\x01u\x02"):
        """Messages the primary stores without the gateway hearing of it."""
        broker = self.broker_of(self.primary)
        for body in bodies:
            broker.store.append(topic, queue_id, body, properties)
        broker.long_polls.appended(topic, queue_id)
        broker.long_polls.wake()

    def stored_messages(self, side, topic="t", queue_id=0):
        """What a queue holds, as far as it has to be the same on both sides."""
        store = self.broker_of(side).store
        offset, end, found = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id), []
        while offset < end:
            result = store.read(topic, queue_id, offset, 32)
            found += iter_messages(b"".join(bytes(chunk) for chunk in result.chunks))
            offset = result.next_offset
        return [tuple(getattr(message, name) for name in PRESERVED_FIELDS) for message in found]

    def queues_equal(self, topic="t", queues=2):
        """Whether target and primary hold the same in all queues."""
        return all(
            self.stored_messages(self.primary, topic, queue)
            == self.stored_messages(self.target, topic, queue)
            for queue in range(queues)
        )

    async def wait_until_equal(self, topic="t", queues=2):
        """Waits for it, in virtual time."""
        with trio.fail_after(120):
            while not self.queues_equal(topic, queues):
                await trio.sleep(0.05)


def topic(name, queues=2, **more):
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, **more)
