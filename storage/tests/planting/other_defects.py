"""Planted defects of tables, staged batches, transactions, pops, retention and time search."""

from typing import Final

from storage.tests.planting.defect import Defect, Law, change
from storage.tests.planting.log_defects import TEST_RECOVERY

STAGED: Final = "storage/staged_files.py"
BATCHES: Final = "gateway/broker/requests/staged_batches.py"
RETENTION: Final = "storage/retention.py"
CONFIG_FILE: Final = "gateway/runtime/config_file.py"
TEST_STAGED: Final = "storage/tests/test_staged_files.py"
TEST_BATCHES: Final = "gateway/broker/requests/tests/test_staged_batches.py"
TEST_RETENTION: Final = "storage/tests/test_retention.py"
TEST_STORE: Final = "storage/tests/test_store.py"
TEST_TABLES: Final = "gateway/runtime/tests/test_config_file.py"


_MARK: Final = (
    '        self._files.write_small(f"{self._root}/{writer}/{MARK}", json.dumps(asdict(mark)).encode())\n'
)
_DELETE_INTENT: Final = '        self._files.delete(f"{self._root}/{writer}/{INTENT}")\n'
_DELETE_PARTS: Final = "        return self.delete_parts(writer, mark.batch)\n"

OTHER_DEFECTS: Final = (
    Defect(
        "backup-overwritten-by-a-table-not-on-the-disk",
        Law.TABLES,
        change(CONFIG_FILE, "backup if self._whole == self.path else None)", "backup)"),
        (TEST_TABLES,),
    ),
    Defect(
        "progress-saved-before-the-messages-it-covers",
        Law.COMMITTED_OFFSETS,
        change(CONFIG_FILE, "            self._flush_store()\n", "            pass\n"),
        ("gateway/broker/assembly/tests/test_build_saved_progress.py",),
    ),
    Defect(
        "newer-table-taken-for-flushed",
        Law.TABLES,
        change(CONFIG_FILE, "        if mark == self._replaced:\n", "        if True:\n"),
        (TEST_TABLES,),
    ),
    Defect(
        "torn-table-replaces-its-backup",
        Law.TABLES,
        change(CONFIG_FILE, 'None if self._is_torn else self.path + ".bak"', 'self.path + ".bak"'),
        (TEST_TABLES,),
    ),
    Defect(
        "table-of-a-killed-process-taken-for-flushed",
        Law.TABLES,
        change(CONFIG_FILE, "not (self._whole or self._is_found)", "not self._whole"),
        (TEST_TABLES,),
    ),
    Defect(
        "backup-of-a-table-not-read",
        Law.TABLES,
        change(
            CONFIG_FILE,
            '        for path in (self.path, self.path + ".bak"):\n',
            "        for path in (self.path,):\n",
        ),
        ("gateway/broker/assembly/tests/test_build_stories.py",),
    ),
    Defect(
        "staged-mark-after-the-parts-are-gone",
        Law.STAGED_BATCHES,
        change(
            STAGED,
            _MARK + _DELETE_INTENT + _DELETE_PARTS,
            "        freed = self.delete_parts(writer, mark.batch)\n"
            + _MARK
            + _DELETE_INTENT
            + "        return freed\n",
        ),
        (TEST_STAGED,),
    ),
    Defect(
        "staged-intent-deleted-before-the-mark",
        Law.STAGED_BATCHES,
        change(STAGED, _MARK + _DELETE_INTENT, _DELETE_INTENT + _MARK),
        (TEST_STAGED,),
    ),
    Defect(
        "resumed-batch-appended-twice",
        Law.STAGED_BATCHES,
        change(
            BATCHES,
            "await self._unique_keys_from(intent.floors) if resumed else frozenset[bytes]()",
            "frozenset[bytes]()",
        ),
        (TEST_BATCHES,),
    ),
    Defect(
        "batch-intent-before-its-floors-are-durable",
        Law.STAGED_BATCHES,
        change(
            BATCHES,
            "        await self._run_in_thread(self._store.flush)\n"
            "        await self._run_in_thread(lambda: self._files.write_intent(writer, intent))\n",
            "        await self._run_in_thread(lambda: self._files.write_intent(writer, intent))\n",
        ),
        (TEST_BATCHES,),
    ),
    Defect(
        "batch-marked-before-its-messages-are-durable",
        Law.STAGED_BATCHES,
        change(
            BATCHES,
            "        await self._run_in_thread(self._store.flush)\n        mark = ",
            "        mark = ",
        ),
        (TEST_BATCHES,),
    ),
    Defect(
        "unfinished-batch-forgotten-at-the-start",
        Law.STAGED_BATCHES,
        change(
            BATCHES,
            "                await self._finish_or_retry(writer)\n",
            "                pass\n",
        ),
        (TEST_BATCHES,),
    ),
    Defect(
        "copies-of-a-half-message-not-connected-after-a-crash",
        Law.HALF_MESSAGES,
        change(
            "gateway/broker/transactions/transaction_checks.py",
            "            yield from self._find_copies_before_start(queue_id, first)\n",
            "            pass\n",
        ),
        ("gateway/broker/transactions/tests/test_transaction_checks.py",),
    ),
    Defect(
        "decision-about-a-place-before-the-start-forgotten",
        Law.HALF_MESSAGES,
        change(
            "gateway/broker/transactions/transaction_checks.py",
            "copies.first_offset(message.queue_offset) < self._opened",
            "message.queue_offset < self._opened",
        ),
        ("gateway/broker/transactions/tests/test_transaction_checks.py",),
    ),
    Defect(
        "half-message-committed-twice",
        Law.HALF_MESSAGES,
        change(
            "gateway/broker/transactions/transaction_checks.py",
            "        if copies.is_ended(before) or self._is_committed(message, copies):\n",
            "        if copies.is_ended(before):\n",
        ),
        ("gateway/broker/transactions/tests/test_transaction_checks.py",),
    ),
    Defect(
        "pops-forgotten-by-a-crash",
        Law.POPS,
        change(
            "gateway/broker/pop/reviver.py",
            "        for queue_id in range(config.pop.revive_queue_num):\n            self.catch_up(queue_id)\n",
            "",
        ),
        ("gateway/broker/pop/tests/test_reviver.py",),
    ),
    Defect(
        "revived-pop-not-noted",
        Law.POPS,
        change(
            "gateway/broker/pop/reviver.py",
            "            self._skip_own_record(queue, self.log.write_record(queue_id, AckRecord(key, revived)))\n",
            "            pass\n",
        ),
        ("gateway/broker/pop/tests/test_reviver.py",),
    ),
    Defect(
        "written-log-file-expires",
        Law.RETENTION,
        change(
            RETENTION,
            "        if self.commit_log.first_base >= self.commit_log.base:\n",
            "        if self.commit_log.first_base > self.commit_log.base:\n",
        ),
        (TEST_RETENTION,),
    ),
    Defect(
        "expired-entries-still-readable",
        Law.RETENTION,
        change(
            "storage/consume_queue.py",
            "        self.min_offset = self.first_entry_from(physical_offset)\n        self.expired_before",
            "        self.expired_before",
        ),
        (TEST_RETENTION,),
    ),
    Defect(
        "last-queue-file-expires",
        Law.DENSE_OFFSETS,
        change(
            "storage/consume_queue.py",
            "        while len(self.bases) > 1 and self.read_entry(self.bases[1] - 1)[0] < physical_offset:\n",
            "        while len(self.bases) > 1 and self.read_entry(self.bases[1] - 1)[0] <= physical_offset:\n",
        ),
        (TEST_RETENTION,),
    ),
    Defect(
        "index-of-stored-messages-expires",
        Law.KEYS,
        change(
            "storage/index.py",
            "        while len(self.files) > 1 and self.files[0].end_offset < physical_offset:\n",
            "        while len(self.files) > 1 and self.files[0].begin_offset < physical_offset:\n",
        ),
        (TEST_RETENTION,),
    ),
    Defect(
        "young-log-file-expires",
        Law.RETENTION,
        change(
            RETENTION,
            "        if ended_ms is None or ended_ms > timestamp_ms:\n            return False\n",
            "",
        ),
        (TEST_RETENTION,),
    ),
    Defect(
        "log-file-expires-before-the-checkpoint-covers-it",
        Law.DENSE_OFFSETS,
        change(
            RETENTION,
            "                if end > self.checkpoint.durable_confirm_offset:\n",
            "                if end > self.commit_log.readable_until:\n",
        ),
        (TEST_RETENTION,),
    ),
    Defect(
        "log-file-expires-before-the-checkpoint-is-on-the-disk",
        Law.DENSE_OFFSETS,
        change(
            RETENTION,
            "                if end > self.checkpoint.durable_confirm_offset:\n",
            "                if end > self.checkpoint.confirm_offset:\n",
        ),
        (TEST_RETENTION,),
    ),
    Defect(
        "time-search-skips-a-message",
        Law.TIME_SEARCH,
        change("storage/time_search.py", "            low = probe + 1\n", "            low = probe + 2\n"),
        (TEST_STORE,),
    ),
    Defect(
        "time-search-leaves-out-the-time-itself",
        Law.TIME_SEARCH,
        change("storage/time_search.py", " or (inclusive and time_ms == timestamp_ms)", ""),
        (TEST_STORE,),
    ),
    Defect(
        "time-search-stops-at-a-hole",
        Law.TIME_SEARCH,
        change(
            "storage/time_search.py",
            "        while time_ms < 0 and probe + 1 < high:  # a hole: the message after it tells the time\n",
            "        while False:\n",
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "filler-makes-a-young-file-expire",
        Law.RETENTION,
        change(
            "storage/commit_log.py",
            "            elif (time_ms := store_timestamp_of(message)) > 0:\n",
            "            elif (time_ms := store_timestamp_of(message)) >= 0:\n",
        ),
        (TEST_RETENTION,),
    ),
    Defect(
        "lately-written-log-file-expires",
        Law.RETENTION,
        change(
            RETENTION,
            "        return self.files.modified_ms(commit_log.path(commit_log.first_base)) <= timestamp_ms\n",
            "        return True\n",
        ),
        (TEST_RETENTION,),
    ),
    Defect(
        "time-search-beyond-the-last-message-stays-behind-it",
        Law.TIME_SEARCH,
        change(
            "storage/time_search.py",
            "first_offset_after(log, queue, timestamp_ms, inclusive=False) - 1)\n",
            "first_offset_after(log, queue, timestamp_ms, inclusive=False))\n",
        ),
        (TEST_STORE,),
    ),
)
