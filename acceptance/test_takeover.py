"""One server continues with what waits in the store of the other: timer messages, half messages, popped messages."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from compat_tests.cases.test_restart import read_all
from compat_tests.cases.test_restart_pop import collect
from compat_tests.cases.test_restart_timers import SETTINGS as TIMER_SETTINGS
from compat_tests.cases.test_restart_timers import send_over, wait_for
from compat_tests.cases.test_restart_transactions import QUICK, answer_questions
from compat_tests.cases.test_timer import now_ms, recall
from compat_tests.cases.test_transactions import COMMIT, ROLLBACK, end, half
from compat_tests.clients.popping import ack, pop_until, send_each
from compat_tests.clients.typed import connect, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.plugin import skip_or_fail
from remoting.requests.topics import UpdateAndCreateTopic

pytestmark = pytest.mark.both_servers


def start_official(settings: Mapping[str, str], store: Path) -> OfficialEndpoint:
    """Return an official broker on a store; skip the case if this machine lacks something."""
    try:
        return OfficialEndpoint(settings, store)
    except Unavailable as missing:
        skip_or_fail(str(missing))


@pytest.mark.parametrize("first_is_ours", [True, False])
def test_timers(tmp_path: Path, first_is_ours: bool) -> None:
    topic = "Taken"
    begin = now_ms()
    with (
        OursEndpoint(TIMER_SETTINGS, tmp_path)
        if first_is_ours
        else start_official(TIMER_SETTINGS, tmp_path) as first
    ):
        with connect(first.broker) as broker:
            broker.ask(topic_request(topic, 1))
            sent = send_over(broker, topic, [2_000, 25_000, 40_000, 45_500, 45_900, 46_000, 60_000])
            wait_for(broker, topic, 1)
            broker.ask(recall(topic, sent[4].recall_handle or ""))
        first.stop()
    second = (
        start_official(TIMER_SETTINGS, tmp_path) if first_is_ours else OursEndpoint(TIMER_SETTINGS, tmp_path)
    )
    with second, connect(second.broker) as broker:
        send_over(broker, topic, [1_000], "new")
        found = wait_for(broker, topic, 7)
    assert sorted(found) == ["0", "1", "2", "3", "5", "6", "new0"]
    assert now_ms() - begin >= 60_000


def test_transactions(tmp_path: Path) -> None:
    settings = {**QUICK, "mappedFileSizeCommitLog": "1048576"}
    topic = "Taken"
    with OursEndpoint(settings, tmp_path) as first, connect(first.broker) as broker:
        broker.ask(
            UpdateAndCreateTopic(
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=1,
                write_queue_nums=1,
                perm=6,
                topic_filter_type="SINGLE_TAG",
                topic_sys_flag=0,
            )
        )
        sent = {key: half(broker, topic, key) for key in ("A", "B", "C", "D")}
        broker.ask(end(sent["A"]))
        broker.ask(end(sent["B"], ROLLBACK))
        assert set(answer_questions(broker, lambda key: 0, {"C", "D"}, 20)) == {"C", "D"}
        first.stop()
    second = start_official(settings, tmp_path)
    with second, connect(second.broker) as broker:
        asked = answer_questions(broker, lambda key: COMMIT if key == "C" else 0, {"C", "D"}, 40)
        assert (set(asked), asked.count("C")) == ({"C", "D"}, 1)
        second.stop()
    with OursEndpoint(settings, tmp_path) as third, connect(third.broker) as broker:
        asked = answer_questions(broker, lambda key: COMMIT, {"D"}, 20)
        assert asked == ["D"]
        assert read_all(broker, topic) == [b"body A", b"body C", b"body D"]


def test_pops(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": "1048576"}
    topic, group = "Taken", "takers"
    names = [f"{number}".encode() for number in range(8)]
    with OursEndpoint(settings, tmp_path) as first, connect(first.broker) as broker:
        broker.ask(topic_request(topic, 1))
        send_each(broker, topic, names)
        out = pop_until(broker, topic, group, 6, max_msg_nums=6, invisible_time=8_000)
        for each in out[:2]:
            ack(broker, group, each)
        first.stop()
    second = start_official(settings, tmp_path)
    with second, connect(second.broker) as broker:
        found = collect(broker, topic, group, set(names[2:]))
        assert sorted(each.body for each in found) == names[2:]
        again = [f"again {number}".encode() for number in range(4)]
        send_each(broker, topic, again)
        out = pop_until(broker, topic, group, 4, invisible_time=45_000)
        over_at = time.time() + 40
        assert [each.body for each in out] == again
        ack(broker, group, out[0])
        second.stop()
    with OursEndpoint(settings, tmp_path) as third, connect(third.broker) as broker:
        in_time = time.time() < over_at  # the official broker may take long to stop
        ack(broker, group, out[1])
        wanted = again[2:] if in_time else again[1:]
        found = collect(broker, topic, group, set(wanted))
        assert sorted(each.body for each in found) == wanted
