"""Records of a block as arrays: heads are read with numpy all at once, frames stay in the payload.

Source of the layout: `codec.capture.RECORD_HEAD`.
"""

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from codec.capture import FATES, RECORD_HEAD, CaptureBlock, decode_payload_texts, verified_payload
from codec.errors import CaptureError
from spark.capture.options import CaptureFilter

RecordArray = npt.NDArray[Any]

HEAD: Final = [
    ("size", ">u4"), ("flags", "u1"), ("fate", "u1"), ("code", ">i4"), ("wall_ms", ">i8"), ("asked_us", ">i8"),
    ("connection", ">u8"), ("forwarded_us", ">u4"), ("answered_us", ">u4"), ("target_us", ">u4"), ("client", ">u2"),
    ("upstream", ">u2"), ("broker", ">u2"), ("topic", ">u2"), ("group", ">u2"), ("request", ">u4"),
    ("answer", ">u4"), ("target", ">u4"),
]  # fmt: skip
"""Names and types of the fields of a record head, in order."""
ANSWERED, TARGET_ANSWERED, REVERSE, BY_TARGET, REDACTED = 1, 2, 4, 8, 16
_TEXTS: Final = ("client", "upstream", "broker", "topic", "group")


class RecordBlock:
    """The records of a block that match a filter, in order.

    `heads` has one row per record, `numbers` are the records' numbers in the block. The frames of a record are in
    `payload` and begin at `request_at`, `answer_at` and `target_at`.
    """

    def __init__(self, data: bytes, block: CaptureBlock, record_filter: CaptureFilter) -> None:
        """Decode a block. Raises CaptureError if it is damaged."""
        self.block = block
        self.payload = verified_payload(data, block)
        self.texts, at = decode_payload_texts(self.payload)
        starts = self._find_starts(at)
        heads = self._read_heads(starts)
        self._check_heads(heads, starts)
        self.numbers: RecordArray = np.flatnonzero(self._filter_mask(heads, record_filter))
        self.heads: RecordArray = heads[self.numbers]
        self.request_at = starts[self.numbers] + RECORD_HEAD.size
        self.answer_at = self.request_at + self.heads["request"]
        self.target_at = self.answer_at + self.heads["answer"]
        self.end_at = self.target_at + self.heads["target"]

    def __len__(self) -> int:
        return len(self.numbers)

    def flag_mask(self, bit: int) -> RecordArray:
        """Return a mask of the records with this flag."""
        flags: RecordArray = self.heads["flags"] & bit
        return flags.astype(bool)

    def text_column(self, name: str) -> pa.Array:
        """Return a column of one of the texts, null for empty ones."""
        texts = pa.array([text or None for text in self.texts], pa.string())
        return texts.take(pa.array(self.heads[name].astype(np.int32)))

    def fate_column(self) -> pa.Array:
        """Return the outcomes at the target, null if unknown."""
        outcomes = pa.array([text or None for text in FATES], pa.string())
        return outcomes.take(pa.array(self.heads["fate"].astype(np.int32)))

    def frame_column(self, name: str, rows: slice) -> pa.Array:
        """Return a column of requests, answers or target answers, null where there is none."""
        starts, ends, present = self._frame_bounds(name)
        starts, ends = starts[rows], ends[rows]
        nulls = None if present is None else ~present[rows]
        return gather_slices(self.payload, starts, ends, pa.binary(), nulls)

    def frame_size_column(self, name: str) -> pa.Array:
        """Return the sizes of these frames, bytes."""
        starts, ends, present = self._frame_bounds(name)
        return pa.array((ends - starts).astype(np.int64), mask=None if present is None else ~present)

    def _frame_bounds(self, name: str) -> tuple[RecordArray, RecordArray, RecordArray | None]:
        if name == "request":
            return self.request_at, self.answer_at, None
        if name == "answer":
            return self.answer_at, self.target_at, self.flag_mask(ANSWERED)
        return self.target_at, self.end_at, self.flag_mask(TARGET_ANSWERED)

    def _find_starts(self, at: int) -> RecordArray:
        """Return where each record begins: a walk from size to size, as blocks have no table of positions."""
        payload, count, end = self.payload, self.block.records, len(self.payload)
        starts = []
        for _ in range(count):
            starts.append(at)
            if at + RECORD_HEAD.size > end:
                raise CaptureError(self.block.position, "the records of a block reach beyond it")
            at += int.from_bytes(payload[at : at + 4])
        return np.array(starts, np.int64)

    def _read_heads(self, starts: RecordArray) -> RecordArray:
        raw = np.frombuffer(self.payload, np.uint8)
        rows = raw[starts[:, None] + np.arange(RECORD_HEAD.size)]
        return rows.view(np.dtype(HEAD)).reshape(len(starts))

    def _check_heads(self, heads: RecordArray, starts: RecordArray) -> None:
        """Raise CaptureError if the writer produced an inconsistent block; its CRC has been verified."""
        sizes = heads["request"].astype(np.int64) + heads["answer"] + heads["target"] + RECORD_HEAD.size
        fits = (sizes == heads["size"]) & (starts + sizes <= len(self.payload))
        has_texts = np.logical_and.reduce([heads[name] < len(self.texts) for name in _TEXTS])
        if not (fits & has_texts & (heads["fate"] < len(FATES))).all():
            raise CaptureError(self.block.position, "the records of a block are malformed")

    def _filter_mask(self, heads: RecordArray, record_filter: CaptureFilter) -> RecordArray:
        mask: RecordArray = np.ones(len(heads), bool)
        if record_filter.from_ms is not None:
            mask &= heads["wall_ms"] >= record_filter.from_ms
        if record_filter.until_ms is not None:
            mask &= heads["wall_ms"] < record_filter.until_ms
        if record_filter.topics is not None:
            mask &= np.isin(heads["topic"], self._topic_numbers(record_filter.topics))
        if record_filter.codes is not None:
            mask &= np.isin(heads["code"], list(record_filter.codes))
        return mask

    def _topic_numbers(self, topics: Collection[str]) -> list[int]:
        return [number for number, text in enumerate(self.texts) if text in topics]


def gather_slices(
    data: bytes, starts: RecordArray, ends: RecordArray, kind: pa.DataType, nulls: RecordArray | None = None
) -> pa.Array:
    """Return slices of `data` as a column, by taking every second element of an array over the whole buffer.

    Starts and ends must ascend, and lie within 2 GiB.
    """
    offsets = np.empty(2 * len(starts) + 1, np.int32)
    offsets[0], offsets[1::2], offsets[2::2] = 0, starts, ends
    alternating = pa.Array.from_buffers(
        kind, 2 * len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    return alternating.take(pa.array(np.arange(1, 2 * len(starts), 2, dtype=np.int32), mask=nulls))
