"""The planted defects of controllers, with the laws that they break."""

import enum
from typing import Final

from storage.tests.planting.catalogue import Catalogue
from storage.tests.planting.defect import Defect, change

ROOM: Final = "gateway/controller"
ETCD_STORE: Final = f"{ROOM}/etcd_store.py"
RULES: Final = f"{ROOM}/rules.py"
BROKER_SET: Final = f"{ROOM}/broker_set.py"
REPLICATION: Final = "gateway/broker/replication"
SIMULATION: Final = (f"{ROOM}/tests/test_simulation.py",)
WHOLE_BROKERS: Final = (f"{REPLICATION}/tests/test_controller_simulation.py",)


class Law(enum.StrEnum):
    """The laws of controllers, as docs/explanation/controller-laws.md calls them."""

    ONE_MASTER = "One master accepts"
    IN_SYNC = "Masters come from the replicas in sync"
    IDS = "Ids are unique"
    EPOCHS = "Epochs only grow"
    ACCEPTED = "An accepted set is not undone"
    ACKNOWLEDGED = "Acknowledged by all is not lost"
    COPIES = "An answer has its copies"
    NEWEST = "A new master lacks only the newest"
    READ = "What is read stays"
    ALL_EPOCHS = "Every epoch reaches every replica"


CONTROLLER_DEFECTS: Final = Catalogue(
    defects=(
        Defect(
            "new-leader-does-not-wait-for-the-lease-of-a-silent-master",
            Law.ONE_MASTER,
            change(RULES, "    if master_may_hold_lease(broker_set, liveness):\n        return True\n", ""),
            SIMULATION,
        ),
        Defect(
            "election-takes-any-live-replica",
            Law.IN_SYNC,
            change(
                f"{ROOM}/election.py",
                "    chosen = _choose(broker_set, liveness, broker_set.sync_set, designated_id)\n",
                "    chosen = _choose(broker_set, liveness, broker_set.replicas, designated_id)\n",
            ),
            SIMULATION,
        ),
        Defect(
            "id-is-given-to-another-broker-as-well",
            Law.IDS,
            change(
                RULES,
                "    if replica is not None and replica.check_code == check_code:\n",
                "    if replica is not None:\n",
            ),
            SIMULATION,
        ),
        Defect(
            "id-of-a-removed-replica-is-given-again",
            Law.IDS,
            change(
                BROKER_SET,
                "        next_broker_id = self.next_broker_id + 1\n",
                "        next_broker_id = FIRST_BROKER_ID\n",
            )
            + change(
                BROKER_SET,
                "        rest = replace(self, replicas=MappingProxyType(replicas), removed_ids=removed_ids)\n",
                "        rest = replace(self, next_broker_id=min(removed), replicas=MappingProxyType(replicas))\n",
            ),
            SIMULATION,
        ),
        Defect(
            "id-of-a-removed-replica-goes-to-a-broker-that-was-offered-it",
            Law.IDS,
            change(
                RULES,
                "    if replica is None and broker_id not in broker_set.removed_ids:\n",
                "    if replica is None:\n",
            ),
            (f"{ROOM}/tests/test_rules.py",),
        ),
        Defect(
            "new-master-keeps-the-epoch",
            Law.EPOCHS,
            change(
                BROKER_SET,
                "            master_id=broker_id,\n            master_epoch=self.master_epoch + 1,\n",
                "            master_id=broker_id,\n            master_epoch=max(self.master_epoch, 1),\n",
            ),
            SIMULATION,
        ),
        Defect(
            "write-compares-neither-version-nor-term",
            Law.EPOCHS,
            change(
                ETCD_STORE,
                '[_compare(self._leader_key, "CREATE", term.fence), _compare(key, "MOD", version)]',
                "[]",
            ),
            SIMULATION,
        ),
        Defect(
            "accepted-set-is-stored-with-the-next-change",
            Law.ACCEPTED,
            change(
                f"{ROOM}/controller.py",
                "                with trio.CancelScope(shield=True):\n"
                "                    await self._write(table, name, entry, decision.broker_set, size_bytes)\n",
                "                if broker_set is not None and decision.broker_set is not None and (\n"
                "                    broker_set.master_epoch == decision.broker_set.master_epoch > 0\n"
                "                ):\n"
                "                    assert entry is not None\n"
                "                    table.entries[name] = Entry(decision.broker_set, entry.version, size_bytes)\n"
                "                    return decision\n"
                "                with trio.CancelScope(shield=True):\n"
                "                    await self._write(table, name, entry, decision.broker_set, size_bytes)\n",
            ),
            SIMULATION,
        ),
        Defect(
            "lease-is-never-checked",
            Law.ONE_MASTER,
            change(
                f"{REPLICATION}/fencing.py",
                "        return not self._is_suspended and self.now() < self._end_s\n\n",
                "        return True\n\n",
            ),
            WHOLE_BROKERS,
        ),
        Defect(
            "whole-broker-outside-the-set-is-elected",
            Law.IN_SYNC,
            change(
                f"{ROOM}/election.py",
                "    chosen = _choose(broker_set, liveness, broker_set.sync_set, designated_id)\n",
                "    chosen = _choose(broker_set, liveness, broker_set.replicas, designated_id)\n",
            ),
            WHOLE_BROKERS,
        ),
        Defect(
            "replica-without-a-connection-is-not-waited-for",
            Law.ACKNOWLEDGED,
            change(
                f"{REPLICATION}/sync_state.py",
                "                if progress is None:\n                    return\n                lowest",
                "                if progress is None:\n                    continue\n                lowest",
            ),
            WHOLE_BROKERS,
        ),
        Defect(
            "one-slave-is-taken-for-all-that-have-to-have-a-message",
            Law.COPIES,
            change(
                f"{REPLICATION}/sync_state.py",
                "        return acknowledged[required_slaves - 1] if",
                "        return acknowledged[0] if",
            ),
            WHOLE_BROKERS,
        ),
        Defect(
            "replica-that-joins-a-lonely-master-is-not-waited-for",
            Law.COPIES,
            change(
                f"{REPLICATION}/sync_state.py",
                "self.settings.in_sync_replicas or len(self.required)\n",
                "self.settings.in_sync_replicas or len(self.members)\n",
            ),
            WHOLE_BROKERS,
        ),
        Defect(
            "lease-of-a-later-epoch-lets-the-former-master-store",
            Law.ONE_MASTER,
            change(
                f"{REPLICATION}/replicas_manager.py",
                "        if self._storing_epoch in (None, renewal.epoch):\n",
                "        if True:\n",
            ),
            (f"{REPLICATION}/tests/test_replicas_manager_late_answers.py",),
        ),
        Defect(
            "replica-that-does-not-keep-up-stays-in-the-set",
            Law.NEWEST,
            change(
                f"{REPLICATION}/sync_state.py",
                "        lost = {broker_id for broker_id in self.members if self._is_lost(broker_id, now_s)}\n",
                "        lost = set[int]()\n",
            ),
            (f"{REPLICATION}/tests/test_sync_state.py",),
        ),
        Defect(
            "slave-shows-what-is-not-confirmed",
            Law.READ,
            change(
                f"{REPLICATION}/follower.py",
                "        return self.confirm_offset or 0\n",
                "        return NO_LIMIT\n",
            ),
            WHOLE_BROKERS,
        ),
        Defect(
            "later-epoch-of-the-handshake-is-not-noted",
            Law.ALL_EPOCHS,
            change(
                f"{REPLICATION}/auto_switch_follower.py",
                "        if self._has_adopted and not (pending and pending[0].start <= end):\n",
                "        if self._has_adopted:\n",
            ),
            WHOLE_BROKERS,
        ),
    ),
    rule="law",
    rules=tuple(Law),
    page="docs/explanation/controller-laws.md",
)
