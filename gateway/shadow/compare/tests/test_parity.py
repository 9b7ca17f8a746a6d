import json
from collections import Counter
from dataclasses import replace

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from codec.message import Message
from gateway.shadow.compare.alignment import FindingKind
from gateway.shadow.compare.parity import ComparedClusters, ParityOptions, ParityRange, compare_topics
from gateway.shadow.tests.fake_queues import BORN_MS, FakeQueues, Refusing, stored
from remoting.bodies.routes import QueueData, TopicRouteData

WHOLE = ParityRange()
LATER_MS = BORN_MS + 10_000_000


def look(primary, target, *, window=WHOLE, now_ms=None, progress=lambda queue: None, how=None, **hows):
    clock = MockClock(autojump_threshold=0)
    clusters = ComparedClusters(primary, target, str)

    def now():
        return round((LATER_MS if now_ms is None else now_ms) + clock.current_time() * 1000)

    return trio.run(
        compare_topics, clusters, ["orders"], how or ParityOptions(**hows), now, window, progress, clock=clock
    )


def faults(parity):
    return Counter(
        (finding.kind.value, bytes(finding.identity).decode()) for finding in parity.queues[0].findings
    )


def counts(parity):
    return {kind.value: parity.total(kind.value) for kind in FindingKind if parity.total(kind.value)}


WITH_AND_WITHOUT_SAME_OFFSETS = pytest.mark.parametrize("same_offsets", [True, False])


@WITH_AND_WITHOUT_SAME_OFFSETS
def test_equal_queues(same_offsets):
    numbers = range(200)
    parity = look(
        FakeQueues(map(stored, numbers)),
        FakeQueues(map(stored, numbers), a_pull=3),
        same_offsets=same_offsets,
    )
    assert parity.holds
    assert (parity.total("same"), parity.total("primary"), parity.total("target")) == (200, 200, 200)
    assert parity.queues[0].until_offset == 200


@WITH_AND_WITHOUT_SAME_OFFSETS
def test_empty_queues(same_offsets):
    assert look(FakeQueues([]), FakeQueues([]), same_offsets=same_offsets).is_empty


def test_store_times_hosts_and_physical_offsets_do_not_matter():
    ours = [stored(each, stored_ms=1, store_host=("1.2.3.4", 5), physical_offset=7) for each in range(9)]
    theirs = [stored(each, stored_ms=2, store_host=("4.3.2.1", 5), physical_offset=9) for each in range(9)]
    assert look(FakeQueues(ours), FakeQueues(theirs), same_offsets=True).holds


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"body": b"another"}, "body"),
        ({"properties": {"UNIQ_KEY": "U00000004", "TAGS": "b", "__SHARDINGKEY": "K1"}}, "properties"),
        ({"flag": 9}, "header"),
        ({"reconsume_times": 2}, "header"),
        ({"sys_flag": 8}, "header"),
    ],
)
@WITH_AND_WITHOUT_SAME_OFFSETS
def test_a_changed_message(same_offsets, change, part):
    theirs = [stored(each) for each in range(9)]
    theirs[4] = stored(4, **change)
    parity = look(FakeQueues(map(stored, range(9))), FakeQueues(theirs), same_offsets=same_offsets)
    assert faults(parity) == {("changed", "U00000004"): 1}
    assert parity.queues[0].findings[0].part == part
    assert (parity.queues[0].findings[0].primary_offset, parity.total("same")) == (4, 8)


def test_another_born_host_means_that_a_message_was_sent_again():
    """A roll-back sends messages again: all of them were called changed."""
    ours, theirs = [stored(1, born_host=("1.1.1.1", 1))], [stored(1, born_host=("2.2.2.2", 1))]
    assert look(FakeQueues(ours), FakeQueues(theirs), same_offsets=False).holds
    parity = look(FakeQueues(ours), FakeQueues(theirs), same_offsets=True)
    assert (parity.holds, parity.total("same"), parity.total("sent_again")) == (True, 1, 1)


def test_properties_of_the_broker_are_masked_and_their_order_is_none():
    ours = [stored(1, properties={"UNIQ_KEY": "U1", "a": "b", "CLUSTER": "one", "MIN_OFFSET": "1"})]
    theirs = [stored(1, properties={"CLUSTER": "two", "a": "b", "UNIQ_KEY": "U1"})]
    assert look(FakeQueues(ours), FakeQueues(theirs), same_offsets=False).holds


def test_an_offset_without_a_message_at_the_target_is_missing():
    theirs: list[Message | None] = [stored(each) for each in range(9)]
    theirs[3] = None
    assert faults(look(FakeQueues(map(stored, range(9))), FakeQueues(theirs), same_offsets=True)) == {
        ("missing", "U00000003"): 1
    }


