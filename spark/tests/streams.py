"""Random streams of messages at a primary, their mirrors, and planted faults with known findings."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow as pa

from codec.sysflag import COMPRESSED, COMPRESSION_ZLIB, TRANSACTION_COMMIT
from spark.schema import COLUMNS, arrow_schema

BEGIN_MS = 1_780_000_000_000
LATE_MS = 5_000
SETTLED_MS = BEGIN_MS + 4 * 3_600_000
"""Streams continue after this time."""


@dataclass(frozen=True)
class Row:
    """The fields of a stored message that streams vary."""

    topic: str
    id: str | None
    key: str | None
    queue: int
    body: bytes
    store_ms: int
    offset: int = -1
    properties: dict[str, str] = field(default_factory=dict)
    sys_flag: int = 0

    def columns(self) -> dict[str, Any]:
        """Return the row as the source reads it."""
        properties = {"CLUSTER": "x", **self.properties}
        if self.id is not None:
            properties["UNIQ_KEY"] = self.id
        if self.key is not None:
            properties["__SHARDINGKEY"] = self.key
        stored = datetime.fromtimestamp(self.store_ms / 1000, UTC)
        values = {
            "topic": self.topic, "brokerName": "broker-a", "queueId": self.queue, "queueOffset": self.offset,
            "msgId": self.id or f"offset-{self.store_ms}", "tags": None, "keys": None, "body": self.body,
            "properties": list(properties.items()), "bornTimestamp": datetime.fromtimestamp(BEGIN_MS / 1000, UTC),
            "storeTimestamp": stored, "bornHost": "127.0.0.1:1", "storeHost": "127.0.0.1:2",
            "sysFlag": self.sys_flag, "flag": 0, "reconsumeTimes": 0, "preparedTransactionOffset": 0,
            "commitLogOffset": 0,
        }  # fmt: skip
        return values


def table(rows: list[Row]) -> pa.Table:
    """Return a frame with the source's schema."""
    return pa.Table.from_pylist([row.columns() for row in rows], schema=arrow_schema(COLUMNS))


@dataclass
class Stream:
    """A stream, its mirror, and the expected findings `found`: (kind, id), sorted."""

    primary: list[Row]
    target: list[Row]
    found: list[tuple[str, str]]


def offsets(rows: list[Row], begin: int) -> list[Row]:
    """Number the rows of each queue in order."""
    ends: dict[int, int] = {}
    placed = []
    for row in rows:
        ends[row.queue] = ends.get(row.queue, begin) + 1
        placed.append(replace(row, offset=ends[row.queue] - 1))
    return placed


def stream(seed: int) -> Stream:
    """Generate messages of several keys and queues, some without keys, retried, delayed, or in transactions."""
    random = Random(seed)
    topic = f"topic-{seed}"
    begin = random.choice((0, 0, 500))
    primary = offsets(list(_sent(random, topic)), begin)
    found: list[tuple[str, str]] = []
    target = _mirrored(random, primary, found)
    older = []
    if begin:
        older = [
            Row(topic, f"{topic}-old-{number}", "a", 0, b"old", BEGIN_MS - 10, properties={})
            for number in range(3)
        ]
        if not any(row.queue == 0 for row in target):
            older = []
    return Stream(primary, offsets(older + target, 0), sorted(found))


def _sent(random: Random, topic: str) -> Iterator[Row]:
    queues, keys = random.randint(1, 3), random.randint(1, 3)
    time_ms = BEGIN_MS
    for number in range(random.randint(20, 90)):
        time_ms += random.randint(1, 400_000)
        key = random.randrange(keys)
        queue = key % queues
        sharding = None if key == 2 else f"key-{key}"
        body = b"%d of %s" % (number, topic.encode()) * random.randint(1, 3)
        unique = None if random.random() < 0.1 else f"{topic}-{number}"
        row = Row(topic, unique, sharding, queue, body, time_ms, properties={"mine": str(number)})
        if random.random() < 0.1:
            row = replace(row, sys_flag=TRANSACTION_COMMIT)
        elif random.random() < 0.1:
            row = replace(row, properties={**row.properties, "REAL_TOPIC": topic})
        yield row
        if unique is not None and random.random() < 0.05:
            yield replace(row, queue=(queue + 1) % queues, store_ms=time_ms + 1)


