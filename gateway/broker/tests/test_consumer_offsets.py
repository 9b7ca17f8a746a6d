import pytest

from gateway.broker.consumer_offsets import ConsumerOffsets
from gateway.tests.broker_fakes import FakeClock, memory_config_file
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
    assert files.read_small("/config/consumerOffset.json") is None
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
    def write_small(self, path, data):
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
    monkeypatch.setattr("gateway.broker.consumer_offsets.MAX_PULL_OFFSETS", 2)
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
    assert offsets.min_offsets_of_groups("t", begins_at_2, set()) == {0: 3}
    assert offsets.min_offsets_of_groups("t", begins_at_2, {"b"}) == {0: 4}
    assert offsets.query_offset("b", "t", 0) == 3


def test_a_negative_offset_is_recorded_as_officially_and_starts_no_alarm(caplog):
    files = MemoryFiles()
    offsets = make(files)
    offsets.commit_offset("g", "t", 0, -1)
    offsets.commit_offset("g", "t", 1, -(2**63))
    assert (offsets.query_offset("g", "t", 0), offsets.query_offset("g", "t", 1)) == (-1, -(2**63))
    assert not caplog.records
    offsets.persist()
    assert make(files).queue_offsets("g", "t") == {0: -1, 1: -(2**63)}
