"""The primary and the target as one pair, asked the same questions: where queues end, what is stored, who consumes.

Not responsible for what follows from the answers (checks).
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.message import Message, iter_messages
from gateway.shadow.clusters.cluster import ASKING_FAILED, Cluster, group_members
from gateway.shadow.traffic.exchange import Side
from remoting.errors import RequestError
from remoting.read_only_pull import read_only_pull
from remoting.requests.offsets import QueryConsumerOffset
from remoting.requests.topics import GetTopicStatsInfo, QueryTopicConsumeByWho

LOOKUP_ERRORS: Final = (*ASKING_FAILED, MessageFormatError, LookupError)
"""What asking one of the two raises when it is the cluster's doing; LookupError: a broker that is not there."""
_MAX_PULL_MESSAGES: Final = 256


def queue_name(broker: str, queue_id: int) -> str:
    """How a queue of the primary is named in the file of moves."""
    return f"{broker}/{queue_id}"


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The queue offsets [low, high) of the messages in a queue."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class ClusterPair:
    """Both clusters. Brokers are named as the primary's; ``counterpart`` gives the target's name of one.

    ``kept``: the target keeps the primary's queue offsets.
    """

    primary: Cluster
    target: Cluster
    counterpart: Callable[[str], str]
    preserves_offsets: bool = False

    def locate_broker(self, side: Side, broker: str) -> tuple[Cluster, str]:
        """Cluster and broker name on one side."""
        if side is Side.PRIMARY:
            return self.primary, broker
        return self.target, self.counterpart(broker)

    async def brokers_of(self, topic: str) -> list[str]:
        """The primary's brokers that have a topic; none when nobody knows it."""
        try:
            route = await self.primary.route(topic)
        except RequestError as refused:
            if refused.code == ResponseCode.TOPIC_NOT_EXIST:
                return []
            raise
        return sorted({data.broker_name for data in route.queue_datas})

    async def queue_ranges(self, side: Side, broker: str, topic: str) -> dict[int, QueueRange]:
        """Where each queue of a topic begins and ends; empty when there is no such topic."""
        cluster, name = self.locate_broker(side, broker)
        try:
            table = (await cluster.ask_broker(name, GetTopicStatsInfo(topic=topic))).data.offset_table
        except RequestError as refused:
            if refused.code == ResponseCode.TOPIC_NOT_EXIST:
                return {}
            raise
        return {queue.queue_id: QueueRange(each.min_offset, each.max_offset) for queue, each in table.items()}

    async def consumer_offset(
        self, side: Side, broker: str, group: str, topic: str, queue_id: int
    ) -> int | None:
        """Where a group goes on; None when that is not written."""
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
        """The groups with consumers or offsets of a topic."""
        cluster, name = self.locate_broker(side, broker)
        return set((await cluster.ask_broker(name, QueryTopicConsumeByWho(topic=topic))).data.group_list)

    async def group_members(self, side: Side, broker: str, group: str) -> set[str]:
        """The client ids of a group's consumers."""
        cluster, name = self.locate_broker(side, broker)
        return await group_members(cluster, name, group)

    async def read_messages(
        self, side: Side, broker: str, topic: str, queue_id: int, start: int, stop: int
    ) -> AsyncGenerator[Message, None]:
        """The messages at [start, stop) of a queue that are there, in order."""
        cluster, name = self.locate_broker(side, broker)
        while start < stop:
            reply = await cluster.ask_broker(
                name, read_only_pull(topic, queue_id, start, min(_MAX_PULL_MESSAGES, stop - start))
            )
            for message in iter_messages(reply.body) if reply.code == ResponseCode.SUCCESS else ():
                if message.queue_offset < stop:
                    yield message
            if reply.next_begin_offset <= start:
                return
            start = reply.next_begin_offset
