"""Gather slices of a buffer at many positions at once, with numpy and Arrow."""

from typing import Any

import numpy as np
import pyarrow as pa

ByteArray = np.ndarray[Any, np.dtype[np.uint8]]
Indices = np.ndarray[Any, np.dtype[np.int64]]
NumberArray = np.ndarray[Any, np.dtype[Any]]


def read_records(buffer: bytes, positions: Indices, kind: Any) -> NumberArray:
    """Return the numpy record of this type at each position (bytes from the start); all must lie within the buffer."""
    dtype = np.dtype(kind)
    count = len(buffer) - dtype.itemsize + 1
    # A view of overlapping records lets numpy copy each record as a whole.
    windows = np.ndarray((max(count, 0),), f"V{dtype.itemsize}", buffer, 0, (1,))
    return windows[positions].view(dtype)


def gather_slices(buffer: Any, starts: NumberArray, ends: NumberArray, kind: pa.DataType) -> pa.Array:
    """Return the slices [start, end) of a buffer below 2 GiB as a binary or string array.

    Positions ascend and slices do not overlap. Strings are assumed to be UTF-8.
    """
    count = len(starts)
    offsets = np.zeros(2 * count + 1, np.int32)
    offsets[1::2] = starts
    offsets[2::2] = ends
    # As one array, the buffer alternates between gaps and slices; every second element is a slice.
    whole = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(buffer)])
    return whole.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))


def buffer_parts(array: pa.Array) -> tuple[ByteArray, Indices]:
    """Return the bytes of a binary or string array, and the offsets of its elements followed by the end of the last."""
    _, offsets, data = array.buffers()
    positions = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(
        np.int64
    )
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return raw[positions[0] : positions[-1]], positions - positions[0]


def text_array(array: pa.Array) -> pa.Array:
    """Convert binary to string, replacing bytes that are not UTF-8 by U+FFFD."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([str(value, "utf-8", "replace") for value in array.to_pylist()], pa.string())


def take_or_null(array: pa.Array, positions: NumberArray) -> pa.Array:
    """Return the elements at these positions, null where a position is negative."""
    absent = positions < 0
    if absent.any():
        return array.take(pa.array(positions, pa.int64(), mask=absent))
    return array.take(pa.array(positions))


def repeat_value(value: str | None, count: int, kind: pa.DataType) -> pa.Array:
    """Return an array that repeats one value."""
    return pa.repeat(pa.scalar(value, kind), count)
