"""Repairs a store that no broker has open: first a plan from the findings of `verify`, then its steps.

Theory of operation
-------------------
The commit log is the truth; queues and index can always be built again from it. A repair therefore mends the log so
that it is readable from its beginning to its end, and moves other damaged files out of the way. Recovery, which runs
whenever a store is opened, then builds these again. Nothing is thrown away: every byte that is cut or replaced is kept
below ``damaged/`` in the store.

1. Damaged bytes of the log are copied to ``damaged/<first>-<end>`` and become fillers (`storage.damage`). Log files
   that are missing or too short get their size back first.
2. Files of the index, of tables and of the checkpoint that are damaged are moved to ``damaged/repair-<time>/``; an
   index file together with all later ones, because indexing continues where the last file ends.
3. If the log or a queue is damaged, the folder ``consumequeue`` is moved there as well.
4. The store is opened and closed: recovery builds the queues from the log, then the index is brought up to date.
5. Queues whose offsets went further than their messages in the log get holes at their end, so that no offset is used
   twice. Queues of deleted topics, which come back when all are built again, are deleted again.

With another replica (`plan_fetch`), the bytes of step 1 come from its log instead of fillers, and damage that was
replaced by fillers before is fetched as well. What the replica does not have is left as it is: then fillers stay, only
damage in the log is mended, and the store is not opened, because recovery would replace the rest by fillers.
When fillers are replaced, steps 2 and 3 come before step 1: queues and index do not name those messages, and in a log
that is whole again nothing would tell a later repair so.

A crash in between leaves a store that a later repair, or the next start of a broker, completes: moved folders are
built again, and damage that is still there is damaged again.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from codec.topics import SYSTEM_PREFIX, SYSTEM_TOPICS
from storage.commit_log import CommitLog
from storage.config import StoreConfig
from storage.damage import FILLER_FRAME_BYTES, set_aside, write_filler
from storage.errors import StoreError
from storage.files import DiskFiles, fsync_path
from storage.index import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, list_index_files
from storage.store import MessageStore
from storage.tools.findings import Part, StoreFinding
from storage.tools.log_check import DamagedRange, LogCheck, Progress
from storage.tools.replica_fetch import AlsoFilled, CannotFetch, LogSource, check_fetch, write_fetched
from storage.tools.store_reader import QueueKey, StoreReader, StoreState
from storage.tools.verify import Verification

_INDEXED_PER_CALL = 10_000


class StoreIsOpen(StoreError):
    """A broker has the store open."""


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The steps of one repair. ``ranges`` of the log become fillers; ``torn`` is copied, and recovery cuts it off.

    ``bases`` are the first offsets of the log's files, ``short`` those of files that are too short. ``moved`` files and
    folders go to ``damaged/repair-<time>/``. ``ends`` are the ends of undamaged queues before the repair, ``topics``
    the topics that existed then; None if that cannot be told.
    ``opened_ns``: the time, in ns since 1970, at which a broker opened the store last.
    ``filled`` are ranges that an earlier repair, or a start, has made fillers. With a ``source``, the ranges
    ``fetched`` come from there, and ``unfetched`` are those that cannot, with the reason. ``skipped`` are filled ranges
    that cannot come from there, with the reason, unless the replica has fillers as well.
    """

    config: StoreConfig
    bases: list[int]
    short: list[int]
    ranges: list[DamagedRange]
    torn: DamagedRange | None
    moved: list[str]
    rebuilds_queues: bool
    recovers: bool
    ends: dict[QueueKey, int] = field(default_factory=dict)
    topics: frozenset[str] | None = None
    opened_ns: int = 0
    filled: tuple[DamagedRange, ...] = ()
    source: LogSource | None = None
    fetched: tuple[DamagedRange, ...] = ()
    unfetched: tuple[tuple[DamagedRange, str], ...] = ()
    skipped: tuple[tuple[DamagedRange, str], ...] = ()

    @property
    def restores_filled(self) -> bool:
        """True if messages come back in place of fillers."""
        return any(damaged.is_filled for damaged in self.fetched)

    @property
    def is_empty(self) -> bool:
        """True if nothing has to be done."""
        return not (
            self.short
            or self.ranges
            or self.torn
            or self.moved
            or self.rebuilds_queues
            or self.recovers
            or self.fetched
            or self.unfetched
        )

    def describe(self) -> Iterator[str]:
        """Yield what the repair will do, one sentence for each step."""
        for base in self.short:
            yield f"log, file {base:020d}: give it the size of the others"
        for damaged in self.fetched:
            size = damaged.end - damaged.start
            copy_step = "" if damaged.is_missing else ", after keeping a copy of those here in damaged/"
            yield (
                f"log, {size:,} bytes from physical offset {damaged.start:,} ({damaged.reason}): write the replica's"
                f"{copy_step}"
            )
        for damaged in self.ranges:
            size = damaged.end - damaged.start
            copy_step = "" if damaged.is_missing else "keep a copy in damaged/ and "
            yield (
                f"log, {size:,} bytes from physical offset {damaged.start:,} ({damaged.reason}): {copy_step}replace "
                "them by fillers, which readers skip"
            )
        if self.torn:
            size = self.torn.end - self.torn.start
            yield f"log, {size:,} bytes from {self.torn.start:,} on: keep a copy in damaged/ and cut off the torn end"
        if self.unfetched:
            return
        for path in self.moved:
            yield f"move to damaged/: {path}"
        if self.rebuilds_queues:
            yield "build all consume queues again from the log"
        elif self.recovers:
            yield "recover, as the next start would: add missing queue entries after the checkpoint"


