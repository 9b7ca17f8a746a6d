"""Laws of waiting timer messages, for every point at which the process or the machine can end.

Every acknowledged message is delivered. A kill repeats none; a power cut repeats at most those that were delivered
after the last flush, or belong to a slot that was partly delivered then. Nothing here is drawn by chance: the process
ends before every instruction that follows a change of the files, and a power cut leaves every combination of the commit
log, wheel, timer log and checkpoint.
"""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import combinations, count

import pytest

from storage.crash_files import CrashFiles
from storage.tests.support import RecordedBuffer, copy_of_killed, run_interrupted, states_during
from storage.tests.timer_world import CHECK, FILE_GROUPS, LOG, NOW, SLOTS, TOPIC, WHEEL, TimerWorld
from storage.timer_wheel import SLOT

LEFT_BY_A_CUT = [
    written_groups
    for number in range(len(FILE_GROUPS) + 1)
    for written_groups in combinations(FILE_GROUPS, number)
]
"""The files that the kernel had written when the power failed."""


SETTLED = {0, 1}
"""Messages of `prepare` whose slot was wholly delivered before the flush."""


def prepare() -> TimerWorld:
    """Return a world with messages before and after a flush, delivered, partly delivered and waiting."""
    world = TimerWorld()
    world.send_all([0, 0, 1, 1, 2, 3, 9])
    world.read()
    world.deliver()
    world.flush()
    world.send_all([1, 2, 4, 4, 1, 9])
    world.store.flush()
    world.read()
    world.deliver_first()
    world.deliver_first()
    world.send_all([2, 5, 5])
    world.read()
    return world


def check_deliveries(after: TimerWorld, acknowledged: Collection[int], may_repeat: Collection[int]) -> None:
    """Deliver everything, and new messages, which take the places of lost ones; end the process and look again."""
    new = [after.send(slot, "longer") for slot in (1, 3, 9, 11)]
    after.read()
    after.deliver_all()
    delivered = after.delivered()
    assert {*acknowledged, *new} <= delivered.keys() <= set(range(after.sent))
    assert {number for number, times in delivered.items() if times > 1} <= set(may_repeat)
    again = after.crash()
    again.read()
    assert again.timers.next_slot_ms() is None
    assert again.delivered() == delivered


def has_prefix(prefixes: tuple[str, ...], path: str) -> bool:
    return path.startswith(prefixes)


def check_power_cuts(
    world: TimerWorld, files: CrashFiles, acknowledged: Collection[int], may_repeat: Collection[int]
) -> None:
    for written_groups in LEFT_BY_A_CUT:
        after = world.reopen(files.cut_power(partial(has_prefix, written_groups)))
        check_deliveries(after, acknowledged, may_repeat)


def test_a_flush_that_ends_anywhere() -> None:
    world = prepare()
    may_repeat, acknowledged = world.delivered().keys() - SETTLED, world.acknowledged()
    states = states_during(world.flush, world.files)
    assert len(states) > 4
    for files in states:
        check_deliveries(world.reopen(copy_of_killed(files)), range(world.sent), ())
        check_power_cuts(world, files, acknowledged, may_repeat)
    check_power_cuts(world, states[-1], range(world.sent), ())


@pytest.mark.parametrize("work", ["read", "deliver", "finish"])
def test_chaining_and_delivering_that_end_anywhere(work: str) -> None:
    """A message that was delivered when the process ended, but is not noted as such, is delivered again."""
    world = prepare()
    in_flight: set[int] = set()
    if work == "read":
        world.send_all([2, 9, 12, 1])
        do_work: Callable[[], object] = world.read
    else:
        do_work = world.deliver_first
        while work == "finish" and world.waiting(NOW + 1000):
            world.deliver_first()
        in_flight = {world.number_of(record) for record in world.waiting(NOW + 1000)[:1]}
    unflushed = world.delivered().keys() - SETTLED
    acknowledged = world.acknowledged()
    states = states_during(do_work, world.files)
    assert len(states) > 1
    for files in states:
        check_deliveries(world.reopen(copy_of_killed(files)), range(world.sent), in_flight)
        check_power_cuts(world, files, acknowledged, unflushed | in_flight)


@pytest.mark.parametrize("work", ["read", "deliver"])
@pytest.mark.parametrize("outer", ["flush", "work"])
def test_a_flush_in_the_middle_of_other_work(work: str, outer: str) -> None:
    """The flush covers what was done when its position was taken, and nothing later."""
    states: list[CrashFiles] = []
    for step in count(0, 3):
        world = prepare()
        world.send_all([9, 1])
        world.store.flush()
        world.deliver()
        do_work = world.read if work == "read" else world.deliver_first
        position = world.timers.take_unflushed_position()
        assert position is not None
        before = world.delivered().keys()
        works: list[Callable[[], object]] = [partial(world.timers.flush, position), do_work]
        if outer == "work":
            works.reverse()
        if not run_interrupted(works[0], step, works[1]):
            break
        if not any(world.files.equals(state) for state in states):
            states.append(copy_of_killed(world.files))
            check_power_cuts(world, world.files, world.acknowledged(), world.delivered().keys() - before)
    assert step > 300


def torn(old: bytes, new: bytes) -> list[bytes]:
    """Return what ``old`` is while ``new`` replaces it: the bytes come in their order, or last byte first per field."""
    assert len(old) == len(new) == SLOT.size
    order = list(range(SLOT.size))
    field_ends = [8, 16, 24, 28, 32]
    by_field = [
        at
        for start, end in zip([0, *field_ends], field_ends, strict=False)
        for at in reversed(range(start, end))
    ]
    return [
        bytes(new[at] if at in written else old[at] for at in range(SLOT.size))
        for places in (order, by_field)
        for written in (set(places[:count]) for count in range(SLOT.size))
    ]


