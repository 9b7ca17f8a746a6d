"""Signals as events: the first, the second, and those nobody waits for any more."""

import os
import signal
import threading

import pytest
import trio

from gateway.runtime.stop_signals import STOP_SIGNALS, StopSignals


@pytest.fixture(autouse=True)
def _handlers():
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_first_and_second_signal():
    async def main():
        signals = StopSignals()
        signals.install()
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.fail_after(5):
            await signals.first.wait()
        assert not signals.second.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        with trio.fail_after(5):
            await signals.second.wait()
        assert signals.names == ["SIGTERM", "SIGINT"]
        return signals

    signals = trio.run(main)
    # the store may still be closing: a third one must not end the process, nor one after the loop's end
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.names == ["SIGTERM", "SIGINT"]


def test_a_request_counts_as_the_signal_that_did_not_come_before():
    signals = StopSignals(counts_signals=False)
    signals.request_stop("stopped by the supervisor", at_once=False)
    assert signals.first.is_set()
    signals.record_signal(signal.SIGINT)
    assert not signals.second.is_set(), "the supervisor counts the signals of a terminal"
    signals.request_stop("stopped by the supervisor", at_once=True)
    assert signals.second.is_set()
    assert signals.names == ["stopped by the supervisor", "stopped by the supervisor"]


def test_a_request_to_stop_at_once_is_enough():
    signals = StopSignals()
    signals.request_stop("supervisor is gone", at_once=True)
    assert signals.first.is_set()
    assert signals.second.is_set()


def test_signals_blocked_before_the_start_arrive_after_it():
    async def main():
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        # To this thread: any other thread of the test run would take a signal to the process.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        signals = StopSignals()
        signals.install()
        with trio.fail_after(5):
            await signals.first.wait()

    trio.run(main)