def plan_repair(
    reader: StoreReader,
    progress: Progress,
    report: Callable[[StoreFinding], object],
    *,
    index_sizes_known: bool,
) -> RepairPlan:
    """Verify a store and return what its repair takes; ``report`` is called with each finding.

    ``index_sizes_known``: the reader's settings have the broker's own maxHashSlotNum. Without that, an index file that
    does not fit the default is not taken for damage, but leads to an error that asks for it.
    Raises StoreIsOpen, StoreError, OSError.
    """
    if reader.state.may_change:
        raise StoreIsOpen(_describe_open(reader))
    opened_ns = _last_opened_ns(reader.config.root)
    verification = Verification(reader, progress)
    findings = []
    for finding in verification.run():
        report(finding)
        findings.append(finding)
    plan = _make_plan(reader, verification, findings, index_sizes_known)
    return replace(plan, opened_ns=opened_ns)


def _make_plan(
    reader: StoreReader, verification: Verification, findings: list[StoreFinding], index_sizes_known: bool
) -> RepairPlan:
    config = reader.config
    broken = {
        part: [finding.file for finding in findings if finding.is_damage and finding.part is part]
        for part in Part
    }
    short = [
        base for base in reader.bases if reader.files.size(reader.log.path(base)) != reader.log.file_bytes
    ]
    ranges, torn = _damaged_ranges(reader, verification.log_check)
    index_files = list_index_files(reader.files, config.index_path)
    # Index files of another size than expected mean another setting rather than damage: moving them would be wrong.
    if broken[Part.INDEX] and not index_sizes_known and not _index_fits(reader, index_files):
        raise StoreError(
            "The index files have another size than expected. If the broker sets maxHashSlotNum, pass its "
            f"broker.conf with -c; if not, pass --set maxHashSlotNum={config.index_slots}"
        )
    # Names of index files are times, so the files from the first broken one on are the later ones.
    first_index = min(broken[Part.INDEX], default="")
    moved = [path for path in index_files if first_index and path >= first_index]
    moved += sorted({*broken[Part.TABLE], *broken[Part.CHECKPOINT]})
    # With damage in the log, entries of intact queues lead into fillers; so all queues are built again.
    rebuilds = bool(ranges or broken[Part.QUEUE])
    had_queues = os.path.isdir(config.consume_queue_path)
    if rebuilds and had_queues:
        moved.append(config.consume_queue_path)
    return RepairPlan(
        replace(config, index_entries=_index_entries(reader, index_files)),
        reader.bases,
        short,
        ranges,
        torn,
        moved,
        rebuilds_queues=rebuilds,
        recovers=reader.state.state is StoreState.CRASHED,
        ends=dict(verification.queue_check.ends),
        topics=verification.known_topics | verification.queue_check.topics if had_queues else None,
        filled=tuple(verification.log_check.filled),
    )


