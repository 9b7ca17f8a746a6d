"""The stream reader driven as Spark does, on a fake cluster."""

import json
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark.cluster import Queue
from spark.errors import DataLossError, EndpointError
from spark.source.batch_reader import QueuePartition
from spark.source.options import source_options
from spark.source.stream_reader import RocketmqStreamReader
from spark.tests.fake_cluster import FakeCluster

Q0, Q1 = Queue("t", "broker-a", 0), Queue("t", "broker-a", 1)


class Driver:
    """Drives a reader as Spark does, with a checkpoint that stores offsets as text."""

    def __init__(self, cluster: FakeCluster, **options: str) -> None:
        self.cluster = cluster
        self.options = {"nameServer": "h:1", "subscribe": "t", "minRecordsPerPartition": "1", **options}
        self.planned: list[str] = []
        self.committed = 0
        self.now = 0.0
        self.slept: list[float] = []
        self.restart()

    def restart(self) -> None:
        self.reader = RocketmqStreamReader(
            source_options(self.options), self.cluster, lambda: self.now, self.slept.append
        )

    def start(self) -> dict[str, Any]:
        return json.loads(self.planned[self.committed - 1]) if self.committed else self.reader.initialOffset()

    def plan(self, limit: Any = None) -> bool:
        """Tell whether there is a batch to run; a batch planned before a crash is re-run."""
        if len(self.planned) > self.committed:
            return True
        self.now += 1
        end = json.dumps(self.reader.latestOffset(self.start(), limit or self.reader.getDefaultReadLimit()))
        if self.planned and self.planned[-1] == end:
            return False
        self.planned.append(end)
        return True

    def run(self) -> dict[Queue, tuple[int, int]]:
        """Return what the batch reads of each queue."""
        end = json.loads(self.planned[self.committed])
        read: dict[Queue, tuple[int, int]] = {}
        for partition in self.reader.partitions(self.start(), end):
            assert isinstance(partition, QueuePartition)
            for each in partition.ranges:
                queue = Queue(each.topic, each.broker, each.queue_id)
                assert queue not in read or read[queue][1] == each.start
                read[queue] = (read.get(queue, (each.start,))[0], each.end)
        self.committed += 1
        return read

    def batch(self, limit: Any = None) -> dict[Queue, tuple[int, int]] | None:
        return self.run() if self.plan(limit) else None

    def drain(self) -> list[dict[Queue, tuple[int, int]]]:
        found = []
        while (read := self.batch()) is not None:
            found.append(read)
        return found


def test_the_first_batch_is_empty_and_pins_the_start() -> None:
    cluster = FakeCluster(t=(10, 20))
    driver = Driver(cluster)
    assert driver.plan()
    cluster.fill("t", 0, 15)  # while the first batch is under way
    assert driver.run() == {}
    assert driver.batch() == {Q0: (10, 15)}
    assert driver.batch() is None


@pytest.mark.parametrize("start", ["latest", "earliest", "committed"])
def test_a_kill_in_the_first_batch_loses_nothing_and_reads_nothing_twice(start: str) -> None:
    cluster = FakeCluster(t=(10, 20))
    cluster.groups["g"] = {Q0: 5, Q1: 5}
    driver = Driver(cluster, startingOffsets=start, consumerGroup="g")
    assert driver.plan()
    first = {"latest": {Q0: 10, Q1: 20}, "earliest": {Q0: 0, Q1: 0}, "committed": {Q0: 5, Q1: 5}}[start]
    driver.restart()
    cluster.fill("t", 0, 15, begin=0)
    cluster.groups["g"] = {Q0: 0, Q1: 9}  # moves, and back, before the restart
    assert driver.run() == {}
    expected = {queue: (first[queue], end) for queue, end in ((Q0, 15), (Q1, 20)) if first[queue] < end}
    assert driver.batch() == expected
    assert driver.batch() is None


def test_available_now_goes_on_after_a_kill_in_the_first_batch() -> None:
    cluster = FakeCluster(t=(10, 20))
    driver = Driver(cluster, startingOffsets="earliest")
    driver.reader.prepareForTriggerAvailableNow()
    assert driver.plan()
    driver.restart()
    driver.reader.prepareForTriggerAvailableNow()
    assert driver.drain() == [{}, {Q0: (0, 10), Q1: (0, 20)}]


def test_once_takes_everything_at_once() -> None:
    driver = Driver(FakeCluster(t=(10, 20)), startingOffsets="earliest", maxOffsetsPerTrigger="4")
    assert driver.batch(ReadAllAvailable()) == {Q0: (0, 10), Q1: (0, 20)}


