"""Native sends against Python's: the same bytes must leave the same answers, files and counts."""

import gc
import json
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings

from codec.command import Command
from codec.message import decode_message, iter_messages
from codec.native import native_module
from gateway.broker.messages.advertised_hosts import HOST_VIEW
from gateway.broker.processors.live_config import apply_broker_config
from gateway.broker.requests import send_handler
from gateway.broker.topics.topic_table import TopicTable
from gateway.tests.configs import change_config
from gateway.tests.native_sends.boundaries import BODY, KEY, RULES
from gateway.tests.native_sends.broker_pair import BrokerPair, PairDiffers, Side, run_pair
from gateway.tests.native_sends.frames import (
    FrameSource,
    binary_frame,
    cut_into_reads,
    json_frame,
    plain_fields,
)
from gateway.tests.native_sends.killed import HEAD_BYTES, PLACES, QUEUES, body_of, frame_of
from gateway.tests.native_sends.rounds import ROUND_FRAMES, Round, resize_topic, wait_for_message
from gateway.tests.native_sends.strategies import reads
from remoting.bodies.topics import TopicConfig
from remoting.connection import Connection
from remoting.limits import ConnectionLimits
from storage import append
from storage.clock import SystemClock
from storage.commit_log import CommitLog
from storage.config import StoreConfig
from storage.crash_files import CrashFiles
from storage.files import DiskFiles
from storage.layout import QUEUE_ENTRY_BYTES
from storage.store import MessageStore

ROOT = Path(__file__).resolve().parents[2]
PLAIN = binary_frame(plain_fields(properties=KEY), 1, b"plain")
ROUNDS = 20
"""Rounds of `ROUND_FRAMES` frames: 100,000."""
MIN_TAKEN_SHARE = 0.3

IS_MISSING = native_module() is None
# In CI they fail instead.
pytestmark = pytest.mark.skipif(IS_MISSING and "CI" not in os.environ, reason="the extension is not built")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Odd requests make a broker log warnings."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def feed_all(pair: BrokerPair, parts: Iterator[bytes]) -> None:
    for part in parts:
        pair.feed(part)
        if pair.has_running_tasks or pair.has_held_answers:
            await pair.settle()


def run_reads(parts: list[bytes], **arguments: Any) -> int:
    return run_pair(lambda pair: feed_all(pair, iter(parts)), **arguments)


def reads_at(rule: str) -> list[bytes]:
    """Return each frame of a rule alone, and between two plain ones in one read.

    The first send of a connection is always left to Python,
    and bad frames end connections: so a plain one comes first.
    """
    return [part for frame in RULES[rule]() for part in (PLAIN, frame, PLAIN, PLAIN + frame + PLAIN)]


# -- the same frames to both ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(1, ROUNDS + 1))
def test_random_frames(seed: int) -> None:
    Round(seed).run()


@pytest.mark.parametrize("seed", [101, 102])
def test_random_frames_on_disk(seed: int, tmp_path: Path) -> None:
    """Files on disk reserve their space step by step."""
    Round(seed, folder=tmp_path).run()


@pytest.mark.parametrize("rest", [0, 1, 7, 8, 9, 16, 200])
def test_a_message_that_ends_near_the_end_of_a_log_file(rest: int) -> None:
    """A blank marker of eight bytes must fit after it; otherwise it goes into the next file."""
    file_bytes = 1 << 16

    async def story(pair: BrokerPair) -> None:
        log = pair.sides[0].broker.store.commit_log
        pair.feed(PLAIN)
        before = log.position
        pair.feed(PLAIN)
        size = log.position - before
        filler = file_bytes - rest - size - log.position - (size - len(b"plain"))
        pair.feed(binary_frame(plain_fields(properties=KEY), 1, bytes(filler)))
        assert log.position == file_bytes - rest - size
        pair.feed(PLAIN)
        pair.feed(PLAIN + PLAIN)

    run_pair(story, settings={"mapped_file_size_commit_log_bytes": file_bytes})


def test_most_plain_frames_are_taken_natively() -> None:
    source = FrameSource(1, oddity=0.0)
    taken = run_reads(list(cut_into_reads(source.chance, (source.frame() for _ in range(2000)))))
    assert taken > 0.9 * 2000
    assert sum(Round(seed).run() for seed in range(30, 34)) > MIN_TAKEN_SHARE * 4 * ROUND_FRAMES


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"settings": {"flush_disk_type": "SYNC_FLUSH"}},
        {"settings": {"max_message_size_bytes": 200}},
        {"limits": ConnectionLimits(max_frame_bytes=600, max_header_bytes=250)},
    ],
    ids=["defaults", "waiting for the disk", "small messages", "small frames"],
)
def test_frames_at_the_boundary_of_a_rule(rule: str, arguments: dict[str, Any]) -> None:
    assert run_reads(reads_at(rule), **arguments)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(reads())
