import pytest

from gateway.broker.consumers.consumer_offsets import ConsumerOffsets
from gateway.config.limits import BrokerLimits
from gateway.tests.broker_fakes import FakeClock, memory_config_file
from remoting.bodies.progress import ConsumerOffsetSerializeWrapper
from remoting.errors import RequestError
from storage.files import MemoryFiles


def make(files=None, **settings):
    return ConsumerOffsets(memory_config_file("consumerOffset.json", files), FakeClock(), **settings)


def test_what_was_committed_is_answered():
    offsets = make()
    assert offsets.query_offset("g", "t", 0) == -1
    offsets.commit_offset("g", "t", 0, 5)
    assert offsets.query_offset("g", "t", 0) == 5
    assert offsets.query_offset("g", "t", 1) == -1
    offsets.commit_offset("g", "t", 0, 3)
    assert offsets.query_offset("g", "t", 0) == 3
    assert offsets.queue_offsets("g", "t") == {0: 3}
    assert offsets.queue_offsets("g", "other") is None


def test_the_file_has_the_official_form_and_is_written_when_something_changed():
    files = MemoryFiles()
    offsets = make(files)
    offsets.persist()
    assert b'"offsetTable":{}' in (files.read_small("/config/consumerOffset.json") or b""), "it was missing"
    offsets.commit_offset("g", "%RETRY%g", 0, 5)
    offsets.commit_offset("g", "t", 2, 2**62)
    offsets.persist()
    text = files.read_small("/config/consumerOffset.json")
    assert b'"%RETRY%g@g":{0:5}' in (text or b"")
    assert b'"t@g":{2:4611686018427387904}' in (text or b"")
    assert make(files).query_offset("g", "t", 2) == 2**62
    assert not offsets.is_dirty


def test_a_failed_write_is_tried_again():
    offsets = make(FullDisk())
    offsets.commit_offset("g", "t", 0, 5)
    with pytest.raises(OSError, match="full"):
        offsets.persist()
    assert offsets.is_dirty


class FullDisk(MemoryFiles):
    def write_small(self, path, data, backup=None):
        raise OSError("disk is full")


def test_an_official_file():
    files = MemoryFiles()
    files.write_small(
        "/config/consumerOffset.json",
        b'{\n\t"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1},\n\t"groupTopicMap":{"g":["t"]},\n'
        b'\t"offsetTable":{\n\t\t"t@g":{0:7,1:9\n\t\t}\n\t}\n}',
    )
    offsets = make(files)
    assert (offsets.query_offset("g", "t", 0), offsets.query_offset("g", "t", 1)) == (7, 9)
    assert offsets.version.counter == 3


def test_many_commits_count_as_one_version():
    offsets = make()
    for offset in range(500):
        offsets.commit_offset("g", "t", 0, offset)
    assert offsets.version.counter == 1


def test_a_reset_holds_until_the_next_pull_takes_it():
    offsets = make()
    offsets.commit_offset("g", "t", 0, 100)
    offsets.assign_reset("g", "t", 0, 10)
    assert offsets.has_reset("g", "t", 0)
    assert not offsets.has_reset("g", "t", 1)
    offsets.commit_offset("g", "t", 0, 120)
    assert offsets.query_offset("g", "t", 0) == 10
    assert offsets.take_reset("g", "t", 1) is None
    assert offsets.take_reset("g", "t", 0) == 10
    assert offsets.take_reset("g", "t", 0) is None
    assert offsets.query_offset("g", "t", 0) == 120


def test_resets_can_be_left_to_the_clients():
    offsets = make(server_side_reset=False)
    offsets.assign_reset("g", "t", 0, 10)
    offsets.commit_offset("g", "t", 0, 120)
    assert offsets.query_offset("g", "t", 0) == 120


def test_pull_positions_are_remembered_apart():
    offsets = make()
    offsets.commit_offset("g", "t", 0, 5)
    assert offsets.query_pull("g", "t", 0) == 5
    offsets.record_pull("g", "t", 0, 9)
    assert offsets.query_pull("g", "t", 0) == 9
    offsets.assign_reset("g", "t", 0, 4)
    assert offsets.query_pull("g", "t", 0) == 4
    for forget in (lambda: offsets.remove_group("g"), lambda: offsets.remove_topic("t")):
        offsets.record_pull("g", "t", 0, 9)
        forget()
        assert offsets.query_pull("g", "t", 0) in (-1, 4)


def test_pull_positions_are_remembered_for_so_many_queues_only(monkeypatch):
    monkeypatch.setattr("gateway.broker.consumers.consumer_offsets.MAX_PULL_OFFSETS", 2)
    offsets = make()
    for queue_id in range(4):
        offsets.record_pull("g", "t", queue_id, 5)
    offsets.record_pull("g", "t", 0, 6)
    assert [offsets.query_pull("g", "t", queue_id) for queue_id in range(4)] == [6, 5, -1, -1]


def test_clone_is_a_copy():
    offsets = make()
    offsets.commit_offset("a", "t", 0, 5)
    offsets.clone_offsets("a", "b", "t")
    offsets.clone_offsets("nobody", "c", "t")
    offsets.commit_offset("a", "t", 0, 6)
    assert offsets.query_offset("b", "t", 0) == 5
    assert offsets.query_offset("c", "t", 0) == -1


