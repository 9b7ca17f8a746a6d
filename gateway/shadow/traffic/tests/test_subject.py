"""Hostile requests have no subject: their names and numbers must not get into tables and state files."""

import pytest

from codec.command import Command, encode_command
from gateway.shadow.tests.exchanges import make_exchange
from gateway.shadow.traffic.subject import MAX_NAMING_BODY_BYTES, subject_of

SEND = {"b": "orders", "a": "GID", "e": "0"}
STORED = {"queueId": "0", "queueOffset": "7", "msgId": "A"}


def subject(code, ext, body=b"", answer=None):
    request = encode_command(Command(code, 1, 0, ext, body))
    found = encode_command(Command(0, 1, 1, STORED if answer is None else answer))
    return subject_of(make_exchange(code, request, found))


def test_numbers_and_names_of_a_send():
    found = subject(310, SEND)
    assert (found.topic, found.group, found.queue, found.offset) == ("orders", "GID", ("orders", 0), 7)


@pytest.mark.parametrize(
    "number", ["9" * 400, "9" * 5000, "9223372036854775808", "1_0", " 1", "x", "0x1", "1.5"]
)
@pytest.mark.parametrize(
    "build",
    [
        lambda number: subject(310, {**SEND, "e": number}),
        lambda number: subject(310, SEND, answer={**STORED, "queueOffset": number}),
        lambda number: subject(15, {"topic": "orders", "queueId": "1", "commitOffset": number}),
    ],
)
def test_numbers_that_java_would_not_parse(number, build):
    with pytest.raises(ValueError, match="For input string") as error:
        build(number)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("field", ["a", "b", "i"])
def test_names_that_no_broker_accepts(field):
    text = "x" * 2000 if field != "i" else "UNIQ_KEY\x01" + "x" * 2000
    with pytest.raises(ValueError, match="longer than any broker accepts"):
        subject(310, {**SEND, field: text})


@pytest.mark.parametrize(
    "body",
    [b"[" * 60_000, b"{", b"\xff", b" " * (MAX_NAMING_BODY_BYTES + 1), b'{"groupName":"%b"}' % (b"x" * 2000)],
)
def test_hostile_bodies_that_name_a_group(body):
    with pytest.raises(ValueError, match=r"."):
        subject(200, {}, body)


@pytest.mark.parametrize("body", [b"[1]", b"7", b"null", b'{"groupName":null}', b"{}"])
def test_bodies_that_name_no_group(body):
    assert subject(200, {}, body).group == ""


def test_a_delay_level_of_many_digits_is_a_delay():
    assert subject(310, {**SEND, "i": "DELAY\x01" + "9" * 5000}).delayed
