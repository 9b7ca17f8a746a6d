"""The store in a real etcd cluster of three members: terms, fences, and what a member's death or hang does."""

import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio

from gateway.controller.broker_set import BrokerSet
from gateway.controller.controller import MAX_BROKER_SET_BYTES, MAX_NAME_CHARS
from gateway.controller.etcd_client import MAX_ANSWER_BYTES, EtcdClient, EtcdEndpoint
from gateway.controller.etcd_store import KEY_PREFIX, PAGE_ENTRIES, EtcdStore
from gateway.controller.store import ControllerMember, StoreUnavailable, TermOver
from tools.etcd_members import EtcdMembers, etcd_program

pytestmark = pytest.mark.skipif(etcd_program() is None, reason="etcd is not installed")
FIRST = BrokerSet("C", "a").with_replica(1, "h:1", "x")
LEASE_S = 2
ETCD_MAX_REQUEST_BYTES = 1_572_864
"""The default of etcd's --max-request-bytes."""
LONG_LEASE_S = 60
"""A lease that does not end while a busy machine carries out a test."""
TIMEOUT_S, PATIENT_S = 2.0, 30.0
"""Times for one call: where members hang, and where they only may be slow."""
OpenStore = Callable[..., EtcdStore]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    with EtcdMembers(tmp_path_factory.mktemp("etcd"), 3) as members:
        yield members


@pytest.fixture
def open_store(members: EtcdMembers, request: pytest.FixtureRequest) -> OpenStore:
    """Open the store of this test's own group."""
    group = request.node.name
    endpoints = [EtcdEndpoint.parse(url) for url in members.urls]

    def open_one(lease_s: int = LONG_LEASE_S, timeout_s: float = PATIENT_S) -> EtcdStore:
        return EtcdStore(EtcdClient(endpoints, timeout_s=timeout_s), group, lease_s, time.monotonic)

    return open_one


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(30):
        while not await condition():
            await trio.sleep(0.1)


def test_one_leads_and_its_state_is_read_by_the_next(open_store: OpenStore) -> None:
    async def story() -> None:
        first, second = open_store(), open_store()
        assert await first.read_leader() is None
        term = await first.begin_term(ControllerMember("n0", "h:1"))
        assert term is not None
        assert await second.begin_term(ControllerMember("n1", "h:2")) is None
        assert await second.read_leader() == ControllerMember("n0", "h:1")
        version = await first.compare_and_put(term, "a", 0, FIRST)
        for wrong in (0, version + 1):
            with pytest.raises(TermOver):
                await first.compare_and_put(term, "a", wrong, FIRST)
        renewed = await first.renew(term)
        assert renewed.expires_at_s > term.expires_at_s
        await first.end_term(renewed)
        assert await second.read_leader() is None
        later = await second.begin_term(ControllerMember("n1", "h:2"))
        assert later is not None
        assert later.fence > term.fence
        entries = await second.read_all()
        assert {name: (entry.broker_set, entry.version) for name, entry in entries.items()} == {
            "a": (FIRST, version)
        }
        # The former leader knows nothing of all that.
        with pytest.raises(TermOver):
            await first.compare_and_put(renewed, "a", version, FIRST.with_master(1))
        with pytest.raises(TermOver):
            await first.renew(renewed)
        assert await second.compare_and_put(later, "a", version, None) == 0
        assert await second.read_all() == {}
        await second.end_term(later)

    trio.run(story)


