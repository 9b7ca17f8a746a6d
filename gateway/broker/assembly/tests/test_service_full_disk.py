"""A broker that stops while its disk is full: what cannot be written is logged, and nothing acknowledged is lost."""

import logging

import pytest

from gateway.broker.assembly.service import BrokerService
from gateway.tests.broker_fakes import FakeClock, run_inline
from gateway.tests.broker_world import World
from gateway.tests.cluster import SMALL
from gateway.tests.popping import pop_request
from gateway.tests.transacting import half_message
from remoting.limits import ConnectionLimits
from remoting.requests.offsets import UpdateConsumerOffset
from remoting.server import ServerLimits
from storage.crash_files import CrashFiles
from storage.errors import StoreFull

MAX_WRITES = 100
EVERYTHING = 1 << 30


class FullFiles(CrashFiles):
    """A disk without room for new bytes: the writes from number ``first`` on fail, ``count`` of them."""

    writes = 0
    first = EVERYTHING
    count = EVERYTHING
    refused_queue = ""

    def _write(self, path: str) -> None:
        self.writes += 1
        if self.first <= self.writes - 1 < self.first + self.count:
            raise StoreFull(f"no room for {path}")

    def reserve(self, path: str, end: int) -> None:
        if end > self._reserved.get(path, 0):
            if path == self.refused_queue:
                # A queue asks again, for its next entry only: the same write.
                self.refused_queue = ""
                raise StoreFull(f"no room for {path}")
            try:
                self._write(path)
            except StoreFull:
                self.refused_queue = path if "/consumequeue/" in path else ""
                raise
        super().reserve(path, end)

    def open_mapped(self, path: str, size_bytes: int):
        if path not in self.mapped:
            self._write(path)
        return super().open_mapped(path, size_bytes)

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        self._write(path)
        super().write_small(path, data, backup)

    def replace_small(self, path: str, data: bytes, backup: str | None) -> None:
        self._write(path)
        super().replace_small(path, data, backup)


def used_broker(files: FullFiles) -> World:
    """Return a broker with something to write in every table, in the index, and in the files of timers."""
    world = World(files, FakeClock(), timer_wheel_enable=True, **SMALL)
    world.topic()
    world.beat(None, "t", group="g", producers=["p"])
    world.broker.pop.request_modes.note_change()
    for number in range(3):
        world.put(body=b"%d" % number, properties={"KEYS": "k"})
    world.put(properties={"DELAY": "1"})
    world.put(properties={"TIMER_DELAY_SEC": "60"})
    world.ask(half_message("U", world.clock.now_ms(), b"half"))
    world.ask(pop_request("t", "g", queue_id=0))
    world.clock.pass_ms(5_000)
    world.broker.delay_service.deliver_due(world.clock.now_ms())
    assert world.broker.timer_delivery is not None
    world.broker.timer_delivery.read_topic(100)
    world.broker.transactions.op_messages.record_ended(0, 0)
    world.ask(UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=1, commit_offset=0))
    return world


def close(world: World) -> StoreFull | None:
    try:
        BrokerService(world.broker, ConnectionLimits(), ServerLimits(), run_inline).close()
    except StoreFull as error:
        return error
    return None


def writes_of_a_close(caplog: pytest.LogCaptureFixture) -> int:
    files = FullFiles()
    world = used_broker(files)
    before = files.writes
    caplog.clear()
    assert close(world) is None
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    return files.writes - before


@pytest.mark.parametrize("count", [1, EVERYTHING], ids=["one write", "all from there on"])
def test_whatever_cannot_be_written_at_a_close_is_logged_and_ends_nothing_else(count, caplog):
    total = writes_of_a_close(caplog)
    assert 8 < total < MAX_WRITES
    failed_closes = 0
    for number in range(total):
        files = FullFiles()
        world = used_broker(files)
        files.first, files.count = files.writes + number, count
        abort_path = world.broker.store.config.abort_path
        assert files.size(abort_path) is not None
        caplog.clear()
        error = close(world)
        reported = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert reported, f"write {number} failed without a word"
        failed_closes += error is not None
        if error is not None:
            assert "/config/" in str(error), "only a table of progress ends the process with an error"
        assert (files.size(abort_path) is None) == (error is None), (
            "a store is closed clean with its tables only"
        )
        files.first = EVERYTHING
        again = World(files, world.clock, timer_wheel_enable=True, **SMALL)
        assert again.broker.offsets.query_offset("g", "t", 1) == 0, "it was acknowledged"
        assert [message.body for message in again.stored("t")] == [b"0", b"1", b"2", b"hello"]
        assert again.broker.timer_delivery.waiting_count + again.broker.timer_delivery.behind_messages == 1
    assert failed_closes


def test_each_table_that_cannot_be_written_is_logged(caplog):
    files = FullFiles()
    world = used_broker(files)
    files.first = files.writes
    error = close(world)
    assert str(error) == f"no room for {world.broker.delay_service.file.path}"
    paths = {record.path for record in caplog.records if record.message == "configuration file not written"}
    assert {path.rpartition("/")[2] for path in paths} == {
        "consumerFilter.json",
        "consumerOffset.json",
        "consumerOrderInfo.json",
        "delayOffset.json",
        "messageRequestMode.json",
        "subscriptionGroup.json",
        "takeover.json",
        "timermetrics",
        "topics.json",
    }


def test_tables_that_nothing_was_lost_of_do_not_fail_a_stop(caplog):
    """A new broker has not written its tables yet when the disk fills up: they are as empty as missing files."""
    files = FullFiles()
    world = World(files, FakeClock(), timer_wheel_enable=True, **SMALL)
    world.topic()
    world.put()
    files.first = files.writes
    assert close(world) is None
    assert "configuration file not written" in [record.message for record in caplog.records]


def test_timers_are_saved_once_there_is_room_again():
    """Nothing changes meanwhile: what could not be written must be tried again all the same."""
    files = FullFiles()
    world = World(files, FakeClock(), timer_wheel_enable=True, **SMALL)
    timers = world.broker.timer_delivery
    assert timers is not None
    world.topic()
    world.put(properties={"TIMER_DELAY_SEC": "60"})
    timers.read_topic(100)
    files.first = files.writes
    timers.save(timers.take_unsaved())
    path = f"{world.broker.store.config.root}/config/timermetrics"
    assert files.read_small(path) is None
    files.first = EVERYTHING
    timers.save(timers.take_unsaved())
    assert b'"t"' in (files.read_small(path) or b"")
    assert timers.take_unsaved() == (None, None)
