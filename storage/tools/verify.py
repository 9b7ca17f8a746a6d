"""Verifies a whole store: log, queues, index, tables and checkpoint, against the format and against each other.

A broker may have the store open. The check then covers the messages that were in the log when it got to the log's end,
and ignores the entries of later ones. That queues and log end together is checked only in a closed store.
"""

import os
from collections.abc import Iterator

from storage.index import list_index_files
from storage.layout import mapped_file_name
from storage.queue_set import list_queue_files
from storage.tools.findings import Part, StoreFinding, note
from storage.tools.index_check import IndexCheck
from storage.tools.log_check import LogCheck, Progress
from storage.tools.queue_check import QueueCheck
from storage.tools.store_reader import StoreReader
from storage.tools.table_check import Checkpoint, check_tables, load_table


class Verification:
    """One check of a store. `run` yields the findings; afterwards the attributes hold what was read.

    ``log_check`` and the other checks give the details that `repair` needs.
    """

    def __init__(self, reader: StoreReader, progress: Progress) -> None:
        config = reader.config
        # The tables first: they must not name what is in no queue yet.
        topics = load_table(reader.files, config.config_path, "topics").get("topicConfigTable")
        self.known_topics = frozenset(topics) if isinstance(topics, dict) else frozenset()
        self._reader = reader
        self.checkpoint = Checkpoint(reader.files, config.checkpoint_path)
        self.log_check = LogCheck(reader, self.checkpoint.confirm_offset, progress)
        self.queue_check = QueueCheck(reader, self.log_check, self.known_topics, progress)
        self.index_check = IndexCheck(reader, self.log_check, progress)
        self.damage_count = 0
        self.note_count = 0

    def run(self) -> Iterator[StoreFinding]:
        """Read everything; yield each finding at once."""
        for finding in self._run_parts():
            if finding.is_damage:
                self.damage_count += 1
            else:
                self.note_count += 1
            yield finding

    def _run_parts(self) -> Iterator[StoreFinding]:
        config = self._reader.config
        yield from self.checkpoint.check(self.log_check.end)
        yield from check_tables(self._reader.files, config.config_path)
        yield from self.log_check.run()
        if self.log_check.fillers:
            reason = f"{self.log_check.fillers} parts of the log were damaged and are replaced by fillers"
            yield note(Part.LOG, f"{config.root}/damaged", 0, reason)
        yield from self.queue_check.run()
        yield from self.index_check.run()


def bytes_to_read(reader: StoreReader) -> int:
    """Return about how many bytes `Verification` reads, for a progress bar."""
    config = reader.config
    paths = [reader.log.path(base) for base in reader.bases if base not in reader.missing]
    paths += list_index_files(reader.files, config.index_path)
    for topic, queue_id, offsets in list_queue_files(reader.files, config.consume_queue_path):
        folder = f"{config.consume_queue_path}/{topic}/{queue_id}"
        paths += [f"{folder}/{mapped_file_name(offset)}" for offset in offsets]
    total = 0
    for path in paths:
        try:
            total += os.stat(path).st_blocks * 512  # without the holes
        except FileNotFoundError:
            continue  # deleted by the broker meanwhile
    return total
