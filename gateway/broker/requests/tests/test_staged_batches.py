"""Staged batches: invisible until published, and published once, wherever the process is killed."""

import random
from typing import Any, NoReturn

import pytest
import trio
import trio.testing

from codec.batch import ENTRY_HEAD, encode_batch
from codec.constants import ResponseCode
from gateway.broker.messages.damaged_records import RecordKind
from gateway.broker.requests.staged_batches import StagedBatches
from gateway.tests.broker_fakes import FakeClock, FakeConnection
from gateway.tests.broker_world import World, answer_of
from remoting.errors import RequestError
from remoting.requests.staging import GetStagingState, PublishStaged, StageMessages, StagePieces, StagesBody
from remoting.tests.longest_turn import short_turns
from storage.append import NewMessage
from storage.errors import StoreFull
from storage.files import MemoryFiles
from storage.staged_files import StagedFiles
from storage.store import MessageStore
from storage.tests.support import WatchedFiles


class Killed(BaseException):
    """Raised where the process is killed."""


async def at_once(work):
    await trio.lowlevel.checkpoint()
    return work()


def entry(number, key=None, **more):
    properties = {"UNIQ_KEY": key or f"u{number}", **more}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if value)
    return 0, b"%d" % number, text.encode()


def staging_of(files=None, **settings):
    world = World(files=files, staged_publish=True, **settings)
    world.broker.staged_batches._run_blocking = at_once
    for topic in ("t", "u"):
        if world.broker.topics.get(topic) is None:
            world.topic(topic)
    return world


def ask(world, request):
    """Return the reply of a handler that waits."""

    async def main():
        connection = FakeConnection()
        async with trio.open_nursery() as nursery:
            connection.nursery = nursery
            answer = world.handlers[request.code](connection, request.to_command(7))
        return request.read_reply(answer_of(answer or connection.written[0]))

    return trio.run(main)


def stage(
    world, numbers, *, batch=0, name="s", number=0, topic="t", queue_id=0, entries=None, writer="w", body=b""
):
    request = StageMessages(
        writer=writer,
        batch=batch,
        stage=name,
        number=number,
        topic=topic,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=5,
    )
    request.body = body or encode_batch(entries or [entry(n) for n in numbers])
    return ask(world, request).published


def publish(world, *stages, batch=0, stream=True, writer="w"):
    body = StagesBody(stages=[StagePieces(name=name, pieces=pieces) for name, pieces in stages])
    return ask(world, PublishStaged(writer=writer, batch=batch, stream=stream, data=body)).messages


def bodies(world, topic="t", queue=0):
    return [int(message.body) for message in world.stored(topic, queue)]


def refused(function, *args, **more):
    with pytest.raises(RequestError) as error:
        function(*args, **more)
    return error.value


def test_nothing_is_seen_before_it_is_published_and_then_all_in_order():
    world = staging_of()
    stage(world, range(3), name="a")
    stage(world, range(3, 5), name="a", number=1, topic="u", queue_id=1)
    stage(world, range(5, 9), name="b")
    stage(world, range(100, 109), name="failed-attempt")
    assert (bodies(world), bodies(world, "u", 1)) == ([], [])
    assert world.broker.staged_batches.staged_bytes > 0
    assert publish(world, ("a", 2), ("b", 1)) == 9
    assert (bodies(world), bodies(world, "u", 1)) == ([0, 1, 2, 5, 6, 7, 8], [3, 4])
    first = world.stored("t")[0]
    assert (first.born_timestamp, first.properties["UNIQ_KEY"]) == (5, "u0")
    assert first.properties["CLUSTER"] == "c1"
    assert world.broker.staged_batches.staged_bytes == 0


