"""The planted defects of replication, with the laws that they break."""

import enum
from typing import Final

from storage.tests.planting.catalogue import Catalogue
from storage.tests.planting.defect import Defect, change

ROOM: Final = "gateway/broker/replication"
IN_SYNC: Final = f"{ROOM}/in_sync.py"
FOLLOWER: Final = f"{ROOM}/follower.py"
TABLES: Final = f"{ROOM}/table_sync.py"
GATE: Final = "gateway/broker/messages/answer_gate.py"
FORMER_MASTER: Final = ("gateway/broker/assembly/tests/test_role_control_former_master.py",)
SIMULATION: Final = (f"{ROOM}/tests/test_simulation.py",)


class Law(enum.StrEnum):
    """The laws of replication, as docs/explanation/replication-laws.md calls them."""

    ACKNOWLEDGED = "Acknowledged survives any single fault"
    PREFIX = "A slave's log is a prefix"
    CATCHES_UP = "A slave catches up"
    SAME_QUEUES = "A slave's queues are its master's"
    OFFSETS = "A committed offset does not go back"
    NAMES = "Topics and groups survive"
    WAITING = "What waits still comes"
    DELETED = "Deleted topics stay deleted"


REPLICATION_DEFECTS: Final = Catalogue(
    defects=(
        Defect(
            "answer-leaves-before-the-slave-has-the-message",
            Law.ACKNOWLEDGED,
            change(
                IN_SYNC,
                "        if required_slaves <= 0:\n",
                "        if required_slaves <= 1:\n",
            ),
            SIMULATION,
        ),
        Defect(
            "message-without-a-slave-is-answered-with-success",
            Law.ACKNOWLEDGED,
            change(
                IN_SYNC,
                "                return ResponseCode.SLAVE_NOT_AVAILABLE\n",
                "                return ResponseCode.SUCCESS\n",
            ),
            SIMULATION,
        ),
        Defect(
            "end-of-the-wait-for-slaves-is-answered-with-success",
            Law.ACKNOWLEDGED,
            change(GATE, "            held.status = max(held.status, self.timeout_status)\n", ""),
            SIMULATION,
        ),
        Defect(
            "answer-waits-for-the-disk-or-the-slave",
            Law.ACKNOWLEDGED,
            change(
                GATE,
                "            # Negative after a refusal.\n            if held.waits == 0:\n",
                "            if held.waits >= 0:\n",
            ),
            SIMULATION,
        ),
        Defect(
            "slave-acknowledges-what-it-has-not-compared",
            Law.ACKNOWLEDGED,
            change(
                FOLLOWER,
                "        return self.first_report if self.is_comparing else self._store.max_physical_offset\n",
                "        return self._store.max_physical_offset\n",
            ),
            SIMULATION,
        ),
        Defect(
            "cut-is-carried-out-again",
            Law.ACKNOWLEDGED,
            change(
                "storage/cut.py",
                "        files.delete(path)\n        files.flush(path)\n\n\ndef progress_path",
                "        return\n\n\ndef progress_path",
            ),
            SIMULATION,
        ),
        Defect(
            "cut-leaves-the-first-message-that-differs",
            Law.PREFIX,
            change(
                "storage/replica_log.py",
                "        return max(start for start in self._starts if start <= offset)\n",
                "        return min((start for start in self._starts if start > offset), default=offset)\n",
            ),
            SIMULATION,
        ),
        Defect(
            "only-the-first-bytes-are-compared",
            Law.PREFIX,
            change(
                "storage/replica_log.py",
                "        return self.position >= self._log.max_offset\n",
                "        return self.position > self.start or self.position >= self._log.max_offset\n",
            ),
            SIMULATION,
        ),
        Defect(
            "unfinished-message-outlives-its-connection",
            Law.CATCHES_UP,
            change(FOLLOWER, "        self._log.drop_tail()\n", ""),
            SIMULATION,
        ),
        Defect(
            "checkpoint-covers-what-is-cut",
            Law.CATCHES_UP,
            change("storage/cut.py", "    checkpoint.lower(cut.end, cut.time_ms)\n", ""),
            SIMULATION,
        ),
        Defect(
            "queue-entries-of-the-last-slice-forgotten",
            Law.SAME_QUEUES,
            change(
                "storage/log_dispatch.py",
                "            commit_log.dispatched_until = base + commit_log.file_bytes\n",
                "            commit_log.dispatched_until = commit_log.max_offset\n",
            ),
            SIMULATION,
        ),
        Defect(
            "offsets-of-consumers-are-not-copied",
            Law.OFFSETS,
            change(
                TABLES,
                "            self._parts.offsets.merge({key: part[key] for key in part.keys() - waiting})\n",
                "            self._parts.offsets.merge({})\n",
            ),
            SIMULATION,
        ),
        Defect(
            "journal-of-offsets-is-not-written",
            Law.OFFSETS,
            change(
                "gateway/broker/consumers/consumer_offsets.py",
                "            self._journal.record(key, queue_id, offset)\n",
                "            self._journal.forget(key, queue_id)\n",
            ),
            SIMULATION,
        ),
        Defect(
            "groups-are-not-copied",
            Law.NAMES,
            change(
                TABLES,
                "        deleted_groups = await self._sync_groups(connection)\n",
                "        deleted_groups: list[str] = []\n",
            ),
            SIMULATION,
        ),
        Defect(
            "topics-are-deleted-during-a-copy",
            Law.NAMES,
            change(
                TABLES,
                "        listing = await self._list_pages(connection, _TopicPages())\n",
                "        listing = await self._list_pages(connection, _TopicPages())\n"
                "        self._parts.topics.adopt({}, listing.version, is_whole=True)\n"
                "        await trio.sleep(0.5)\n",
            ),
            SIMULATION,
        ),
        Defect(
            "progress-is-applied-before-its-log-is-copied",
            Law.WAITING,
            change(
                TABLES,
                "        while self._waiting and self._waiting[0][0] <= log_end:\n",
                "        while self._waiting:\n",
            ),
            SIMULATION,
        ),
        Defect(
            "progress-of-messages-that-were-cut-is-kept",
            Law.WAITING,
            change(
                "gateway/broker/assembly/build.py",
                "        tables.offsets.restart_groups({REVIVE_GROUP: -1, TRANS_GROUP: 0})\n",
                "",
            )
            + change(
                TABLES,
                "            self._parts.offsets.adopt_progress(own_progress)\n",
                "            self._parts.offsets.merge(own_progress)\n",
            ),
            SIMULATION,
        ),
        Defect(
            "timers-that-the-master-had-read-count-as-delivered",
            Law.WAITING,
            change(
                "gateway/broker/delayed/timer_takeover.py",
                "        if queue_offset < self._state.queue_offset and slot_ms < read_ms:\n",
                "        if queue_offset < self._state.queue_offset:\n",
            ),
            SIMULATION,
        ),
        Defect(
            "delays-begin-at-the-end-of-the-queue-after-a-take-over",
            Law.WAITING,
            change(
                "gateway/broker/delayed/delay_service.py",
                "            right = min(max(offset, low), high)\n",
                "            right = high if self._takes_over else min(max(offset, low), high)\n",
            ),
            SIMULATION,
        ),
        Defect(
            "outstanding-pops-are-forgotten-at-a-start",
            Law.WAITING,
            change(
                "gateway/broker/pop/reviver.py",
                "        return ReviveQueue(min(max(done + 1, 0), end), min(max(0, saved), end))\n",
                "        return ReviveQueue(max(done, end), min(max(0, saved), end))\n",
            ),
            SIMULATION,
        ),
        Defect(
            "pops-are-not-undone-when-their-records-are-cut",
            Law.WAITING,
            change(
                "gateway/broker/assembly/service.py",
                "                    prepare=partial(self.broker.pop.state.reviver.undo_pops_from, end),\n",
                "",
            ),
            FORMER_MASTER,
        ),
        Defect(
            "progress-of-pops-is-returned-to-another-master",
            Law.WAITING,
            change(
                f"{ROOM}/progress_return.py",
                "                if ahead and not self._is_moved_by_broker(key):\n",
                "                if ahead:\n",
            ),
            (f"{ROOM}/tests/test_table_sync.py",),
        ),
        Defect(
            "progress-is-applied-to-a-log-that-was-not-compared",
            Law.WAITING,
            change(
                TABLES,
                " is not None and self._waiting_for.ha_address == self._compared_ha_address\n",
                " is not None\n",
            ),
            (f"{ROOM}/tests/test_table_sync.py",),
        ),
        Defect(
            "progress-is-taken-while-the-log-is-not-copied",
            Law.WAITING,
            change(
                TABLES,
                "        if not self._is_compared or not self._is_copying():\n",
                "        if not self._is_compared:\n",
            ),
            (f"{ROOM}/tests/test_table_sync.py",),
        ),
        Defect(
            "half-messages-before-a-start-are-not-asked-about",
            Law.WAITING,
            change(
                "gateway/broker/transactions/transaction_checks.py",
                "        offset = self._offsets.query_offset(TRANS_GROUP, topic, queue_id)\n",
                "        offset = self._store.max_offset(topic, queue_id)\n",
            ),
            SIMULATION,
        ),
        Defect(
            "deletions-are-not-repeated-at-the-slave",
            Law.DELETED,
            change(
                TABLES,
                "        if not added:\n            return\n",
                "        if not added or added:\n            return\n",
            ),
            SIMULATION,
        ),
    ),
    rule="law",
    rules=tuple(Law),
    page="docs/explanation/replication-laws.md",
)
