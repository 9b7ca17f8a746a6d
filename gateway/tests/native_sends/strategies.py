"""Hypothesis strategies for reads with sends that are nearly plain."""

from itertools import pairwise
from typing import Final

from hypothesis import strategies as st

from gateway.tests.native_sends.frames import TOPICS, binary_frame, json_frame, plain_fields

_WORDS: Final = (
    "UNIQ_KEY", "TAGS", "KEYS", "WAIT", "DELAY", "TIMER_DELAY_MS", "POP_CK", "INNER_NUM", "TRAN_MSG", "MSG_REGION",
    "MSG_TYPE",
    "_SYS_MSG_PRIORITY_", "__SHARDINGKEY", "a", "",
)  # fmt: skip
_texts = st.one_of(st.sampled_from(("", "true", "false", "k1", "1", "A" * 32)), st.text(max_size=20))
_encodable = _texts.map(lambda text: text.encode("utf-8", "replace").decode())
_pairs = st.lists(st.tuples(st.sampled_from(_WORDS), _encodable), max_size=5)
_numbers = st.one_of(
    st.integers(-10, 20).map(str),
    st.integers(-(2**63) - 1, 2**63).map(str),
    st.sampled_from(("", "01", "+1", "1.0", " 1")),
)


@st.composite
def properties(draw: st.DrawFn) -> str:
    """Return the properties of a message, mostly with a unique key."""
    pairs = draw(_pairs)
    if draw(st.integers(0, 4)):
        pairs.insert(
            draw(st.integers(0, len(pairs))), ("UNIQ_KEY", draw(st.sampled_from(("A1", "0" * 32, "k" * 128))))
        )
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    return text[: len(text) - draw(st.sampled_from((0, 0, 0, 1, 2)))]


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Return a send in one of the two header forms, with up to three header fields changed."""
    topic = draw(st.sampled_from((*TOPICS, "new_topic", "%RETRY%g", "no/such")))
    fields = plain_fields(topic, draw(st.integers(-1, 8).map(str)), draw(properties()))
    for name in draw(st.lists(st.sampled_from("acdfghjklmno"), max_size=3)):
        value = draw(st.one_of(st.none(), _numbers, st.sampled_from(("true", "false")), _encodable))
        if value is None:
            fields.pop(name, None)
        else:
            fields[name] = value
    body = draw(st.one_of(st.binary(max_size=300), st.integers(0, 70_000).map(bytes)))
    opaque, flag = draw(st.integers(-(2**31), 2**31 - 1)), draw(st.sampled_from((0, 0, 0, 0, 1, 2)))
    code = draw(st.sampled_from((310, 310, 310, 310, 10, 320)))
    return (binary_frame if draw(st.booleans()) else json_frame)(fields, opaque, body, code, flag)


@st.composite
def reads(draw: st.DrawFn) -> list[bytes]:
    """Return the bytes of some frames, cut into reads anywhere."""
    data = b"".join(draw(st.lists(frames(), min_size=1, max_size=8)))
    cuts = sorted({0, len(data), *(draw(st.lists(st.integers(0, len(data)), max_size=3)))})
    return [data[start:end] for start, end in pairwise(cuts)]
