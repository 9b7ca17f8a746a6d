"""Planted defects of appending, flushing and the checkpoint, and of the threads that do so side by side."""

from typing import Final

from storage.tests.planting.defect import Defect, Edit, Law, change

APPEND: Final = "storage/append.py"
STORE: Final = "storage/store.py"
COMMIT_LOG: Final = "storage/commit_log.py"
FILES: Final = "storage/files.py"
FLUSH_GUARD: Final = "storage/flush_guard.py"
TEST_FLUSH_GUARD: Final = "storage/tests/test_flush_guard.py"
ANSWER_GATE: Final = "gateway/broker/messages/answer_gate.py"
GROUP_COMMIT: Final = "gateway/broker/messages/group_commit.py"
_INTERLEAVING: Final = "storage/tests/test_store_interleaving.py::"
INTERLEAVED: Final = _INTERLEAVING + "test_a_checkpoint_and_a_change_at_the_same_time"
KILLED_APPEND: Final = _INTERLEAVING + "test_a_process_killed_in_the_middle_of_an_append"
TIME_PASSES: Final = _INTERLEAVING + "test_a_checkpoint_while_time_passes"
TEST_FILES: Final = "storage/tests/test_files.py"
TEST_INDEX: Final = "storage/tests/test_index_recovery.py"
TEST_RECOVERY: Final = "storage/tests/test_recovery.py"
TEST_CLOSING: Final = "storage/tests/test_store_closing.py"
TEST_ANSWER_GATE: Final = "gateway/broker/messages/tests/test_answer_gate.py"
TEST_GROUP_COMMIT: Final = "gateway/broker/messages/tests/test_group_commit.py"


_REST: Final = (
    "    buffer[rest : rest + rest_bytes] = "
    'b"".join((body, topic_part, SHORT.pack(properties_bytes), properties))\n'
)
_CONFIRMED: Final = "        checkpoint.confirm_offset = confirm_offset\n"
_FLUSH_LOG: Final = "        self.flush()\n        self._flush_queues("
_FLUSH_QUEUES: Final = (
    "        self._flush_queues([(queue, end) for queue, end in ends if queue.flushed_offset < end], "
    "deleted)\n"
)