def test_who_consumes_what():
    offsets = make()
    offsets.commit_offset("a", "t1", 0, 5)
    offsets.commit_offset("a", "t2", 0, 5)
    offsets.commit_offset("ab", "t1", 0, 5)
    assert offsets.topics_of_group("a") == {"t1", "t2"}
    assert offsets.groups_of_topic("t1") == {"a", "ab"}
    offsets.remove_group("a")
    assert offsets.topics_of_group("a") == set()
    assert offsets.topics_of_group("ab") == {"t1"}
    offsets.remove_topic("t1")
    assert offsets.table == {}


def test_the_smallest_offsets_among_groups():
    offsets = make()
    offsets.commit_offset("a", "t", 0, 5)
    offsets.commit_offset("b", "t", 0, 3)
    offsets.commit_offset("c", "t", 0, 1)
    offsets.commit_offset("d", "t", 0, 4)
    begins_at_2 = lambda topic, queue_id: 2  # noqa: E731
    smallest: dict[int, int] = {}
    for group in "abcd":
        offsets.lower_to_group(smallest, group, "t", begins_at_2)
    offsets.lower_to_group(smallest, "nobody", "t", begins_at_2)
    assert smallest == {0: 3}
    assert offsets.query_offset("b", "t", 0) == 3


def test_a_negative_offset_is_recorded_as_officially_and_starts_no_alarm(caplog):
    files = MemoryFiles()
    offsets = make(files)
    offsets.commit_offset("g", "t", 0, -1)
    offsets.commit_offset("g", "t", 1, -(2**63))
    assert (offsets.query_offset("g", "t", 0), offsets.query_offset("g", "t", 1)) == (-1, -(2**63))
    assert "backwards" not in caplog.text
    offsets.persist()
    assert make(files).queue_offsets("g", "t") == {0: -1, 1: -(2**63)}


def test_offsets_beyond_the_limit_are_refused_and_those_that_exist_move():
    offsets = make(limits=BrokerLimits(max_committed_offsets=3))
    for queue_id in (0, 1):
        offsets.commit_offset("g", "t", queue_id, 5)
    offsets.assign_reset("h", "t", 0, 5)
    for refused in (
        lambda: offsets.commit_offset("g", "t", 2, 5),
        lambda: offsets.commit_offset("new", "t", 0, 5),
        lambda: offsets.assign_reset("new", "t", 0, 5),
        lambda: offsets.clone_offsets("g", "h", "t"),
    ):
        with pytest.raises(RequestError, match="delete groups or topics or raise maxCommittedOffsets"):
            refused()
    offsets.commit_offset("g", "t", 1, 6)
    offsets.assign_reset("g", "t", 1, 7)
    offsets.commit_offset("CID_RMQ_SYS_REVIVE_GROUP", "r", 0, 1, by_broker=True)
    assert (offsets.topics_of_group("new"), offsets.groups_of_topic("t")) == (set(), {"g", "h"})
    offsets.remove_group("h")
    offsets.remove_topic("r")
    offsets.commit_offset("new", "t", 0, 5)
    offsets.limits = BrokerLimits(max_committed_offsets=5)
    offsets.clone_offsets("g", "new", "t")
    offsets.clone_offsets("g", "new", "t")
    offsets.commit_offset("g", "t", 2, 5)
    with pytest.raises(RequestError, match="maxCommittedOffsets"):
        offsets.commit_offset("g", "t", 3, 5)
    for group in ("g", "new"):
        offsets.remove_group(group)
    assert (offsets._count, offsets._keys_of_topic, offsets._keys_of_group) == (0, {}, {})


def test_groups_are_found_again_after_a_restart():
    files = MemoryFiles()
    offsets = make(files)
    offsets.commit_offset("a", "t1", 0, 5)
    offsets.commit_offset("a@broadcast", "t1", 0, 5)
    offsets.persist()
    again = make(files)
    assert (again.topics_of_group("a"), again.groups_of_topic("t1")) == ({"t1"}, {"a"})
    again.remove_topic("t1")
    assert again.table == {}


def test_a_large_table_is_encoded_in_slices_while_it_changes():
    files = MemoryFiles()
    offsets = make(files)
    for number in range(3000):
        for queue_id in range(4):
            offsets.commit_offset(f"g{number}", "t", queue_id, number)
    slices = offsets.encode_slices()
    first = [next(slices), next(slices)]
    offsets.remove_group("g2999")
    offsets.commit_offset("new", "t", 0, 1)
    parts = [*first, *slices]
    assert len(parts) > 5
    assert max(map(len, parts)) < 100_000
    files.write_small("/config/consumerOffset.json", b"".join(parts))
    again = make(files)
    assert again.query_offset("g2998", "t", 3) == 2998
    assert again.query_offset("g2999", "t", 3) == -1


def test_an_empty_table_can_be_read():
    assert ConsumerOffsetSerializeWrapper.from_json(make().to_json()).offset_table == {}
