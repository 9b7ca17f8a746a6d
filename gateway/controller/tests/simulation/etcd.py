"""An etcd cluster on virtual time, below the real `EtcdClient`: its members fail, and answers are lost or late."""

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import trio

from gateway.controller.etcd_client import EtcdClient, EtcdEndpoint, EtcdRefusal, JsonObject, decode, encode
from gateway.controller.tests.simulation.machines import Network

MEMBERS: Final = ("e0", "e1", "e2")
CLOCK_RATES: Final = (0.97, 1.0, 1.03)
PROPOSAL_TIMEOUT_S: Final = 7.0
MAX_LATE_S: Final = 15.0
"""Longest time after which a change that was answered with an error is made nevertheless."""
NOT_FOUND: Final = 5
_LEASE_NOT_FOUND: Final = "etcdserver: requested lease not found"
_TIMED_OUT: Final = "etcdserver: request timed out"


@dataclass(slots=True)
class _Item:
    value: bytes
    create_revision: int
    mod_revision: int
    lease: str


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    expires_at_s: float


class SimEtcd:
    """The state that a majority of the members agrees on. ``note_write`` gets each write of a key, None at its end."""

    def __init__(
        self,
        network: Network,
        randomness: random.Random,
        note_write: Callable[[str, bytes | None], None],
    ) -> None:
        self._network = network
        self._randomness = randomness
        self._note_write = note_write
        self._rate = randomness.choice(CLOCK_RATES)
        self._items: dict[bytes, _Item] = {}
        self._leases: dict[str, _Lease] = {}
        self._revision = 1
        self._next_lease = 7_000
        self._changed = trio.Event()
        self.down: set[str] = set()
        self.hung: set[str] = set()
        self.loss = 0.0
        """Chance that an answer is lost, that it is an error although the change was made, or that a change is slow."""
        self.nursery: trio.Nursery | None = None
        self.is_over = False

    # -- members ------------------------------------------------------------------------------------------------------

    def fail(self, member: str, *, is_hung: bool) -> None:
        (self.hung if is_hung else self.down).add(member)
        # Another member may lead now, and a new leader gives each lease its whole time again.
        if self._randomness.random() < 0.5:
            for lease in self._leases.values():
                if lease.expires_at_s > trio.current_time():
                    lease.expires_at_s = trio.current_time() + lease.ttl_s / self._rate

    def recover(self, member: str) -> None:
        self.down.discard(member)
        self.hung.discard(member)
        self._changed.set()
        self._changed = trio.Event()

    def is_able(self, member: str) -> bool:
        return member not in self.down and member not in self.hung and not self._network.is_paused(member)

    def _has_majority(self, member: str) -> bool:
        if not self.is_able(member):
            return False
        reached = [
            peer
            for peer in MEMBERS
            if peer != member
            and self.is_able(peer)
            and not self._network.is_cut(member, peer)
            and not self._network.is_cut(peer, member)
        ]
        return bool(reached)

    # -- calls --------------------------------------------------------------------------------------------------------

    async def call(self, client: str, member: str, path: str, body: Mapping[str, Any]) -> JsonObject:
        """Return the answer of a member; never, if it is lost. Raises EtcdRefusal, and ValueError for its troubles."""
        await self._network.deliver(client, member)
        if member in self.hung:
            await trio.sleep_forever()
        if member in self.down:
            raise ConnectionResetError("connection reset")
        outcomes: list[JsonObject | Exception] = []
        is_done = trio.Event()

        def answer(outcome: JsonObject | Exception) -> None:
            outcomes.append(outcome)
            is_done.set()

        assert self.nursery is not None
        self.nursery.start_soon(self._propose, member, path, body, answer)
        await is_done.wait()
        if self._randomness.random() < self.loss:
            if self._randomness.random() < 0.5:
                await trio.sleep_forever()
            raise ValueError(_TIMED_OUT)
        await self._network.deliver(member, client)
        outcome = outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _propose(
        self,
        member: str,
        path: str,
        body: Mapping[str, Any],
        answer: Callable[[JsonObject | Exception], None],
    ) -> None:
        """Carry out a call once there is a majority. It may be carried out although its answer is an error."""
        deadline_s = trio.current_time() + PROPOSAL_TIMEOUT_S
        while not self._has_majority(member):
            if trio.current_time() >= deadline_s:
                answer(ValueError(_TIMED_OUT))
                if self._randomness.random() < 0.5:
                    return
                with trio.move_on_after(MAX_LATE_S) as patience:
                    while not self._has_majority(member):
                        await trio.sleep(0.2)
                if patience.cancelled_caught:
                    return
                break
            await trio.sleep(0.1)
        await trio.sleep(0.002 * self._randomness.random())
        if self._randomness.random() < self.loss:
            await trio.sleep(self._randomness.random() * self._randomness.choice([0.5, 4.0, MAX_LATE_S]))
        if self.is_over:
            return
        try:
            outcome: JsonObject | Exception = self._carry_out(path, body)
            if self._randomness.random() < self.loss / 4:
                # A proxy sent it twice, and the second answer counts.
                outcome = self._carry_out(path, body)
        except EtcdRefusal as refusal:
            outcome = refusal
        answer(outcome)

    # -- the state ----------------------------------------------------------------------------------------------------

    def _carry_out(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        self._expire()
        handler = {
            "/v3/kv/range": self._range,
            "/v3/kv/txn": self._transact,
            "/v3/lease/grant": self._grant,
            "/v3/lease/keepalive": self._keep_alive,
            "/v3/lease/revoke": self._revoke,
        }[path]
        return {"header": {"revision": str(self._revision)}, **handler(body)}

    def _expire(self) -> None:
        now_s = trio.current_time()
        for name in [name for name, lease in self._leases.items() if lease.expires_at_s <= now_s]:
            self._end_lease(name)

    def _end_lease(self, name: str) -> None:
        del self._leases[name]
        for key in [key for key, item in self._items.items() if item.lease == name]:
            self._delete(key)

    def _delete(self, key: bytes) -> None:
        if self._items.pop(key, None) is not None:
            self._revision += 1
            self._note_write(key.decode(), None)

    def _range(self, body: Mapping[str, Any]) -> JsonObject:
        first = decode(body["key"])
        end = decode(body["rangeEnd"]) if "rangeEnd" in body else first + b"\0"
        keys = sorted(key for key in self._items if first <= key < end)
        limit = int(body.get("limit", 0)) or len(keys)
        items = [
            {
                "key": encode(key),
                "value": encode(self._items[key].value),
                "mod_revision": str(self._items[key].mod_revision),
                "create_revision": str(self._items[key].create_revision),
            }
            for key in keys[:limit]
        ]
        return {"kvs": items, "more": len(keys) > limit} if items else {}

    def _transact(self, body: Mapping[str, Any]) -> JsonObject:
        if not all(map(self._holds, body["compare"])):
            return {}
        for change in body["success"]:
            if "requestPut" in change:
                self._put(**change["requestPut"])
            else:
                self._delete(decode(change["requestDeleteRange"]["key"]))
        return {"succeeded": True, "header": {"revision": str(self._revision)}}

    def _holds(self, comparison: Mapping[str, Any]) -> bool:
        item = self._items.get(decode(comparison["key"]))
        if comparison["target"] == "CREATE":
            return (item.create_revision if item else 0) == int(comparison["createRevision"])
        return (item.mod_revision if item else 0) == int(comparison["modRevision"])

    def _put(self, key: str, value: str, lease: str = "") -> None:
        if lease and lease not in self._leases:
            raise EtcdRefusal(NOT_FOUND, _LEASE_NOT_FOUND)
        self._revision += 1
        name = decode(key)
        before = self._items.get(name)
        created = before.create_revision if before else self._revision
        self._items[name] = _Item(decode(value), created, self._revision, lease)
        self._note_write(name.decode(), decode(value))

    def _grant(self, body: Mapping[str, Any]) -> JsonObject:
        self._next_lease += 1
        ttl_s = float(body["TTL"])
        self._leases[str(self._next_lease)] = _Lease(ttl_s, trio.current_time() + ttl_s / self._rate)
        return {"ID": str(self._next_lease), "TTL": str(body["TTL"])}

    def _keep_alive(self, body: Mapping[str, Any]) -> JsonObject:
        lease = self._leases.get(str(body["ID"]))
        if lease is None:
            return {"ID": body["ID"]}
        lease.expires_at_s = trio.current_time() + lease.ttl_s / self._rate
        return {"ID": body["ID"], "TTL": str(int(lease.ttl_s))}

    def _revoke(self, body: Mapping[str, Any]) -> JsonObject:
        if str(body["ID"]) not in self._leases:
            raise EtcdRefusal(NOT_FOUND, _LEASE_NOT_FOUND)
        self._end_lease(str(body["ID"]))
        return {}


class _NoStream:
    """The place of a connection: calls go to the simulated member directly."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()


class SimEtcdClient(EtcdClient):
    """The client of one controller's process, with its choice of members and its time-outs."""

    def __init__(self, etcd: SimEtcd, network: Network, machine: str) -> None:
        super().__init__([EtcdEndpoint(member, 2379, is_encrypted=False) for member in MEMBERS])
        self._etcd = etcd
        self._network = network
        self._machine = machine
        self._calls: set[trio.CancelScope] = set()
        self.is_dead = False

    def die(self) -> None:
        """End with the process: nothing more is sent, and no answer is waited for."""
        self.is_dead = True
        for scope in self._calls:
            scope.cancel()

    async def _open(self, endpoint: EtcdEndpoint) -> Any:
        async def connect() -> Any:
            await self._network.deliver(self._machine, endpoint.host)
            if endpoint.host in self._etcd.hung:
                await trio.sleep_forever()
            if endpoint.host in self._etcd.down:
                raise ConnectionRefusedError("connection refused")
            await self._network.deliver(endpoint.host, self._machine)
            return _NoStream()

        return await self._until_death(connect)

    async def _exchange(
        self, stream: Any, endpoint: EtcdEndpoint, path: str, body: Mapping[str, Any]
    ) -> JsonObject:
        async def exchange() -> JsonObject:
            return await self._etcd.call(self._machine, endpoint.host, path, body)

        answer: JsonObject = await self._until_death(exchange)
        return answer

    async def _until_death(self, work: Callable[[], Awaitable[Any]]) -> Any:
        if self.is_dead:
            raise ConnectionAbortedError("the process has ended")
        with trio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                return await work()
            finally:
                self._calls.discard(scope)
        raise ConnectionAbortedError("the process has ended")
