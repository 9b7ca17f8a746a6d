"""Decode the encoded properties of many messages at once.

The rules for valid pairs and for repeated names are those of `codec.properties.decode_properties`.
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
"""Largest number of messages times distinct names for which repeated names are found by a dense table."""


@dataclass
class PackedProperties:
    """All name-value pairs of all messages, in order; those of message i start at `offsets[i]`."""

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
        """Return the value of this name in each message, null where it is absent."""
        positions = np.full(len(self.offsets) - 1, -1, np.int64)
        distinct_names = self._name_dictionary.dictionary.to_pylist()
        if name in distinct_names:
            pairs = np.flatnonzero(self._name_codes == distinct_names.index(name))
            positions[self._message_rows[pairs]] = pairs  # A later duplicate overwrites an earlier one.
        return take_or_null(self.values, positions)

    def without_duplicates(self) -> "PackedProperties":
        """Return the pairs with each name once per message: at its first position, with its last value."""
        # One key per message and name: pairs with equal keys are duplicates.
        count = len(self.names)
        width = len(self._name_dictionary.dictionary)
        keys = self._message_rows * width + self._name_codes
        first, last = _group_bounds(keys, (len(self.offsets) - 1) * width)
        is_first = first == np.arange(count)
        if is_first.all():
            return self
        before = np.concatenate(([0], np.cumsum(is_first)))
        names = self.names.take(pa.array(np.flatnonzero(is_first)))
        return PackedProperties(before[self.offsets], names, self.values.take(pa.array(last[is_first])))

    def map_column(self) -> pa.MapArray:
        """Return the pairs as map<string,string>."""
        unique = self.without_duplicates()
        offsets = pa.array(unique.offsets, pa.int32())
        return pa.MapArray.from_arrays(offsets, unique.names, unique.values)

    def header_column(self, kind: pa.ListType) -> pa.ListArray:
        """Return the pairs as a list of structs of name and value, of this type."""
        unique = self.without_duplicates()
        values = unique.values.cast(pa.binary())
        structs = pa.StructArray.from_arrays([unique.names, values], fields=list(kind.value_type))
        return pa.ListArray.from_arrays(pa.array(unique.offsets, pa.int32()), structs, type=kind)


def _group_bounds(keys: NumberArray, cells: int) -> tuple[NumberArray, NumberArray]:
    """Return, for each key, the positions of the first and the last equal key."""
    positions = np.arange(len(keys))
    if cells <= MAX_TABLE_CELLS:
        first, last = np.empty(cells, np.int64), np.empty(cells, np.int64)
        last[keys] = positions
        first[keys[::-1]] = positions[::-1]
        return first[keys], last[keys]
    _, first, groups = np.unique(keys, return_index=True, return_inverse=True)
    last = np.empty(len(first), np.int64)
    last[groups] = positions
    return first[groups], last[groups]


def unpack_properties(encoded: pa.BinaryArray) -> PackedProperties:
    """Decode an array of encoded properties."""
    data, offsets = _terminate_pairs(*buffer_parts(encoded))
    if len(data) and data.max() >= 128 and not _is_utf8(data):
        texts = [str(properties, "utf-8", "replace").encode() for properties in encoded.to_pylist()]
        data, offsets = _terminate_pairs(*buffer_parts(pa.array(texts, pa.binary())))
    # A pair is name, separator, value, end. With one separator per pair, all three lists match element by element.
    ends = np.flatnonzero(data == _PAIR_END)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    middles = np.flatnonzero(data == _NAME_END)
    if len(middles) != len(ends) or not ((starts < middles) & (middles + 1 < ends)).all():
        # A value may contain the separator, so the first one after each start counts. Pairs without a name or a value
        # are ignored.
        middles = np.append(middles, len(data))[np.searchsorted(middles, starts)]
        valid = (starts < middles) & (middles + 1 < ends)
        starts, middles, ends = starts[valid], middles[valid], ends[valid]
    return PackedProperties(
        np.searchsorted(ends, offsets),
        gather_slices(data, starts, middles, pa.string()),
        gather_slices(data, middles + 1, ends, pa.string()),
    )


def _terminate_pairs(data: ByteArray, offsets: Indices) -> tuple[ByteArray, Indices]:
    """Append the final separator, which some clients leave out, where it is missing."""
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