def test_reads_that_hypothesis_makes(parts: list[bytes]) -> None:
    logging.disable(logging.CRITICAL)
    run_reads([PLAIN, *parts])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(reads())
def test_reads_that_hypothesis_makes_with_flushes(parts: list[bytes]) -> None:
    logging.disable(logging.CRITICAL)
    run_reads([PLAIN, *parts], settings={"flush_disk_type": "SYNC_FLUSH"})


def test_a_frame_that_arrives_byte_by_byte() -> None:
    frames = PLAIN + json_frame(plain_fields(properties=KEY), 2, BODY) + PLAIN
    run_reads([frames[at : at + 1] for at in range(len(frames))])


@pytest.mark.parametrize("cut", range(1, len(PLAIN) + 1, 3))
def test_a_read_that_ends_within_a_frame(cut: int) -> None:
    run_reads([PLAIN + PLAIN[:cut], PLAIN[cut:] + PLAIN])


def test_waiting_pulls_are_answered_by_a_plain_send() -> None:
    def frame(queue: int) -> bytes:
        return binary_frame(plain_fields(queue=str(queue), properties=KEY), 9, BODY)

    async def story(pair: BrokerPair) -> None:
        for queue in range(4):
            pair.feed(frame(queue))
            pair.feed(wait_for_message("plain", queue, 1, queue))
        before = pair.frames_taken
        answers = pair.feed(frame(2))[1]
        assert pair.frames_taken == before + 1
        assert isinstance(answers, bytes)
        assert answers.count(b'"opaque":') == 2

    run_pair(story)


def test_a_queue_that_its_topic_has_lost() -> None:
    """The store still has the queue; the topic takes nothing for it any more."""
    frame = binary_frame(plain_fields("other", "3", KEY), 1, BODY)

    async def story(pair: BrokerPair) -> None:
        for queues in (8, 4, 3, 2, 8):
            pair.both(partial(resize_topic, topic="other", queues=queues))
            await feed_all(pair, iter([frame, frame + frame]))

    run_pair(story)


def test_a_topic_that_is_deleted_and_created_again() -> None:
    frame = binary_frame(plain_fields("other", "3", KEY), 1, BODY)

    async def story(pair: BrokerPair) -> None:
        for _ in range(3):
            await feed_all(pair, iter([frame, frame + frame]))
            pair.both(lambda side: side.broker.topics.delete("other"))
            await feed_all(pair, iter([frame]))
            pair.both(lambda side: side.broker.store.delete_topic("other"))

    run_pair(story)


@pytest.mark.parametrize("sync", [False, True])
def test_a_full_disk_refuses_plain_sends(sync: bool) -> None:
    async def story(pair: BrokerPair) -> None:
        await feed_all(pair, iter([PLAIN, PLAIN]))
        pair.both(lambda side: setattr(side.broker.store, "disk_full", True))
        await feed_all(pair, iter([PLAIN, PLAIN + PLAIN]))
        pair.both(lambda side: setattr(side.broker.store, "disk_full", False))
        await feed_all(pair, iter([PLAIN + PLAIN]))

    run_pair(story, settings={"flush_disk_type": "SYNC_FLUSH" if sync else "ASYNC_FLUSH"})


@pytest.mark.parametrize(
    "arguments",
    [
        {"limits": ConnectionLimits(max_outstanding_requests=3)},
        {"settings": {"send_queue_capacity": 3}},
    ],
    ids=["of a connection", "of the broker"],
)
def test_answers_that_wait_are_limited(arguments: dict[str, Any]) -> None:
    """The sends beyond the limit are refused by Python; no flush ends in the middle of a read."""
    sync = {"flush_disk_type": "SYNC_FLUSH"}
    arguments = {**arguments, "settings": sync | arguments.get("settings", {})}
    assert run_reads([PLAIN, PLAIN * 2, PLAIN * 3, PLAIN * 4, PLAIN * 20], **arguments)


@pytest.mark.parametrize(
    "changes", [{"broker_permission": 4}, {"start_accept_send_timestamp_ms": 1_895_000_000_000}], ids=str
)
def test_a_setting_that_refuses_sends(changes: dict[str, Any]) -> None:
    async def story(pair: BrokerPair) -> None:
        await feed_all(pair, iter([PLAIN, PLAIN]))
        pair.both(lambda side: apply_broker_config(side.broker, change_config(side.broker.config, **changes)))
        taken = pair.frames_taken
        await feed_all(pair, iter([PLAIN, PLAIN + PLAIN]))
        assert pair.frames_taken == taken

    run_pair(story)


