"""The laws of a group of controllers and its replicas, and the history that they are judged by."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from gateway.controller.broker_set import BrokerSet

ENTRY_PREFIX: Final = "/broker-sets/"


class LawBroken(AssertionError):
    """A law does not hold."""


class Record(NamedTuple):
    """One message in the log of a replica: the epoch of the master that stored it, and its body."""

    epoch: int
    body: bytes


class Acceptor(Protocol):
    """A broker that may be accepting messages, and the epoch of its role."""

    @property
    def name(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def is_writable(self) -> bool: ...


class Recorder(Acceptor, Protocol):
    """A broker whose log is a list of records."""

    @property
    def log(self) -> list[Record]: ...


@dataclass(slots=True)
class Laws:
    """The history of one seed. Each ``note_…`` raises LawBroken.

    With ``clocks_stop`` a suspended machine believes that no time has passed. Then a lease protects nothing, and only
    the laws hold that rest on epochs and on what is stored.
    """

    may_be_unclean: bool
    clocks_stop: bool
    versions: list[BrokerSet] = field(default_factory=list)
    sets: dict[int, frozenset[int]] = field(default_factory=dict)
    """The replicas in sync by the epoch of their set, as stored."""
    check_codes: dict[int, str] = field(default_factory=dict)
    disks: dict[int, str] = field(default_factory=dict)
    """The disk on which each broker id is."""
    masters: dict[int, str] = field(default_factory=dict)
    acknowledged: dict[int, Record] = field(default_factory=dict)
    unclean_epochs: set[int] = field(default_factory=set)
    lossy_epochs: set[int] = field(default_factory=set)
    """All epochs that began with an unclean election; `unclean_epochs` are those that no law has allowed for yet."""
    planned_until_s: float = -1.0
    """Time until which a former master may accept, because an operator had another one elected."""
    elections: int = 0
    lost_masters: int = 0
    unclean_elections: int = 0
    acknowledgements: int = 0
    accepted_sets: int = 0

    @property
    def newest(self) -> BrokerSet | None:
        """The broker set as it is stored."""
        return self.versions[-1] if self.versions else None

    def note_write(self, key: str, value: bytes | None) -> None:
        """Judge a write of the store."""
        if ENTRY_PREFIX not in key:
            return
        if value is None:
            raise LawBroken("the broker set vanished from the store")
        after = BrokerSet.from_json(value)
        self._check_ids(after)
        if self.sets.setdefault(after.sync_set_epoch, after.sync_set) != after.sync_set:
            before_set = sorted(self.sets[after.sync_set_epoch])
            raise LawBroken(
                f"the set epoch {after.sync_set_epoch} names {before_set} and {sorted(after.sync_set)}"
            )
        if self.newest is not None:
            self._check_step(self.newest, after)
        self.versions.append(after)

    def _check_ids(self, after: BrokerSet) -> None:
        for broker_id, replica in after.replicas.items():
            code = self.check_codes.setdefault(broker_id, replica.check_code)
            if code != replica.check_code:
                raise LawBroken(f"the id {broker_id} was given to {code} and to {replica.check_code}")
        if not after.sync_set <= after.replicas.keys():
            raise LawBroken(f"{sorted(after.sync_set)} are in sync, and {sorted(after.replicas)} exist")

    def _check_step(self, before: BrokerSet, after: BrokerSet) -> None:
        has_new_master = after.master_id != before.master_id
        if after.master_epoch < before.master_epoch + has_new_master:
            raise LawBroken(
                f"the master changed from {before.master_id} in epoch {before.master_epoch} to {after.master_id} in "
                f"epoch {after.master_epoch}"
            )
        if after.sync_set_epoch < before.sync_set_epoch + (after.sync_set != before.sync_set):
            raise LawBroken(
                f"the replicas in sync changed from {sorted(before.sync_set)} in epoch {before.sync_set_epoch} to "
                f"{sorted(after.sync_set)} in epoch {after.sync_set_epoch}"
            )
        if not has_new_master:
            return
        if after.master_id is None:
            self.lost_masters += 1
            return
        self.elections += 1
        if before.had_master and after.master_id not in before.sync_set:
            if not self.may_be_unclean:
                raise LawBroken(
                    f"{after.master_id} became master in epoch {after.master_epoch}, and {sorted(before.sync_set)} "
                    "were in sync"
                )
            self.unclean_elections += 1
            self.unclean_epochs.add(after.master_epoch)
            self.lossy_epochs.add(after.master_epoch)

    # -- brokers ------------------------------------------------------------------------------------------------------

    def note_id(self, disk: str, broker_id: int) -> None:
        """Judge an id that a broker was given for its disk."""
        other = self.disks.setdefault(broker_id, disk)
        if other != disk:
            raise LawBroken(f"the id {broker_id} is on the disks {other} and {disk}")

    def note_accepted_set(self, set_epoch: int, broker_ids: frozenset[int]) -> None:
        """Judge the answer that a change of the replicas in sync was accepted."""
        self.accepted_sets += 1
        stored = self.sets.get(set_epoch)
        if stored != broker_ids:
            raise LawBroken(
                f"the set {sorted(broker_ids)} was accepted as epoch {set_epoch}, and {stored and sorted(stored)} is "
                "stored"
            )

    def take_unclean(self, epoch: int) -> bool:
        """Tell, once, whether a master of this epoch may lack messages: there was an unclean election up to it."""
        unclean = {unclean_epoch for unclean_epoch in self.unclean_epochs if unclean_epoch <= epoch}
        self.unclean_epochs -= unclean
        return bool(unclean)

    def note_master(self, broker: Recorder) -> None:
        """Judge a broker that has become master: it has whatever was acknowledged."""
        if self.take_unclean(broker.epoch):
            self.acknowledged = {
                index: record
                for index, record in self.acknowledged.items()
                if broker.log[index : index + 1] == [record]
            }
        self.check_log(broker)

    def check_log(self, broker: Recorder) -> None:
        """Judge the log of a master."""
        for index, record in self.acknowledged.items():
            if broker.log[index : index + 1] != [record]:
                raise LawBroken(
                    f"{record} was acknowledged at {index}, and {broker.name}, master in epoch {broker.epoch}, has "
                    f"{broker.log[index : index + 1]}"
                )

    def note_accepting(self, broker: Acceptor, brokers: Sequence[Acceptor], now_s: float) -> None:
        """Judge a master that accepts a message."""
        other_name = self.masters.setdefault(broker.epoch, broker.name)
        if other_name != broker.name:
            raise LawBroken(f"{other_name} and {broker.name} accept messages in the epoch {broker.epoch}")
        if self.clocks_stop or now_s < self.planned_until_s:
            return
        for other in brokers:
            if other is not broker and other.is_writable:
                raise LawBroken(
                    f"{broker.name} accepts messages in epoch {broker.epoch}, and {other.name} in epoch {other.epoch}"
                )

    def note_acknowledged(self, index: int, record: Record) -> None:
        """Note a message that was answered with success."""
        self.acknowledgements += 1
        other = self.acknowledged.setdefault(index, record)
        if other == record:
            return
        older, newer = sorted((other, record), key=lambda item: item.epoch)
        # An answer of the former master may be noted after an unclean election, which loses its message.
        if not any(older.epoch < epoch <= newer.epoch for epoch in self.lossy_epochs):
            raise LawBroken(f"{other} and {record} were acknowledged at {index}")
        self.acknowledged[index] = newer