def test_a_message_lost_at_the_target_moves_all_later_offsets():
    theirs = [stored(each) for each in (0, 2, 3, 4)]
    parity = look(FakeQueues(map(stored, range(5))), FakeQueues(theirs), same_offsets=True)
    assert counts(parity) == {"missing": 1, "reordered": 3}
    assert parity.total("order_broken") == 0


def test_a_message_without_unique_key_is_known_by_its_content():
    ours = [stored(each, properties={"a": "b"}) for each in range(5)]
    theirs = [stored(each, properties={"a": "b"}) for each in (0, 1, 3, 4)]
    assert counts(look(FakeQueues(ours), FakeQueues(theirs))) == {"missing": 1}


def test_the_order_of_a_sharding_key():
    ours = [stored(each) for each in range(12)]
    swapped = [ours[each] for each in (0, 2, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11)]
    parity = look(FakeQueues(ours), FakeQueues(map(replace, swapped)))
    assert (counts(parity), parity.total("order_broken")) == ({"reordered": 1}, 0)
    moved = [ours[each] for each in (0, 2, 3, 4, 5, 1, 6, 7, 8, 9, 10, 11)]
    parity = look(FakeQueues(ours), FakeQueues(map(replace, moved)))
    assert (faults(parity), parity.total("order_broken")) == ({("reordered", "U00000001"): 1}, 1)


def test_messages_on_their_way_are_waited_for():
    ours = [stored(each) for each in range(30)]
    theirs = FakeQueues(map(stored, range(20)), arriving=map(stored, range(20, 30)))
    assert look(FakeQueues(ours), theirs, now_ms=BORN_MS + 40).holds


def test_a_message_that_does_not_arrive_in_time_is_missing():
    ours = [stored(each) for each in range(30)]
    parity = look(FakeQueues(ours), FakeQueues(map(stored, range(20))), now_ms=BORN_MS + 40, lag_s=2.0)
    assert counts(parity) == {"missing": 10}
    assert 2 <= parity.seconds < 3


def test_messages_stored_during_the_check_are_not_missing():
    ours = FakeQueues(map(stored, range(30)), arriving=map(stored, range(30, 60)))
    theirs = FakeQueues(map(stored, range(30)), arriving=map(stored, range(30, 50)))
    for same_offsets in (True, False):
        parity = look(ours, theirs, same_offsets=same_offsets)
        assert parity.holds


@WITH_AND_WITHOUT_SAME_OFFSETS
def test_a_part_of_a_queue(same_offsets):
    theirs = [stored(each) for each in range(100)]
    theirs[10] = stored(10, body=b"x")
    theirs[50] = stored(50, body=b"x")
    theirs[90] = stored(90, body=b"x")
    window = ParityRange(from_offset=20, until_offset=80)
    parity = look(
        FakeQueues(map(stored, range(100))), FakeQueues(theirs), same_offsets=same_offsets, window=window
    )
    assert faults(parity) == {("changed", "U00000050"): 1}
    assert (parity.queues[0].from_offset, parity.total("primary"), parity.total("target")) == (20, 60, 60)


def test_a_part_by_time():
    window = ParityRange(from_ms=BORN_MS + 20, until_ms=BORN_MS + 80)
    parity = look(FakeQueues(map(stored, range(100))), FakeQueues(map(stored, range(5, 100))), window=window)
    assert (parity.holds, parity.queues[0].from_offset, parity.total("same")) == (True, 20, 60)


def test_messages_the_primary_deleted_are_not_extra():
    ours = FakeQueues(map(stored, range(40, 100)), first=40)
    assert look(ours, FakeQueues(map(stored, range(100)))).holds
    assert look(ours, FakeQueues(map(stored, range(100))), same_offsets=True).holds


@WITH_AND_WITHOUT_SAME_OFFSETS
def test_more_messages_lost_than_the_window_holds(same_offsets):
    theirs = [None if 100 <= each < 2000 else stored(each) for each in range(3000)]
    target = FakeQueues([each for each in theirs if same_offsets or each], a_pull=32)
    for look_ahead in (100, 8192):
        how = ParityOptions(same_offsets=same_offsets, window=look_ahead)
        parity = look(FakeQueues(map(stored, range(3000)), a_pull=32), target, how=how)
        assert counts(parity) == {"missing": 1900}


def test_a_queue_that_cannot_be_read():
    parity = look(FakeQueues([]), Refusing([]))
    assert not parity.holds
    assert "not today" in parity.queues[0].problem
    assert parity.total("problems") == 1


def test_garbage_is_a_problem():
    class Garbage(FakeQueues):
        def encoded(self, offset):
            return super().encoded(offset)[:-1] + b"\0" * 90

    assert "MessageFormatError" in look(FakeQueues([stored(1)]), Garbage([stored(1)])).queues[0].problem