def give_quota(side: Side) -> None:
    limited = TopicConfig(topic_name="other", attributes={"+quota.send.messages": "5"})
    side.broker.topics.update([limited])


def test_quotas_are_kept() -> None:
    """A topic with a quota has every send counted, by Python."""

    async def story(pair: BrokerPair) -> None:
        await feed_all(pair, iter([PLAIN, PLAIN]))
        pair.both(give_quota)
        await feed_all(pair, iter([binary_frame(plain_fields("other", properties=KEY), 1, BODY)] * 20))

    run_pair(story)


# -- which frames are taken -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [binary_frame, json_frame])
@pytest.mark.parametrize(
    "changes",
    [
        {}, {"f": "1"}, {"j": "3"}, {"e": "3"}, {"b": "tags"}, {"b": "T" * 127, "e": "0"},
        {"i": f"{KEY}TAGS\x01a\x02KEYS\x01k\x02"},
        {"i": f"{KEY}__SHARDINGKEY\x01s\x02"}, {"i": KEY[:-1]}, {"i": f"{KEY}WAIT\x01true\x02"}, {"h": "5"},
        {"l": "0"},
    ],
    ids=str,
)  # fmt: skip
def test_sends_of_stock_producers_are_taken(write: Callable[..., bytes], changes: dict[str, str]) -> None:
    first = plain_fields(
        **{"topic": changes.get("b", "plain"), "queue": changes.get("e", "0")}, properties=KEY
    )
    frame = write(plain_fields(properties=KEY) | changes, 7, BODY)
    assert run_reads([write(first, 1, BODY), frame, frame]) >= 2


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_taken_sends_keep_no_references(flush: str) -> None:
    """A reference that is not given back in C keeps an object for ever; one too many given back ends the process."""

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            # One file for all entries: the pool of open files holds the queue for each.
            entries = {"mapped_file_size_consume_queue_bytes": 20 * 10_000}
            side = Side(nursery, native=True, flush_disk_type=flush, **entries)
            left_to_python = binary_frame(plain_fields("no/such", properties=KEY), 1, BODY)
            read = PLAIN * 64 + left_to_python + PLAIN
            for _ in range(3):
                side.feed(read)
                await trio.testing.wait_all_tasks_blocked()
            store, topics, view = side.broker.store, side.broker.topics, side.connection.state.get(HOST_VIEW)
            assert view is not None
            queue = store.queues_by_key["plain", 0]
            objects = (
                store, topics, view, queue, store.commit_log, topics.table, topics.table["plain"],
                topics.closed_to_producers,
                queue.topic_part, view.born_host, side.broker.stats.stored["plain"], side.connection, HOST_VIEW, read,
                store.queues_by_key, side.broker.stats.stored,
            )  # fmt: skip
            before = [sys.getrefcount(value) for value in objects]
            for _ in range(20):
                side.feed(read)
                await trio.testing.wait_all_tasks_blocked()
            assert [sys.getrefcount(value) for value in objects] == before
            assert side.frames_taken > 20 * 60
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock())


def test_a_handler_that_forbids_native_sends_does_so_for_the_frames_that_follow_it() -> None:
    code = 9999

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            side = Side(nursery, native=True)

            def forbid(connection: Connection, command: Command) -> None:
                side.service.native_sends.take = None

            side.service.handlers[code] = forbid
            side.feed(PLAIN)
            side.feed(PLAIN * 2 + binary_frame({}, 1, b"", code) + PLAIN * 2)
            assert side.frames_taken == 2
            assert side.broker.store.max_offset("plain", 0) == 5
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock())


def test_memory_that_runs_out_leaves_no_half_of_a_send() -> None:
    """Whichever allocation fails, the log and its queues have the same messages afterwards."""
    testcapi = pytest.importorskip("_testcapi", reason="needs a Python that can let allocations fail")
    frames = [binary_frame(plain_fields("plain", queue, KEY), 1, BODY) for queue in "012"]
    read = b"".join(frames) * 2
    failures = 0

    async def run() -> None:
        nonlocal failures
        async with trio.open_nursery() as nursery:
            side = Side(nursery, native=True)
            for frame in frames * 300:  # so that no number is one of those that need no memory
                side.feed(frame)
            store = side.broker.store
            take, log = side.service.native_sends.take, store.commit_log
            queues = [store.queues_by_key["plain", number] for number in range(3)]
            assert take is not None
            size = log.position // 900
            for number in range(90):
                testcapi.set_nomemory(number, number + 1)
                try:
                    take(side.connection, read, 0)
                except MemoryError:
                    failures += 1
                finally:
                    testcapi.remove_mem_hooks()
                assert sum(queue.next_offset for queue in queues) == log.position // size
                for queue in queues:
                    assert queue.position == QUEUE_ENTRY_BYTES * queue.next_offset
                assert log.queued_until == log.base + log.position
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock())
    assert failures > 10


