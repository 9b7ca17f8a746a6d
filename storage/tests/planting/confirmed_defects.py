"""Planted defects of stores whose messages are readable once they are confirmed."""

from typing import Final

from storage.tests.planting.defect import Defect, Law, change

DISPATCH: Final = "storage/log_dispatch.py"
RECOVERY: Final = "storage/recovery.py"
CONFIRMED: Final = "storage/confirmed_store.py"
TESTS: Final = ("storage/tests/test_confirmed_store.py",)

CONFIRMED_DEFECTS: Final = (
    Defect(
        "message-readable-when-its-beginning-is-confirmed",
        Law.NOTHING_INVENTED,
        change(
            DISPATCH,
            "            if position + message.size > end:\n                return -1\n            queue =",
            "            queue =",
        ),
        TESTS,
    ),
    Defect(
        "end-of-file-readable-before-it-is-confirmed",
        Law.NOTHING_INVENTED,
        change(
            DISPATCH,
            "            if end < commit_log.file_bytes:\n                return -1\n",
            "",
        ),
        TESTS,
    ),
    Defect(
        "restart-makes-everything-readable",
        Law.NOTHING_INVENTED,
        change(
            RECOVERY,
            "            self._readable_limit = max(self._confirmed_until, self._end_of_entries())\n",
            "            self._readable_limit = NO_LIMIT\n",
        ),
        TESTS,
    ),
    Defect(
        "restart-forgets-what-was-readable-since-the-checkpoint",
        Law.ACKNOWLEDGED,
        change(
            RECOVERY,
            "            self._readable_limit = max(self._confirmed_until, self._end_of_entries())\n",
            "            self._readable_limit = self._confirmed_until\n",
        ),
        TESTS,
    ),
    Defect(
        "offsets-of-messages-without-entries-given-out-again",
        Law.DENSE_OFFSETS,
        change(
            CONFIRMED,
            "            self._create_writer(*key).next_offset = end\n",
            "            self._create_writer(*key)\n",
        ),
        TESTS,
    ),
    Defect(
        "clean-start-skips-files-without-entries",
        Law.ACKNOWLEDGED,
        change(
            RECOVERY,
            "            if not self._crashed and base > self._confirm_offset:\n                continue\n",
            "",
        ),
        TESTS,
    ),
    Defect(
        "failed-deletion-loses-offsets",
        Law.DENSE_OFFSETS,
        change(CONFIRMED, "                self._tails.update(tails)\n", ""),
        TESTS,
    ),
    Defect(
        "topic-created-again-goes-on-at-its-former-offset",
        Law.DENSE_OFFSETS,
        change(CONFIRMED, "        for key in tails:\n            del self._tails[key]\n", ""),
        TESTS,
    ),
    Defect(
        "official-confirm-offset-vouches-for-entries",
        Law.ACKNOWLEDGED,
        change(
            "storage/store.py",
            "            0 if _is_of_official_broker(last_boot) else checkpoint.confirm_offset,\n",
            "            checkpoint.confirm_offset,\n",
        ),
        TESTS,
    ),
)
