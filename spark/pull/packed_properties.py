"""The encoded properties of many messages, taken apart at once.

What counts as a pair, and which of several with one name, is as `codec.properties.decode_properties` has it.

Not responsible for what properties mean.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from spark.pull.gather import ByteArray, Indices, NumberArray, buffer_parts, gather_slices, take_or_null

_NAME_END: Final = 1
_PAIR_END: Final = 2
MAX_TABLE_CELLS: Final = 1 << 23
"""Up to so many messages times names, what names repeat in a message is found by a table of all of them."""


@dataclass
class PackedProperties:
    """All pairs of all messages, in order: those of message i from `offsets[i]` on."""

    offsets: Indices
    names: pa.Array
    values: pa.Array

    @cached_property
    def _name_dictionary(self) -> pa.DictionaryArray:
        return self.names.dictionary_encode()

    @cached_property
    def _name_codes(self) -> NumberArray:
        codes: NumberArray = self._name_dictionary.indices.to_numpy(zero_copy_only=False)
        return codes

    @cached_property
    def _message_rows(self) -> NumberArray:
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def value_column(self, name: str) -> pa.StringArray:
        """The value of this name in each message, null where it has none."""
        places = np.full(len(self.offsets) - 1, -1, np.int64)
        known = self._name_dictionary.dictionary.to_pylist()
        if name in known:
            found = np.flatnonzero(self._name_codes == known.index(name))
            places[self._message_rows[found]] = found  # Of several the last remains.
        return take_or_null(self.values, places)

    def without_duplicates(self) -> "PackedProperties":
        """The same with every name once in a message: where it stood first, with the value it had last."""
        count = len(self.names)
        width = len(self._name_dictionary.dictionary)
        keys = self._message_rows * width + self._name_codes
        first, last = _group_bounds(keys, (len(self.offsets) - 1) * width)
        kept = first == np.arange(count)
        if kept.all():
            return self
        before = np.concatenate(([0], np.cumsum(kept)))
        names = self.names.take(pa.array(np.flatnonzero(kept)))
        return PackedProperties(before[self.offsets], names, self.values.take(pa.array(last[kept])))

    def map_column(self) -> pa.MapArray:
        """As map<string,string>."""
        each = self.without_duplicates()
        offsets = pa.array(each.offsets, pa.int32())
        return pa.MapArray.from_arrays(offsets, each.names, each.values)

    def header_column(self, kind: pa.ListType) -> pa.ListArray:
        """As a list of structs of name and value, of this type."""
        each = self.without_duplicates()
        values = each.values.cast(pa.binary())
        structs = pa.StructArray.from_arrays([each.names, values], fields=list(kind.value_type))
        return pa.ListArray.from_arrays(pa.array(each.offsets, pa.int32()), structs, type=kind)


def _group_bounds(keys: NumberArray, cells: int) -> tuple[NumberArray, NumberArray]:
    """For each key, the places of the first and of the last one equal to it."""
    places = np.arange(len(keys))
    if cells <= MAX_TABLE_CELLS:
        first, last = np.empty(cells, np.int64), np.empty(cells, np.int64)
        last[keys] = places
        first[keys[::-1]] = places[::-1]
        return first[keys], last[keys]
    _, first, groups = np.unique(keys, return_index=True, return_inverse=True)
    last = np.empty(len(first), np.int64)
    last[groups] = places
    return first[groups], last[groups]


def unpack_properties(encoded: pa.BinaryArray) -> PackedProperties:
    """The pairs in encoded properties."""
    data, offsets = _terminate_pairs(*buffer_parts(encoded))
    if len(data) and data.max() >= 128 and not _is_utf8(data):
        texts = [str(each, "utf-8", "replace").encode() for each in encoded.to_pylist()]
        data, offsets = _terminate_pairs(*buffer_parts(pa.array(texts, pa.binary())))
    ends = np.flatnonzero(data == _PAIR_END)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    middles = np.flatnonzero(data == _NAME_END)
    if len(middles) != len(ends) or not ((starts < middles) & (middles + 1 < ends)).all():
        # A pair without name or value counts for nothing; a value may hold the separator.
        middles = np.append(middles, len(data))[np.searchsorted(middles, starts)]
        valid = (starts < middles) & (middles + 1 < ends)
        starts, middles, ends = starts[valid], middles[valid], ends[valid]
    return PackedProperties(
        np.searchsorted(ends, offsets),
        gather_slices(data, starts, middles, pa.string()),
        gather_slices(data, middles + 1, ends, pa.string()),
    )


def _terminate_pairs(data: ByteArray, offsets: Indices) -> tuple[ByteArray, Indices]:
    """The same where each message's properties end as every pair does, which some clients leave out."""
    ends = offsets[1:]
    filled = np.flatnonzero(ends > offsets[:-1])
    open_ended = filled[data[ends[filled] - 1] != _PAIR_END]
    if not len(open_ended):
        return data, offsets
    added = np.zeros(len(offsets), np.int64)
    added[open_ended + 1] = 1
    return np.insert(data, ends[open_ended], _PAIR_END), offsets + np.cumsum(added)


def _is_utf8(data: ByteArray) -> bool:
    try:
        str(data, "utf-8")  # type: ignore[call-overload]
    except UnicodeDecodeError:
        return False
    return True
