"""The capture writer: nothing is lost while the buffer has room, and traffic never waits."""

import logging
import stat
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from codec.capture import Damage, decode_header
from codec.command import Command, decode_frame
from gateway.shadow.capture.files import DiskFolder
from gateway.shadow.capture.settings import CaptureRule, CaptureSettings
from gateway.shadow.capture.writer import RETRY_INTERVAL_S, CaptureWriter
from gateway.shadow.tests.capture_fakes import (
    EPOCH_MS,
    MemoryFolder,
    StallingDisk,
    exchange,
    send_fields,
)
from gateway.shadow.traffic.exchange import ALL_CODES, Hub, Side
from gateway.shadow.traffic.outcome import Outcome, OutcomeKind
from remoting.tests.virtual import virtual

SMALL = {"block_bytes": 4096, "reserve_bytes": 0, "block_interval_ms": 1000}


@asynccontextmanager
async def capturing(folder=None, disk=None, *, has_mirror=False, **settings):
    """Run a capture for the length of the block."""
    disk = disk or StallingDisk()
    capture = CaptureWriter(
        CaptureSettings(**{"directory": "x", **SMALL, **settings}),
        folder if folder is not None else MemoryFolder(),
        gateway="gw",
        run=77,
        now_ms=lambda: EPOCH_MS + round(trio.current_time() * 1000),
        run_blocking=disk.run_blocking,
        has_mirror=has_mirror,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(capture.run)
        yield capture
        nursery.cancel_scope.cancel()


def tell(capture, count, *, first=0, body=b"x" * 100):
    """Let the capture observe ``count`` exchanges that end now."""
    for n in range(first, first + count):
        capture.observe(exchange(body=body, at_s=trio.current_time(), connection=n))


def figure(capture, name):
    return next(each.value for each in capture.collect_metrics() if each.name == f"capture_{name}")


@virtual
async def test_exchanges_are_in_the_file_a_second_later_and_all_of_them_after_the_end():
    folder = MemoryFolder()
    async with capturing(folder) as capture:
        one = exchange(at_s=0.25, took_s=0.5, reverse=True, side=Side.TARGET)
        capture.observe(one)
        await trio.sleep(1.01)
        (record,) = folder.records()
        assert folder.closed() == [False]
        tell(capture, 3, first=1)
    assert (record.request, record.answer) == (one.request, one.answer)
    assert (record.code, record.topic, record.group) == (310, "orders", "PID")
    assert (record.wall_ms, record.asked_us) == (EPOCH_MS + 250, 250_000)
    assert (record.forwarded_us, record.answered_us) == (100, 499_900)
    assert (record.client, record.upstream, record.broker) == (one.client, one.upstream, "broker-a")
    assert (record.reverse, record.by_target, record.redacted, record.fate) == (True, True, False, "")
    assert [each.connection for each in folder.records()] == [1, 1, 2, 3]
    assert folder.closed() == [True]
    ((name, file),) = folder.files.items()
    assert name == "capture-20231114T221321000Z-000001.rmqcap"
    assert decode_header(bytes(file.data))[:3] == (EPOCH_MS + 1000, "gw", 77)
    assert (file.synced, file.closed) == (1, True)


@virtual
async def test_a_block_is_written_as_soon_as_enough_waits():
    folder = MemoryFolder()
    async with capturing(folder, block_interval_ms=60_000) as capture:
        tell(capture, 30)
        await trio.sleep(0.01)
        assert len(folder.records()) == 30


@virtual
async def test_while_the_disk_stalls_the_buffer_fills_and_the_rest_is_dropped_and_counted(caplog):
    caplog.set_level(logging.WARNING)
    folder, disk = MemoryFolder(), StallingDisk()
    async with capturing(folder, disk, buffer_messages=50) as capture:
        disk.stall()
        tell(capture, 30)
        await trio.sleep(5)
        tell(capture, 70, first=30)  # 20 of them find room.
        assert folder.records() == []
        assert figure(capture, "dropped_total") == 50
        assert figure(capture, "buffer_messages") == 50
        disk.resume()
        await trio.sleep(2)
        assert figure(capture, "buffer_messages") == figure(capture, "buffer_bytes") == 0
        tell(capture, 1, first=1000)
    assert [each.connection for each in folder.records()] == [*range(50), 1000]
    said = [record.message for record in caplog.records]
    assert said == ["capture buffer is full, dropping exchanges", "capture resumed"]


@virtual
async def test_the_buffer_is_bounded_in_bytes_as_well():
    disk = StallingDisk()
    async with capturing(disk=disk, buffer_bytes=65_536) as capture:
        disk.stall()
        tell(capture, 100, body=bytes(1000))
        assert 60_000 < figure(capture, "buffer_bytes") <= 65_536
        assert figure(capture, "buffer_messages") + figure(capture, "dropped_total") == 100
        disk.resume()


@pytest.mark.parametrize("cannot_truncate", [False, True])
def test_a_full_disk_is_said_once_and_capturing_goes_on_when_there_is_room(caplog, cannot_truncate):
    caplog.set_level(logging.WARNING)

    @virtual
    async def run():
        folder = MemoryFolder(room=300)
        folder.cannot_truncate = cannot_truncate
        async with capturing(folder, buffer_messages=40, compression_level=0) as capture:
            tell(capture, 10)
            await trio.sleep(5 * RETRY_INTERVAL_S)
            assert figure(capture, "write_failures_total") >= 3
            tell(capture, 100, first=10)
            assert figure(capture, "dropped_total") == 70
            folder.room = 1 << 20
            await trio.sleep(2 * RETRY_INTERVAL_S)
            tell(capture, 1, first=1000)
        records = [each for each in folder.content() if not isinstance(each, Damage)]
        # What could not be cut off a file stays there, and is told as damage.
        assert len(records) == len(folder.content()) or cannot_truncate
        assert [each.connection for each in records] == [*range(40), 1000]

    run()
    said = [record.message for record in caplog.records]
    assert said[:3] == [
        "capture cannot write to disk",
        "capture buffer is full, dropping exchanges",
        "capture resumed",
    ]


@virtual
async def test_the_reserve_of_the_disk_is_left_alone():
    folder = MemoryFolder(room=10_000)
    async with capturing(folder, reserve_bytes=9_000, compression_level=0) as capture:
        for n in range(20):
            tell(capture, 1, first=n)
            await trio.sleep(1)
        assert folder.free_bytes() > 8_000
        assert figure(capture, "write_failures_total") > 0


@virtual
async def test_exchanges_a_full_disk_never_took_count_as_dropped():
    folder = MemoryFolder(room=300)
    async with capturing(folder) as capture:
        tell(capture, 25, body=bytes(range(256)))
    assert figure(capture, "dropped_total") == 25
    assert figure(capture, "records_total") == 0


@virtual
async def test_a_stalled_disk_does_not_keep_the_gateway_from_ending():
    folder, disk = MemoryFolder(), StallingDisk()
    async with capturing(folder, disk) as capture:
        disk.stall()
        tell(capture, 5)
        await trio.sleep(2)
    assert figure(capture, "dropped_total") == 5


@virtual
async def test_files_change_by_size_and_age_and_the_oldest_go():
    folder = MemoryFolder()
    limits = {"file_bytes": 65_536, "file_age_s": 60, "max_files": 3, "compression_level": 0}
    async with capturing(folder, **limits) as capture:
        tell(capture, 200)  # Some 100 KB: two files.
        await trio.sleep(2)
        assert len(folder.files) == 2
        assert folder.closed() == [True, False]
        assert all(size < 66_000 for size in folder.sizes().values())
        await trio.sleep(61)  # Closed for its age, though nobody says anything.
        assert folder.closed() == [True, True]
        tell(capture, 1, first=200)
        await trio.sleep(2)
        assert [each.connection for each in folder.records()] == list(range(201))
        tell(capture, 150, first=201)
        await trio.sleep(2)
        first = folder.records()[0].connection
        assert 50 < first < 200  # The oldest file went.
        assert [each.connection for each in folder.records()] == list(range(first, 351))
        assert len(folder.files) == 3
        assert figure(capture, "deleted_files_total") == 1


@virtual
async def test_all_files_together_take_no_more_than_they_may():
    folder = MemoryFolder()
    async with capturing(folder, file_bytes=65_536, max_total_bytes=200_000, compression_level=0) as capture:
        for n in range(10):
            tell(capture, 100, first=100 * n)
            await trio.sleep(2)
            assert sum(folder.sizes().values()) <= 200_000 + 2_000  # and their indexes
    assert figure(capture, "deleted_files_total") > 3


@pytest.mark.parametrize(("fsync", "least"), [("never", 0), ("close", 1), ("block", 4)])
def test_the_disk_is_told_to_keep_what_it_has_as_configured(fsync, least):
    @virtual
    async def run():
        folder = MemoryFolder()
        async with capturing(folder, fsync=fsync) as capture:
            for n in range(3):
                tell(capture, 1, first=n)
                await trio.sleep(1.5)
        (file,) = folder.files.values()
        assert file.synced == least

    run()


@virtual
async def test_answers_of_the_target_are_joined_and_nothing_waits_for_ever():
    folder = MemoryFolder()
    async with capturing(folder, has_mirror=True, target_wait_ms=5000) as capture:
        listen = capture.observe_outcome
        # The clock of exchanges is another one than the scheduler's.
        first, second, third = (exchange(at_s=1e6 * n, connection=n) for n in range(3))
        for each in (first, second, third):
            capture.observe(each)
        await trio.sleep(2)
        answer = Command(0, 1, 1, {"queueOffset": "5"})
        listen(Outcome(second, OutcomeKind.REFUSED, "busy", answer, 0.25))
        listen(Outcome(first, OutcomeKind.SKIPPED))
        await trio.sleep(1.1)
        assert [each.connection for each in folder.records()] == [0, 1]
        await trio.sleep(5)
        listen(Outcome(third, OutcomeKind.MIRRORED, "", answer, 0.1))
    records = folder.records()
    assert [each.fate for each in records] == ["skipped", "refused", ""]
    assert decode_frame(records[1].target, 4, len(records[1].target)).ext == {"queueOffset": "5"}
    assert (records[0].target, records[1].target_us) == (None, 250_000)
    assert figure(capture, "late_outcomes_total") == 1


@virtual
async def test_rules_say_what_is_captured():
    folder = MemoryFolder()
    rules = [
        CaptureRule(topics=["secret*"], sample=0.0),
        CaptureRule(codes=[310], groups=["PID*"], answers="head"),
        CaptureRule(codes=[34], answers="none"),
    ]
    async with capturing(folder, rules=rules) as capture:
        assert capture.codes() == {310, 34}
        answer = (0, {"queueOffset": "7"}, b"body")
        capture.observe(exchange(ext=send_fields("secret1")))
        capture.observe(exchange(ext=send_fields("orders"), answer=answer))
        capture.observe(exchange(ext=send_fields("orders", group="GID")))
        capture.observe(exchange(34, {}, b"{}"))
    send, beat = folder.records()
    assert (send.topic, send.redacted) == ("orders", True)
    assert decode_frame(send.answer, 4, len(send.answer)) == Command(0, 1, 1, {"queueOffset": "7"})
    assert (beat.code, beat.topic, beat.answer) == (34, "", None)
    assert figure(capture, "left_out_total") == 2


def test_without_rules_everything_is_wanted():
    capture = CaptureWriter(
        CaptureSettings(),
        MemoryFolder(),
        gateway="",
        run=1,
        now_ms=lambda: 0,
        run_blocking=StallingDisk().run_blocking,
    )
    assert capture.codes() is ALL_CODES
    hub = Hub()
    hub.add_observer(capture)
    assert hub.is_observed(12345)


@pytest.mark.parametrize("by", ["connection", "queue"])
def test_a_sample_is_of_whole_connections_or_queues(by):
    @virtual
    async def run():
        folder = MemoryFolder()
        async with capturing(folder, rules=[CaptureRule(sample=0.5, sample_by=by)]) as capture:
            for connection in range(40):
                for queue_id in range(40):
                    capture.observe(exchange(ext=send_fields(queue_id=queue_id), connection=connection))
        records = folder.records()
        queues = [decode_frame(each.request, 4, len(each.request)).ext["e"] for each in records]
        kept = {each.connection for each in records} if by == "connection" else set(queues)
        assert 8 < len(kept) < 32
        assert len(records) == 40 * len(kept)

    run()


@virtual
async def test_an_undecodable_request_is_recorded_without_its_bytes():
    folder = MemoryFolder()
    async with capturing(folder) as capture:
        broken = exchange()
        broken.request = b"\0\0\0\6\0\0\0\2{]"
        capture.observe(broken)
    (record,) = folder.records()
    assert (record.code, record.request, record.answer, record.redacted) == (310, b"", None, True)


def test_files_on_the_disk(tmp_path: Path):
    folder = DiskFolder(str(tmp_path / "new"))
    assert folder.free_bytes() > 0
    for name in ("b.rmqcap", "a.rmqcap"):
        file = folder.create(name)
        file.write(b"0123456789")
        file.truncate(4)
        file.write(b"x")
        file.sync()
        file.close()
    (tmp_path / "new" / "other").write_bytes(b"")
    with pytest.raises(FileExistsError):
        folder.create("a.rmqcap")
    assert list(folder.sizes().items()) == [("a.rmqcap", 5), ("b.rmqcap", 5)]
    assert (tmp_path / "new" / "a.rmqcap").read_bytes() == b"0123x"
    folder.delete("a.rmqcap")
    folder.delete("a.rmqcap")
    assert list(folder.sizes()) == ["b.rmqcap"]


@pytest.mark.usefixtures("lenient_umask")
@pytest.mark.parametrize("is_shared", [False, True])
def test_nobody_else_reads_the_files_unless_their_folder_is_shared(tmp_path: Path, is_shared: bool):
    tmp_path.chmod(0o777)
    path = tmp_path / "capture"
    if is_shared:
        path.mkdir(0o750)
    folder = DiskFolder(str(path))
    folder.free_bytes()
    folder.create("a.rmqcap").close()
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path / "a.rmqcap")]
    assert modes == [0o750 if is_shared else 0o700, 0o640]


