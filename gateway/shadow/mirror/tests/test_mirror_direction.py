import os

import trio

from gateway.shadow.mirror.half_messages import HalfMessage, HalfMessages
from gateway.shadow.mirror.mirror_direction import MirrorState
from gateway.shadow.mirror.offset_map import OffsetMap
from gateway.tests.cluster import inline
from remoting.tests.virtual import virtual

Q = ("broker-a", "orders", 0)


def state(path, limit=10):
    return MirrorState(OffsetMap(limit), HalfMessages(limit), str(path), 5.0, inline)


def fill(one):
    one.offsets.add_range(Q, 10, 3, 4)
    one.halves.add_half(HalfMessage("broker-a", "K1", "PID", "orders", 2, 7, 4096, end=8))


@virtual
async def test_state_is_written_at_intervals_and_can_be_loaded(tmp_path):
    one = state(tmp_path / "deep" / "state")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        fill(one)
        await trio.sleep(6)
        written = os.stat(tmp_path / "deep" / "state").st_mtime_ns
        await trio.sleep(60)
        assert os.stat(tmp_path / "deep" / "state").st_mtime_ns == written
        nursery.cancel_scope.cancel()
    again = state(tmp_path / "deep" / "state")
    again.load_file()
    assert again.offsets.translate(Q, 12) == 5
    assert again.halves.find_half("broker-a", "K1") == one.halves.find_half("broker-a", "K1")


@virtual
async def test_latest_changes_are_written_on_cancellation(tmp_path):
    one = state(tmp_path / "state")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        await trio.sleep(1)
        fill(one)
        nursery.cancel_scope.cancel()
    again = state(tmp_path / "state")
    again.load_file()
    assert len(again.halves) == 1


def test_damaged_state_file_is_logged_and_ignored(tmp_path, caplog):
    path = tmp_path / "state"
    one = state(path)
    fill(one)
    data = one.encode_state()
    path.write_bytes(data[:-3] + b"xyz")
    again = state(path)
    again.load_file()
    assert "cannot read the mirror state" in caplog.text
    assert again.offsets.count_entries()["queues"] == len(again.halves) == 0


def test_missing_state_file_is_not_logged(tmp_path, caplog):
    state(tmp_path / "none").load_file()
    assert caplog.text == ""
