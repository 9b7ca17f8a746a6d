"""Streams with a spill backlog whose process ends, by SIGKILL or in order, and the next process that resumes."""

import logging
import random
import shutil
from functools import partial

import pytest
import trio

from gateway.shadow.mirror import spill_backlog
from gateway.shadow.mirror.settings import MirrorSettings
from gateway.shadow.mirror.spill_backlog import SpillBacklog, decode_exchange
from gateway.shadow.mirror.tests.test_mirror_stream import Bench, Target, message, offsets
from gateway.shadow.traffic.subject import subject_of
from gateway.tests.cluster import inline, settle
from remoting.tests.virtual import virtual


def small(tmp_path, **more):
    sizes = {"queue_messages": 40, "queue_bytes": 150_000, "spill_file_bytes": 4096, "batch_messages": 16}
    return MirrorSettings(
        **{"spill": "disk", "spill_dir": str(tmp_path), "deadline_ms": 1000, **sizes, **more}
    )


class Process:
    """One process with its stream: `begin`, then `kill` or `end`."""

    def __init__(self, tmp_path, target, run_blocking=inline, **more):
        self.directory = tmp_path / "s"
        settings = small(tmp_path, **more)
        self.bench = Bench(
            target,
            settings,
            partial(
                SpillBacklog,
                settings,
                directory=str(self.directory),
                run_blocking=run_blocking,
                owner="me",
            ),
        )
        self.backlog = self.bench.backlog
        self.stream = self.bench.stream
        self.target = target

    async def begin(self, nursery):
        self._scope = trio.CancelScope()

        async def run():
            with self._scope:
                await self.stream.run()

        nursery.start_soon(run)
        await settle()
        self.bench.offered = self.stream.counts.observed

    async def offer_messages(self, count):
        """Offer messages from number 0 on, a hundred per second."""
        for number in range(count):
            self.bench.offer(message(number))
            await trio.sleep(0.01)

    async def kill(self):
        """End the process so that the next one finds the files as they are now."""
        copy = self.directory.with_name("copy")
        shutil.copytree(self.directory, copy)
        await self.end()
        shutil.rmtree(self.directory)
        copy.rename(self.directory)

    async def end(self):
        self._scope.cancel()
        await settle()

    async def wait_until_idle(self):
        with trio.fail_after(3600):
            while self.stream.queued:
                await trio.sleep(0.1)
                self.bench.check()


@pytest.mark.parametrize("how", ["kill", "end"])
@virtual
async def test_next_process_resumes_what_waited(tmp_path, how):
    target = Target("gone")
    async with trio.open_nursery() as nursery:
        first = Process(tmp_path, target)
        await first.begin(nursery)
        await first.offer_messages(300)
        assert first.stream.spilled > 200
        await getattr(first, how)()
        target.fault = "none"
        second = Process(tmp_path, target)
        await second.begin(nursery)
        assert second.stream.counts.resumed == second.stream.counts.observed == 300
        for number in range(300, 320):
            second.bench.offer(message(number))
        await second.wait_until_idle()
        assert offsets(target.taken) == list(range(320))
        assert not list(second.directory.glob("*.spill"))
        await second.end()
        nursery.cancel_scope.cancel()


@virtual
async def test_orderly_end_saves_what_was_only_in_memory(tmp_path):
    target = Target("stalled")
    async with trio.open_nursery() as nursery:
        first = Process(tmp_path, target)
        await first.begin(nursery)
        for number in range(5):
            first.bench.offer(message(number))
        await settle()
        assert first.backlog.spilled == 0
        await first.end()
        target.fault = "none"
        second = Process(tmp_path, target)
        await second.begin(nursery)
        await second.wait_until_idle()
        assert offsets(target.taken) == list(range(5))
        nursery.cancel_scope.cancel()


@virtual
async def test_nothing_is_written_while_the_target_works(tmp_path):
    target = Target()
    async with trio.open_nursery() as nursery:
        life = Process(tmp_path, target)
        await life.begin(nursery)
        before = {path.name for path in life.directory.iterdir()}
        await life.offer_messages(500)
        await life.wait_until_idle()
        assert {path.name for path in life.directory.iterdir()} == before
        nursery.cancel_scope.cancel()


@virtual
async def test_unidentified_entries_count_for_every_topic(tmp_path):
    target = Target("gone")
    async with trio.open_nursery() as nursery:
        first = Process(tmp_path, target)
        await first.begin(nursery)
        await first.offer_messages(200)
        await first.kill()
        second = Process(tmp_path, target)
        await second.begin(nursery)
        assert second.stream.count_queued_of("orders") == 200
        assert second.stream.count_queued_of("others") == second.backlog.unidentified > 100
        target.fault = "none"
        await second.wait_until_idle()
        assert (second.stream.count_queued_of("orders"), second.stream.count_queued_of("others")) == (0, 0)
        nursery.cancel_scope.cancel()