def test_the_collector_rests_until_the_positions_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finalizers that it calls are any code, which must not meet a log that has a message and no entry."""
    during_runs: list[bool] = []

    class WatchedTopics(TopicTable):
        def __getattribute__(self, name: str) -> Any:
            if name == "table":
                during_runs.append(gc.isenabled())
            return super().__getattribute__(name)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            side = Side(nursery, native=True)
            side.feed(PLAIN)
            monkeypatch.setattr(side.broker.topics, "__class__", WatchedTopics)
            take = side.service.native_sends.take
            assert take is not None
            for enable in (gc.disable, gc.enable):
                enable()
                was_enabled = gc.isenabled()
                during_runs.clear()
                assert take(side.connection, PLAIN * 3, 0) is not None
                assert during_runs == [False]
                assert gc.isenabled() == was_enabled
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock())


# -- a rule that changes in Python alone ------------------------------------------------------------------------------


def _special(words: str) -> Callable[[pytest.MonkeyPatch], None]:
    original = send_handler._needs_special_path
    return lambda patch: patch.setattr(
        send_handler, "_needs_special_path", lambda properties: words in properties or original(properties)
    )


def _patch(target: Any, name: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(target, name, value)


CHANGED_RULES: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "another word for the special path": ("special words", _special("PGROUP")),
    "shorter properties": ("property lengths", _patch(append, "MAX_PROPERTIES_BYTES", 0x7FFE)),
    "another sharding key": ("special words", _patch(send_handler, "SHARDING_KEY", "PGROUP\x01")),
    "another unique key": ("unique keys", _patch(send_handler, "UNIQUE_KEY", "uniq_key\x01")),
    "another tags code": ("tags", _patch(append, "tags_code_of", lambda properties: 0)),
    "another checksum": ("bodies", _patch(append, "crc32", lambda body: 0)),
    "another flag of tags": ("topics", _patch(send_handler, "MULTI_TAGS", 0)),
    "an inner batch is plain": ("numbers", _patch(send_handler, "INNER_BATCH", 1)),
}  # fmt: skip
"""Changes of Python's rules, each with the boundary at which the native path must differ then."""


@pytest.mark.parametrize("name", CHANGED_RULES)
def test_a_rule_that_changes_in_python_alone_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, change = CHANGED_RULES[name]
    change(monkeypatch)
    with pytest.raises(PairDiffers):
        run_reads(reads_at(rule))


# -- kills and power cuts ---------------------------------------------------------------------------------------------


def start_killed(root: Path, where: str, path: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "gateway.tests.native_sends.killed", str(root), where, path]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def store_of(root: Path) -> StoreConfig:
    return StoreConfig(
        root=str(root),
        commit_log_file_bytes=1 << 20,
        consume_queue_file_entries=500,
        index_slots=1000,
        index_entries=4000,
    )


def bodies_of(store: MessageStore, queue_id: int) -> list[bytes]:
    ends = range(store.min_offset("plain", queue_id), store.max_offset("plain", queue_id))
    return [bytes(decode_message(store.read("plain", queue_id, offset, 1).chunks[0]).body) for offset in ends]