def test_available_now_honours_limits_and_stops_at_what_was_there() -> None:
    cluster = FakeCluster(t=(10, 20))
    driver = Driver(
        cluster,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="12",
        minOffsetsPerTrigger="11",
        maxTriggerDelay="1h",
    )
    driver.reader.prepareForTriggerAvailableNow()
    cluster.fill("t", 0, 1000)
    cluster.fill("t", 2, 7)
    read = driver.drain()
    assert [sum(end - start for start, end in batch.values()) for batch in read] == [0, 12, 12, 6]
    assert read[-1].keys() <= {Q0, Q1}
    driver.restart()
    driver.reader.prepareForTriggerAvailableNow()
    rows = [sum(end - start for start, end in batch.values()) for batch in driver.drain()]
    assert sum(rows) == 997
    assert max(rows) == 12


def test_rows_and_bytes_limit_together() -> None:
    cluster = FakeCluster(t=(1000, 1000))
    rows = Driver(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="50", maxBytesPerTrigger="100000")
    rows.batch()
    assert sum(end - start for start, end in (rows.batch() or {}).values()) == 50
    few = Driver(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="50", maxBytesPerTrigger="2000")
    few.batch()
    assert sum(end - start for start, end in (few.batch() or {}).values()) == 20
    none = Driver(cluster, startingOffsets="earliest", maxBytesPerTrigger="7")
    none.batch()
    assert sum(end - start for start, end in (none.batch() or {}).values()) == 1


