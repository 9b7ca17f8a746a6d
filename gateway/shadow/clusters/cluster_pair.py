"""The primary and the target as a pair that is asked the same questions: queue ranges, messages, consumers, offsets."""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.message import Message, iter_messages
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, MAX_QUEUES_PER_TOPIC, Cluster, group_members
from gateway.shadow.traffic.exchange import Side
from remoting.errors import RequestError
from remoting.requests.offsets import QueryConsumerOffset
from remoting.requests.pull import read_only_pull
from remoting.requests.topics import GetTopicStatsInfo, QueryTopicConsumeByWho

LOOKUP_ERRORS: Final = (*CLUSTER_ERRORS, MessageFormatError, LookupError)
"""Exceptions of a request that fail because of a cluster; LookupError: the broker is not there."""
_MAX_PULL_MESSAGES: Final = 256


def find_counterpart(broker: str, brokers: Mapping[str, object], declared: Mapping[str, str]) -> str:
    """Return the declared broker name, else the same name, else the only broker; raise LookupError otherwise."""
    name = declared.get(broker, broker)
    if name in brokers:
        return name
    if broker not in declared and len(brokers) == 1:
        return next(iter(brokers))
    raise LookupError(f"the target has no broker {name!r}; it has {', '.join(sorted(brokers)) or 'none'}")


def queue_name(broker: str, queue_id: int) -> str:
    """Return the name of a queue of the primary in the file of moves."""
    return f"{broker}/{queue_id}"


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The queue offsets [low, high) of the messages in a queue."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class ClusterPair:
    """Both clusters. Brokers have the primary's names; ``counterpart`` returns the target's name for one.

    ``preserves_offsets``: the target preserves the primary's queue offsets.
    """

    primary: Cluster
    target: Cluster
    counterpart: Callable[[str], str]
    preserves_offsets: bool = False

    def locate_broker(self, side: Side, broker: str) -> tuple[Cluster, str]:
        """Return the cluster and the broker name on one side."""
        if side is Side.PRIMARY:
            return self.primary, broker
        return self.target, self.counterpart(broker)

    async def brokers_of(self, topic: str) -> list[str]:
        """Return the primary's brokers that have a topic; empty if there is no such topic."""
        try:
            route = await self.primary.route(topic)
        except RequestError as refused:
            if refused.code == ResponseCode.TOPIC_NOT_EXIST:
                return []
            raise
        return sorted({data.broker_name for data in route.queue_datas})

    async def queue_ranges(self, side: Side, broker: str, topic: str) -> dict[int, QueueRange]:
        """Return the range of every queue of a topic; empty if there is no such topic."""
        cluster, name = self.locate_broker(side, broker)
        try:
            table = (await cluster.ask_broker(name, GetTopicStatsInfo(topic=topic))).data.offset_table
        except RequestError as refused:
            if refused.code == ResponseCode.TOPIC_NOT_EXIST:
                return {}
            raise
        if len(table) > MAX_QUEUES_PER_TOPIC:
            raise OSError(f"{topic} has {len(table)} queues at {name}, more than {MAX_QUEUES_PER_TOPIC}")
        return {
            queue.queue_id: QueueRange(offsets.min_offset, offsets.max_offset)
            for queue, offsets in table.items()
        }

    async def consumer_offset(
        self, side: Side, broker: str, group: str, topic: str, queue_id: int
    ) -> int | None:
        """Return the offset at which a group continues; None if none is committed."""
        cluster, name = self.locate_broker(side, broker)
        request = QueryConsumerOffset(
            consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=False
        )
        try:
            return (await cluster.ask_broker(name, request)).offset
        except RequestError as refused:
            if refused.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def groups_of(self, side: Side, broker: str, topic: str) -> set[str]:
        """Return the groups that consume a topic or have offsets of it."""
        cluster, name = self.locate_broker(side, broker)
        return set((await cluster.ask_broker(name, QueryTopicConsumeByWho(topic=topic))).data.group_list)

    async def group_members(self, side: Side, broker: str, group: str) -> set[str]:
        """Return the client ids of a group's consumers."""
        cluster, name = self.locate_broker(side, broker)
        return await group_members(cluster, name, group)

    async def read_messages(
        self, side: Side, broker: str, topic: str, queue_id: int, start: int, stop: int
    ) -> AsyncGenerator[Message, None]:
        """Yield the messages of a queue in [start, stop), as far as they exist, in order."""
        cluster, name = self.locate_broker(side, broker)
        while start < stop:
            reply = await cluster.ask_broker(
                name, read_only_pull(topic, queue_id, start, min(_MAX_PULL_MESSAGES, stop - start))
            )
            for message in iter_messages(reply.body) if reply.code == ResponseCode.SUCCESS else ():
                if message.queue_offset < stop:
                    yield message
            # Without progress the queue ends here; asking on would never end.
            if reply.next_begin_offset <= start:
                return
            start = reply.next_begin_offset