@pytest.mark.parametrize(("before", "between"), [(1, 0), (1, 8), (2, 7), (1, 20)])
@pytest.mark.parametrize("slot", [7, 7 + SLOTS], ids=["same slot", "place of an old slot"])
def test_a_wheel_slot_that_is_torn_anywhere(slot: int, before: int, between: int) -> None:
    """The process ends while a slot is written: its record is in the timer log, and the progress is the old one.

    The numbers of records are such that the halves of two positions make one inside of a record, or behind the log.
    What recovery makes of the slot must also serve the next one, after a power cut that leaves the wheel only.
    """
    world = TimerWorld()
    world.send_all([6] * before + [7])
    world.read()
    if slot > SLOTS:
        world.deliver_all()
    world.flush()
    if slot > SLOTS:
        world.clock.advance((slot - 10) * 1000)
    world.send_all([slot + 1] * between)
    world.read()
    world.send(slot)
    wheel, at = world.files.mapped[WHEEL].buffer, world.place_in_wheel(slot)
    old = bytes(wheel[at : at + SLOT.size])
    world.chain(*world.messages(TOPIC, world.timers.queue_offset, 1))
    new = bytes(wheel[at : at + SLOT.size])
    for state in torn(old, new):
        wheel[at : at + SLOT.size] = state
        after = world.crash()
        after.read()
        assert after.timers.waiting_messages == after.sent - len(after.delivered())
        after.flush()
        after.send(slot)
        after.store.flush()
        after.read()
        for again in (after.crash(), after.cut_power(partial(has_prefix, (WHEEL,)))):
            check_deliveries(again, range(after.sent), ())


def tear_changes(buffer: RecordedBuffer, unit: int) -> Iterator[bytes]:
    """Yield the content after a kill inside of each recorded change: some units are new then and the others old.

    A few units come in any order, and many from the front or the back.
    """
    content = bytearray(buffer)
    for at, before, _ in reversed(buffer.changes):
        content[at : at + len(before)] = before
    for at, before, after in buffer.changes:
        units = [n for n in range(0, len(after), unit) if before[n : n + unit] != after[n : n + unit]]
        numbers = range(len(units) + 1)
        few = (part for number in numbers for part in combinations(units, number))
        many = (part for number in numbers for part in (units[:number], units[number:]))
        for new in few if len(units) < 7 else many:
            for start in new:
                content[at + start : at + start + unit] = after[start : start + unit]
            yield bytes(content)
            content[at : at + len(before)] = before
        content[at : at + len(after)] = after
    assert content == buffer


@pytest.mark.parametrize("work", ["chain", "deliver", "finish"])
def test_a_progress_that_is_torn_anywhere(work: str) -> None:
    """Each field is the old one or the new one. The message in flight has a later time and an earlier position."""
    world = TimerWorld()
    world.send_all([1] * 6 + [2])
    world.read()
    world.flush()
    for _ in range(6 if work == "finish" else 3):
        world.deliver_first()
    if work == "chain":
        world.send(1)
    file = world.files.mapped[CHECK]
    file.buffer = recorded = RecordedBuffer(file.buffer)
    world.read()
    if work != "chain":
        world.deliver_first()
    assert len(recorded.changes) > 1
    in_flight = {1} if work == "deliver" else set()
    same_time = {0, 2, 4} if work == "deliver" else set()
    for content in tear_changes(recorded, 8):
        file.buffer = bytearray(content)
        check_deliveries(world.crash(), range(world.sent), in_flight | same_time)


@pytest.mark.parametrize("record", [0, 1, 77, 78])
def test_a_timer_record_that_is_torn_anywhere(record: int) -> None:
    """A record counts when it is whole: no message is delivered at another time than its own."""
    world = TimerWorld()
    world.send_all([1] * record)
    world.read()
    world.send(2)
    path = f"{LOG}{record // 78 * 4096:020d}"
    files = copy_of_killed(world.files)
    file = world.files.open_mapped(path, 4096)
    file.buffer = recorded = RecordedBuffer(file.buffer)
    chained = world.chain(*world.messages(TOPIC, record, 1))
    assert recorded.changes
    for content in tear_changes(recorded, 1):
        files.open_mapped(path, 4096).buffer[:] = content
        after = world.reopen(copy_of_killed(files))
        after.read()
        assert [record._replace(position=0) for record in after.waiting(NOW + 2000)] == [
            chained._replace(position=0)
        ]
        check_deliveries(after, range(world.sent), ())


@pytest.mark.parametrize("flushed", ["nothing", "messages", "deliveries", "timers"])
def test_rewriting_a_slot_that_ends_anywhere(flushed: str) -> None:
    """The slot is the old one or the new one, whole in both cases, and no delivery counts that a power cut loses."""
    world = prepare()
    if flushed == "deliveries":
        world.store.flush()
    elif flushed == "timers":
        world.flush()
    world.send_all([1] * 5)
    if flushed == "messages":
        world.store.flush()
    world.read()
    if flushed != "nothing":
        world.deliver_first()
    records = sorted(world.waiting(NOW + 1000), key=lambda record: record.position)
    assert len(records) > 5
    may_repeat, acknowledged = world.delivered().keys() - SETTLED, world.acknowledged()

    def rewrite_and_flush() -> None:
        world.timers.rewrite_slot(NOW + 1000, records)
        world.flush()

    states = states_during(rewrite_and_flush, world.files)
    assert len(states) > 10
    for files in states:
        check_deliveries(world.reopen(copy_of_killed(files)), range(world.sent), ())
        check_power_cuts(world, files, acknowledged, may_repeat)
