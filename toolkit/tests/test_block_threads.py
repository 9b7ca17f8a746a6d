"""Threads that run while a block is open."""

import threading

import pytest

from toolkit.block_threads import run_threads


def test_the_functions_run_during_the_block_and_have_returned_after_it() -> None:
    started, ended = threading.Barrier(3), []

    def work(stopped: threading.Event) -> None:
        started.wait(10)
        stopped.wait()
        ended.append(stopped.is_set())

    with run_threads([work, work]):
        started.wait(10)
        assert ended == []
    assert ended == [True, True]


def test_they_end_with_a_block_that_fails() -> None:
    ended = []

    def work(stopped: threading.Event) -> None:
        stopped.wait()
        ended.append(1)

    with pytest.raises(ValueError, match="the block"), run_threads([work]):
        raise ValueError("the block")
    assert ended == [1]
