"""Large registrations wait for a thread, in order and within bounds."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from codec.fastjson import dumps
from gateway.config.limits import NamesrvLimits
from gateway.namesrv.registration import (
    MAX_INLINE_BYTES,
    MAX_WAITING,
    MAX_WAITING_BYTES,
    LargeRegistrations,
)
from remoting.errors import RequestError
from remoting.requests.namesrv import RegisterBroker


def connection() -> Any:
    """Return the part of a connection that the queue uses: a place for state."""
    return SimpleNamespace(state={})


def request(body: bytes, name: str = "b", *, compressed: bool = False) -> RegisterBroker:
    given = RegisterBroker(
        broker_name=name,
        broker_addr="h:1",
        cluster_name="C",
        ha_server_addr="",
        broker_id=0,
        compressed=compressed,
    )
    given.body = body
    return given


async def inline(work: Callable[[], Any]) -> Any:
    await trio.lowlevel.checkpoint()
    return work()


def test_the_size_when_inflated_decides() -> None:
    queue, peer = LargeRegistrations(inline), connection()
    assert not queue.must_wait(request(bytes(MAX_INLINE_BYTES)), peer)
    assert queue.must_wait(request(bytes(MAX_INLINE_BYTES + 1)), peer)
    assert not queue.must_wait(request(bytes(500), compressed=True), peer)
    assert queue.must_wait(request(bytes(510), compressed=True), peer)


def test_small_ones_wait_for_the_large_one_of_their_connection() -> None:
    queue, peer, other = LargeRegistrations(inline), connection(), connection()
    large, small = request(bytes(MAX_INLINE_BYTES + 1)), request(b"")
    queue.begin(large, peer)
    assert queue.must_wait(small, peer)
    assert not queue.must_wait(small, other)
    queue.end(large, peer)
    assert not queue.must_wait(small, peer)


@pytest.mark.parametrize("size", [1, MAX_WAITING_BYTES // 4])
def test_number_and_bytes_are_bounded(size: int) -> None:
    queue, peer = LargeRegistrations(inline), connection()
    given = request(bytes(size))
    fitting = min(MAX_WAITING, MAX_WAITING_BYTES // size)
    for _ in range(fitting):
        queue.begin(given, peer)
    with pytest.raises(RequestError) as error:
        queue.begin(given, peer)
    assert error.value.code == 2
    queue.end(given, peer)
    queue.begin(given, peer)


def test_they_are_read_one_at_a_time_in_order() -> None:
    running, most, finished = 0, 0, []

    async def slow(work: Callable[[], Any]) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.lowlevel.checkpoint()
        running -= 1
        return work()

    async def main() -> None:
        queue = LargeRegistrations(slow)

        async def read(name: str) -> None:
            given = await queue.read(request(dumps({}), name), "zone", NamesrvLimits())
            finished.append((given.broker_name, given.zone))

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(read, name)
                await trio.lowlevel.checkpoint()

    trio.run(main)
    assert most == 1
    assert finished == [("a", "zone"), ("b", "zone"), ("c", "zone")]