def test_a_result_becomes_json_and_progress_is_reported():
    seen = []
    parity = look(
        FakeQueues([stored(1), stored(2)]), FakeQueues([stored(1)]), progress=lambda q: seen.append(q.same)
    )
    value = json.loads(json.dumps(parity.to_value()))
    assert (value["holds"], value["missing"], value["wrong"]) == (False, 1, 1)
    assert value["queues"][0]["findings"][0]["key"] == "U00000002"
    assert seen[-1] == 1


def test_reading_is_limited():
    parity = look(FakeQueues(map(stored, range(100))), FakeQueues(map(stored, range(100))), per_second=50.0)
    assert 1.5 <= parity.seconds <= 2.5


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_planted_faults_are_found_exactly(data):
    """Plant lost, duplicated, moved and changed messages so far apart that there is only one shortest explanation."""
    length = data.draw(st.integers(60, 400))
    places = data.draw(st.lists(st.integers(0, length // 12 - 1), unique=True, max_size=8))
    theirs, planted = [[stored(each)] for each in range(length)], Counter()
    for place in places:
        at = place * 12 + 2
        kind = data.draw(st.sampled_from(["missing", "duplicated", "reordered", "changed", "extra"]))
        identity = f"U{at:08}"
        if kind == "missing":
            theirs[at] = []
        elif kind == "changed":
            theirs[at] = [stored(at, body=b"other")]
        elif kind == "extra":
            identity = f"X{at}"
            theirs[at].append(stored(at, properties={"UNIQ_KEY": identity}))
        elif kind == "duplicated":
            theirs[at + data.draw(st.integers(0, 5))].append(stored(at))
        else:
            theirs[at] = []
            theirs[at + data.draw(st.integers(2, 6))].append(stored(at))
        planted[kind, identity] += 1
    target = FakeQueues([each for some in theirs for each in some], a_pull=data.draw(st.integers(1, 40)))
    primary = FakeQueues(map(stored, range(length)), a_pull=data.draw(st.integers(1, 40)))
    parity = look(primary, target, lag_s=0.0)
    assert faults(parity) == planted
    assert parity.total("primary") == length


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_planted_faults_are_found_exactly_with_the_same_offsets(data):
    length = data.draw(st.integers(20, 200))
    places = data.draw(st.lists(st.integers(0, length - 1), unique=True, max_size=8))
    theirs: list[Message | None] = [stored(each) for each in range(length)]
    planted = Counter()
    for at in places:
        kind = data.draw(st.sampled_from(["missing", "changed", "replaced"]))
        identity = f"U{at:08}"
        if kind == "changed":
            theirs[at] = stored(at, body=b"other")
        elif kind == "missing":
            theirs[at] = None
        else:
            theirs[at] = stored(at, properties={"UNIQ_KEY": f"X{at}"})
            planted["extra", f"X{at}"] += 1
            kind = "missing"
        planted[kind, identity] += 1
    parity = look(FakeQueues(map(stored, range(length))), FakeQueues(theirs), same_offsets=True, lag_s=0.0)
    assert faults(parity) == planted


@settings(max_examples=150, deadline=None)
@given(
    theirs=st.lists(st.integers(0, 40), max_size=80),
    length=st.integers(0, 40),
    window=st.sampled_from([200, 1000]),
)
def test_nothing_is_counted_twice_whatever_the_target_holds(theirs, length, window):
    """For any sequence of equal and other messages, each message of one side only is reported exactly once."""
    parity = look(
        FakeQueues(map(stored, range(length))),
        FakeQueues(map(stored, theirs)),
        how=ParityOptions(lag_s=0.0, window=window),
    )
    ours, other = Counter(range(length)), Counter(theirs)
    assert parity.total("missing") == (ours - other).total()
    assert parity.total("extra") + parity.total("duplicated") == (other - ours).total()
    assert parity.total("duplicated") == sum(other[each] - 1 for each in ours if each in other)
    assert parity.total("same") == (ours & other).total()


class HugeQueues(FakeQueues):
    """Has a topic with absurdly many queues at one broker."""

    async def route(self, topic):
        route = await super().route(topic)
        queues = QueueData(broker_name="broker-b", write_queue_nums=2**31 - 1, perm=6)
        return TopicRouteData(queue_datas=[*route.queue_datas, queues])


def test_a_topic_with_absurdly_many_queues_is_reported():
    parity = look(HugeQueues([stored(1)]), FakeQueues([stored(1)]))
    first, second = parity.queues
    assert (first.same, first.problem) == (1, "")
    assert "2147483647 queues" in second.problem
    assert not parity.holds


def test_the_queues_of_one_check_are_bounded():
    class ManyQueues(FakeQueues):
        async def route(self, topic):
            return TopicRouteData(queue_datas=[QueueData(broker_name="broker-a", read_queue_nums=10, perm=6)])

    parity = look(ManyQueues([stored(1)]), FakeQueues([stored(1)]), max_queues=4)
    assert [each.same for each in parity.queues] == [1, 1, 1, 1, 0]
    assert "only the first 4 queues" in parity.queues[-1].problem
