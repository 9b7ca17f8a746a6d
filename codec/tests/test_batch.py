import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec import layouts
from codec.batch import encode_batch, split_batch
from codec.errors import MessageFormatError
from codec.tests.vectors import VECTORS

ENTRIES = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=30), st.binary(max_size=30)), max_size=5
)


def test_reads_and_writes_the_official_bytes():
    vector = VECTORS["batch"]
    entries = list(split_batch(bytes.fromhex(vector["hex"])))
    assert entries == [
        (e["flag"], bytes.fromhex(e["body"]), bytes.fromhex(e["properties"])) for e in vector["entries"]
    ]
    assert encode_batch(entries).hex() == vector["hex"]


@given(ENTRIES, st.sampled_from([bytes, bytearray, memoryview]))
def test_round_trip(entries, kind):
    assert list(split_batch(kind(encode_batch(entries)))) == entries


@given(ENTRIES)
def test_follows_the_declared_layout(entries):
    parsed = layouts.BATCH.parse(encode_batch(entries))
    assert [(e.flag, e.body, e.properties) for e in parsed.entries] == entries
    assert [e.size for e in parsed.entries] == [22 + len(body) + len(props) for _, body, props in entries]


@given(ENTRIES.filter(bool), st.data())
def test_damage_raises_nothing_but_message_format_error(entries, data):
    body = bytearray(encode_batch(entries))
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        messages = list(split_batch(body))
    except MessageFormatError:
        return
    assert len(messages) == len(entries)


def test_every_cut_is_noticed():
    body = encode_batch([(1, b"body", b"a\x01b\x02")])
    for end in range(1, len(body)):
        with pytest.raises(MessageFormatError):
            list(split_batch(body[:end]))


@pytest.mark.parametrize("entry", [(0, b"", b"x" * 0x8000), (2**31, b"", b"")])
def test_values_that_do_not_fit_are_refused(entry):
    with pytest.raises(MessageFormatError):
        encode_batch([entry])
