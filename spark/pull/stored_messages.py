"""Locate the parts of many stored messages in a buffer at once.

The layout is that of `codec.message`; invalid messages are refused with the same error texts.
"""

from dataclasses import dataclass, fields, replace
from struct import Struct
from typing import Any, Final, Self
from zlib import crc32

import numpy as np

from codec.constants import MAGIC_V1, MAGIC_V2
from codec.errors import MessageFormatError
from codec.message import MIN_MESSAGE_BYTES, decode_message, message_end
from codec.sysflag import BORN_HOST_V6, INNER_BATCH, NEED_UNWRAP, STORE_HOST_V6
from spark.pull.gather import Indices, NumberArray, read_records

_FIRST: Final = [
    ("size", ">u4"), ("magic", ">u4"), ("crc", ">u4"), ("queue_id", ">i4"), ("flag", ">i4"), ("offset", ">i8"),
    ("physical_offset", ">i8"), ("sys_flag", ">i4"), ("born_ms", ">i8"),
]  # fmt: skip
"""Fields before the first host: 48 bytes."""
_HOSTS: Final = [("born_host", "V8"), ("store_ms", ">i8"), ("store_host", "V8")]
_LAST: Final = [("reconsumed", ">i4"), ("prepared", ">i8"), ("body_bytes", ">u4")]
_USUAL: Final = _FIRST + _HOSTS + _LAST
_FIRST_BYTES: Final = 48
_IPV6_EXTRA_BYTES: Final = 12
"""Length of an IPv6 address minus that of an IPv4 address."""


@dataclass(slots=True)
class StoredMessages:
    """Messages in `raw`: numeric header fields, and where parts begin and end, in bytes from the start of `raw`."""

    raw: bytes
    starts: Indices
    ends: Indices
    head: NumberArray
    store_ms: NumberArray
    reconsumed: NumberArray
    prepared: NumberArray
    born_host_at: Indices
    store_host_at: Indices
    body_at: Indices
    body_end: Indices
    topic_at: Indices
    topic_end: Indices

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def properties_at(self) -> Indices:
        """Start of the properties; they end where the message ends."""
        return self.topic_end + 2

    def select_rows(self, which: Any) -> Self:
        """Return the messages selected by a numpy mask or slice."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "raw"}
        return replace(self, **{name: value[which] for name, value in values.items()})

    def has_flag(self, bits: int) -> NumberArray:
        """Return a mask of the messages whose sys flag has one of these bits."""
        mask: NumberArray = self.head["sys_flag"].astype(np.int32) & bits != 0
        return mask

    @property
    def has_batches(self) -> bool:
        """Tell whether some entries are stored batches, which hold several messages each."""
        batch_bits = INNER_BATCH | NEED_UNWRAP
        return bool((self.head["sys_flag"].astype(np.int32) & batch_bits == batch_bits).any())

    def verify_bodies(self) -> None:
        """Raise MessageFormatError unless every body matches its CRC."""
        view = memoryview(self.raw)
        bodies = zip(self.body_at.tolist(), self.body_end.tolist(), self.head["crc"].tolist(), strict=True)
        for row, (start, end, stored) in enumerate(bodies):
            if crc32(view[start:end]) & 0x7FFFFFFF != stored and start < end:
                self._raise_damage(row)

    def _raise_damage(self, row: int) -> None:
        """Raise the decoder's own error for a message."""
        decode_message(self.raw, int(self.starts[row]))
        raise MessageFormatError("the message is damaged")


def locate_messages(raw: bytes) -> StoredMessages:
    """Locate the messages in a buffer of messages end to end. Raises MessageFormatError unless each is complete."""
    starts, ends = _find_frames(raw)
    head = read_records(raw, starts, _USUAL)
    sys_flag = head["sys_flag"].astype(np.int32)
    magic = head["magic"]
    _require_valid(raw, starts, (magic != MAGIC_V1) & (magic != MAGIC_V2))
    # Assume IPv4 hosts, which give every message the same layout up to its body.
    born_host_at = starts + _FIRST_BYTES
    store_host_at = born_host_at + 16
    body_at = starts + head.dtype.itemsize
    last = head
    if (sys_flag & (BORN_HOST_V6 | STORE_HOST_V6)).any():
        # Each IPv6 host moves what follows it by 12 bytes, so the fields after the hosts are read again.
        store_host_at = store_host_at + _IPV6_EXTRA_BYTES * (sys_flag & BORN_HOST_V6 != 0)
        body_at = (
            body_at
            + (store_host_at - born_host_at - 16)
            + _IPV6_EXTRA_BYTES * (sys_flag & STORE_HOST_V6 != 0)
        )
        _require_valid(raw, starts, body_at > ends - 3)
        last = read_records(raw, body_at - 16, _LAST)
        store_ms = read_records(raw, store_host_at - 8, ">i8")
    else:
        store_ms = head["store_ms"]
    # A damaged length may reach anywhere; `_locate_topics` refuses it before it is used.
    body_end = body_at + last["body_bytes"].astype(np.int64)
    topic_at, topic_end = _locate_topics(raw, starts, ends, body_end, magic == MAGIC_V2)
    return StoredMessages(
        raw=raw,
        starts=starts,
        ends=ends,
        head=head,
        store_ms=store_ms,
        reconsumed=last["reconsumed"],
        prepared=last["prepared"],
        born_host_at=born_host_at,
        store_host_at=store_host_at,
        body_at=body_at,
        body_end=body_end,
        topic_at=topic_at,
        topic_end=topic_end,
    )


def _find_frames(raw: bytes) -> tuple[Indices, Indices]:
    """Return where messages begin and end. This is the only step that visits the messages one by one."""
    positions, at, total, unpack = [], 0, len(raw), Struct(">I").unpack_from
    last_start = total - MIN_MESSAGE_BYTES
    while at <= last_start:
        positions.append(at)
        size = unpack(raw, at)[0]
        if size < MIN_MESSAGE_BYTES:
            break
        at += size
    if at != total:
        message_end(raw, positions[-1] if positions and at > total else at)
        raise MessageFormatError(f"{total - at} bytes do not belong to any message")
    starts = np.array(positions, np.int64)
    return starts, np.append(starts[1:], total)


def _locate_topics(
    raw: bytes, starts: Indices, ends: Indices, body_end: Indices, long_names: NumberArray
) -> tuple[Indices, Indices]:
    """Return where topics begin and end, after checking that exactly the properties follow."""
    if not long_names.any():
        length_bytes: Any = 1
        _require_valid(raw, starts, body_end > ends - 3)
        length = read_records(raw, body_end, "u1").astype(np.int64)
    else:
        length_bytes = 1 + long_names.astype(np.int64)
        _require_valid(raw, starts, body_end > ends - 2 - length_bytes)
        words = read_records(raw, body_end, ">u2").astype(np.int64)
        length = np.where(long_names, words, words >> 8)
    topic_at = body_end + length_bytes
    topic_end = topic_at + length
    _require_valid(raw, starts, topic_end > ends - 2)
    _require_valid(raw, starts, topic_end + 2 + read_records(raw, topic_end, ">u2") != ends)
    return topic_at, topic_end


def _require_valid(raw: bytes, starts: Indices, invalid: NumberArray) -> None:
    """Raise the decoder's own MessageFormatError for the first message marked in `wrong`."""
    if invalid.any():
        decode_message(raw, int(starts[int(np.argmax(invalid))]), check_crc=False)
        raise MessageFormatError("the message is damaged")