@pytest.mark.parametrize("path", ["native", "python"])
@pytest.mark.parametrize("where", PLACES)
def test_a_process_that_ends_in_the_middle_of_an_append(
    where: str, path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The head of the message is written last, and its queue entry after that; what came before it is whole."""
    with start_killed(tmp_path, where, path) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGSEGV
    told = json.loads(output)
    log = (tmp_path / "commitlog" / f"{0:020}").read_bytes()
    start, place = told["start"], PLACES[where]
    assert any(log[start : start + HEAD_BYTES]) == (place.protected == "queue"), "the head is written last"
    entries = (tmp_path / "consumequeue" / "plain" / str(told["queue"]) / f"{0:020}").read_bytes()
    at = 20 * told["entries"]
    assert not any(entries[at : at + 20]), "an entry is written after its message"
    logging.disable(logging.NOTSET)
    store = MessageStore.open(store_of(tmp_path), DiskFiles(), SystemClock())
    stored = sum(len(bodies_of(store, queue_id)) for queue_id in range(QUEUES))
    assert stored == told["whole"] + (place.protected == "queue")
    store.close()
    assert "torn" not in caplog.text
    assert "damaged" not in caplog.text


@pytest.mark.parametrize("seed", range(6))
def test_a_process_killed_at_any_time_keeps_what_it_acknowledged(seed: int, tmp_path: Path) -> None:
    randomness = random.Random(seed)
    with start_killed(tmp_path, "anywhere", "native") as process:
        assert process.stdout is not None
        acknowledged = 0
        for _ in range(randomness.randrange(1, 3000)):
            acknowledged = int(process.stdout.readline())
        process.kill()
        rest, _ = process.communicate(timeout=60)
    acknowledged = max([acknowledged, *map(int, rest.rpartition("\n")[0].split())])
    store = MessageStore.open(store_of(tmp_path), DiskFiles(), SystemClock())
    queues = [bodies_of(store, queue_id) for queue_id in range(QUEUES)]
    assert sum(map(len, queues)) >= acknowledged
    for queue_id, stored in enumerate(queues):
        assert stored == [
            body_of(number) for number in range(queue_id, queue_id + QUEUES * len(stored), QUEUES)
        ]
    store.close()


@pytest.mark.parametrize("seed", range(12))
def test_power_that_fails_after_answers_takes_none_of_their_messages(seed: int) -> None:
    """With SYNC_FLUSH: what was answered before the cut is there afterwards, at its queue offset."""
    randomness = random.Random(seed)
    small = {"mapped_file_size_commit_log_bytes": 1 << 16, "mapped_file_size_consume_queue_bytes": 20 * 100}
    files = CrashFiles()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            side = Side(nursery, native=True, files=files, flush_disk_type="SYNC_FLUSH", **small)
            acknowledged, number = 0, 0
            for _ in range(randomness.randrange(1, 40)):
                count = randomness.randrange(1, 30)
                side.feed(b"".join(frame_of(number + more) for more in range(count)))
                number += count
                if randomness.random() < 0.8:
                    await trio.testing.wait_all_tasks_blocked()
                if randomness.random() < 0.1:
                    side.broker.store.write_checkpoint()
                answers = bytes(side.transport.sent)
                side.transport.sent.clear()
                acknowledged += answers.count(b'"code":0,')
            assert side.frames_taken
            config = side.broker.store.config
            for crashed in (files.crash(randomness), files.crash(randomness, lose_unflushed=False)):
                store = MessageStore.open(config, crashed, side.clock)
                queues = [bodies_of(store, queue_id) for queue_id in range(QUEUES)]
                assert sum(map(len, queues)) >= acknowledged
                for queue_id, stored in enumerate(queues):
                    expected = range(queue_id, queue_id + QUEUES * len(stored), QUEUES)
                    assert stored == [body_of(number) for number in expected]
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock())


_CONFIRM_OFFSET: Any = CommitLog.__dict__["queued_until"]


class WatchedLog(CommitLog):
    """A log that notes what was written each time its confirm offset moves."""

    __slots__ = ()
    seen: ClassVar[list[tuple[int, int, int]]] = []
    store: ClassVar[Any] = None

    @property
    def queued_until(self) -> int:
        return int(_CONFIRM_OFFSET.__get__(self))

    @queued_until.setter
    def queued_until(self, value: int) -> None:
        _CONFIRM_OFFSET.__set__(self, value)
        entries = sum(queue.next_offset for queue in self.store.queues_by_key.values())
        self.seen.append((value, self.base + self.position, entries))


@pytest.mark.parametrize("native", [False, True])
def test_the_confirm_offset_moves_after_the_entries(native: bool) -> None:
    """A checkpoint in another thread takes it for the end of what has queue entries."""

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            side = Side(nursery, native=native)
            side.feed(b"".join(frame_of(number) for number in range(QUEUES)))
            store = side.broker.store
            WatchedLog.seen, WatchedLog.store = [], store
            log = store.commit_log
            log.__class__ = WatchedLog
            side.feed(b"".join(frame_of(number) for number in range(QUEUES, 60)))
            assert WatchedLog.seen
            ends = [0]
            for message in iter_messages(memoryview(log.buffer)[: log.position]):
                ends.append(message.physical_offset + message.size)
            for queued, end, entries in WatchedLog.seen:
                assert queued <= end
                assert queued <= ends[entries], "entries first"
            assert WatchedLog.seen[-1] == (log.position, log.position, 60)
            nursery.cancel_scope.cancel()

    trio.run(run)


def test_the_command_compares_frames() -> None:
    command = [sys.executable, "-m", "gateway.tests.native_sends", "--frames", "2000", "--seed", "77"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2,000 frames are equal" in run.stdout