def plan_fetch(plan: RepairPlan, source: LogSource) -> RepairPlan:
    """Return a plan that takes damaged ranges of the log from a replica, after reading and checking all of them there.

    Raises StoreError, OSError.
    """
    config = plan.config
    reader = StoreReader(config)
    fetched: list[DamagedRange] = []
    unfetched: list[tuple[DamagedRange, str]] = []
    skipped: list[tuple[DamagedRange, str]] = []
    lost_ranges = sorted([*plan.ranges, *plan.filled], key=lambda damaged: damaged.start)
    try:
        for damaged in lost_ranges:
            try:
                fetched.append(check_fetch(reader.log, source, damaged, lost_ranges))
            except AlsoFilled:
                continue
            except CannotFetch as error:
                # What is readable is not worse than before if a replica does not have it either.
                (skipped if damaged.is_filled else unfetched).append((damaged, str(error)))
    finally:
        reader.close()
    if unfetched:
        # Queues and index are not built again then, and would not name messages in place of fillers.
        fetched = [damaged for damaged in fetched if not damaged.is_filled]
    rebuilds = plan.rebuilds_queues or bool(fetched)
    moved = list(plan.moved)
    if any(damaged.is_filled for damaged in fetched):
        # The index has no entries of messages that were fillers, and entries are not added to its older files.
        moved = sorted({*moved, *list_index_files(reader.files, config.index_path)})
    if rebuilds and config.consume_queue_path not in moved and os.path.isdir(config.consume_queue_path):
        moved.append(config.consume_queue_path)
    return replace(
        plan,
        ranges=[],
        moved=moved,
        rebuilds_queues=rebuilds,
        source=source,
        fetched=tuple(fetched),
        unfetched=tuple(unfetched),
        skipped=tuple(skipped),
    )


def _damaged_ranges(
    reader: StoreReader, log_check: LogCheck
) -> tuple[list[DamagedRange], DamagedRange | None]:
    """Return the parts of the log that become fillers, and a torn end for recovery to cut off."""
    ranges, torn = list(log_check.damaged), log_check.torn_end
    if torn is not None:
        base = reader.log.base_of(torn.start)
        is_cut_at_end = torn.start - base >= (reader.files.size(reader.log.path(base)) or 0)
        if is_cut_at_end or any(damaged.start == torn.start for damaged in ranges):
            torn = None
        elif reader.state.is_end_settled:
            ranges.append(torn)  # not torn by a crash, so it was whole
            torn = None
    return ranges, torn


def _with_room_for_filler(log: CommitLog, damaged: DamagedRange) -> DamagedRange:
    """Return the range, extended so that a filler fits. Only a range at the end of the log can be too short."""
    file_end = log.base_of(damaged.start) + log.file_bytes
    end = max(damaged.end, damaged.start + FILLER_FRAME_BYTES)
    return replace(damaged, end=file_end if damaged.end <= file_end < end else end)


def _index_fits(reader: StoreReader, paths: list[str]) -> bool:
    config = reader.config
    expected = HEADER_BYTES + config.index_slots * SLOT_BYTES + config.index_entries * ENTRY_BYTES
    return all(reader.files.size(path) == expected for path in paths)


def _index_entries(reader: StoreReader, paths: list[str]) -> int:
    """Return the entries that the index files have room for, so that new ones get the same size."""
    for path in paths:
        room = (reader.files.size(path) or 0) - HEADER_BYTES - reader.config.index_slots * SLOT_BYTES
        if room > 0 and room % ENTRY_BYTES == 0:
            return room // ENTRY_BYTES
    return reader.config.index_entries


def _describe_open(reader: StoreReader) -> str:
    state = reader.state
    holder = f"process {state.pid} ({state.command})" if state.pid else "another process"
    return f"{reader.config.root} is open: {holder} has locked it. Stop that broker first."


