"""Layouts that other modules' tests do not cover: the store's files, as the struct formats storage uses."""

import struct

import pytest
from construct import ConstructError
from hypothesis import given
from hypothesis import strategies as st

from codec import layouts

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("layout", "form"),
    [
        (layouts.CONSUME_QUEUE_ENTRY, ">qiq"),
        (layouts.INDEX_HEADER, ">qqqqii"),
        (layouts.INDEX_SLOT, ">i"),
        (layouts.INDEX_ENTRY, ">iqii"),
        (layouts.CHECKPOINT, ">qqqqqq"),
    ],
)
@given(data=st.data())
def test_fixed_layouts_are_these_structs(layout, form, data):
    values = [data.draw(I64 if kind == "q" else I32) for kind in form[1:]]
    packed = struct.pack(form, *values)
    assert layout.sizeof() == len(packed)
    parsed = layout.parse(packed)
    assert [value for name, value in parsed.items() if name != "_io"] == values
    assert layout.build(parsed) == packed


def test_sizes_are_the_official_ones():
    assert layouts.CONSUME_QUEUE_ENTRY.sizeof() == 20
    assert layouts.INDEX_HEADER.sizeof() == 40
    assert layouts.INDEX_ENTRY.sizeof() == 20


def test_a_frame_of_another_serialise_type_is_none():
    with pytest.raises(ConstructError):
        layouts.FRAME.parse(b"\0\0\0\4\2\0\0\0")
