"""A cluster without servers: queues hold a number of messages with store times and sizes."""

from collections.abc import Mapping, Sequence

from spark.cluster import Extent, Queue
from spark.errors import EndpointError

ADDRESS = ("127.0.0.1", 10911)


class FakeCluster:
    """`fill` sets where queues begin and end. Message n of a queue is stored at n seconds and `size` bytes large."""

    def __init__(self, **topics: Sequence[int]) -> None:
        self.held: dict[Queue, Extent] = {}
        self.groups: dict[str, dict[Queue, int]] = {}
        self.live: set[str] = set()
        self.lives: dict[Queue, int] = {}
        """Number of times that a queue began anew."""
        self.size = 100
        self.questions = 0
        for topic, counts in topics.items():
            for number, count in enumerate(counts):
                self.fill(topic, number, count)

    def fill(self, topic: str, queue_id: int, end: int, begin: int = 0, broker: str = "broker-a") -> Queue:
        queue = Queue(topic, broker, queue_id)
        self.held[queue] = Extent(begin, end)
        return queue

    def close(self) -> None:
        pass

    def list_topics(self) -> list[str]:
        return sorted({queue.topic for queue in self.held})

    def find_queues(self, topics: Sequence[str]) -> dict[Queue, tuple[str, int]]:
        return {queue: ADDRESS for queue in self.held if queue.topic in topics}

    def unknown_topic_error(self, topic: str) -> EndpointError:
        return EndpointError(f"there is no topic {topic}")

    def fetch_extents(self, queues: Mapping[Queue, object]) -> dict[Queue, Extent]:
        self.questions += 1
        return {queue: self.held[queue] for queue in queues}

    def find_offsets_at(
        self, queues: Mapping[Queue, object], times_ms: Mapping[Queue, int]
    ) -> dict[Queue, int]:
        return {
            queue: min(max(-(-times_ms[queue] // 1000), self.held[queue].begin), self.held[queue].end)
            for queue in queues
        }

    def fetch_committed(self, group: str, queues: Mapping[Queue, object]) -> dict[Queue, int]:
        return {queue: at for queue, at in self.groups.get(group, {}).items() if queue in queues}

    def commit_offsets(
        self, group: str, queues: Mapping[Queue, object], offsets: Mapping[Queue, int]
    ) -> None:
        self.groups[group] = {queue: at for queue, at in offsets.items() if queue in queues}

    def has_live_consumers(self, group: str, queues: Mapping[Queue, object]) -> bool:
        return group in self.live

    def sample_sizes(
        self, queues: Mapping[Queue, object], spots: Mapping[Queue, Sequence[tuple[int, int]]]
    ) -> dict[Queue, list[list[int]]]:
        return {queue: [[self.size] * count for _, count in found] for queue, found in spots.items()}

    def fingerprint_messages(
        self, queues: Mapping[Queue, object], offsets: Mapping[Queue, int]
    ) -> dict[Queue, int]:
        return {
            queue: hash((self.lives.get(queue, 0), offset))
            for queue, offset in offsets.items()
            if self.held[queue].begin <= offset < self.held[queue].end
        }

    def check_expression(self, *_: object) -> None:
        pass