@virtual
async def test_resumed_entries_are_counted_once_opened_even_on_a_slow_disk(tmp_path):
    target = Target("gone")

    async def slowly(work):
        await trio.sleep(5)
        return work()

    async with trio.open_nursery() as nursery:
        first = Process(tmp_path, target)
        await first.begin(nursery)
        await first.offer_messages(200)
        await first.kill()
        second = Process(tmp_path, target, run_blocking=slowly)
        await second.begin(nursery)
        await second.stream.wait_until_opened()
        assert (second.stream.queued, second.stream.counts.resumed) == (200, 200)
        nursery.cancel_scope.cancel()


@virtual
async def test_torn_tail_is_counted_and_logged(tmp_path, caplog):
    target = Target("gone")
    async with trio.open_nursery() as nursery:
        first = Process(tmp_path, target)
        await first.begin(nursery)
        await first.offer_messages(100)
        await first.kill()
        last = max(first.directory.glob("*.spill"))
        last.write_bytes(last.read_bytes()[:-3])
        target.fault = "none"
        second = Process(tmp_path, target)
        with caplog.at_level(logging.ERROR):
            await second.begin(nursery)
        assert "spill files of an earlier run are damaged" in caplog.text
        await second.wait_until_idle()
        counts = second.stream.counts
        assert (counts.observed, counts.mirrored, counts.dropped) == (100, 99, 1)
        assert second.stream.lost == 1
        assert offsets(target.taken) == list(range(99))
        nursery.cancel_scope.cancel()


@virtual
async def test_undecodable_record_loses_only_itself(tmp_path, monkeypatch, caplog):
    target = Target("gone")

    def read(payload):
        found = decode_exchange(payload)
        if subject_of(found).offset in (50, 51):
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")
        return found

    async with trio.open_nursery() as nursery:
        first = Process(tmp_path, target)
        await first.begin(nursery)
        await first.offer_messages(100)
        await first.kill()
        target.fault = "none"
        monkeypatch.setattr(spill_backlog, "decode_exchange", read)
        second = Process(tmp_path, target)
        await second.begin(nursery)
        await second.wait_until_idle()
        counts = second.stream.counts
        assert (counts.observed, counts.mirrored, counts.dropped, second.stream.lost) == (100, 98, 2, 2)
        assert offsets(target.taken) == [number for number in range(100) if number not in (50, 51)]
        lost = [each.reason for each in caplog.records if each.msg == "spilled exchanges lost"]
        assert len(lost) == 2
        assert lost[0].startswith("cannot decode an exchange in ")
        assert ": UnicodeDecodeError" in lost[0]
        assert (second.stream.count_queued_of("others"), list(second.directory.glob("*.spill"))) == (0, [])
        nursery.cancel_scope.cancel()


@virtual
async def test_failing_disk_leaves_entries_in_memory(tmp_path, caplog):
    target = Target("gone")
    async with trio.open_nursery() as nursery:
        life = Process(tmp_path, target)
        life.backlog._spill_queue.append_records = lambda payloads: (_ for _ in ()).throw(
            OSError("no space left")
        )
        await life.begin(nursery)
        await life.offer_messages(60)
        assert "waiting exchanges are in memory only" in caplog.text
        assert life.stream.counts.dropped == 60 - life.stream.queued > 0
        target.fault = "none"
        kept = life.stream.queued
        await life.wait_until_idle()
        assert offsets(target.taken) == list(range(kept))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(40))
def test_repeated_kills_lose_nothing_and_repeat_only_what_was_in_doubt(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(spill_backlog, "MAX_IN_DOUBT_MESSAGES", 8)

    @virtual
    async def run():
        chance = random.Random(seed)
        target, number, doubted = Target(), 0, set()
        real = target.write

        async def write(exchanges):
            doubted.update(subject_of(each).offset for each in exchanges if each.search_depth)
            return await real(exchanges)

        target.write = write
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                life = Process(tmp_path, target, refusals=1_000, attempts=1_000)
                await life.begin(nursery)
                target.fault = chance.choice(["gone", "stalled", "slow", "disk"])
                for _ in range(chance.randrange(150)):
                    life.bench.offer(message(number))
                    number += 1
                    await trio.sleep(chance.choice([0, 0.01]))
                    if chance.random() < 0.03:
                        target.fault = chance.choice(["none", "gone"])
                target.fault = "gone"
                await trio.sleep(30)  # the failure is noticed, and everything that waits is written
                assert life.stream.counts.dropped == 0
                await life.kill()
            target.fault = "none"
            life = Process(tmp_path, target)
            await life.begin(nursery)
            await life.wait_until_idle()
            nursery.cancel_scope.cancel()
        taken = offsets(target.taken)
        first_times = list(dict.fromkeys(taken))
        assert first_times == list(range(number))
        assert {each for each in taken if taken.count(each) > 1} <= doubted

    run()
