"""The records of a block as arrays: heads read all at once by numpy, frames left where they are.

Not responsible for what frames mean. Source of the layout: `codec.capture.RECORD_HEAD`.
"""

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from codec.capture import FATES, RECORD_HEAD, CaptureBlock, decode_payload_texts, verified_payload
from codec.errors import CaptureError
from spark.capture.options import Wanted

Numbers = npt.NDArray[Any]

HEAD: Final = [
    ("size", ">u4"), ("flags", "u1"), ("fate", "u1"), ("code", ">i4"), ("wall_ms", ">i8"), ("asked_us", ">i8"),
    ("connection", ">u8"), ("forwarded_us", ">u4"), ("answered_us", ">u4"), ("target_us", ">u4"), ("client", ">u2"),
    ("upstream", ">u2"), ("broker", ">u2"), ("topic", ">u2"), ("group", ">u2"), ("request", ">u4"),
    ("answer", ">u4"), ("target", ">u4"),
]  # fmt: skip
"""Names and types of the fields of a record's head, in order."""
ANSWERED, TARGET_ANSWERED, REVERSE, BY_TARGET, REDACTED = 1, 2, 4, 8, 16
_TEXTS: Final = ("client", "upstream", "broker", "topic", "group")


class Records:
    """The records of a block that are wanted, in order.

    `heads` has a row for each, `numbers` their places in the block; frames stand in `payload` from `request_at`,
    `answer_at` and `target_at` on.
    """

    def __init__(self, data: bytes, block: CaptureBlock, wanted: Wanted) -> None:
        """Raises CaptureError where the block is damaged."""
        self.block = block
        self.payload = verified_payload(data, block)
        self.texts, at = decode_payload_texts(self.payload)
        starts = self._starts(at)
        heads = self._heads(starts)
        self._check(heads, starts)
        self.numbers: Numbers = np.flatnonzero(self._mask(heads, wanted))
        self.heads: Numbers = heads[self.numbers]
        self.request_at = starts[self.numbers] + RECORD_HEAD.size
        self.answer_at = self.request_at + self.heads["request"]
        self.target_at = self.answer_at + self.heads["answer"]
        self.end_at = self.target_at + self.heads["target"]

    def __len__(self) -> int:
        return len(self.numbers)

    def flag(self, bit: int) -> Numbers:
        """Whether a flag is set, for each record."""
        flags: Numbers = self.heads["flags"] & bit
        return flags.astype(bool)

    def text(self, name: str) -> pa.Array:
        """A column of one of the texts; null for the empty one."""
        known = pa.array([text or None for text in self.texts], pa.string())
        return known.take(pa.array(self.heads[name].astype(np.int32)))

    def fate(self) -> pa.Array:
        """What became of each at the target; null when nobody said."""
        known = pa.array([text or None for text in FATES], pa.string())
        return known.take(pa.array(self.heads["fate"].astype(np.int32)))

    def frame(self, name: str, rows: slice) -> pa.Array:
        """A column of frames: of requests, answers or target's answers; null where there was none."""
        starts, ends, there = self._frames(name)
        starts, ends = starts[rows], ends[rows]
        nulls = None if there is None else ~there[rows]
        return pick(self.payload, starts, ends, pa.binary(), nulls)

    def frame_sizes(self, name: str) -> pa.Array:
        """How large those are, bytes."""
        starts, ends, there = self._frames(name)
        return pa.array((ends - starts).astype(np.int64), mask=None if there is None else ~there)

    def _frames(self, name: str) -> tuple[Numbers, Numbers, Numbers | None]:
        if name == "request":
            return self.request_at, self.answer_at, None
        if name == "answer":
            return self.answer_at, self.target_at, self.flag(ANSWERED)
        return self.target_at, self.end_at, self.flag(TARGET_ANSWERED)

    def _starts(self, at: int) -> Numbers:
        """Where each record begins: a record tells only its own size."""
        payload, count, end = self.payload, self.block.records, len(self.payload)
        starts = []
        for _ in range(count):
            starts.append(at)
            if at + RECORD_HEAD.size > end:
                raise CaptureError(self.block.position, "the records of a block reach beyond it")
            at += int.from_bytes(payload[at : at + 4])
        return np.array(starts, np.int64)

    def _heads(self, starts: Numbers) -> Numbers:
        raw = np.frombuffer(self.payload, np.uint8)
        rows = raw[starts[:, None] + np.arange(RECORD_HEAD.size)]
        return rows.view(np.dtype(HEAD)).reshape(len(starts))

    def _check(self, heads: Numbers, starts: Numbers) -> None:
        """What a block with a right CRC only fails when its writer was wrong."""
        sizes = heads["request"].astype(np.int64) + heads["answer"] + heads["target"] + RECORD_HEAD.size
        whole = (sizes == heads["size"]) & (starts + sizes <= len(self.payload))
        known = np.logical_and.reduce([heads[name] < len(self.texts) for name in _TEXTS])
        if not (whole & known & (heads["fate"] < len(FATES))).all():
            raise CaptureError(self.block.position, "the records of a block are malformed")

    def _mask(self, heads: Numbers, wanted: Wanted) -> Numbers:
        mask: Numbers = np.ones(len(heads), bool)
        if wanted.from_ms is not None:
            mask &= heads["wall_ms"] >= wanted.from_ms
        if wanted.until_ms is not None:
            mask &= heads["wall_ms"] < wanted.until_ms
        if wanted.topics is not None:
            mask &= np.isin(heads["topic"], self._numbers_of(wanted.topics))
        if wanted.codes is not None:
            mask &= np.isin(heads["code"], list(wanted.codes))
        return mask

    def _numbers_of(self, topics: Collection[str]) -> list[int]:
        return [number for number, text in enumerate(self.texts) if text in topics]


def pick(
    data: bytes, starts: Numbers, ends: Numbers, kind: pa.DataType, nulls: Numbers | None = None
) -> pa.Array:
    """Pieces of `data` as a column: all at once, by taking every other element of an array over the whole.

    Starts and ends must not fall, and be within 2 GiB.
    """
    offsets = np.empty(2 * len(starts) + 1, np.int32)
    offsets[0], offsets[1::2], offsets[2::2] = 0, starts, ends
    every = pa.Array.from_buffers(kind, 2 * len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return every.take(pa.array(np.arange(1, 2 * len(starts), 2, dtype=np.int32), mask=nulls))
