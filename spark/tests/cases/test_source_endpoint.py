"""Queries of the driver to a real endpoint, without Spark: topics, positions, sizes, groups, filters."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from compat_tests.clients.typed import (
    connect,
    consumer_ids,
    create_group,
    create_topic,
    heartbeat_request,
    send_readable,
)
from compat_tests.server import ServerUnderTest, eventually, split_address
from remoting.requests.topics import DeleteTopicInBroker
from spark.cluster import ClusterClient, Extent, Queue
from spark.endpoint import ClusterEndpoint
from spark.errors import DataLossError, EndpointError, OptionError
from spark.source.batch_reader import QueuePartition, RocketmqReader
from spark.source.options import source_options
from spark.source.stream_reader import RocketmqStreamReader


@pytest.fixture
def cluster(server: ServerUnderTest) -> Iterator[ClusterClient]:
    cluster = ClusterClient(ClusterEndpoint((split_address(server.namesrv),), retry_interval_s=0.01))
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def topic(server: ServerUnderTest) -> str:
    """Three queues, with 40, 3 and no messages."""
    topic = server.topic_name()
    create_topic(server, topic, 3)
    with connect(server.broker) as broker:
        for queue, count in ((0, 40), (1, 3)):
            for number in range(count):
                send_readable(
                    broker,
                    topic,
                    b"x" * (1 + 100 * number),
                    queue_id=queue,
                    properties={"number": str(number)},
                )
    return topic


def test_topics_and_queues(server: ServerUnderTest, cluster: ClusterClient, topic: str) -> None:
    names = cluster.list_topics()
    assert topic in names
    assert not {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"} & set(names)
    assert not [
        name for name in names if name.lower().startswith("rmq_sys_") or name.endswith("_REPLY_TOPIC")
    ]
    queues = cluster.find_queues([topic, f"{topic}-missing"])
    assert {(queue.topic, queue.queue_id) for queue in queues} == {(topic, number) for number in range(3)}
    assert set(queues.values()) == {split_address(server.broker)}
    assert f"did you mean {topic}?" in str(cluster.unknown_topic_error(topic + "s"))
    assert [extent for _, extent in sorted(cluster.fetch_extents(queues).items())] == [
        Extent(0, 40),
        Extent(0, 3),
        Extent(0, 0),
    ]


def test_times(server: ServerUnderTest, cluster: ClusterClient, topic: str) -> None:
    queues = cluster.find_queues([topic])
    assert sorted(cluster.find_offsets_at(queues, dict.fromkeys(queues, 0)).values()) == [0, 0, 0]
    ends = {queue: extent.end for queue, extent in cluster.fetch_extents(queues).items()}
    assert cluster.find_offsets_at(queues, dict.fromkeys(queues, 1 << 42)) == ends
    options = {"nameServer": server.namesrv, "subscribe": topic, "startingTimestamp": str(1 << 42)}
    reader = RocketmqReader(source_options(options))
    with pytest.raises(OptionError, match="nothing was stored in"):
        reader.partitions()


def test_sizes_are_those_stored(cluster: ClusterClient, topic: str) -> None:
    queues = {queue: where for queue, where in cluster.find_queues([topic]).items() if queue.queue_id == 0}
    (queue,) = queues
    spots = {queue: [(0, 10), (20, 5)]}
    first, second = cluster.sample_sizes(queues, spots)[queue]
    assert (len(first), len(second)) == (10, 5)
    grown = [after - before for before, after in pairwise(first[1:])]
    assert grown == [100] * 8
    assert second[0] > first[9]
    # where the broker does not tell, the messages do
    (where,) = queues.values()
    pulled = cluster._sizes_of_messages(where, [(queue, 0, 10), (queue, 20, 5)], "sizes")
    assert [len(sizes) for sizes in pulled] == [10, 5]
    assert pulled == [first, second]


def test_groups(server: ServerUnderTest, cluster: ClusterClient, topic: str) -> None:
    queues = cluster.find_queues([topic])
    group = server.unique_name("group")
    assert cluster.fetch_committed(group, queues) == {}
    assert not cluster.has_live_consumers(group, queues)
    with connect(server.broker) as broker:
        create_group(broker, group)
        offsets = {queue: 2 for queue in queues if queue.queue_id < 2}
        cluster.commit_offsets(group, queues, offsets)
        assert eventually(lambda: cluster.fetch_committed(group, queues) == offsets)
        broker.ask(heartbeat_request("somebody", group, topic))
        assert eventually(lambda: cluster.has_live_consumers(group, queues))
        assert consumer_ids(broker, group) == {"somebody"}
        with pytest.raises(EndpointError, match="not exist"):
            cluster.commit_offsets(server.unique_name("missing"), queues, offsets)


def test_first_commits_of_many_groups(server: ServerUnderTest, cluster: ClusterClient, topic: str) -> None:
    """Without ordering, the official broker loses the first commits of one or two groups in a hundred."""
    queues = cluster.find_queues([topic])
    offsets = dict.fromkeys(queues, 0)
    groups = [server.unique_name("group") for _ in range(150)]
    with connect(server.broker) as broker:
        for group in groups:
            create_group(broker, group)
    for group in groups:
        cluster.commit_offsets(group, queues, offsets)
    assert [group for group in groups if cluster.fetch_committed(group, queues) != offsets] == []


def test_filters_are_checked(cluster: ClusterClient, topic: str) -> None:
    where = next(iter(cluster.find_queues([topic]).values()))
    cluster.check_expression(topic, where, "number > 3")
    with pytest.raises(EndpointError, match="refuses SQL92 'number >'"):
        cluster.check_expression(topic, where, "number >")


def test_a_batch_is_planned(server: ServerUnderTest, topic: str) -> None:
    options = {"nameServer": server.namesrv, "subscribePattern": f"{topic}.*", "maxRecordsPerPartition": "20"}
    partitions = RocketmqReader(source_options(options)).partitions()
    found = [each for part in partitions if isinstance(part, QueuePartition) for each in part.ranges]
    assert sorted((Queue(each.topic, "", each.queue_id), each.start, each.end) for each in found) == [
        (Queue(topic, "", 0), 0, 20),
        (Queue(topic, "", 0), 20, 40),
        (Queue(topic, "", 1), 0, 3),
    ]


def test_an_endpoint_that_is_gone_is_said(server: ServerUnderTest) -> None:
    endpoint = ClusterEndpoint((("127.0.0.1", 1),), retries=1, retry_interval_s=0.0)
    with pytest.raises(EndpointError, match=r"127\.0\.0\.1:1 cannot be reached.*\(after 2 attempts\)"):
        ClusterClient(endpoint).find_queues(["t"])


def test_a_topic_made_anew_is_a_loss(server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 1)
    options = {"nameServer": server.namesrv, "subscribe": topic, "fetchOffset.retryIntervalMs": "1"}
    with connect(server.broker) as broker:
        for _ in range(5):
            send_readable(broker, topic, b"old")
        reader = RocketmqStreamReader(source_options(options))
        start = reader.initialOffset()
        assert [*start[topic].values()] == [{"0": 5}]
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
        broker.ask(DeleteTopicInBroker(topic=topic))
        create_topic(server, topic, 1)
        for _ in range(2):
            send_readable(broker, topic, b"new")
    told: list[str] = []

    def is_told() -> bool:
        try:
            return reader.latestOffset(start, reader.getDefaultReadLimit()) is None
        except DataLossError as lost:
            told.append(str(lost))
            return True

    eventually(is_told)  # what a reader knows may be 100 ms old
    assert "was read up to 5 and ends at 2 now" in told[0]
    reader.stop()
    tolerant = RocketmqStreamReader(source_options({**options, "failOnDataLoss": "false"}))
    moved = tolerant.latestOffset(start, tolerant.getDefaultReadLimit())
    assert [*moved[topic].values()] == [{"0": 2}]
    assert tolerant.partitions(start, moved) == []
    tolerant.stop()
