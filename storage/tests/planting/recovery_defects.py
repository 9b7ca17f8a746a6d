"""Planted defects of opening a store: checkpoint, recovery, damage and the key index."""

from typing import Final

from storage.tests.planting.defect import Defect, Edit, Law, change
from storage.tests.planting.log_defects import TEST_CLOSING, TEST_INDEX, TEST_RECOVERY

RECOVERY: Final = "storage/recovery.py"
DISPATCH: Final = "storage/dispatch.py"
SEARCH: Final = "storage/recovery.py"
INDEX: Final = "storage/index.py"
STORE: Final = "storage/store.py"
DELETED: Final = "storage/deleted_topics.py"
TEST_HEIR: Final = "storage/tests/test_index_for_official_heir.py"
TEST_UNINDEXED: Final = "storage/tests/test_unindexed_search.py"
TEST_ENDS: Final = "storage/tests/test_queue_ends.py"
TEST_DELETED: Final = "storage/tests/test_deleted_topics.py"
TEST_BUILD: Final = "gateway/broker/assembly/tests/test_build.py"


RECOVERY_DEFECTS: Final = (
    Defect(
        "crash-leftover-counted-as-durable",
        Law.ACKNOWLEDGED,
        change(
            RECOVERY,
            "            self._log.durable_offset = bases[0]  # the bytes",
            "            pass  # the bytes",
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "no-margin-of-three-seconds",
        Law.ACKNOWLEDGED,
        change("storage/checkpoint.py", "_MARGIN_MS = 3000\n", "_MARGIN_MS = 0\n"),
        (TEST_RECOVERY,),
    ),
    Defect(
        "clean-start-ignores-doubtful-queues",
        Law.ACKNOWLEDGED,
        change(
            SEARCH,
            "        trusted = self.trusted_until if self._crashed else NO_LIMIT\n",
            "        trusted = self.trusted_until if self._crashed else 0\n",
        ),
        (TEST_CLOSING,),
    ),
    Defect(
        "doubtful-queues-ignored-after-a-crash",
        Law.ACKNOWLEDGED,
        change(
            SEARCH,
            "        trusted = self.trusted_until if self._crashed else NO_LIMIT\n",
            "        trusted = 0 if self._crashed else NO_LIMIT\n",
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "power-cut-taken-for-a-kill",
        Law.NOTHING_INVENTED,
        change(
            STORE,
            "        power_cut = may_have_lost_power(self.files, last_boot)\n",
            "        power_cut = False\n",
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "whole-log-read-at-every-start",
        Law.BOUNDED_RECOVERY,
        change(
            RECOVERY,
            "        if self.rebuilt:\n            return self._log.first_base\n",
            "        return self._log.first_base\n",
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "start-without-the-checkpoint",
        Law.BOUNDED_RECOVERY,
        change(
            RECOVERY,
            "        return best if best >= self._log.first_base else None\n",
            "        return None\n",
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "zeros-behind-the-cut-not-flushed",
        Law.NOTHING_INVENTED,
        change(
            RECOVERY,
            "            self._log.mapped_file(base).zero_from(end - base)\n"
            "            self._files.flush(self._log.path(base))\n",
            "            self._log.mapped_file(base).zero_from(end - base)\n",
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "torn-end-left-in-the-log",
        Law.NOTHING_INVENTED,
        change(
            RECOVERY,
            "            self._log.mapped_file(base).zero_from(end - base)\n",
            "",
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "erased-entries-not-flushed",
        Law.NOTHING_INVENTED,
        change(RECOVERY, "                self._changed_paths.append(queue.path_of(count))\n", ""),
        (TEST_RECOVERY,),
    ),
    Defect(
        "rebuild-not-noted",
        Law.ACKNOWLEDGED,
        change(RECOVERY, "        self._files.write_small(self._config.abort_path, REBUILDING)\n", ""),
        (TEST_RECOVERY,),
    ),
    Defect(
        "damage-cuts-what-lies-behind",
        Law.ACKNOWLEDGED,
        (
            Edit(
                RECOVERY,
                "        confirmed = end.physical_offset < self._confirm_offset\n",
                "        return None\n        confirmed = end.physical_offset < self._confirm_offset\n",
            ),
            Edit(
                RECOVERY,
                "        while offset < self._search.trusted_until:\n",
                "        if offset < self._search.trusted_until:\n",
            ),
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "damage-behind-the-checkpoint-cuts-the-rest",
        Law.ACKNOWLEDGED,
        change(
            RECOVERY,
            "                    next_message = self._find_message_after(item)\n"
            "                    if next_message is None:\n",
            "                    next_message = None\n                    if next_message is None:\n",
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "filler-in-the-place-of-damage-not-flushed",
        Law.ACKNOWLEDGED,
        change("storage/damage.py", "        files.flush(log_files.path(base))\n", "        pass\n"),
        (TEST_RECOVERY,),
    ),
    Defect(
        "missing-queue-files-unnoticed",
        Law.DENSE_OFFSETS,
        change(RECOVERY, "        return bool(missing)\n", "        return False\n"),
        (TEST_ENDS,),
    ),
    Defect(
        "entries-of-deleted-messages-dropped-with-those-after-the-checkpoint",
        Law.DENSE_OFFSETS,
        change(
            SEARCH,
            "            before = max(self.trusted_until, self._log.first_base)\n",
            "            before = self.trusted_until\n",
        ),
        ("storage/tests/test_retention.py",),
    ),
    Defect(
        "queue-ends-not-noted-after-messages-expire",
        Law.DENSE_OFFSETS,
        change(
            STORE,
            "        log_start = self.commit_log.first_base\n        if log_start",
            "        log_start = 0\n        if log_start",
        ),
        (TEST_ENDS,),
    ),
    Defect(
        "lost-end-of-an-expired-queue-filled-with-holes",
        Law.RETENTION,
        change(
            RECOVERY,
            "                    expired_until > self._initial_base()\n",
            "                    False\n",
        ),
        (TEST_ENDS,),
    ),
    Defect(
        "queue-goes-on-before-its-known-end",
        Law.DENSE_OFFSETS,
        change(RECOVERY, "        self._restore_queue_ends(log_end.physical_offset)\n", ""),
        (TEST_ENDS,),
    ),
    Defect(
        "ends-of-a-deleted-topic-trusted-after-a-power-cut",
        Law.DENSE_OFFSETS,
        change(DISPATCH, "        self.restarted_queues.add(queue)\n", ""),
        (TEST_ENDS,),
    ),
    Defect(
        "deletion-not-noted",
        Law.DELETED,
        change(
            STORE,
            "partial(self._deleted_topics.add, topic, log_start, log_end, self._now_ms())",
            "lambda: None",
        ),
        (TEST_DELETED,),
    ),
    Defect(
        "deletion-noted-without-waiting-for-the-disk",
        Law.DELETED,
        change(
            DELETED,
            "self._files.write_small(self._path, fastjson.dumps(topics))",
            "self._files.replace_small(self._path, fastjson.dumps(topics), None)",
        ),
        (TEST_DELETED,),
    ),
    Defect(
        "deletions-unknown-to-a-rebuild",
        Law.DELETED,
        change(
            DISPATCH,
            " and not self._deleted_topics.has_message(message)\n",
            "\n",
        ),
        (TEST_DELETED,),
    ),
    Defect(
        "queue-files-of-a-deleted-topic-kept",
        Law.DELETED,
        change(RECOVERY, "if self._deleted_topics.has_queue(queue, self._log):\n", "if False:\n"),
        (TEST_DELETED,),
    ),
    Defect(
        "deletion-covers-what-the-log-has-lost",
        Law.ACKNOWLEDGED,
        change(DELETED, "end if log_end is None else min(end, log_end)", "end"),
        (TEST_DELETED,),
    ),
    Defect(
        "deletion-covers-later-messages",
        Law.ACKNOWLEDGED,
        change(DELETED, "store_timestamp <= deletion[1] + CLOCK_MARGIN_MS", "True"),
        (TEST_DELETED,),
    ),
    Defect(
        "failed-deletion-hides-the-topic",
        Law.ACKNOWLEDGED,
        change(
            "storage/queue_set.py",
            "            self.by_key.update(((topic, queue.queue_id), queue) for queue in queues)\n",
            "",
        ),
        (TEST_DELETED,),
    ),
    Defect(
        "log-file-deleted-by-recovery-comes-back",
        Law.NOTHING_INVENTED,
        change(RECOVERY, "            self._changed_paths.append(self._log.path(base))\n", ""),
        (TEST_RECOVERY,),
    ),
    Defect(
        "queue-file-deleted-by-recovery-comes-back",
        Law.NOTHING_INVENTED,
        change(
            DISPATCH,
            "        self.changed_paths += queue.truncate_at(offset)\n",
            "        queue.truncate_at(offset)\n",
        ),
        (TEST_ENDS,),
    ),
    Defect(
        "ends-of-a-deleted-topic-kept",
        Law.DENSE_OFFSETS,
        change(
            DELETED,
            "            self.forget_queue_ends()\n            deletions = _drop",
            "            deletions = _drop",
        ),
        (TEST_ENDS,),
    ),
    Defect(
        "damage-taken-for-missing-files",
        Law.DENSE_OFFSETS,
        change(
            RECOVERY,
            "queue_end.entries >= end_offset or queue_end.is_doubtful",
            "queue_end.entries >= end_offset",
        ),
        (TEST_ENDS,),
    ),
    Defect(
        "damaged-messages-leave-no-hole",
        Law.DENSE_OFFSETS,
        change(RECOVERY, "                self._make_holes(offset, next_message)\n", ""),
        (TEST_RECOVERY,),
    ),
    Defect(
        "half-message-gets-a-queue-entry",
        Law.NOTHING_INVENTED,
        change(
            DISPATCH,
            "        return message.has_queue_entry and not self._deleted",
            "        return not self._deleted",
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "crc-not-checked-after-a-crash",
        Law.NOTHING_INVENTED,
        change(
            "storage/log_scan.py",
            "    if check_crc and body_bytes and crc32(view[body:at]) & 0x7FFFFFFF != body_crc:\n",
            "    if False:\n",
        ),
        ("storage/tests/test_log_scan.py",),
    ),
    Defect(
        "remains-of-an-earlier-life-accepted",
        Law.NOTHING_INVENTED,
        change("storage/log_scan.py", "    if own_offset != physical_offset:\n", "    if False:\n"),
        ("storage/tests/test_log_scan.py",),
    ),
    Defect(
        "group-offset-beyond-the-end-after-a-crash",
        Law.COMMITTED_OFFSETS,
        change(
            "gateway/broker/consumers/consumer_offsets.py",
            "                if offset > end:\n",
            "                if False:\n",
        ),
        (TEST_BUILD,),
    ),
    Defect(
        "index-not-resumed-after-a-crash",
        Law.KEYS,
        change(
            INDEX,
            "            self.next_offset = self._end_of_message(self.files[-1].end_offset)\n",
            "            self.next_offset = self._log.max_offset if crashed else "
            "self._end_of_message(self.files[-1].end_offset)\n",
        ),
        (TEST_INDEX,),
    ),
    Defect(
        "index-built-again-over-itself",
        Law.KEYS,
        change(
            INDEX,
            "            self.next_offset = self._end_of_message(self.files[-1].end_offset)\n",
            "            pass\n",
        ),
        (TEST_INDEX,),
    ),
    Defect(
        "unfinished-index-trusted",
        Law.KEYS,
        change(INDEX, "        return crashed and file.is_unfinished\n", "        return False\n"),
        (TEST_INDEX,),
    ),
    Defect(
        "index-of-the-checkpoint-s-time-trusted",
        Law.KEYS,
        change(INDEX, "file.end_time >= unchanged_before_ms:", "file.end_time > unchanged_before_ms:"),
        (TEST_INDEX,),
    ),
    Defect(
        "index-beyond-the-log-trusted",
        Law.NOTHING_INVENTED,
        change(
            INDEX,
            "        if file.next_entry <= 1 or file.end_offset >= self._log.max_offset:\n",
            "        if file.next_entry <= 1:\n",
        ),
        (TEST_INDEX,),
    ),
    Defect(
        "index-found-after-a-crash-not-flushed",
        Law.KEYS,
        change(INDEX, "            self._unflushed = set(self.files)\n", "            pass\n"),
        (TEST_INDEX,),
    ),
    Defect(
        "index-headers-written-newest-first",
        Law.KEYS,
        change(
            INDEX,
            "        for file in self.files:\n            if file in touched:\n",
            "        for file in reversed(self.files):\n            if file in touched:\n",
        ),
        (TEST_INDEX,),
    ),
    Defect(
        "index-change-during-a-flush-forgotten",
        Law.KEYS,
        (
            Edit(
                INDEX,
                "            self._unflushed.discard(file)\n            self._files.flush(file.path)\n",
                "            self._files.flush(file.path)\n            self._unflushed.discard(file)\n",
            ),
        ),
        (TEST_INDEX,),
    ),
    Defect(
        "index-time-read-after-the-flush",
        Law.KEYS,
        change(
            INDEX,
            "            self._files.flush(file.path)\n        return until\n",
            "            self._files.flush(file.path)\n        return self._end_time\n",
        ),
        (TEST_INDEX,),
    ),
    Defect(
        "single-unfinished-index-entry-trusted",
        Law.KEYS,
        change(
            INDEX,
            "        return max(slots) >= self.next_entry\n",
            "        return max(slots) > self.next_entry\n",
        ),
        (TEST_INDEX,),
    ),
    Defect(
        "last-message-in-the-index-taken-for-whole",
        Law.KEYS,
        change(
            INDEX,
            "        if isinstance(item, ScanEnd) or self._missing_keys(item):\n",
            "        if isinstance(item, ScanEnd):\n",
        ),
        (TEST_INDEX,),
    ),
    Defect(
        "index-end-announced-after-its-headers",
        Law.KEYS,
        (
            Edit(INDEX, "        if touched:\n            self._announce_end(self.files[-1].end_time)\n", ""),
            Edit(
                INDEX,
                "        self._unflushed |= touched\n",
                "        if touched:\n            self._announce_end(self.files[-1].end_time)\n"
                "        self._unflushed |= touched\n",
            ),
        ),
        (TEST_HEIR,),
    ),
    Defect(
        "checkpoint-covers-messages-without-index",
        Law.KEYS,
        change(
            STORE,
            "            return min(until_ms, index.indexed_until_ms)\n",
            "            return until_ms\n",
        ),
        (TEST_HEIR,),
    ),
    Defect(
        "messages-that-are-not-indexed-not-searched",
        Law.KEYS,
        change(
            STORE,
            "        indexed_until, count = self.index.next_offset, 0\n",
            "        indexed_until, count = self.commit_log.max_offset, 0\n",
        ),
        (TEST_UNINDEXED,),
    ),
    Defect(
        "message-indexed-during-a-search-found-twice",
        Law.NOTHING_INVENTED,
        change(
            STORE,
            "            topic, key, limit - count, begin_ms, end_ms, key_type, before=indexed_until\n",
            "            topic, key, limit - count, begin_ms, end_ms, key_type\n",
        ),
        (TEST_UNINDEXED,),
    ),
    Defect(
        "offset-of-delays-corrected-in-memory-only",
        Law.COMMITTED_OFFSETS,
        change(
            "gateway/broker/delayed/delay_service.py",
            "                self._dirty = True\n            if right < high",
            "            if right < high",
        ),
        ("gateway/broker/delayed/tests/test_delay_service.py",),
    ),
    Defect(
        "revive-offset-limited-to-the-next-record",
        Law.POPS,
        change("gateway/broker/consumers/consumer_offsets.py", " - (group == last_done_group)\n", "\n"),
        ("gateway/broker/pop/tests/test_reviver.py",),
    ),
)