FAULTS = (
    "missing",
    "duplicated",
    "changedBody",
    "changedProperties",
    "changedHeader",
    "late",
    "reordered",
    "extra",
)


def _mirrored(random: Random, primary: list[Row], found: list[tuple[str, str]]) -> list[Row]:
    """Return the target's messages in arrival order; add planted faults to `found`."""
    copies = {row.id: sum(row.id == other.id for other in primary) for row in primary}
    share = random.choice((0.0, 0.1, 0.3))
    target: list[Row] = []
    behind: list[tuple[int, Row]] = []
    sequences: set[tuple[int, str | None]] = set()
    for row in primary:
        copy = replace(
            row,
            store_ms=row.store_ms + random.randint(-50, 200),
            sys_flag=row.sys_flag ^ random.choice((0, COMPRESSED | COMPRESSION_ZLIB)),
            properties={**row.properties, "CLUSTER": "y", "MSG_REGION": "here"},
        )
        kind = random.choice(FAULTS) if random.random() < share else ""
        if row.id is None or copies[row.id] > 1:
            kind = ""
        if kind == "reordered" and not _may_move(row, primary, sequences):
            kind = ""
        judged = row.store_ms < SETTLED_MS
        target += _with_fault(random, kind, copy, behind)
        if kind and judged:
            found.append((kind, f"{row.id}-extra" if kind == "extra" else str(row.id)))
        target += _due(row, behind)
    return target + [row for _, row in behind]


def _may_move(row: Row, primary: list[Row], sequences: set[tuple[int, str | None]]) -> bool:
    """Allow one moved message per sequence, followed by judged ones, so that the expected finding is unique."""
    if (row.queue, row.key) in sequences or not _ordered(row):
        return False
    rest = [each for each in primary if each.store_ms > row.store_ms and _together(each, row)]
    near = rest[:3]
    if len(near) < 3 or any(each.store_ms >= SETTLED_MS or each.id is None for each in near):
        return False
    if len({each.id for each in near}) < 3:
        return False
    sequences.add((row.queue, row.key))
    return True


def _ordered(row: Row) -> bool:
    return not row.sys_flag & TRANSACTION_COMMIT and "REAL_TOPIC" not in row.properties


def _together(one: Row, other: Row) -> bool:
    return _ordered(one) and (one.queue, one.key) == (other.queue, other.key)


def _with_fault(random: Random, kind: str, copy: Row, behind: list[tuple[int, Row]]) -> list[Row]:
    if kind == "missing":
        return []
    if kind == "reordered":
        behind.append((random.randint(1, 3), copy))
        return []
    if kind == "duplicated":
        return [copy, copy]
    if kind == "extra":
        return [copy, replace(copy, id=f"{copy.id}-extra")]
    changes: dict[str, dict[str, Any]] = {
        "changedBody": {"body": copy.body + b"!"},
        "changedProperties": {"properties": {**copy.properties, "mine": "other"}},
        "changedHeader": {"sys_flag": copy.sys_flag ^ 0x2},
        "late": {"store_ms": copy.store_ms + LATE_MS + 100},
    }
    return [replace(copy, **changes.get(kind, {}))]


def _due(row: Row, behind: list[tuple[int, Row]]) -> list[Row]:
    """Take the messages after which enough others of their own sequence have passed."""
    due, rest = [], []
    for left, late in behind:
        left -= _together(row, late) and row.id != late.id
        (rest if left else due).append((left, late))
    behind[:] = rest
    return [late for _, late in due]
