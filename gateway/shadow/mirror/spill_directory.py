"""Sorts the subdirectories of `spill_dir` at start: each is resumed by its stream, or set aside.

A stream resumes its subdirectory only for the same target and the same rule, so that no other target gets the exchanges
that wait there. Every other subdirectory is set aside: renamed, reported at each start for as long as it exists, and
never sent anywhere.
"""

import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import orjson

from codec.java_numbers import parse_integer_or
from gateway.runtime.run_blocking import RunBlocking
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from gateway.shadow.mirror.spill_backlog import decode_exchange
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
"""The key of a stream: the side that answered, the primary's broker, the index of the rule."""
_OWNING_FIELDS: Final = ("topics", "groups", "codes", "clients", "sample", "sample_by", "oneway")
"""The fields of a rule that decide which exchanges its stream holds; the mode may change between runs."""


@dataclass(slots=True)
class SetAsideDirectory:
    """A directory that was set aside: its number of exchanges, and per queue the message count and first offset."""

    directory: str
    exchanges: int = 0
    queues: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)


class StreamMatch(NamedTuple):
    """The stream that resumes a directory; None, with the reason, if the directory has to be set aside."""

    key: StreamKey | None
    reason: str = ""


class SpillDirectory:
    """Finds the spill files of earlier runs. ``target`` is a text that differs from one target to another."""

    def __init__(self, settings: MirrorSettings, target: str, run_blocking: RunBlocking) -> None:
        self._settings = settings
        self._target = target
        self._run_blocking = run_blocking

    def stream_path(self, key: StreamKey) -> str:
        """Return the path of a stream's files."""
        side, broker, index = key
        # Anybody can register a broker, under the name "../../etc" too.
        return os.path.join(self._settings.spill_dir, f"{side.value}-{quote(broker, safe='')}-{index}")

    def stream_owner(self, rule: MirrorRule) -> str:
        """Return a text that describes target and rule; spill files are resumed only if it is the same."""
        owning = {name: value for name, value in asdict(rule).items() if name in _OWNING_FIELDS}
        return orjson.dumps({"target": self._target, "rule": owning}, option=orjson.OPT_SORT_KEYS).decode()

    def find_resumable(self, rules: MirrorRules) -> list[StreamKey]:
        """Return the streams with records to resume, and set aside every other directory that holds records."""
        resumable = []
        for name in self._list_names():
            directory = os.path.join(self._settings.spill_dir, name)
            # Empty directories belong to whichever stream comes next.
            if ASIDE_MARKER in name or not holds_records(directory):
                continue
            match = self._match_stream(name, directory, rules)
            if match.key is not None:
                resumable.append(match.key)
                continue
            try:
                details = {"directory": set_directory_aside(directory), "reason": match.reason}
                log.error("spill files of an earlier run set aside", extra=details)
            except OSError as problem:
                log.error("spill files of an earlier run cannot be set aside", extra={"reason": str(problem)})
        return resumable

    def _list_names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._settings.spill_dir)) if self._settings.spill_dir else []
        except OSError:  # The directory is created with the first file.
            return []

    def _match_stream(self, name: str, directory: str, rules: MirrorRules) -> StreamMatch:
        """Return the stream that a directory belongs to, or the reason why it belongs to none."""
        if self._settings.spill != "disk":
            return StreamMatch(None, 'spill is no longer "disk"')
        side, _, rest = name.partition("-")
        broker, _, number = rest.rpartition("-")
        if side not in (Side.PRIMARY.value, Side.TARGET.value) or not number.isdecimal():
            return StreamMatch(None, "its name is not the name of a stream")
        index = parse_integer_or(number, len(rules.rules))
        if index >= len(rules.rules):
            return StreamMatch(None, "its rule no longer exists")
        # The index alone does not say it: rules may have been inserted before this one.
        if read_owner(directory) != self.stream_owner(rules.rules[index]):
            return StreamMatch(None, "the target or the rule has changed")
        key = Side(side), unquote(broker), index
        if os.path.basename(self.stream_path(key)) != name:
            # For example a leading zero of the index: the stream itself would use another directory.
            return StreamMatch(None, "its name is not the name of a stream")
        return StreamMatch(key)

    async def read_set_aside(self) -> list[SetAsideDirectory]:
        """Return everything that was set aside, by this run or earlier ones."""
        directories = []
        for name in self._list_names():
            if ASIDE_MARKER in name:
                path = os.path.join(self._settings.spill_dir, name)
                directories.append(await self._run_blocking(partial(_summarize_directory, path)))
                details = {"directory": path, "exchanges": directories[-1].exchanges}
                log.error("exchanges set aside will not be mirrored", extra=details)
        return directories


def _summarize_directory(directory: str) -> SetAsideDirectory:
    summary = SetAsideDirectory(directory)
    try:
        for broker, topic, queue_id, offset, count in _iter_messages(directory):
            summary.exchanges += 1
            queue = broker, topic, queue_id
            if count:
                messages, first = summary.queues.get(queue, (0, offset))
                summary.queues[queue] = messages + count, first
    except OSError as problem:
        log.error("cannot read a directory that was set aside", extra={"reason": str(problem)})
    return summary


def _iter_messages(directory: str) -> Iterator[tuple[str, str, int, int, int]]:
    """Yield broker, topic, queue, offset and message count of each exchange; the count is 0 if it stored none."""
    for payload in iter_payloads(directory):
        try:
            exchange = decode_exchange(payload)
            subject = subject_of(exchange)
        except Exception:  # noqa: BLE001 - perhaps written by another version; it still counts
            yield "", "", -1, -1, 0
            continue
        count = subject.count if subject.offset >= 0 else 0
        yield exchange.broker, subject.topic, subject.queue_id, subject.offset, count