def carry_out(plan: RepairPlan) -> None:
    """Repair a store. Raises StoreInUse, StoreFull, CorruptionError, OSError; then it can be repaired again.

    Raises StoreError if a broker has opened the store since it was verified: the plan could overwrite new messages.
    """
    files = DiskFiles()
    config = plan.config
    if _last_opened_ns(config.root) != plan.opened_ns:
        raise StoreError(f"a broker has opened {config.root} since it was verified; run the command again")
    unlock = files.lock(f"{config.root}/lock")
    try:
        if plan.restores_filled:
            _move_aside(plan)
        _mend_log(plan, files)
        if plan.unfetched:
            return
        if not plan.restores_filled:
            _move_aside(plan)
        # Opening locks again: the same process may, and closing unlocks.
        store = MessageStore.open(config, files)
        try:
            _delete_forgotten_topics(plan, store)
            _keep_offsets(plan, store)
            while store.build_index(_INDEXED_PER_CALL):
                pass
        finally:
            store.close()
    finally:
        unlock()


def _last_opened_ns(root: str) -> int:
    """Return when a broker opened the store last: both brokers write to the lock file then."""
    try:
        return os.stat(f"{root}/lock").st_mtime_ns
    except FileNotFoundError:
        return 0


def _mend_log(plan: RepairPlan, files: DiskFiles) -> None:
    """Give the log's files their size, copy damaged bytes aside, and replace them by fillers."""
    config = plan.config
    log = CommitLog(files, config.commit_log_path, config.commit_log_file_bytes, 0)
    log.first_base = plan.bases[0] if plan.bases else 0
    log.base = plan.bases[-1] if plan.bases else 0
    log.position = log.file_bytes
    try:
        for base in plan.short:
            os.truncate(log.path(base), log.file_bytes)
        ranges = [_with_room_for_filler(log, damaged) for damaged in plan.ranges]
        torn = [plan.torn] if plan.torn and not plan.unfetched else []
        for damaged in [*ranges, *torn]:
            _make_room(log, damaged)
            if not damaged.is_missing:
                set_aside(files, config.root, log, damaged.start, damaged.end, damaged.reason)
            if damaged is not plan.torn:
                write_filler(files, log, damaged.start, damaged.end)
        lost_ranges = [*plan.fetched, *plan.filled, *(damaged for damaged, _ in plan.unfetched)]
        for damaged in plan.fetched:
            assert plan.source is not None
            _make_room(log, damaged)
            if not damaged.is_missing:
                set_aside(files, config.root, log, damaged.start, damaged.end, damaged.reason)
            write_fetched(files, config.root, log, plan.source, damaged, lost_ranges)
    finally:
        log.close()


def _make_room(log: CommitLog, damaged: DamagedRange) -> None:
    """Have disk space for a range, in a new file if it is missing."""
    for base in range(log.base_of(damaged.start), damaged.end, log.file_bytes):
        first, last = max(0, damaged.start - base), min(log.file_bytes, damaged.end - base)
        log.mapped_file(base).reserve(first, last)


def _move_aside(plan: RepairPlan) -> None:
    """Move damaged files and folders below ``damaged/``, keeping their paths."""
    if not plan.moved:
        return
    root = plan.config.root
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = f"{root}/damaged/repair-{stamp}"
    number = 1
    while os.path.exists(target):  # an earlier repair within the same second
        number += 1
        target = f"{root}/damaged/repair-{stamp}-{number}"
    for path in plan.moved:
        moved_path = f"{target}/{os.path.relpath(path, root)}"
        os.makedirs(os.path.dirname(moved_path), exist_ok=True)
        os.rename(path, moved_path)
    # Durably, because messages may be written in place of fillers next.
    for folder in {os.path.dirname(path) for path in plan.moved}:
        fsync_path(folder)


def _delete_forgotten_topics(plan: RepairPlan, store: MessageStore) -> None:
    """Delete queues that were not there before: their topics had been deleted, but not yet their messages."""
    if plan.rebuilds_queues and plan.topics is not None:
        for topic in store.topics() - plan.topics - SYSTEM_TOPICS:
            if not topic.startswith(SYSTEM_PREFIX):
                store.delete_topic(topic)


def _keep_offsets(plan: RepairPlan, store: MessageStore) -> None:
    if plan.rebuilds_queues:
        for (topic, queue_id), end in plan.ends.items():
            store.skip_offsets(topic, queue_id, end)
