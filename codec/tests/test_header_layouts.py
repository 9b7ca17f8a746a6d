"""A cached layout reads exactly the same fields as the careful path, and no other header."""

from hypothesis import given
from hypothesis import strategies as st

from codec.command import Command, decode_frame, encode_command
from codec.header_layouts import (
    HEADERS_BEFORE_LEARNING,
    MAX_LAYOUTS,
    MAX_LAYOUTS_PER_LENGTH,
    HeaderLayout,
    HeaderLayoutCache,
)

texts = st.text(st.characters(codec="ascii"), max_size=12)
headers = st.dictionaries(st.text("abcXYZ", min_size=1, max_size=3), texts, min_size=2, max_size=6)


def fields_of(ext: dict[str, str]) -> bytes:
    pairs = [(name.encode(), value.encode()) for name, value in ext.items()]
    return b"".join(len(name).to_bytes(2) + name + len(value).to_bytes(4) + value for name, value in pairs)


@given(headers, st.data())
def test_reads_every_header_of_its_layout(ext: dict[str, str], data: st.DataObject) -> None:
    shape = HeaderLayout(fields_of(ext))
    ascii_text = st.characters(codec="ascii")
    other = {
        name: data.draw(st.text(ascii_text, min_size=len(value), max_size=len(value)))
        for name, value in ext.items()
    }
    assert shape.read_fields(fields_of(other)) == other


@given(headers, headers)
def test_refuses_any_other_layout_of_the_same_length(ext: dict[str, str], other: dict[str, str]) -> None:
    fields = fields_of(other)
    if len(fields) == len(fields_of(ext)):
        assert HeaderLayout(fields_of(ext)).read_fields(fields) in (None, other)


def test_refuses_non_ascii_values() -> None:
    shape = HeaderLayout(fields_of({"a": "xy", "b": "1"}))
    assert shape.read_fields(fields_of({"a": "é", "b": "1"})) is None


def test_learns_only_frequent_layouts_and_keeps_a_bounded_number() -> None:
    shapes = HeaderLayoutCache()
    for number in range(MAX_LAYOUTS + 2):
        ext = {"a": "x" * number, "b": "y"}
        for _ in range(HEADERS_BEFORE_LEARNING - 1):
            shapes.learn(fields_of(ext), ext)
        assert shapes.read_fields(fields_of(ext)) is None
        shapes.learn(fields_of(ext), ext)
        assert shapes.read_fields(fields_of(ext)) == ext
    assert shapes._layout_count <= MAX_LAYOUTS


def test_keeps_a_few_layouts_of_one_length() -> None:
    shapes = HeaderLayoutCache()
    layouts = [{name: "x", "z": "y"} for name in "abcdef"]
    for ext in layouts:
        for _ in range(HEADERS_BEFORE_LEARNING):
            shapes.learn(fields_of(ext), ext)
    assert [shapes.read_fields(fields_of(ext)) for ext in layouts] == [
        None,
        None,
        *layouts[-MAX_LAYOUTS_PER_LENGTH:],
    ]


@given(headers, st.integers(0, 40))
def test_decoding_does_not_depend_on_learned_layouts(ext: dict[str, str], times: int) -> None:
    command = Command(310, 7, 0, ext, b"body", binary=True)
    frame = encode_command(command)
    for _ in range(times):
        assert decode_frame(frame, 4, len(frame)) == command
