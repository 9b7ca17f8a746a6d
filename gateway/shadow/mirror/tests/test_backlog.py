"""The bound on what waits for the target: the memory that it takes, not the bytes of its frames."""

import tracemalloc

import pytest

from gateway.shadow.mirror.backlog import BACKLOG_FULL, MAX_DECODED_ENTRIES, Backlog, BacklogEntry
from gateway.shadow.mirror.tests.test_mirror_stream import message
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.subject import subject_of


class Drops:
    """A listener that counts dropped entries."""

    def __init__(self):
        self.dropped = []

    def on_dropped(self, entry, reason):
        self.dropped.append(reason)


def entry(number, size=10):
    exchange = message(number, size=size)
    return BacklogEntry(exchange, subject_of(exchange))


def is_decoded(exchange):
    return exchange._decoded_request is not None or exchange._decoded_answer is not None


def test_counted_bytes_are_those_that_small_messages_take():
    drops = Drops()
    backlog = Backlog(1_000_000, 3_000_000, drops)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        number = 0
        while not drops.dropped:
            backlog.append(entry(number))
            number += 1
        taken_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(backlog) > 1500
    assert set(drops.dropped) == {BACKLOG_FULL}
    assert 0.5 * backlog.size_bytes < taken_bytes < 1.3 * backlog.size_bytes <= 1.3 * 3_000_000


def test_commands_stay_decoded_for_one_batch_only():
    backlog = Backlog(10_000, 1 << 30, Drops())
    for number in range(MAX_DECODED_ENTRIES + 50):
        backlog.append(entry(number))
    taken = backlog.take_entries(10_000)
    assert [is_decoded(each.exchange) for each in taken] == [True] * MAX_DECODED_ENTRIES + [False] * 50
    last = taken[-1].exchange
    assert last.request_command.ext["b"] == "orders"
    assert last.answer_command is not None
    assert not is_decoded(last), "another observer looked at it while it waited"


def test_a_command_that_another_thread_forgets_meanwhile_is_returned():
    exchange = message(1)

    class Forgetting(Exchange):
        """Forgets its commands in the moment they have been decoded, as another thread may."""

        def __setattr__(self, name, value):
            super().__setattr__(name, None if name.startswith("_decoded") else value)

    given = {
        name: getattr(exchange, name) for name in ("connection", "client", "upstream", "broker", "wall_ms")
    }
    times = {name: 1.0 for name in ("asked_s", "forwarded_s", "answered_s")}
    forgetting = Forgetting(310, exchange.request, exchange.answer, **given, **times)
    assert forgetting.request_command.code == 310
    assert forgetting.answer_command is not None


@pytest.mark.parametrize("size", [10, 5000])
def test_finished_entries_make_room(size):
    drops = Drops()
    backlog = Backlog(10, 100_000, drops)
    for number in range(10):
        backlog.append(entry(number, size))
    for each in backlog.take_entries(10):
        backlog.finish_entry(each)
    assert backlog.size_bytes == 0
    assert not drops.dropped
