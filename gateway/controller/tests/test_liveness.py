"""Heartbeats: who is alive, and what a controller knows that has only just started."""

from typing import Any

import pytest

from gateway.controller.liveness import DEFAULT_TIMEOUT_S, Heartbeat, Liveness, ReplicaKey
from remoting.requests.namesrv import MASTER_LEASE_SHARE

A1, A2 = ReplicaKey("C", "a", 1), ReplicaKey("C", "a", 2)


class Clock:
    """A clock that tests move."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def alive(clock: Clock, *keys: ReplicaKey) -> Liveness:
    liveness = Liveness(clock.monotonic)
    for key in keys:
        liveness.record(key, Heartbeat("h:1"))
    return liveness


def test_a_broker_is_alive_for_the_time_of_its_heartbeat() -> None:
    clock = Clock()
    liveness = Liveness(clock.monotonic)
    assert liveness.record(A1, Heartbeat("h:1", timeout_s=3))
    assert not liveness.record(A1, Heartbeat("h:1", timeout_s=3))
    clock.now_s += 3
    assert liveness.is_alive(A1)
    assert liveness.seconds_to_next_death() == 0
    clock.now_s += 0.1
    assert not liveness.is_alive(A1)
    assert liveness.live_broker(A1) is None
    assert [key for key, _ in liveness.remove_silent()] == [A1]
    assert liveness.seconds_to_next_death() is None
    assert liveness.record(A1, Heartbeat("h:1"))


def test_the_last_heartbeat_counts_even_if_its_log_is_shorter() -> None:
    liveness = alive(Clock())
    liveness.record(A1, Heartbeat("h:1", epoch=2, max_offset=50))
    liveness.record(A1, Heartbeat("h:1", epoch=2, max_offset=40))
    live = liveness.live_broker(A1)
    assert live is not None
    assert live.heartbeat.max_offset == 40


def test_a_broker_that_was_never_heard_of_may_be_alive_for_a_while_after_the_start() -> None:
    clock = Clock()
    liveness = alive(clock, A1)
    assert (liveness.is_unheard(A1), liveness.is_unheard(A2)) == (False, True)
    clock.now_s += 10
    assert not liveness.is_unheard(A2)


def test_a_broker_that_fell_silent_is_not_unheard() -> None:
    clock = Clock()
    liveness = Liveness(clock.monotonic)
    liveness.record(A1, Heartbeat("h:1", timeout_s=1))
    clock.now_s += 2
    assert not liveness.is_alive(A1)
    assert not liveness.is_unheard(A1)


def test_a_pause_of_the_process_is_not_a_silence_of_the_brokers() -> None:
    clock = Clock()
    liveness = alive(clock, A1)
    clock.now_s += 60
    assert not liveness.is_alive(A1)
    liveness.excuse_pause(59)
    assert liveness.is_alive(A1)
    assert liveness.is_unheard(A2)


def test_a_stranger_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.controller.liveness.MAX_LIVE_BROKERS", 2)
    liveness = alive(Clock(), A1)
    assert not liveness.is_full
    liveness.record(A2, Heartbeat("h:2"))
    assert liveness.is_full


def test_only_brokers_of_the_closed_connection_are_forgotten() -> None:
    liveness = alive(Clock(), A1)
    first: Any = object()
    second: Any = object()
    liveness.record(A1, Heartbeat("h:1"), first)
    liveness.record(A2, Heartbeat("h:2"), second)
    # A broker that has connected again is not dead when its old connection ends.
    liveness.record(A1, Heartbeat("h:1"), second)
    assert liveness.remove_connection(first) == []
    assert set(liveness.remove_connection(second)) == {A1, A2}


def test_the_brokers_of_the_first_seconds_are_forgotten_once_all_had_the_time_for_a_heartbeat() -> None:
    clock = Clock()
    liveness = alive(clock, A1)
    clock.now_s += 5
    liveness.remove_silent()
    assert liveness._heard == {A1}
    clock.now_s += 6
    liveness.remove_silent()
    assert liveness._heard == set()
    assert not liveness.is_unheard(A1)


def test_a_live_broker_is_heard_of_even_if_strangers_fill_the_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.controller.liveness.MAX_LIVE_BROKERS", 1)
    liveness = alive(Clock(), A1, A2)
    assert not liveness.is_unheard(A2)


def test_a_wait_for_heartbeats_may_begin_again() -> None:
    clock = Clock()
    liveness = alive(clock, A1)
    clock.now_s += 60
    assert not liveness.is_unheard(A2)
    liveness.wait_for_heartbeats()
    assert liveness.is_unheard(A2)
    clock.now_s += 10
    assert not liveness.is_unheard(A2)


def test_a_new_leader_leaves_a_master_alone_that_the_former_one_may_have_heard() -> None:
    clock = Clock()
    liveness = alive(clock, A1, A2)
    clock.now_s += DEFAULT_TIMEOUT_S + 1
    assert not liveness.may_hold_lease(A1)
    liveness.remove_silent()
    liveness.begin_term([A1])
    assert liveness.may_hold_lease(A1)
    assert not liveness.may_hold_lease(A2), "it is not a master"
    liveness.record(A1, Heartbeat("h:1"))
    assert not liveness.may_hold_lease(A1), "it is heard, so nobody takes its place anyhow"
    clock.now_s += MASTER_LEASE_SHARE * DEFAULT_TIMEOUT_S
    liveness.remove_silent()
    assert not liveness.may_hold_lease(A1)


def test_a_master_with_a_longer_timeout_has_a_longer_lease() -> None:
    clock = Clock()
    liveness = Liveness(clock.monotonic)
    liveness.record(A1, Heartbeat("h:1", timeout_s=100))
    clock.now_s += 101
    liveness.begin_term([A1])
    clock.now_s += 60
    assert liveness.may_hold_lease(A1)
    liveness.remove_silent()
    assert liveness.may_hold_lease(A1), "also when its heartbeat is forgotten"
    clock.now_s += 11
    assert not liveness.may_hold_lease(A1)
