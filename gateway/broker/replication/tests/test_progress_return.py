import pytest
import trio

from gateway.broker.consumers.consumer_offsets import ConsumerOffsets
from gateway.broker.replication import progress_return
from gateway.broker.replication.progress_return import ProgressReturn, commit_offsets
from gateway.runtime.config_file import ConfigFile
from gateway.tests.broker_fakes import FakeClock, run_inline
from remoting.errors import RequestError
from storage.files import MemoryFiles


class Slave:
    """The offsets of a slave, which copies a master's table as `TableSync` does."""

    def __init__(self, copied=()):
        self.offsets = ConsumerOffsets(ConfigFile(MemoryFiles(), "offsets", run_inline), FakeClock())
        for group, queue_id, offset in copied:
            self.offsets.commit_offset(group, "t", queue_id, offset)
        self.progress = ProgressReturn(self.offsets)
        self.sent = []

    def commit(self, group, queue_id, offset):
        self.offsets.commit_offset(group, "t", queue_id, offset)

    def sync(self, **groups):
        """Copy the master's offsets by group and queue; return those that are sent to it."""
        table = {f"t@{group}": queues for group, queues in groups.items()}
        sent = []

        async def send(part):
            sent.append({key: dict(queues) for key, queues in part.items()})

        for key, queues in table.items():
            topic, _, group = key.partition("@")
            for queue_id, offset in queues.items():
                if offset > self.offsets.query_offset(group, topic, queue_id):
                    self.offsets.commit_offset(group, topic, queue_id, offset)
        trio.run(self.progress.return_progress, table, send)
        self.sent.extend(sent)
        return {key: queues for part in sent for key, queues in part.items()}


def test_what_was_committed_here_is_returned():
    slave = Slave([("g", 0, 10), ("g", 1, 10), ("h", 0, 5)])
    slave.commit("g", 0, 15)
    slave.commit("new", 2, 7)
    assert slave.sync(g={0: 10, 1: 10}, h={0: 5}) == {"t@g": {0: 15}, "t@new": {2: 7}}
    assert slave.sync(g={0: 15, 1: 10}, h={0: 5}, new={2: 7}) == {}


def test_what_the_master_has_passed_is_not_returned():
    slave = Slave([("g", 0, 10)])
    slave.commit("g", 0, 15)
    assert slave.sync(g={0: 20}) == {}


def test_what_was_moved_back_at_the_master_stays_there():
    slave = Slave()
    slave.commit("g", 0, 100)
    assert slave.sync(g={0: 100}) == {}
    assert slave.sync(g={0: 40}) == {}
    slave.commit("g", 0, 101)
    assert slave.sync(g={0: 40}) == {"t@g": {0: 101}}


def test_what_this_broker_started_with_was_copied():
    slave = Slave([("g", 0, 100)])
    assert slave.sync(g={0: 40}) == {}
    assert slave.sync(g={0: 40}) == {}


def test_what_could_not_be_sent_is_sent_again():
    slave = Slave([("g", 0, 10)])
    slave.commit("g", 0, 15)

    async def refuse(part):
        raise RequestError(2, "busy")

    with pytest.raises(RequestError):
        trio.run(slave.progress.return_progress, {"t@g": {0: 10}}, refuse)
    assert slave.sync(g={0: 10}) == {"t@g": {0: 15}}


def test_a_reset_between_the_return_and_the_next_copy_is_not_undone():
    slave = Slave([("g", 0, 10)])
    slave.commit("g", 0, 15)
    assert slave.sync(g={0: 10}) == {"t@g": {0: 15}}
    assert slave.sync(g={0: 3}) == {}


def test_many_offsets_are_sent_in_parts(monkeypatch):
    monkeypatch.setattr(progress_return, "MAX_KEYS_PER_REQUEST", 3)
    slave = Slave()
    for number in range(8):
        slave.commit(f"g{number}", 0, number)
    assert slave.sync() == {f"t@g{number}": {0: number} for number in range(8)}
    assert [len(part) for part in slave.sent] == [3, 3, 2]


def test_an_official_master_gets_commits_and_may_refuse_some():
    requests = []

    async def ask(request):
        requests.append(
            (request.code, request.topic, request.consumer_group, request.queue_id, request.commit_offset)
        )
        if request.consumer_group == "gone":
            raise RequestError(26, "Group gone not exist!")

    trio.run(commit_offsets, {"t@gone": {0: 1}, "t@g": {0: 5, 1: 6}}, ask)
    assert requests == [(15, "t", "gone", 0, 1), (15, "t", "g", 0, 5), (15, "t", "g", 1, 6)]


def test_a_topic_that_was_deleted_and_created_again_begins_anew():
    slave = Slave([("g", 0, 100)])
    slave.offsets.remove_topic("t")
    assert slave.sync() == {}
    slave.commit("g", 0, 4)
    assert slave.sync() == {"t@g": {0: 4}}


def test_what_is_committed_during_the_request_is_returned_by_the_next():
    slave = Slave([("g", 0, 10)])
    slave.commit("g", 0, 15)

    async def send(part):
        assert part == {"t@g": {0: 15}}
        slave.commit("g", 0, 16)

    trio.run(slave.progress.return_progress, {"t@g": {0: 10}}, send)
    assert slave.sync(g={0: 15}) == {"t@g": {0: 16}}
