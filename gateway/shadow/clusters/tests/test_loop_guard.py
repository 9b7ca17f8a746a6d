"""The mark of mirrored requests: added, recognised in requests of any size, and bounded."""

import pytest

from codec.command import Command, encode_command
from gateway.shadow.clusters.loop_guard import (
    MARK_FIELD,
    MAX_MARK_CHARS,
    NOT_CHECKED,
    SMALL_REQUEST_BYTES,
    LoopGuard,
    TargetLeadsBack,
)
from gateway.shadow.tests.exchanges import make_exchange


def exchange_of(command):
    return make_exchange(command.code, encode_command(command), None)


def marked_by(*guards, body=b"x"):
    command = Command(310, 0, 1, {"a": "b"}, body)
    for guard in guards:
        guard.mark_request(command)
    return command


@pytest.mark.parametrize("size", [0, 10, SMALL_REQUEST_BYTES, 100_000])
def test_own_requests_are_recognised_and_stop_the_mirror(size):
    guard, other = LoopGuard(checked=True), LoopGuard(checked=True)
    assert not guard.is_own_request(exchange_of(Command(310, 0, 1, {"a": "b"}, b"x" * size)))
    assert not guard.is_own_request(exchange_of(marked_by(other, body=b"x" * size)))
    assert guard.problem == ""
    assert guard.is_own_request(exchange_of(marked_by(guard, other, body=b"x" * size)))
    assert "came back to this gateway" in guard.problem
    with pytest.raises(TargetLeadsBack, match="came back"):
        guard.mark_request(Command(310, 0, 1, {}, b""))


def test_nothing_passes_before_the_target_was_checked():
    guard = LoopGuard()
    with pytest.raises(TargetLeadsBack, match=NOT_CHECKED):
        guard.mark_request(Command(310, 0, 1, {}, b""))
    guard.allow()
    assert marked_by(guard).ext[MARK_FIELD]


def test_a_request_that_passed_many_gateways_goes_no_further():
    guard = LoopGuard(checked=True)
    command = Command(310, 0, 1, {MARK_FIELD: "x" * (MAX_MARK_CHARS + 1)}, b"")
    with pytest.raises(TargetLeadsBack, match="run in a circle"):
        guard.mark_request(command)


def test_a_request_is_marked_before_it_is_signed():
    guard, seen = LoopGuard(checked=True), []
    guard.sign_with(lambda command: seen.append(MARK_FIELD in command.ext))(Command(310, 0, 1, {}, b""))
    assert seen == [True]