def test_a_batch_is_published_once_however_often_it_is_asked():
    world = staging_of()
    stage(world, range(3))
    assert publish(world, ("s", 1)) == 3
    assert publish(world, ("s", 1)) == 0
    assert stage(world, range(3), name="again") == 0
    assert publish(world, ("again", 1)) == 0
    assert bodies(world) == [0, 1, 2]
    assert ask_state(world) == 0
    assert stage(world, range(3, 6), batch=1) == 0
    assert publish(world, ("s", 1), batch=1) == 3
    assert bodies(world) == [0, 1, 2, 3, 4, 5]


def ask_state(world):
    return world.ask(GetStagingState(writer="w")).published


def test_a_batch_with_missing_pieces_is_not_published():
    world = staging_of()
    stage(world, range(3))
    error = refused(publish, world, ("s", 2))
    assert error.code == ResponseCode.INVALID_PARAMETER
    assert error.remark == "piece 1 of stage s of batch 0 is not here"
    assert bodies(world) == []
    assert publish(world, ("s", 1)) == 3


def test_a_part_may_arrive_while_its_batch_ends(monkeypatch):
    """The files of the batch are deleted at any time within the write of a part that was sent twice."""
    world = staging_of()
    staging = world.broker.staged_batches
    stage(world, range(3))
    before = staging.staged_bytes

    def write_part(*_):
        raise FileNotFoundError("0.s.0.tmp")

    monkeypatch.setattr(staging._files, "write_part", write_part)
    assert stage(world, range(3)) == -1
    assert stage(world, range(3), name="other") == -1
    assert staging.staged_bytes == before


def test_writers_do_not_know_of_each_other():
    world = staging_of()
    stage(world, range(2), writer="one")
    stage(world, range(2, 4), writer="two", batch=7)
    assert publish(world, ("s", 1), writer="two", batch=7) == 2
    assert publish(world, ("s", 1), writer="one") == 2
    assert bodies(world) == [2, 3, 0, 1]


def test_what_cannot_be_staged_is_refused():
    world = staging_of(max_message_size_bytes=1000)
    assert refused(stage, world, [1], topic="no").code == ResponseCode.TOPIC_NOT_EXIST
    assert refused(stage, world, [1], topic="SCHEDULE_TOPIC_XXXX").code == ResponseCode.NO_PERMISSION
    assert refused(stage, world, [1], topic="rmq_sys_wheel_timer").code == ResponseCode.NO_PERMISSION
    assert refused(stage, world, [1], queue_id=99).code == ResponseCode.INVALID_PARAMETER
    assert refused(stage, world, [1], name="../x").code == ResponseCode.INVALID_PARAMETER
    assert refused(stage, world, [1], writer="a/b").code == ResponseCode.INVALID_PARAMETER
    assert refused(stage, world, [1], number=-1).code == ResponseCode.INVALID_PARAMETER
    for bad in (
        entry(1, DELAY="3"),
        entry(1, TIMER_DELIVER_MS="9"),
        entry(1, TRAN_MSG="true"),
        (0, b"x", b""),
    ):
        assert refused(stage, world, [], entries=[bad]).code == ResponseCode.MESSAGE_ILLEGAL
    large = (0, b"x" * 1000, entry(1)[2])
    assert refused(stage, world, [], entries=[large]).code == ResponseCode.MESSAGE_ILLEGAL
    world.broker.store.disk_full = True
    assert refused(stage, world, [1]).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_there_is_room_for_so_much_only():
    world = staging_of(staged_max_bytes=1024 * 1024)
    large = [(0, b"x" * 600_000, entry(1)[2])]
    stage(world, [], entries=large)
    stage(world, [], entries=large)  # The same piece once more.
    assert refused(stage, world, [], entries=large, number=1).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert publish(world, ("s", 1)) == 1
    stage(world, [], entries=large, batch=1)


def test_brokers_that_are_not_told_to_refuse():
    world = World()
    error = refused(world.ask, GetStagingState(writer="w"))
    assert error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert error.remark == " request type 770002 not supported: stagedPublish is not set at this broker"


