"""The brokers of one name, as the controller records them: replicas, master, epochs and the set of replicas in sync.

A `BrokerSet` is an immutable value. `rules.py` computes the next one; a store holds it as JSON under the broker's name.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Self

from codec.java_numbers import parse_integer_or

FIRST_BROKER_ID: Final = 1
"""Source: MixAll.FIRST_BROKER_CONTROLLER_ID, 5.4.0."""
MAX_REMOVED_IDS: Final = 1024
"""Ids of removed replicas that a set remembers; the lowest ones are forgotten first."""
_FORMAT: Final = 1


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of a broker's address. Raises ValueError for one at which no broker can be reached."""
    host, _, port_text = text.rpartition(":")
    host = host.strip("[]")
    port = parse_integer_or(port_text, 0)
    if not host or not host.isprintable() or not 0 < port < 65_536:
        raise ValueError("it is not host:port")
    # As the resolver will encode it: an empty label, or one of more than 63 characters, is a UnicodeError.
    host.encode("idna")
    return host, port


class UnreadableState(ValueError):
    """A stored broker set that this version cannot read."""


@dataclass(frozen=True, slots=True)
class RegisteredReplica:
    """One registered broker. ``check_code`` shows that it is the one that applied for its id."""

    address: str
    check_code: str


@dataclass(frozen=True, slots=True)
class BrokerSet:
    """All replicas of one broker name.

    `master_epoch` grows with each change of `master_id`, also when the master is lost without a successor; 0 means
    that no master was ever elected. `sync_set_epoch` grows with each change of `sync_set`. `removed_ids` are those of
    removed replicas, which no other broker gets: a broker may apply for an id long after it was offered.
    """

    cluster: str
    name: str
    next_broker_id: int = FIRST_BROKER_ID
    replicas: Mapping[int, RegisteredReplica] = field(default_factory=lambda: MappingProxyType({}))
    master_id: int | None = None
    master_epoch: int = 0
    sync_set: frozenset[int] = frozenset()
    sync_set_epoch: int = 0
    removed_ids: frozenset[int] = frozenset()

    @property
    def master_address(self) -> str | None:
        return self.address_of(self.master_id)

    @property
    def had_master(self) -> bool:
        """True once a first master was elected, whose messages a later one must have."""
        return self.master_epoch > 0

    def address_of(self, broker_id: int | None) -> str | None:
        """Return the address of a replica; None for an id that is not registered."""
        replica = None if broker_id is None else self.replicas.get(broker_id)
        return None if replica is None else replica.address

    def with_replica(self, broker_id: int, address: str, check_code: str) -> Self:
        """Return the set with a further replica. The next id is one that no replica has, or had before."""
        replicas = {**self.replicas, broker_id: RegisteredReplica(address, check_code)}
        next_broker_id = self.next_broker_id + 1
        while next_broker_id in replicas or next_broker_id in self.removed_ids:
            next_broker_id += 1
        return replace(self, replicas=MappingProxyType(replicas), next_broker_id=next_broker_id)

    def with_address(self, broker_id: int, address: str) -> Self:
        """Return the set with another address of a replica."""
        replica = replace(self.replicas[broker_id], address=address)
        return replace(self, replicas=MappingProxyType({**self.replicas, broker_id: replica}))

    def with_master(self, broker_id: int) -> Self:
        """Return the set under a new master, which is at first the only replica in sync."""
        return replace(
            self,
            master_id=broker_id,
            master_epoch=self.master_epoch + 1,
            sync_set=frozenset((broker_id,)),
            sync_set_epoch=self.sync_set_epoch + 1,
        )

    def without_master(self) -> Self:
        """Return the set without a master. The replicas in sync stay: one of them is to be the next master."""
        return replace(self, master_id=None, master_epoch=self.master_epoch + 1)

    def with_sync_set(self, broker_ids: Iterable[int]) -> Self:
        """Return the set with other replicas in sync."""
        return replace(self, sync_set=frozenset(broker_ids), sync_set_epoch=self.sync_set_epoch + 1)

    def without_replicas(self, broker_ids: Iterable[int]) -> Self | None:
        """Return the set without some replicas; None when it has no others.

        Epochs stay, so that a later master never gets an epoch that replicas have seen. In the official controller
        they begin again at 1 once all replicas in sync are removed.
        """
        removed = frozenset(broker_ids)
        replicas = {key: replica for key, replica in self.replicas.items() if key not in removed}
        if not replicas:
            return None
        all_removed = self.removed_ids | (removed & self.replicas.keys())
        removed_ids = frozenset(sorted(all_removed)[-MAX_REMOVED_IDS:])
        rest = replace(self, replicas=MappingProxyType(replicas), removed_ids=removed_ids)
        if self.sync_set & removed:
            # A new epoch, unlike in the official controller: otherwise the master goes on with the set that it knows.
            rest = rest.with_sync_set(self.sync_set - removed)
        return rest.without_master() if self.master_id in removed else rest

    def to_json(self) -> bytes:
        """Return the set as bytes for a store."""
        value = {
            "format": _FORMAT,
            "cluster": self.cluster,
            "name": self.name,
            "nextBrokerId": self.next_broker_id,
            "replicas": {
                str(key): {"address": replica.address, "checkCode": replica.check_code}
                for key, replica in sorted(self.replicas.items())
            },
            "masterId": self.master_id,
            "masterEpoch": self.master_epoch,
            "syncSet": sorted(self.sync_set),
            "syncSetEpoch": self.sync_set_epoch,
            "removedIds": sorted(self.removed_ids),
        }
        return json.dumps(value).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read a set from a store. Raises UnreadableState."""
        try:
            value: dict[str, Any] = json.loads(data)
            if value["format"] != _FORMAT:
                raise UnreadableState(f"format {value['format']}, this version reads {_FORMAT}")
            replicas = {
                int(key): RegisteredReplica(replica["address"], replica["checkCode"])
                for key, replica in value["replicas"].items()
            }
            return cls(
                cluster=value["cluster"],
                name=value["name"],
                next_broker_id=value["nextBrokerId"],
                replicas=MappingProxyType(replicas),
                master_id=value["masterId"],
                master_epoch=value["masterEpoch"],
                sync_set=frozenset(value["syncSet"]),
                sync_set_epoch=value["syncSetEpoch"],
                # Earlier versions did not note them.
                removed_ids=frozenset(value.get("removedIds", ())),
            )
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UnreadableState(f"{type(error).__name__}: {error}") from error
