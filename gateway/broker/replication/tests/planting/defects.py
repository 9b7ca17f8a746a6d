"""The planted defects of replication, with the laws that they break."""

import enum
from typing import Final

from storage.tests.planting.catalogue import Catalogue
from storage.tests.planting.defect import Defect, change

ROOM: Final = "gateway/broker/replication"
IN_SYNC: Final = f"{ROOM}/in_sync.py"
FOLLOWER: Final = f"{ROOM}/follower.py"
GATE: Final = "gateway/broker/messages/answer_gate.py"
SIMULATION: Final = (f"{ROOM}/tests/test_simulation.py",)


class Law(enum.StrEnum):
    """The laws of replication, as docs/explanation/replication-laws.md calls them."""

    ACKNOWLEDGED = "Acknowledged survives any single fault"
    PREFIX = "A slave's log is a prefix"
    CATCHES_UP = "A slave catches up"
    SAME_QUEUES = "A slave's queues are its master's"


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
                "storage/replica_log.py",
                "            commit_log.queued_until = base + commit_log.file_bytes\n",
                "            commit_log.queued_until = commit_log.max_offset\n",
            ),
            SIMULATION,
        ),
    ),
    rule="law",
    rules=tuple(Law),
    page="docs/explanation/replication-laws.md",
)
