from base64 import urlsafe_b64encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.errors import MessageFormatError
from codec.recall_handle import RecallHandle

WORD = st.text(st.characters(exclude_categories=["Cs", "Zs"]), min_size=1, max_size=20)


@given(WORD, WORD, WORD, WORD)
def test_round_trip(topic, broker_name, timestamp, unique_key):
    handle = RecallHandle(topic, broker_name, timestamp, unique_key)
    assert RecallHandle.decode(handle.encode()) == handle
    assert RecallHandle.decode(handle.encode().rstrip("=")) == handle


@given(
    st.text(max_size=40) | st.binary(max_size=40).map(lambda data: urlsafe_b64encode(b"v1 " + data).decode())
)
def test_any_text_is_a_handle_or_refused(text):
    with suppress(MessageFormatError):
        assert all(isinstance(part, str) for part in RecallHandle.decode(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "====",
        "A",
        "v1",
        "\ud800",
        "é",
        "djEgYSBi",
        "=" * 10**6,
        "A" * (10**6 + 1),
        "djEg" + "A" * 10**6,
    ],
)
def test_what_is_no_handle_is_refused(text):
    with pytest.raises(MessageFormatError, match="recall handle is invalid"):
        RecallHandle.decode(text)