LOG_DEFECTS: Final = (
    Defect(
        "header-written-first",
        Law.NOTHING_INVENTED,
        (
            Edit(APPEND, _REST, ""),
            Edit(
                APPEND,
                "    log.position = position + size\n    if visible:\n",
                f"{_REST}    log.position = position + size\n    if visible:\n",
            ),
        ),
        (KILLED_APPEND,),
    ),
    Defect(
        "batch-header-written-first",
        Law.NOTHING_INVENTED,
        change(
            APPEND,
            "    buffer[position + 8 : position + size] = memoryview(blob)[8:]\n"
            "    buffer[position : position + 8] = blob[:8]\n",
            "    buffer[position : position + 8] = blob[:8]\n"
            "    buffer[position + 8 : position + size] = memoryview(blob)[8:]\n",
        ),
        (KILLED_APPEND,),
    ),
    Defect(
        "message-queued-before-its-entry",
        Law.ACKNOWLEDGED,
        change(
            APPEND,
            "    log.position = position + size\n    if visible:\n",
            "    log.position = position + size\n    log.queued_until = physical_offset + size\n    if visible:\n",
        ),
        (INTERLEAVED,),
    ),
    Defect(
        "batch-queued-before-its-entries",
        Law.ACKNOWLEDGED,
        change(
            APPEND,
            "    queue.append_entries(entries)\n    log.queued_until = log.base + log.position\n",
            "    log.queued_until = log.base + log.position\n    queue.append_entries(entries)\n",
        ),
        (INTERLEAVED,),
    ),
    Defect(
        "confirm-offset-read-late",
        Law.ACKNOWLEDGED,
        change(
            STORE,
            _CONFIRMED,
            _CONFIRMED.replace("= confirm_offset\n", "= self.commit_log.readable_until\n"),
        ),
        (INTERLEAVED,),
    ),
    Defect(
        "queue-ends-read-late",
        Law.ACKNOWLEDGED,
        change(
            STORE,
            _FLUSH_QUEUES,
            _FLUSH_QUEUES
            + "        for queue, _ in ends:\n            queue.flushed_offset = queue.next_offset\n",
        ),
        (INTERLEAVED,),
    ),
    Defect(
        "checkpoint-time-read-late",
        Law.ACKNOWLEDGED,
        change(
            STORE,
            "self._limit_to_indexed(until_ms, confirm_offset)\n",
            "self._limit_to_indexed(self._now_ms() - 1, confirm_offset)\n",
        ),
        (TIME_PASSES,),
    ),
    Defect(
        "checkpoint-without-flushing-queues",
        Law.ACKNOWLEDGED,
        change(
            STORE,
            _FLUSH_QUEUES,
            "",
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "checkpoint-without-flushing-the-log",
        Law.ACKNOWLEDGED,
        change(STORE, _FLUSH_LOG, _FLUSH_LOG.replace("        self.flush()\n", "")),
        (TEST_RECOVERY,),
    ),
    Defect(
        "queues-listed-without-a-copy",
        Law.ACKNOWLEDGED,
        change(
            "storage/queue_set.py",
            "        return list(self.by_key.values())\n",
            "        return self.by_key.values()  # type: ignore[return-value]\n",
        ),
        (INTERLEAVED,),
    ),
    Defect(
        "durable-offset-read-after-the-flush",
        Law.ACKNOWLEDGED,
        change(
            COMMIT_LOG,
            "        if target > self.durable_offset:\n            self.durable_offset = target\n",
            "        self.durable_offset = max(self.durable_offset, self.queued_until)\n",
        ),
        (INTERLEAVED,),
    ),
    Defect(
        "only-the-last-log-file-flushed",
        Law.ACKNOWLEDGED,
        change(
            COMMIT_LOG,
            "        base = self.base_of(start)\n",
            "        base = self.base_of(max(0, target - 1))\n",
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "clean-mark-before-the-last-checkpoint",
        Law.ACKNOWLEDGED,
        change(
            STORE,
            "                self.flushes.run(self._write_checkpoint)\n                time_ms = ",
            "                self.files.delete(self.config.abort_path)\n"
            "                self.flushes.run(self._write_checkpoint)\n                time_ms = ",
        ),
        (TEST_CLOSING,),
    ),
    Defect(
        "small-files-not-fsynced",
        Law.TABLES,
        change(
            FILES,
            "self._write_new_small(path, data, wait=True)",
            "self._write_new_small(path, data, wait=False)",
        ),
        (TEST_FILES,),
    ),
    Defect(
        "folder-of-a-small-file-not-fsynced",
        Law.TABLES,
        change(
            FILES,
            "                _link_backup(path, backup)\n            os.replace(new, path)\n"
            "            self._flush_directory(os.path.dirname(path))\n",
            "                _link_backup(path, backup)\n            os.replace(new, path)\n",
        ),
        (TEST_FILES,),
    ),
    Defect(
        "replaced-small-file-not-fsynced",
        Law.TABLES,
        change(
            FILES,
            "        try:\n            fsync_path(path)\n        except FileNotFoundError:\n            return\n",
            "        if not os.path.exists(path):\n            return\n",
        ),
        (TEST_FILES, "gateway/runtime/tests/test_config_file.py"),
    ),
    Defect(
        "folder-of-a-new-file-forgotten",
        Law.ACKNOWLEDGED,
        change(FILES, "                    self._new_directories |= {parent, os.path.dirname(parent)}\n", ""),
        (TEST_FILES,),
    ),
    Defect(
        "deleted-file-flushed-instead-of-the-new-one",
        Law.ACKNOWLEDGED,
        change(
            FILES,
            "            os.unlink(path)\n        self._close_deleted()\n",
            "            os.unlink(path)\n",
        ),
        (TEST_FILES,),
    ),
    Defect(
        "file-deleted-during-its-flush-stays-open",
        Law.ACKNOWLEDGED,
        change(FILES, "            if deletions == self._deletions:\n", "            if deletions >= 0:\n"),
        (TEST_FILES,),
    ),
    Defect(
        "descriptor-closed-under-the-flush-of-another-thread",
        Law.ACKNOWLEDGED,
        change(
            FILES,
            "return self._open_descriptors.pop(path, -1), self._deletions",
            "return self._open_descriptors.get(path, -1), self._deletions",
        ),
        (TEST_FILES,),
    ),
    Defect(
        "new-folder-forgotten-during-a-flush",
        Law.ACKNOWLEDGED,
        (
            Edit(
                FILES,
                "                self._new_directories.discard(directory)\n                try:\n",
                "                try:\n",
            ),
            Edit(
                FILES,
                "                    raise\n\n    def flush_many",
                "                    raise\n"
                "                self._new_directories.discard(directory)\n\n    def flush_many",
            ),
        ),
        (TEST_FILES,),
    ),
    Defect(
        "answers-held-during-a-flush-count",
        Law.ACKNOWLEDGED,
        change(
            GROUP_COMMIT,
            "        position = self._store.durable_offset\n",
            "        position = self._store.max_physical_offset\n",
        ),
        (TEST_GROUP_COMMIT, TEST_ANSWER_GATE),
    ),
    Defect(
        "answers-leave-after-a-failed-flush",
        Law.ACKNOWLEDGED,
        change(
            ANSWER_GATE,
            'held.connection.write(encode_response(request.opaque, refusal.code, {}, b"", refusal.remark))\n',
            "held.connection.write(held.answer)\n",
        ),
        (TEST_ANSWER_GATE,),
    ),
    Defect(
        "deleted-queue-files-not-flushed",
        Law.NOTHING_INVENTED,
        change(
            STORE,
            "        deleted = self._queue_set.deleted_paths()\n",
            "        deleted: list[str] = []\n",
        ),
        (TEST_RECOVERY,),
    ),
    Defect(
        "deletion-of-a-file-not-flushed",
        Law.NOTHING_INVENTED,
        change(FILES, "            self._flush_deletion(path)\n            return\n", "            return\n"),
        (TEST_FILES,),
    ),
    Defect(
        "messages-taken-after-a-failed-flush",
        Law.ACKNOWLEDGED,
        change(FLUSH_GUARD, "            self._refuse_appends(error)\n", ""),
        (TEST_FLUSH_GUARD,),
    ),
    Defect(
        "failed-flush-tried-again",
        Law.ACKNOWLEDGED,
        change(
            FLUSH_GUARD,
            "        self.check()\n        try:\n            return flush()\n",
            "        try:\n            return flush()\n",
        ),
        (TEST_FLUSH_GUARD,),
    ),
    Defect(
        "failed-flush-not-noted",
        Law.ACKNOWLEDGED,
        change(FLUSH_GUARD, "            self._files.write_small(path, mark)\n", ""),
        (TEST_FLUSH_GUARD,),
    ),
    Defect(
        "cache-trusted-after-a-failed-flush",
        Law.ACKNOWLEDGED,
        change(FLUSH_GUARD, "            files.reread_from_disk(directory)\n", "            pass\n"),
        (TEST_FLUSH_GUARD,),
    ),
    Defect(
        "store-marked-clean-after-a-failed-flush",
        Law.ACKNOWLEDGED,
        (
            Edit(
                STORE, "            if clean and self.flushes.failure is None:\n", "            if clean:\n"
            ),
            Edit(
                STORE,
                "                self.flushes.run(self._write_checkpoint)\n                time_ms = ",
                "                with suppress(FlushFailed):\n"
                "                    self.flushes.run(self._write_checkpoint)\n                time_ms = ",
            ),
        ),
        (TEST_FLUSH_GUARD,),
    ),
    Defect(
        "queue-taken-for-flushed-before-it-is",
        Law.ACKNOWLEDGED,
        change(
            STORE,
            "        ends = [(queue, queue.next_offset) for queue in self._queue_set.queues()]\n",
            "        ends = [(queue, queue.next_offset) for queue in self._queue_set.queues()]\n"
            "        for queue, end in ends[1:]:\n"
            "            queue.flushed_offset = end\n",
        ),
        (INTERLEAVED,),
    ),
)
