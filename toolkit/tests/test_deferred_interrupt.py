"""Ctrl-C during a step, between two, and where nothing may be changed."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from toolkit.deferred_interrupt import DeferredInterrupt


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_step_is_whole_before_the_interrupt() -> None:
    steps = []

    def work() -> None:
        with DeferredInterrupt() as interrupt:
            for number in range(3):
                with interrupt.step():
                    if number == 1:
                        press_ctrl_c()
                    steps.append(number)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == [0, 1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_interrupts_the_step() -> None:
    steps = []

    def work() -> None:
        with DeferredInterrupt() as interrupt, interrupt.step():
            press_ctrl_c()
            steps.append("one")
            press_ctrl_c()
            steps.append("two")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["one"]


def test_between_two_steps_it_is_immediate() -> None:
    steps = []

    def work() -> None:
        with DeferredInterrupt() as interrupt:
            with interrupt.step():
                steps.append("one")
            press_ctrl_c()
            steps.append("two")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["one"]


def test_a_step_that_fails_raises_its_own_error() -> None:
    def work() -> None:
        with DeferredInterrupt() as interrupt, interrupt.step():
            press_ctrl_c()
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()


def test_who_ignores_the_signal_goes_on_to_ignore_it() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with DeferredInterrupt() as interrupt, interrupt.step():
        press_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_than_the_main_one_changes_nothing() -> None:
    steps = []

    def work() -> None:
        with DeferredInterrupt() as interrupt, interrupt.step():
            steps.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert steps == [signal.default_int_handler]
