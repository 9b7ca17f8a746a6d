"""The controller's state in etcd, for a group of controllers.

There is one key for each broker set, and one for the leading controller, which lives as long as its lease. Every write
is a transaction that compares the version of its entry, and the revision at which the leader's key was created: the
fence of the term. etcd carries a transaction out at a majority of its members, or not at all.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from gateway.controller.broker_set import BrokerSet
from gateway.controller.etcd_client import EtcdClient, EtcdRefusal, JsonObject, decode, encode
from gateway.controller.store import ControllerMember, Entry, StoreUnavailable, Term, TermOver

KEY_PREFIX: Final = "/rocketmq-gateway/controller"
PAGE_ENTRIES: Final = 128
"""Entries in one answer: of the largest broker sets, they are shorter than the longest answer that is read."""
SAFETY_S: Final = 0.5
"""A term is over this much earlier for its controller than its lease is for etcd, whose clock may run faster."""


class EtcdStore:
    """The state of the controllers of one group. ``lease_s`` is the time until a controller that died is replaced."""

    def __init__(self, client: EtcdClient, group: str, lease_s: int, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._leader_key = f"{KEY_PREFIX}/{group}/leader"
        self._entry_prefix = f"{KEY_PREFIX}/{group}/broker-sets/"
        self._lease_s = lease_s
        self._monotonic = monotonic

    async def begin_term(self, member: ControllerMember) -> Term | None:
        if await self.read_leader() is not None:
            return None
        asked_at_s = self._monotonic()
        lease = str((await self._call("/v3/lease/grant", {"TTL": self._lease_s}))["ID"])
        value = json.dumps({"id": member.member_id, "address": member.address})
        answer = await self._transact(
            [_compare(self._leader_key, "CREATE", 0)],
            {"requestPut": {"key": encode(self._leader_key), "value": encode(value), "lease": lease}},
        )
        if not answer.get("succeeded"):
            await self._revoke(lease)
            return None
        # The put is the only change of its revision, so that is where the key was created.
        fence = int(answer["header"]["revision"])
        return Term(lease, fence, self._expires_at_s(asked_at_s))

    async def renew(self, term: Term) -> Term:
        asked_at_s = self._monotonic()
        answer = await self._call("/v3/lease/keepalive", {"ID": term.name})
        if int(answer.get("TTL", 0)) <= 0:
            raise TermOver("the lease has expired")
        return replace(term, expires_at_s=self._expires_at_s(asked_at_s))

    async def end_term(self, term: Term) -> None:
        await self._revoke(term.name)

    async def _revoke(self, lease: str) -> None:
        try:
            await self._client.call("/v3/lease/revoke", {"ID": lease})
        except EtcdRefusal:
            return  # it had expired

    async def read_leader(self) -> ControllerMember | None:
        answer = await self._call("/v3/kv/range", {"key": encode(self._leader_key)})
        for item in answer.get("kvs", ()):
            try:
                value = json.loads(decode(item["value"]))
                return ControllerMember(str(value["id"]), str(value["address"]))
            except (KeyError, TypeError, ValueError):
                return ControllerMember(
                    "", ""
                )  # somebody else's value: not free, but nobody to send brokers to
        return None

    async def read_all(self) -> dict[str, Entry]:
        end = self._entry_prefix[:-1] + chr(ord(self._entry_prefix[-1]) + 1)
        entries: dict[str, Entry] = {}
        begin = self._entry_prefix.encode()
        # The pages belong together although they are read one after the other: nobody else can write in this term.
        while True:
            answer = await self._call(
                "/v3/kv/range", {"key": encode(begin), "rangeEnd": encode(end), "limit": PAGE_ENTRIES}
            )
            items = answer.get("kvs", ())
            for item in items:
                key, state = decode(item["key"]), decode(item["value"])
                name = key.decode().removeprefix(self._entry_prefix)
                entries[name] = Entry(BrokerSet.from_json(state), int(item["mod_revision"]), len(state))
                begin = key + b"\0"
            if not items or not answer.get("more"):
                return entries

    async def compare_and_put(self, term: Term, name: str, version: int, broker_set: BrokerSet | None) -> int:
        key = self._entry_prefix + name
        if broker_set is None:
            change: JsonObject = {"requestDeleteRange": {"key": encode(key)}}
        else:
            change = {"requestPut": {"key": encode(key), "value": encode(broker_set.to_json())}}
        answer = await self._transact(
            [_compare(self._leader_key, "CREATE", term.fence), _compare(key, "MOD", version)], change
        )
        if not answer.get("succeeded"):
            raise TermOver(f"the entry of {name} was written by another controller, or another one leads")
        return int(answer["header"]["revision"]) if broker_set is not None else 0

    async def close(self) -> None:
        """Do nothing: connections last for one call."""

    async def _transact(self, compare: list[JsonObject], change: JsonObject) -> JsonObject:
        return await self._call("/v3/kv/txn", {"compare": compare, "success": [change]})

    async def _call(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        """Return the answer to a call. An error of etcd is a store that cannot be used: no space, no permission."""
        try:
            return await self._client.call(path, body)
        except EtcdRefusal as refusal:
            if path.endswith("keepalive"):
                raise TermOver(str(refusal)) from refusal
            raise StoreUnavailable(f"etcd: {refusal}") from refusal

    def _expires_at_s(self, asked_at_s: float) -> float:
        return asked_at_s + self._lease_s - SAFETY_S


def _compare(key: str, target: str, revision: int) -> JsonObject:
    field = {"CREATE": "createRevision", "MOD": "modRevision"}[target]
    return {"key": encode(key), "target": target, "result": "EQUAL", field: str(revision)}
