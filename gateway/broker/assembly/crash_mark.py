"""The note of a crash that a broker under a controller has not dealt with yet, in `config/unsettledCrash.json`.

Only a master can deal with a crash: it looks which delayed messages were delivered already, once it knows what is
confirmed, and after a loss of power it begins its epoch anew. Until a controller has given the broker a role, its
store is open without a master, and the mark that the store itself keeps (`abort`) is gone after a clean stop, and
names another boot after a kill. So what it says is written down first:

1. Before the store is opened: a loss of power, of which the opened store says nothing any more.
2. After it is opened: any crash.
3. When the broker is master and has dealt with it, the note is deleted. A slave keeps that of a loss of power until it
   is master, and forgets the rest: each new master examines its delayed messages.

A broker that was stopped or killed in between reads the note. One that is read once too often costs some reading only.
"""

import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from storage.errors import StoreFull
from storage.files import Files

FILE_NAME: Final = "unsettledCrash.json"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Crash:
    """Ends of earlier processes that are not dealt with. ``lost_power``: messages that were not flushed may be gone."""

    was_unclean: bool = False
    lost_power: bool = False


NO_CRASH: Final = Crash()


class CrashMark:
    """The crashes of one broker. With an empty ``config_path`` they are remembered in this process only."""

    def __init__(self, files: Files, config_path: str) -> None:
        self._files = files
        self._path = f"{config_path}/{FILE_NAME}" if config_path else ""
        self.crash = self._read()

    def note(self, crash: Crash) -> None:
        """Remember a crash, besides those that are remembered already."""
        earlier = self.crash
        self._replace(Crash(earlier.was_unclean or crash.was_unclean, earlier.lost_power or crash.lost_power))

    def settle(self, *, is_master: bool, awaits_confirmation: bool) -> None:
        """Forget what a broker with a role has dealt with.

        A loss of power is remembered until the broker is master. ``awaits_confirmation``: its delayed messages wait
        until all that was stored before the crash is confirmed.
        """
        self._replace(
            Crash(self.crash.was_unclean and awaits_confirmation, self.crash.lost_power and not is_master)
        )

    def _replace(self, crash: Crash) -> None:
        if crash == self.crash:
            return
        self.crash = crash
        if not self._path:
            return
        # The disk may be full: the broker does its work all the same, and forgets only if it is stopped before that.
        with suppress(StoreFull, OSError):
            if crash == NO_CRASH:
                self._files.delete(self._path)
            else:
                content = {"wasUnclean": crash.was_unclean, "lostPower": crash.lost_power}
                self._files.write_small(self._path, json.dumps(content).encode())

    def _read(self) -> Crash:
        data = self._files.read_small(self._path) if self._path else None
        if not data or not data.strip():
            return NO_CRASH
        try:
            value = json.loads(data)
            return Crash(bool(value["wasUnclean"]), bool(value["lostPower"]))
        except (ValueError, TypeError, KeyError) as error:
            # Whatever was in it: dealing with a crash that there was not changes nothing.
            log.warning("note of a crash cannot be read", extra={"path": self._path, "reason": str(error)})
            return Crash(was_unclean=True, lost_power=True)
