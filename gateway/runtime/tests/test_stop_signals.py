"""Signals as events: the first, the second, and those nobody waits for any more."""

import os
import signal

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
