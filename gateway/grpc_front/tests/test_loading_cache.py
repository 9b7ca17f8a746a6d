"""Answers of other servers, kept and refreshed, on virtual time."""

import math

import pytest
import trio

from gateway.grpc_front.loading_cache import MAX_AGE_S, MAX_MISSING_AGE_S, MAX_UNUSED_S, LoadingCache
from gateway.tests.cluster import settle, simulated
from remoting.eager import EagerCall
from remoting.errors import RemotingClosed


class Source:
    """Loads numbered content; ``failure`` and ``missing`` make it do otherwise."""

    def __init__(self):
        self.loads = []
        self.failure = None
        self.is_missing = False
        self.takes_s = 0.0

    async def load(self, name, *arguments):
        self.loads.append((name, *arguments))
        number = len(self.loads)
        await trio.sleep(self.takes_s)
        if self.failure is not None:
            raise self.failure
        return None if self.is_missing else f"{name} {number}"


@simulated
async def test_content_is_loaded_once_and_read_without_a_task(cluster):
    source = Source()
    cache = LoadingCache("thing", cluster.nursery, source.load)
    assert cache.get("a") is None
    await cache.ensure("a", "hint")
    assert cache.get("a") == "a 1"
    call = EagerCall(cache.ensure("a", "hint"))
    assert call.run()
    assert source.loads == [("a", "hint")]
    waits = EagerCall(cache.ensure("b"))
    assert not waits.run()
    await waits.finish()
    assert cache.get("b") == "b 2"


@simulated
async def test_content_is_as_old_as_its_request(cluster):
    source = Source()
    source.takes_s = 2
    cache = LoadingCache("thing", cluster.nursery, source.load)
    assert cache.age_s("a") == math.inf
    await cache.ensure("a")
    assert cache.age_s("a") == pytest.approx(2)
    source.failure = RemotingClosed("gone")
    with pytest.raises(RemotingClosed):
        await cache.reload("a")
    assert cache.age_s("a") == pytest.approx(4)


@simulated
async def test_readers_share_a_load_which_goes_on_when_one_gives_up(cluster):
    source = Source()
    source.takes_s = 2
    cache = LoadingCache("thing", cluster.nursery, source.load)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.ensure, "a")
        with trio.move_on_after(1) as impatient:
            await cache.ensure("a")
    assert impatient.cancelled_caught
    assert (cache.get("a"), len(source.loads)) == ("a 1", 1)


@simulated
async def test_old_content_is_read_while_it_is_loaded_again(cluster):
    source = Source()
    cache = LoadingCache("thing", cluster.nursery, source.load)
    await cache.ensure("a")
    await trio.sleep(MAX_AGE_S)
    await cache.ensure("a")
    assert cache.get("a") == "a 1"
    await settle()
    assert cache.get("a") == "a 2"


@simulated
async def test_content_stays_while_it_cannot_be_loaded_again_but_not_for_ever(cluster):
    source = Source()
    cache = LoadingCache("thing", cluster.nursery, source.load)
    await cache.ensure("a")
    source.failure = RemotingClosed("gone")
    for _ in range(int(MAX_UNUSED_S) - 1):
        await trio.sleep(1)
        await cache.ensure("a")
        assert cache.get("a") == "a 1"
    # Once a second at most, from the moment at which it is old.
    assert len(source.loads) <= MAX_UNUSED_S - MAX_AGE_S + 1
    await trio.sleep(1)
    with pytest.raises(RemotingClosed, match="gone"):
        await cache.ensure("a")
    source.failure = None
    await cache.ensure("a")
    assert cache.get("a").startswith("a ")


@simulated
async def test_an_unforeseen_failure_ends_the_load_only(cluster, caplog):
    source = Source()
    cache = LoadingCache("thing", cluster.nursery, source.load)
    await cache.ensure("a")
    source.failure = ValueError("odd")
    with pytest.raises(RemotingClosed, match="thing 'b' cannot be loaded: ValueError: odd"):
        await cache.ensure("b")
    await trio.sleep(MAX_AGE_S)
    await cache.ensure("a")
    await settle()
    assert cache.get("a") == "a 1"
    assert "cannot be loaded" in caplog.messages
    source.failure = None
    await cache.ensure("b")
    assert cache.get("b") is not None


@simulated
async def test_a_name_that_is_missing_is_looked_for_again_soon(cluster):
    source = Source()
    source.is_missing = True
    cache = LoadingCache("thing", cluster.nursery, source.load)
    for _ in range(5):
        await cache.ensure("a")
    assert (cache.get("a"), len(source.loads)) == (None, 1)
    source.is_missing = False
    await trio.sleep(MAX_MISSING_AGE_S)
    await cache.ensure("a")
    assert cache.get("a") == "a 2"


@simulated
async def test_expired_content_is_loaded_again_at_most_once_a_second(cluster):
    source = Source()
    cache = LoadingCache("thing", cluster.nursery, source.load)
    cache.expire("unknown")
    await cache.ensure("a")
    for _ in range(50):
        cache.expire("a")
        await cache.ensure("a")
        await trio.sleep(0.1)
    assert 4 <= len(source.loads) <= 7


@simulated
async def test_names_that_were_not_used_for_longest_are_forgotten(cluster):
    source = Source()
    cache = LoadingCache("thing", cluster.nursery, source.load, max_entries=3)
    for name in ("a", "b", "c", "a", "d"):
        await cache.ensure(name)
    assert len(cache) == 3
    assert [name for name in "abcd" if cache.get(name) is not None] == ["a", "c", "d"]