def test_a_full_store_is_tried_again():
    world = staging_of()
    stage(world, range(3))
    stage(world, range(3, 6), number=1)
    append, calls = world.broker.store.append_batch, []

    def full(*args, **more):
        calls.append(1)
        if len(calls) == 2:
            raise StoreFull("no room")
        return append(*args, **more)

    world.broker.store.append_batch = full
    assert refused(publish, world, ("s", 2)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert bodies(world) == [0, 1, 2]
    publish(world, ("s", 2))
    assert bodies(world) == [0, 1, 2, 3, 4, 5]


# -- killed at any moment -----------------------------------------------------------------------------------------


class MortalFiles(MemoryFiles):
    """Files of a process that is killed after a number of steps. Written data survives."""

    def __init__(self):
        super().__init__()
        self.steps = -1

    def step(self):
        self.steps -= 1
        if self.steps == 0:
            raise Killed

    def write_small(self, path, data, backup=None):
        if "/staged/" in path:
            self.step()
        super().write_small(path, data, backup)
        if "/staged/" in path:
            self.step()

    def delete(self, path):
        if "/staged/" in path:
            self.step()
        super().delete(path)


def killable(files):
    """Return a broker on these files, whose appends count as steps; others send to the same queue meanwhile."""
    world = staging_of(files)
    append = world.broker.store.append_batch

    def mortal(topic, queue_id, body, **more):
        files.step()
        done = append(topic, queue_id, body, **more)
        files.step()
        world.broker.store.append(NewMessage(topic, queue_id, b"-1", b"UNIQ_KEY\x01other\x02"))
        return done

    world.broker.store.append_batch = mortal
    return world


def attempt(world, name):
    """Stage and publish one batch, as a driver and its tasks do."""
    stage(world, range(4), name=name)
    stage(world, range(4, 8), name=name, number=1, queue_id=1)
    stage(world, range(8, 12), name=name, number=2)
    publish(world, (name, 3))


def is_killed(world, name):
    """Tell whether the process dies in this attempt."""
    try:
        attempt(world, name)
    except BaseException as error:
        if "Killed" not in repr(error):  # trio wraps it in groups
            raise
        return True
    return False


def restarted(world):
    """Return the same files, opened by another process."""
    world.broker.store._release()
    return world.files


def test_killed_at_any_step_and_run_again_every_message_is_there_once():
    for kill_at in range(1, 40):
        files = MortalFiles()
        world = killable(files)
        files.steps = kill_at
        killed = is_killed(world, "first")
        files.steps = -1
        world = staging_of(restarted(world))
        attempt(world, "second")
        found = [n for queue in (0, 1) for n in bodies(world, "t", queue) if n >= 0]
        assert sorted(found) == list(range(12)), f"killed at step {kill_at}"
        assert ask_state(world) == 0
        if not killed:
            break
    else:
        raise AssertionError("the steps never end")
    assert kill_at > 12


def test_what_was_decided_is_published_by_the_next_process_even_if_nobody_asks():
    for kill_at in range(1, 40):
        files = MortalFiles()
        world = killable(files)
        files.steps = kill_at
        if not is_killed(world, "first"):
            break
        files.steps = -1
        decided = world.broker.staged_batches._files.read_intent("w") is not None
        world = staging_of(restarted(world))
        run_for_a_while(world.broker.staged_batches)
        found = [n for queue in (0, 1) for n in bodies(world, "t", queue) if n >= 0]
        published = ask_state(world) == 0
        assert sorted(found) == (list(range(12)) if decided or published else []), f"killed at step {kill_at}"


def numbers_in(world):
    """Return the numbers of the batch's messages in all queues, without those of other producers."""
    return sorted(n for queue in (0, 1) for n in bodies(world, "t", queue) if n >= 0)


def is_decided(world):
    staged = StagedFiles(world.files, world.broker.store.config.root)
    return staged.read_intent("w") is not None or staged.read_mark("w") is not None


def test_power_lost_at_any_operation_and_the_next_process_killed_at_any_other():
    """Messages that another producer sent just before are lost with the power, with the offsets behind which the batch
    begins. The kernel has written nothing by itself.
    """
    world = staging_of(WatchedFiles())
    for queue_id in (0, 1):
        for _ in range(5):
            world.put("t", queue_id, b"-1")
    pictures = []
    world.files.before_operation = lambda: pictures.append(world.files.cut_power(lambda path: False))
    attempt(world, "first")
    pictures.append(world.files.cut_power(lambda path: False))
    outcomes = []
    for picture in pictures:
        second = staging_of(picture)
        decided = is_decided(second)
        copies = []
        picture.before_operation = lambda files=picture, copies=copies: copies.append(
            files.crash(random.Random(0), lose_unflushed=False)
        )
        run_for_a_while(second.broker.staged_batches)
        copies.append(picture.crash(random.Random(0), lose_unflushed=False))
        for copy in copies:
            third = staging_of(copy)
            run_for_a_while(third.broker.staged_batches)
            assert numbers_in(third) == (list(range(12)) if decided else [])
        outcomes.append((decided, len(copies)))
    assert {decided for decided, _ in outcomes} == {True, False}
    assert max(copies for _, copies in outcomes) > 3


def run_for_a_while(staging: StagedBatches):
    async def main():
        with trio.move_on_after(5):
            await staging.run()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_killed_again_and_again_while_it_is_finished():
    randomness = random.Random(7)
    for _ in range(12):
        files = MortalFiles()
        for attempt_number in range(12):
            world = killable(files)
            files.steps = randomness.randint(1, 14) if attempt_number < 11 else -1
            is_killed(world, f"a{attempt_number}")
            files.steps = -1
            restarted(world)
        world = staging_of(files)
        found = [n for queue in (0, 1) for n in bodies(world, "t", queue) if n >= 0]
        assert sorted(found) == list(range(12))


def test_a_publisher_that_goes_away_leaves_the_rest_to_the_broker():
    world = staging_of()
    for number in range(5):
        stage(world, [number], number=number)
    staging = world.broker.staged_batches

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(staging.run)
            with trio.CancelScope() as scope:
                append = staging._append_part

                def cancel_in_the_middle(piece, there):
                    if piece.body == encode_batch([entry(2)]):
                        scope.cancel()
                    return append(piece, there)

                staging._append_part = cancel_in_the_middle
                await staging.publish_batch("w", 0, [("s", 5)], stream=True)
            assert bodies(world) == [0, 1, 2]
            await trio.sleep(60)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert bodies(world) == [0, 1, 2, 3, 4]


class AgingFiles(MemoryFiles):
    clock: FakeClock
    age_ms: int

    def modified_ms(self, path):
        return self.clock.now_ms() - self.age_ms


def test_old_stages_are_forgotten():
    world = staging_of(AgingFiles())
    world.files.clock = world.clock
    stage(world, range(3))
    world.files.age_ms = 3_600_001
    trio.run(world.broker.staged_batches.remove_expired, 2)
    assert world.broker.staged_batches.staged_bytes > 0
    trio.run(world.broker.staged_batches.remove_expired, 1)
    assert world.broker.staged_batches.staged_bytes == 0
    assert refused(publish, world, ("s", 1)).code == ResponseCode.INVALID_PARAMETER


def test_recovered_store_after_the_log_lost_its_end_gets_the_rest():
    """A power cut leaves only some messages of a part in the log: each message is searched for separately."""
    world = staging_of()
    store: MessageStore = world.broker.store
    stage(world, range(6))
    staging = world.broker.staged_batches
    original = store.append_batch

    def part(topic: str, queue_id: int, batch_body: bytes, **more: Any) -> NoReturn:
        original(topic, queue_id, encode_batch([entry(0), entry(1)]), **more)
        raise StoreFull("the rest was lost")

    store.append_batch = part
    refused(publish, world, ("s", 1))
    store.append_batch = original
    assert staging._files.read_intent("w") is not None
    publish(world, ("s", 1))
    assert bodies(world) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("size", [32_740, 33_000, 60_000])
def test_messages_that_no_queue_could_hold_are_refused_when_they_are_staged(size):
    world = staging_of()
    properties = b"UNIQ_KEY\x01u\x02pad\x01".ljust(size, b"x")
    body = ENTRY_HEAD.pack(23 + size, 0, 0, 0, 1) + b"1" + size.to_bytes(2) + properties
    with pytest.raises(RequestError) as refused:
        stage(world, [], body=body)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    stage(world, [1])
    assert publish(world, ("s", 1)) == 1


def test_a_part_that_no_queue_can_hold_keeps_no_batch_from_its_end():
    world = staging_of()
    stage(world, [1])
    stage(world, [2], number=1)
    stage(world, [3], number=2)
    path = f"{world.broker.store.config.root}/staged/w/pieces/0.s.1"
    head, _, _ = world.files.read_small(path).partition(b"\n")
    world.files.write_small(path, head + b"\n" + bytes(100))
    assert publish(world, ("s", 3)) == 2
    assert bodies(world) == [1, 3]
    assert world.broker.damaged.count(RecordKind.STAGED_PART) == 1
    stage(world, [4], batch=1)
    assert publish(world, ("s", 1), batch=1) == 1


def test_locks_of_writers_that_are_done_are_forgotten():
    world = staging_of()
    for number in range(20):
        with pytest.raises(RequestError, match="is not here"):
            publish(world, ("s", 1), writer=f"w{number}")
    assert world.broker.staged_batches._writer_locks == {}


def test_an_unreadable_intent_of_one_writer_keeps_no_other_waiting():
    world = staging_of()
    stage(world, [1], writer="a")
    stage(world, [2], writer="b")
    world.files.write_small(f"{world.broker.store.config.root}/staged/a/intent", b"[")
    assert publish(world, ("s", 1), writer="b") == 1
    with pytest.raises(RequestError, match="cannot be parsed"):
        publish(world, ("s", 1), writer="a")


def test_a_part_with_tens_of_thousands_of_messages_gives_others_their_turns():
    world = World(staged_publish=True)
    world.topic("t", 1)
    body = encode_batch([entry(number) for number in range(40_000)])

    async def ask(request):
        while not world.connection.written:
            await trio.lowlevel.checkpoint()
        return request.read_reply(answer_of(world.connection.written.pop()))

    async def main():
        async with trio.open_nursery() as nursery:
            world.connection.nursery = nursery
            stage = StageMessages(
                writer="w", batch=0, stage="s", number=0, topic="t", queue_id=0, sys_flag=0, born_timestamp=1
            )
            stage.body = body
            stages = StagesBody(stages=[StagePieces(name="s", pieces=1)])
            publish = PublishStaged(writer="w", batch=0, stream=False, data=stages)
            replies = []
            with short_turns():
                for request in (stage, publish):
                    world.handlers[request.code](world.connection, request.to_command(7))
                    replies.append(await ask(request))
            assert replies[1].messages == 40_000
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert world.broker.store.max_offset("t", 0) == 40_000


def test_the_topics_of_a_batch_are_known_until_it_is_published():
    world = staging_of()
    staging = world.broker.staged_batches
    assert staging.topics_of("w", 0) == set()
    world.topic("u")
    stage(world, [1], number=0)
    stage(world, [2], number=1, topic="u")
    assert staging.topics_of("w", 0) == {"t", "u"}
    assert publish(world, ("s", 2)) == 2
    assert staging.topics_of("w", 0) == set()
    stage(world, [3], batch=1)
    assert staging.topics_of("w", 1) == {"t"}
    trio.run(staging.remove_expired, 0)
    assert staging.topics_of("w", 1) == set()
