"""What earlier runs left in `spill_dir`: streams that go on with it, and directories that belong to no stream of now.

The latter are set aside: renamed, told at every start for as long as they are there, and never read for the target.
Not responsible for the files (spill) nor for going on with them (spilling).
"""

import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final

import orjson

from gateway.runtime.run_blocking import RunBlocking
from gateway.shadow.mirror.exchange_codec import decode_exchange
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from gateway.shadow.mirror.spill_queue import (
    ASIDE_MARKER,
    holds_records,
    iter_payloads,
    read_owner,
    set_directory_aside,
)
from gateway.shadow.traffic.exchange import Side
from gateway.shadow.traffic.subject import subject_of

log = logging.getLogger(__name__)

StreamKey = tuple[Side, str, int]
"""Which stream: who answered, the primary's broker, the rule's place in the list."""
_OWNING_FIELDS: Final = ("topics", "groups", "codes", "clients", "sample", "sample_by", "oneway")
"""What of a rule decides about the exchanges of its stream; the mode may change."""


@dataclass(slots=True)
class SetAsideDirectory:
    """A directory that was set aside: how many exchanges, and of each queue how many messages from which offset on."""

    directory: str
    exchanges: int = 0
    queues: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)


class SpillDirectory:
    """``target`` is a text that tells one target from another."""

    def __init__(self, settings: MirrorSettings, target: str, run_blocking: RunBlocking) -> None:
        self._settings = settings
        self._target = target
        self._run_blocking = run_blocking

    def stream_path(self, place: StreamKey) -> str:
        """Where a stream's files are."""
        side, broker, index = place
        return os.path.join(self._settings.spill_dir, f"{side.value}-{broker}-{index}")

    def stream_owner(self, rule: MirrorRule) -> str:
        """What a stream's files are for; it has to be the same for going on with them."""
        takes = {name: value for name, value in asdict(rule).items() if name in _OWNING_FIELDS}
        return orjson.dumps({"target": self._target, "rule": takes}, option=orjson.OPT_SORT_KEYS).decode()

    def find_resumable(self, rules: MirrorRules) -> list[StreamKey]:
        """The streams that have something to go on with; everything else that holds records is set aside."""
        found = []
        for name in self._list_names():
            directory = os.path.join(self._settings.spill_dir, name)
            if ASIDE_MARKER in name or not holds_records(directory):
                continue
            place, reason = self._match_stream(name, directory, rules)
            if place is not None:
                found.append(place)
                continue
            try:
                told = {"directory": set_directory_aside(directory), "reason": reason}
                log.error("what an earlier run left on disk is set aside", extra=told)
            except OSError as problem:
                log.error("what an earlier run left on disk is in the way", extra={"reason": str(problem)})
        return found

    def _list_names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._settings.spill_dir)) if self._settings.spill_dir else []
        except OSError:  # it is made with the first file
            return []

    def _match_stream(self, name: str, directory: str, rules: MirrorRules) -> tuple[StreamKey | None, str]:
        """The stream of a directory, or why there is none."""
        if self._settings.spill != "disk":
            return None, 'spill is not "disk" any more'
        side, _, rest = name.partition("-")
        broker, _, number = rest.rpartition("-")
        if side not in (Side.PRIMARY.value, Side.TARGET.value) or not number.isdecimal():
            return None, "its name is none of a stream"
        if int(number) >= len(rules.rules):
            return None, "there is no such rule any more"
        if read_owner(directory) != self.stream_owner(rules.rules[int(number)]):
            return None, "the target or the rule is another one now"
        return (Side(side), broker, int(number)), ""

    async def read_set_aside(self) -> list[SetAsideDirectory]:
        """All that is set aside, by this run or by earlier ones."""
        found = []
        for name in self._list_names():
            if ASIDE_MARKER in name:
                path = os.path.join(self._settings.spill_dir, name)
                found.append(await self._run_blocking(partial(_summarize_directory, path)))
                told = {"directory": path, "exchanges": found[-1].exchanges}
                log.error("exchanges that are set aside are not mirrored", extra=told)
        return found


def _summarize_directory(directory: str) -> SetAsideDirectory:
    found = SetAsideDirectory(directory)
    try:
        for broker, topic, queue_id, offset, count in _iter_messages(directory):
            found.exchanges += 1
            place = broker, topic, queue_id
            if count:
                messages, first = found.queues.get(place, (0, offset))
                found.queues[place] = messages + count, first
    except OSError as problem:
        log.error("a directory that is set aside cannot be read", extra={"reason": str(problem)})
    return found


def _iter_messages(directory: str) -> Iterator[tuple[str, str, int, int, int]]:
    """Of each exchange: broker, topic, queue, offset, and how many messages were stored (0: it is about no message)."""
    for payload in iter_payloads(directory):
        try:
            exchange = decode_exchange(payload)
            subject = subject_of(exchange)
        except Exception:  # noqa: BLE001 - of another version, perhaps; it counts all the same
            yield "", "", -1, -1, 0
            continue
        count = subject.count if subject.offset >= 0 else 0
        yield exchange.broker, subject.topic, subject.queue_id, subject.offset, count
