import logging
import os

import pytest
import trio

from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from gateway.shadow.mirror.spill_backlog import encode_exchange
from gateway.shadow.mirror.spill_directory import SpillDirectory
from gateway.shadow.mirror.spill_queue import SpillQueue
from gateway.shadow.tests.exchanges import make_send_exchange
from gateway.shadow.tests.mirrored_clusters import mirrored
from gateway.shadow.traffic.exchange import Side
from gateway.tests.cluster import inline

PLACE = Side.PRIMARY, "broker-a", 0
RULE = MirrorRule(topics=["orders"])


def spill_directory(tmp_path, *, target="there", **more):
    return SpillDirectory(
        MirrorSettings(**{"spill": "disk", "spill_dir": str(tmp_path), **more}), target, inline
    )


def leave_records(tmp_path, *, rule=RULE, place=PLACE, count=3):
    """Write spill files as a run with one rule leaves them; return the directory."""
    made = spill_directory(tmp_path)
    files = SpillQueue(made.stream_path(place), 1 << 20, 1 << 16, made.stream_owner(rule))
    files.recover()
    files.append_records([encode_exchange(make_send_exchange("orders")) for _ in range(count)])
    return made.stream_path(place)


def test_stream_of_the_same_rule_and_target_is_resumable(tmp_path):
    leave_records(tmp_path)
    leave_records(tmp_path, place=(Side.TARGET, "broker-b-1", 0))
    mode = MirrorRule(topics=["orders"], mode="off")  # a changed mode does not matter
    found = spill_directory(tmp_path).find_resumable(MirrorRules([mode, MirrorRule()]))
    assert found == [PLACE, (Side.TARGET, "broker-b-1", 0)]
    assert spill_directory(tmp_path / "nowhere").find_resumable(MirrorRules([RULE])) == []


def set_aside(tmp_path, caplog, rules, **more):
    directory = leave_records(tmp_path)
    with caplog.at_level(logging.ERROR):
        assert spill_directory(tmp_path, **more).find_resumable(MirrorRules(rules)) == []
    assert not os.path.exists(directory)
    assert os.path.exists(directory + ".aside-1")
    return caplog.records[-1].reason


def test_changed_rule_sets_the_directory_aside(tmp_path, caplog):
    reason = set_aside(tmp_path, caplog, [MirrorRule(topics=["orders"], sample=0.5)])
    assert reason == "the target or the rule has changed"


def test_changed_target_sets_the_directory_aside(tmp_path, caplog):
    reason = set_aside(tmp_path, caplog, [RULE], target="elsewhere")
    assert reason == "the target or the rule has changed"


def test_run_without_spilling_sets_the_directory_aside(tmp_path, caplog):
    assert set_aside(tmp_path, caplog, [RULE], spill="none") == 'spill is no longer "disk"'


def test_missing_rule_or_foreign_name_sets_the_directory_aside(tmp_path, caplog):
    leave_records(tmp_path, place=(Side.PRIMARY, "broker-a", 1))
    spill_directory(tmp_path).find_resumable(MirrorRules([RULE]))
    assert caplog.records[-1].reason == "its rule no longer exists"
    os.rename(leave_records(tmp_path), tmp_path / "else")
    spill_directory(tmp_path).find_resumable(MirrorRules([RULE]))
    assert caplog.records[-1].reason == "its name is not the name of a stream"


def test_set_aside_directories_are_logged_at_every_start(tmp_path, caplog):
    set_aside(tmp_path, caplog, [MirrorRule()])

    async def look():
        return await spill_directory(tmp_path).read_set_aside()

    for _ in range(2):
        (found,) = trio.run(look)
        assert (found.exchanges, found.queues) == (3, {("broker-a", "orders", 0): (3, 7)})
        assert caplog.records[-1].message == "exchanges set aside will not be mirrored"


def test_queues_of_set_aside_messages_are_marked_as_diverged(tmp_path):
    leave_records(tmp_path)

    @mirrored(MirrorRule(), spill="disk", spill_dir=str(tmp_path))
    async def run(world):
        await trio.sleep(1)
        (mark,) = world.mirror.diverged
        assert (mark.topic, mark.count, mark.offset) == ("orders", 3, 7)
        assert ".aside-1" in mark.reason
        (row,) = world.mirror.status()["set_aside"]
        assert row["exchanges"] == 3

    run()


def test_gap_behind_resumed_messages_is_marked_as_diverged(tmp_path):
    """The latest messages before the end were in no file; the next message of their queue reveals the gap."""
    limits = {"spill": "disk", "spill_dir": str(tmp_path)}

    @mirrored(**limits)
    async def first(world):
        world.create_topic()
        world.target.fault = "gone"
        for number in range(10):
            await world.send(b"%d" % number)
        await trio.sleep(5)
        assert next(iter(world.mirror.streams())).on_disk == 10

    @mirrored(**limits)
    async def second(world):
        world.create_topic()
        for number in range(12):  # the last two are neither on disk nor observed
            await world.send(b"%d" % number, observed=False)
        await trio.sleep(1)
        assert world.check_counts().resumed == 10
        await world.send(b"12")
        await world.wait_until_idle()
        there = [b"%d" % number for number in (*range(10), 12)]
        assert await world.bodies(world.target) == there
        (mark,) = world.mirror.diverged
        assert (mark.offset, mark.count, mark.reason) == (
            10, 2, "lost when the gateway was killed, or never seen by it",
        )  # fmt: skip

    first()
    second()


@pytest.mark.parametrize("broker", ["../../escaped", "/etc/escaped", "..", "a b", "100%", "北京"])
def test_files_stay_in_their_directory_whatever_brokers_are_called(tmp_path, broker):
    """Anybody can register a broker under any name; files of its stream were written wherever the name led."""
    inside = tmp_path / "spill"
    directory = leave_records(inside, place=(Side.PRIMARY, broker, 0), rule=MirrorRule())
    assert os.path.dirname(os.path.realpath(directory)) == os.path.realpath(inside)
    assert [each.name for each in tmp_path.iterdir()] == ["spill"]
    found = spill_directory(inside).find_resumable(MirrorRules([MirrorRule()]))
    assert found == [(Side.PRIMARY, broker, 0)]


def test_a_directory_with_a_name_of_many_digits_is_set_aside(tmp_path, caplog):
    os.rename(leave_records(tmp_path), tmp_path / f"primary-broker-a-{'9' * 200}")
    assert spill_directory(tmp_path).find_resumable(MirrorRules([RULE])) == []
    assert caplog.records[-1].reason == "its rule no longer exists"