def test_a_state_that_is_longer_than_an_answer_of_etcd_is_read_in_pages(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{letter}{end}" for letter in "abcdefgh" for end in ("", "\0", "/x", "\u00fc")]

    async def story() -> None:
        store = open_store()
        term = await store.begin_term(ControllerMember("n0", "h:1"))
        assert term is not None
        for name in names:
            await store.compare_and_put(term, name, 0, FIRST)
        monkeypatch.setattr("gateway.controller.etcd_client.MAX_ANSWER_BYTES", 4096)
        monkeypatch.setattr("gateway.controller.etcd_store.PAGE_ENTRIES", 5, raising=False)
        entries = await store.read_all()
        assert sorted(entries) == sorted(names)
        assert {entry.size_bytes for entry in entries.values()} == {len(FIRST.to_json())}
        await store.end_term(term)

    trio.run(story)


def test_a_page_of_the_largest_broker_sets_fits_into_an_answer() -> None:
    key_bytes = len(KEY_PREFIX) + 64 + 4 * MAX_NAME_CHARS
    # Elections are not refused for lack of room: their ids and epochs come in addition.
    set_bytes = MAX_BROKER_SET_BYTES + 4096
    assert PAGE_ENTRIES * (key_bytes + set_bytes) * 4 / 3 < MAX_ANSWER_BYTES
    assert set_bytes * 4 < ETCD_MAX_REQUEST_BYTES


def test_a_term_that_is_not_renewed_ends_for_its_holder_before_it_does_for_others(
    open_store: OpenStore,
) -> None:
    async def story() -> None:
        first, second = open_store(LEASE_S), open_store(LEASE_S)
        term = await first.begin_term(ControllerMember("n0", "h:1"))
        assert term is not None

        async def begins() -> bool:
            later = await second.begin_term(ControllerMember("n1", "h:2"))
            if later is not None:
                assert time.monotonic() > term.expires_at_s
                await second.end_term(later)
            return later is not None

        await until(begins)

    trio.run(story)


def test_the_state_survives_deaths_and_hangs_of_one_member(
    members: EtcdMembers, open_store: OpenStore
) -> None:
    async def story() -> None:
        store = open_store(LEASE_S, TIMEOUT_S)

        async def write(epoch: int) -> None:
            """Write as a controller does: when the outcome is unknown, begin again from what is stored."""
            done = False

            async def written() -> bool:
                nonlocal done
                try:
                    term = await store.begin_term(ControllerMember("n0", "h:1"))
                    if term is None:
                        return False
                    entry = (await store.read_all()).get("a")
                    broker_set, version = (entry.broker_set, entry.version) if entry else (FIRST, 0)
                    if broker_set.master_epoch < epoch:
                        await store.compare_and_put(term, "a", version, broker_set.with_master(1))
                    await store.end_term(term)
                except (StoreUnavailable, TermOver):
                    return False
                done = True
                return True

            await until(written)
            assert done

        await write(1)
        for index in range(3):
            members.stop(index)
            await write(2 + 2 * index)
            members.resume(index)
            members.kill(index)
            await write(3 + 2 * index)
            members.start(index)
            await trio.to_thread.run_sync(members.wait_ready)
        assert (await store.read_all())["a"].broker_set.master_epoch == 7

    trio.run(story)


def test_without_a_majority_nothing_is_written(members: EtcdMembers, open_store: OpenStore) -> None:
    async def story() -> None:
        store = open_store(timeout_s=TIMEOUT_S)
        term = await store.begin_term(ControllerMember("n0", "h:1"))
        assert term is not None
        for index in (0, 1):
            members.stop(index)
        try:
            with pytest.raises(StoreUnavailable):
                await store.compare_and_put(term, "a", 0, FIRST)
        finally:
            for index in (0, 1):
                members.resume(index)

    trio.run(story)


def test_a_user_signs_in_and_again_when_its_token_is_forgotten(tmp_path: Path) -> None:
    async def story(endpoint: EtcdEndpoint) -> None:
        open_client = EtcdClient([endpoint])
        await open_client.call("/v3/auth/user/add", {"name": "root", "password": "secret"})
        await open_client.call("/v3/auth/role/add", {"name": "root"})
        await open_client.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        await open_client.call("/v3/auth/enable", {})
        for user, password, problem in (
            ("", "", "user name is empty"),
            ("root", "x", "refuses the user root"),
        ):
            store = EtcdStore(EtcdClient([endpoint], user, password), "g", LEASE_S, time.monotonic)
            with pytest.raises(StoreUnavailable, match=problem):
                await store.read_leader()
        client = EtcdClient([endpoint], "root", "secret")
        store = EtcdStore(client, "g", LEASE_S, time.monotonic)
        term = await store.begin_term(ControllerMember("n0", "h:1"))
        assert term is not None
        client._token = "forgotten.1"
        await store.renew(term)
        client._token = "forgotten.2"
        await store.compare_and_put(term, "a", 0, FIRST)
        await store.end_term(term)

    with EtcdMembers(tmp_path, 1) as members:
        trio.run(story, EtcdEndpoint.parse(members.urls[0]))
