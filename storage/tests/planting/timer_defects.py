"""Planted defects of the timer: its wheel, log and checkpoint, and the order in which they are flushed."""

from typing import Final

from storage.tests.planting.defect import Defect, Law, change

TIMER: Final = "storage/timer_store.py"
TIMER_LOG: Final = "storage/timer_log.py"
TIMER_CHECKPOINT: Final = "storage/timer_checkpoint.py"
_CRASHES: Final = "storage/tests/test_timer_crashes.py::"
_STORE: Final = "storage/tests/test_timer_store.py::"
FLUSH: Final = _CRASHES + "test_a_flush_that_ends_anywhere"
INTERLEAVED: Final = _CRASHES + "test_a_flush_in_the_middle_of_other_work"
CHAINING: Final = _CRASHES + "test_chaining_and_delivering_that_end_anywhere"
REWRITING: Final = _CRASHES + "test_rewriting_a_slot_that_ends_anywhere"
TORN: Final = _CRASHES + "test_a_wheel_slot_that_is_torn_anywhere"
PROGRESS: Final = _CRASHES + "test_a_progress_that_is_torn_anywhere"
RECORD: Final = _CRASHES + "test_a_timer_record_that_is_torn_anywhere"
BEHIND: Final = _STORE + "test_records_behind_lost_ones_never_come_back"
LOST: Final = _STORE + "test_a_record_of_a_lost_message_does_not_stand_for_the_next_one"


_FLUSH_LOG: Final = "        self._store.flush()\n"
_RUN_FLUSH: Final = "        self._store.flushes.run(lambda: self._flush_files(position))\n"
_FLUSH_TIMER: Final = "        self._log.flush()\n        self._wheel.flush()\n"
_WRITE_POSITION: Final = "        self._checkpoint.write_position(position)\n"
_WRITE_REST: Final = "        buffer[at + _SIZE_BYTES : at + RECORD.size] = packed[_SIZE_BYTES:]\n"
_WRITE_SIZE: Final = "        buffer[at : at + _SIZE_BYTES] = packed[:_SIZE_BYTES]\n"

TIMER_DEFECTS: Final = (
    Defect(
        "timer-checkpoint-before-its-log",
        Law.TIMERS,
        change(TIMER, _FLUSH_TIMER + _WRITE_POSITION, _WRITE_POSITION + _FLUSH_TIMER),
        (FLUSH,),
    ),
    Defect(
        "timer-flush-without-the-commit-log",
        Law.TIMERS,
        change(TIMER, _FLUSH_LOG + _RUN_FLUSH, _RUN_FLUSH),
        (FLUSH,),
    ),
    Defect(
        "timer-log-not-flushed",
        Law.TIMERS,
        change(TIMER, _FLUSH_TIMER, _FLUSH_TIMER.replace("        self._log.flush()\n", "")),
        (FLUSH,),
    ),
    Defect(
        "timer-position-read-during-the-flush",
        Law.TIMERS,
        change(
            TIMER,
            _FLUSH_TIMER + _WRITE_POSITION,
            _FLUSH_TIMER
            + "        position = self.take_unflushed_position() or position\n"
            + _WRITE_POSITION,
        ),
        (INTERLEAVED,),
    ),
    Defect(
        "timer-message-chained-again",
        Law.TIMERS,
        change(TIMER, "            self.already_chained.add(record.physical_offset)\n", ""),
        (CHAINING,),
    ),
    Defect(
        "timer-wheel-not-repaired",
        Law.TIMERS,
        change(TIMER, "            self._relink(record)\n", "            pass\n"),
        (FLUSH,),
    ),
    Defect(
        "torn-timer-slot-kept",
        Law.TIMERS,
        change(
            TIMER,
            "            if slot.last >= start and not self._ends_with_own_record(slot):\n",
            "            if False:\n",
        ),
        (FLUSH,),
    ),
    Defect(
        "timer-progress-ahead-of-its-logs",
        Law.TIMERS,
        change(
            TIMER,
            "        return self._log.end >= progress.log_end and ",
            "        return True or ",
        ),
        (FLUSH,),
    ),
    Defect(
        "part-of-a-rewritten-slot-counts",
        Law.TIMERS,
        change(TIMER, "        if record.magic & MAGIC_PART:\n            return\n", ""),
        (REWRITING,),
    ),
    Defect(
        "timer-log-remains-behind-its-end",
        Law.TIMERS,
        change(TIMER_LOG, "            file.zero_from(self.end - base)\n", ""),
        (BEHIND,),
    ),
    Defect(
        "timer-log-zeros-not-flushed",
        Law.TIMERS,
        change(
            TIMER_LOG,
            "            self._files.flush(self._path(base))\n        self._reserved",
            "        self._reserved",
        ),
        (BEHIND,),
    ),
    Defect(
        "timer-record-of-a-lost-message-trusted",
        Law.TIMERS,
        change(
            TIMER_LOG,
            "        return end % self.file_bytes == 0 or is_whole(self._unpack(position))\n",
            "        return True\n",
        ),
        (LOST,),
    ),
    Defect(
        "timer-slot-rewritten-before-its-chain-is-durable",
        Law.TIMERS,
        change(TIMER, "        self._store.flushes.run(self._log.flush)\n", ""),
        (REWRITING,),
    ),
    Defect(
        "timer-slot-rewritten-before-its-deliveries-are-durable",
        Law.TIMERS,
        change(
            TIMER,
            _FLUSH_LOG + "        first = previous = -1\n",
            "        first = previous = -1\n",
        ),
        (REWRITING,),
    ),
    Defect(
        "timer-slot-may-end-inside-of-a-record",
        Law.TIMERS,
        change(TIMER, " and not self._ends_with_own_record(slot)", " and slot.last >= self._log.end"),
        (TORN,),
    ),
    Defect(
        "timer-slot-goes-on-with-an-old-round",
        Law.TIMERS,
        change(TIMER, " or (slot.last < record.position and record.previous < 0)", ""),
        (TORN,),
    ),
    Defect(
        "torn-timer-slot-not-counted-anew",
        Law.TIMERS,
        change(
            TIMER,
            "            self._recount_slot(self.slot_start_ms(last.slot_time_ms))\n",
            "            pass\n",
        ),
        (TORN,),
    ),
    Defect(
        "timer-progress-written-in-one-piece",
        Law.TIMERS,
        change(TIMER_CHECKPOINT, "((0, 16), (24, 32), (16, 24), (32, 48))", "((0, 48),)"),
        (PROGRESS,),
    ),
    Defect(
        "timer-record-written-size-first",
        Law.TIMERS,
        change(TIMER_LOG, _WRITE_REST + _WRITE_SIZE, _WRITE_SIZE + _WRITE_REST),
        (RECORD,),
    ),
)
