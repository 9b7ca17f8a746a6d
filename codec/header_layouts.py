"""Caches the layout of frequent senders' binary header fields, so that most headers are read without a loop.

The same client sends headers that differ only in their values, mostly of the same lengths. A layout that was seen
often becomes a `struct` format that picks all names and values apart at once and verifies the constant bytes. Headers
with any other layout take the careful path in `command.py`, which checks everything.
"""

import struct
from collections.abc import Callable
from operator import itemgetter

MAX_FIELDS_BYTES = 2048
"""Longer fields are never cached."""
MAX_LAYOUTS_PER_LENGTH = 4
MAX_LAYOUTS = 512
HEADERS_BEFORE_LEARNING = 16
"""Number of headers of one length before a layout is learned; learning costs as much as reading ten headers."""

_NAME = struct.Struct(">H")
_SIZE = struct.Struct(">I")


class HeaderLayout:
    """One layout: the positions of names, and of values with their lengths."""

    __slots__ = ("_expected", "_fixed", "_names", "_values")

    def __init__(self, fields: bytes) -> None:
        layout, names, slices, expected = [">"], [], [], []
        at = 0
        while at < len(fields):
            value_at = at + 6 + _NAME.unpack_from(fields, at)[0]
            end = value_at + _SIZE.unpack_from(fields, value_at - 4)[0]
            layout.append(f"{value_at - at}s{end - value_at}x")
            expected.append(fields[at:value_at])
            names.append(fields[at + 2 : value_at - 4].decode("ascii"))
            slices.append(slice(value_at, end))
            at = end
        self._fixed: Callable[[bytes], tuple[bytes, ...]] = struct.Struct("".join(layout)).unpack
        self._expected = tuple(expected)
        self._names = names
        self._values: Callable[[str], tuple[str, ...]] = itemgetter(*slices)

    def read_fields(self, fields: bytes) -> dict[str, str] | None:
        """Return the fields, if they have this layout and ASCII values; call only for fields of the layout's length."""
        if self._fixed(fields) != self._expected:
            return None
        values = self._values(fields.decode("latin-1"))  # Keeps each byte at its index, lengths over 127 too.
        return dict(zip(self._names, values, strict=True)) if "".join(values).isascii() else None


class HeaderLayoutCache:
    """The layouts seen often, by the length of the fields; bounded by MAX_LAYOUTS."""

    def __init__(self) -> None:
        self._layouts: dict[int, list[HeaderLayout]] = {}
        self._headers_read: dict[int, int] = {}
        self._layout_count = 0

    def read_fields(self, fields: bytes) -> dict[str, str] | None:
        """Return the fields of a header whose layout is known; None sends the caller down the careful path."""
        for layout in self._layouts.get(len(fields), ()):
            ext = layout.read_fields(fields)
            if ext is not None:
                return ext
        return None

    def learn(self, fields: bytes, ext: dict[str, str]) -> None:
        """Count fields that the careful path has read as ``ext``, and learn a layout that is frequent."""
        length = len(fields)
        if length > MAX_FIELDS_BYTES or len(ext) < 2 or not "".join(ext).isascii():
            return
        headers_read = self._headers_read[length] = self._headers_read.get(length, 0) + 1
        if headers_read % HEADERS_BEFORE_LEARNING:
            return
        if self._layout_count >= MAX_LAYOUTS:
            self._layouts.clear()
            self._layout_count = 0
        layouts = self._layouts.setdefault(length, [])
        if len(layouts) >= MAX_LAYOUTS_PER_LENGTH:
            layouts.pop(0)
            self._layout_count -= 1
        layouts.append(HeaderLayout(fields))
        self._layout_count += 1