@virtual
async def test_a_defect_while_writing_ends_neither_the_capture_nor_the_gateway(monkeypatch):
    folder = MemoryFolder()
    async with capturing(folder) as capture:
        with monkeypatch.context() as context:
            context.setattr(capture, "_fill_batch", lambda everything: 1 / 0)
            tell(capture, 1)
            await trio.sleep(5)
        (row,) = capture.tasks.status()
        assert row["failing"]
        assert row["last_error"] == "ZeroDivisionError: division by zero"
        await trio.sleep(5)
        assert len(folder.records()) == 1
        assert not capture.tasks.failing


class SlowDisk:
    """A disk whose every write takes 0.1 s."""

    async def run_blocking(self, work):
        await trio.sleep(0.1)
        return work()


@virtual
async def test_exchanges_that_become_ready_during_a_write_wait_for_the_next_block():
    """Their number bounds the memory for the index of an open file; a busy gateway wrote 13 blocks a second."""
    folder = MemoryFolder()
    async with capturing(folder, SlowDisk(), has_mirror=True, block_bytes=1 << 20) as capture:
        for number in range(200):
            tell(capture, 1, first=number)
            await trio.sleep(0.05)
        await trio.sleep(4)
        assert [each.connection for each in folder.records()] == list(range(200))
        assert len(capture._files._blocks) <= 14, "one for each second"