def test_too_little_waits_until_the_delay_is_over() -> None:
    cluster = FakeCluster(t=(0, 0))
    driver = Driver(cluster, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    driver.batch()
    cluster.fill("t", 0, 1)
    assert driver.batch() == {Q0: (0, 1)}
    cluster.fill("t", 0, 9)
    assert driver.batch() is None
    driver.now += 60
    assert driver.batch() == {Q0: (1, 9)}
    cluster.fill("t", 0, 19)
    assert driver.batch() == {Q0: (9, 19)}


def test_new_queues_are_read_from_their_beginning() -> None:
    cluster = FakeCluster(t=(10,))
    driver = Driver(cluster, metadataMaxAgeMs="500")
    driver.batch()
    new = cluster.fill("t", 0, 7, begin=3, broker="broker-b")
    assert driver.batch() == {new: (3, 7)}
    assert driver.batch() is None


def test_a_queue_that_is_gone_fails_after_some_patience() -> None:
    cluster = FakeCluster(t=(10, 20))
    driver = Driver(cluster, metadataMaxAgeMs="0")
    driver.batch()
    del cluster.held[Q1]
    with pytest.raises(DataLossError, match="t@broker-a:1, which was read up to 20, no longer exists"):
        driver.plan()
    assert driver.slept == [0.2, 0.4, 0.8]


def test_a_queue_that_is_gone_for_a_moment_only_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(t=(10, 20))
    driver = Driver(cluster, metadataMaxAgeMs="0")
    driver.batch()
    extent = cluster.held.pop(Q1)
    driver.reader._sleep = lambda _: cluster.held.update({Q1: extent})
    assert driver.batch() is None


def test_a_broker_that_is_gone_when_a_batch_is_planned_is_waited_for() -> None:
    """The broker disappears after the batch's end was stored; a new queue has no stored start."""
    cluster = FakeCluster(t=(10, 20))
    driver = Driver(cluster, metadataMaxAgeMs="0")
    driver.batch()
    new = cluster.fill("t", 0, 7, begin=3, broker="broker-b")
    cluster.fill("t", 0, 15)
    assert driver.plan()
    extent = {queue: cluster.held.pop(queue) for queue in (Q0, new)}
    driver.reader._sleep = lambda _: cluster.held.update(extent)
    assert driver.run() == {Q0: (10, 15), new: (3, 7)}


def test_a_broker_that_stays_away_when_a_batch_is_planned_is_a_loss() -> None:
    cluster = FakeCluster(t=(10, 20))
    driver = Driver(cluster, metadataMaxAgeMs="0")
    driver.batch()
    new = cluster.fill("t", 0, 7, begin=3, broker="broker-b")
    assert driver.plan()
    del cluster.held[new]
    with pytest.raises(DataLossError, match=r"t@broker-b:0 no longer exists; \[0, 7\) was to be read"):
        driver.run()
    assert driver.slept == [0.2, 0.4, 0.8]


def test_a_queue_that_is_gone_and_comes_back_is_not_read_twice(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster(t=(10, 20))
    driver = Driver(cluster, metadataMaxAgeMs="0", failOnDataLoss="false")
    driver.batch()
    extent = cluster.held.pop(Q1)
    cluster.fill("t", 0, 11)
    assert driver.batch() == {Q0: (10, 11)}
    assert driver.batch() is None
    assert caplog.text.count("t@broker-a:1, which was read up to 20") == 1
    cluster.held[Q1] = extent._replace(end=25)
    assert driver.batch() == {Q1: (20, 25)}


def test_a_queue_that_got_shorter_is_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster(t=(10, 20))
    driver = Driver(cluster, metadataMaxAgeMs="0")
    driver.batch()
    cluster.fill("t", 1, 5)
    with pytest.raises(DataLossError, match="was read up to 20 and ends at 5 now"):
        driver.plan()
    driver.options["failOnDataLoss"] = "false"
    driver.restart()
    assert driver.batch() == {}
    assert driver.batch() is None
    assert caplog.text.count("ends at 5 now") == 1
    cluster.fill("t", 1, 8)
    assert driver.batch() == {Q1: (5, 8)}


def test_what_has_expired_fails_or_is_left_out() -> None:
    cluster = FakeCluster(t=(10, 20))
    driver = Driver(cluster, startingOffsets="earliest")
    driver.batch()
    assert driver.plan()
    cluster.fill("t", 0, 10, begin=4)
    with pytest.raises(DataLossError, match=r"of \[0, 10\) in t@broker-a:0 only \[4, 10\) is there"):
        driver.run()
    driver.options["failOnDataLoss"] = "false"
    driver.restart()
    assert driver.run() == {Q0: (4, 10), Q1: (0, 20)}


def test_starts_outside_of_a_queue_fail_at_once() -> None:
    cluster = FakeCluster(t=(10, 20))
    wrong = '{"t": {"broker-a": {"0": 11, "1": 0}}}'
    with pytest.raises(DataLossError, match="11 is outside"):
        Driver(cluster, startingOffsets=wrong).plan()
    driver = Driver(cluster, startingOffsets=wrong, failOnDataLoss="false")
    driver.batch()
    assert driver.batch() == {Q1: (0, 20)}


def test_the_group_is_told_what_is_done_the_last_batch_included() -> None:
    cluster = FakeCluster(t=(10, 20))
    driver = Driver(cluster, startingOffsets="earliest", consumerGroup="g", commitOffsetsToBroker="true")
    driver.reader.prepareForTriggerAvailableNow()
    assert driver.plan()
    assert cluster.groups["g"] == {Q0: 0, Q1: 0}
    driver.drain()
    assert cluster.groups["g"] == {Q0: 10, Q1: 20}


def test_offsets_of_a_live_group_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster(t=(10,))
    cluster.live.add("g")
    options = {"consumerGroup": "g", "commitOffsetsToBroker": "true"}
    with pytest.raises(EndpointError, match="group g has live consumers"):
        Driver(cluster, **options).plan()
    cluster.live.clear()
    driver = Driver(cluster, **options)
    driver.batch()
    before = dict(cluster.groups["g"])
    cluster.live.add("g")
    cluster.fill("t", 0, 12)
    driver.drain()
    assert cluster.groups["g"] == before
    assert "group g has live consumers" in caplog.text


def test_nothing_is_told_unless_the_user_says_so() -> None:
    cluster = FakeCluster(t=(10,))
    driver = Driver(cluster, startingOffsets="earliest", consumerGroup="g")
    driver.drain()
    assert cluster.groups == {}


def test_tasks_get_nothing_but_what_reading_needs() -> None:
    reader = pickle.loads(pickle.dumps(Driver(FakeCluster(t=(10,))).reader))
    assert vars(reader).keys() == {"spec"}


def test_a_pattern_may_match_nothing_yet() -> None:
    cluster = FakeCluster()
    driver = Driver(cluster, metadataMaxAgeMs="0")
    driver.options = {"nameServer": "h:1", "subscribePattern": "t.*", "metadataMaxAgeMs": "0"}
    driver.restart()
    assert driver.batch() == {}
    assert driver.batch() is None
    new = cluster.fill("topic", 0, 3)
    assert driver.batch() == {new: (0, 3)}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_queue_that_began_anew_is_a_loss_though_it_is_longer(restarted: bool) -> None:
    cluster = FakeCluster(t=(5, 5))
    driver = Driver(cluster, startingOffsets="earliest", metadataMaxAgeMs="0")
    assert driver.drain() == [{}, {Q0: (0, 5), Q1: (0, 5)}]
    cluster.lives[Q0] = 1
    cluster.fill("t", 0, 8)
    if restarted:
        driver.restart()
    with pytest.raises(DataLossError, match="was read up to 5 and has other messages now"):
        driver.plan()
    driver.options["failOnDataLoss"] = "false"
    driver.restart()
    assert driver.drain() == [{Q0: (5, 8)}]
    cluster.fill("t", 0, 9)
    driver.options["failOnDataLoss"] = "true"
    driver.restart()
    assert driver.drain() == [{Q0: (8, 9)}], "the loss is reported once"


def test_a_checkpoint_without_fingerprints_goes_on() -> None:
    cluster = FakeCluster(t=(5, 5))
    driver = Driver(cluster, startingOffsets="earliest", metadataMaxAgeMs="0")
    driver.drain()
    stored = json.loads(driver.planned[-1])
    del stored["#fingerprints"]
    driver.planned[-1] = json.dumps(stored)
    driver.restart()
    assert driver.batch() is None
    cluster.fill("t", 0, 6)
    assert driver.batch() == {Q0: (5, 6)}
    assert "#fingerprints" in json.loads(driver.planned[-1])
