"""Starting and ending positions of queries, and reports of missing messages."""

import logging

import pytest

from spark.cluster import Extent, Queue
from spark.errors import DataLossError, EndpointError, OptionError
from spark.source.options import TopicSelection, source_options
from spark.source.positions import (
    clamp_offsets,
    ending_position,
    readable_ranges,
    resolve_position,
    starting_position,
)
from spark.source.queue_discovery import QueueDiscovery
from spark.tests.fake_cluster import FakeCluster

BASE = {"nameServer": "127.0.0.1:9876", "subscribe": "orders"}
Q0, Q1 = Queue("orders", "broker-a", 0), Queue("orders", "broker-a", 1)


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster(orders=(10, 20), others=(5,))
    cluster.fill("orders", 1, 20, begin=4)
    return cluster


def start(cluster: FakeCluster, default: str = "latest", **options: str) -> dict[Queue, int]:
    values = source_options({**BASE, **options})
    view = QueueDiscovery(cluster, TopicSelection.from_options(values)).require_snapshot()
    return resolve_position(starting_position(values, default), view, cluster)


def test_words(cluster: FakeCluster) -> None:
    assert start(cluster) == {Q0: 10, Q1: 20}
    assert start(cluster, "earliest") == {Q0: 0, Q1: 4}
    assert start(cluster, startingOffsets="Earliest") == {Q0: 0, Q1: 4}


def test_committed_offsets_and_the_beginning_where_there_are_none(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.groups["g"] = {Q1: 7}
    assert start(cluster, startingOffsets="committed", consumerGroup="g") == {Q0: 0, Q1: 7}
    assert "group g has no committed offset for orders@broker-a:0" in caplog.text


def test_offsets_by_queue(cluster: FakeCluster) -> None:
    assert start(cluster, startingOffsets='{"orders": {"broker-a": {"0": -1, "1": -2}}}') == {Q0: 10, Q1: 4}
    assert start(cluster, startingOffsets='{"orders": {"broker-a": {"0": 3, "1": 5}}}') == {Q0: 3, Q1: 5}
    with pytest.raises(
        OptionError, match="startingOffsets must name every queue; missing: orders@broker-a:1"
    ):
        start(cluster, startingOffsets='{"orders": {"broker-a": {"0": 3}}}')
    with pytest.raises(OptionError, match="names orders@broker-a:2, which this query does not read"):
        start(cluster, startingOffsets='{"orders": {"broker-a": {"0": 3, "1": 5, "2": 0}}}')


def test_times(cluster: FakeCluster) -> None:
    assert start(cluster, startingTimestamp="4500") == {Q0: 5, Q1: 5}
    assert start(cluster, startingTimestamp="0") == {Q0: 0, Q1: 4}
    by_queue = '{"orders": {"broker-a": {"0": 1000, "1": 19000}}}'
    assert start(cluster, startingOffsetsByTimestamp=by_queue) == {Q0: 1, Q1: 19}
    with pytest.raises(OptionError, match="nothing was stored in orders@broker-a:0 from that time on"):
        start(cluster, startingTimestamp="15000")
    late = {"startingTimestamp": "15000", "startingOffsetsByTimestampStrategy": "latest"}
    assert start(cluster, **late) == {Q0: 10, Q1: 15}


def test_ends(cluster: FakeCluster) -> None:
    def end(**options: str) -> dict[Queue, int]:
        values = source_options({**BASE, **options})
        return resolve_position(
            ending_position(values),
            QueueDiscovery(cluster, TopicSelection.from_options(values)).require_snapshot(),
            cluster,
        )

    assert end() == {Q0: 10, Q1: 20}
    assert end(endingTimestamp="15000") == {Q0: 10, Q1: 15}
    assert end(endingOffsets='{"orders": {"broker-a": {"0": -1, "1": 6}}}') == {Q0: 10, Q1: 6}


def test_topics_that_are_not_there(cluster: FakeCluster) -> None:
    with pytest.raises(EndpointError, match="there is no topic nothing"):
        start(cluster, subscribe="orders,nothing")
    values = source_options({"nameServer": "h:1", "assign": '{"orders": {"broker-a": [1, 2]}}'})
    with pytest.raises(EndpointError, match="no such queue: orders@broker-a:2"):
        QueueDiscovery(cluster, TopicSelection.from_options(values)).require_snapshot()


def test_patterns_match_whole_names_and_pass_over_retries(cluster: FakeCluster) -> None:
    for topic in ("%RETRY%g", "%DLQ%orders", "orders2"):
        cluster.fill(topic, 0, 1)

    def matched(pattern: str) -> set[str]:
        view = QueueDiscovery(cluster, TopicSelection(pattern=pattern)).require_snapshot()
        return {queue.topic for queue in view.queues}

    assert matched(".*") == {"orders", "orders2", "others"}
    assert matched("order") == set()
    assert matched("orders?.") == {"orders2", "orders"}
    assert matched("%DLQ%.*") == {"%DLQ%orders"}


def test_what_is_known_is_asked_again_when_it_is_old(cluster: FakeCluster) -> None:
    now = [0.0]
    discovery = QueueDiscovery(
        cluster, TopicSelection(names=("orders",)), max_age_s=5.0, clock=lambda: now[0]
    )
    before = cluster.questions
    for _ in range(50):
        discovery.take_snapshot()
    assert cluster.questions == before + 1
    cluster.fill("orders", 2, 1)
    now[0] += 0.2
    assert len(discovery.take_snapshot().queues) == 2
    assert cluster.questions == before + 2
    now[0] += 5
    assert len(discovery.take_snapshot().queues) == 3
    assert discovery.take_snapshot().extents.keys() == discovery.take_snapshot().queues.keys()


def test_offsets_outside_fail_or_move(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match=r"orders@broker-a:1 holds \[4, 20\), 2 is outside") as failed:
        clamp_offsets({Q0: 10, Q1: 2}, cluster.held, True)
    assert "failOnDataLoss" in str(failed.value)
    with caplog.at_level(logging.WARNING):
        assert clamp_offsets({Q0: 99, Q1: 2}, cluster.held, False) == {Q0: 10, Q1: 4}
    assert "99 is outside" in caplog.text


def test_stretches_that_are_gone_fail_or_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    extents = {Q0: Extent(5, 10), Q1: Extent(0, 10)}
    removed = Queue("orders", "broker-b", 0)
    for starts, ends in (({Q0: 4}, {Q0: 10}), ({Q1: 5}, {Q1: 11}), ({removed: 1}, {removed: 2})):
        with pytest.raises(DataLossError):
            readable_ranges(starts, ends, extents, True)
    ranges = readable_ranges({Q0: 0, Q1: 5, removed: 1}, {Q0: 8, Q1: 15, removed: 2}, extents, False)
    assert ranges == {Q0: (5, 8), Q1: (5, 10)}
    assert caplog.text.count("messages are missing") == 3
    assert readable_ranges({Q0: 0}, {Q0: 3}, extents, False) == {}


def test_a_new_queue_is_read_from_its_beginning() -> None:
    assert readable_ranges({}, {Q0: 8, Q1: 0}, {Q0: Extent(5, 10), Q1: Extent(0, 0)}, True) == {Q0: (5, 8)}
