"""Redaction: secrets are never written, and the rest stays readable."""

import hashlib
import hmac

import pytest

from codec.batch import encode_batch, split_batch
from codec.command import Command, decode_frame
from codec.message import Message, encode_message, iter_messages
from codec.properties import encode_properties
from gateway.shadow.capture.redaction import Redaction
from gateway.shadow.capture.settings import RedactionRule
from gateway.shadow.tests.capture_fakes import frame, send_fields

SECRET = b"PIN 1234 of Alice"
PROPERTIES = {"KEYS": "k1", "phone": "555", "phone2": "556", "UNIQ_KEY": "U1"}


def read(data):
    return decode_frame(data, 4, len(data))


def request(rules, code, ext, body=b"", topic="orders", **more):
    data = frame(code, ext, body, **more)
    written = Redaction(rules).redact_request(read(data), data, topic)
    return read(written), written is data


@pytest.mark.parametrize("binary", [False, True])
def test_credentials_are_never_written(binary):
    ext = {**send_fields(), "AccessKey": "a", "Signature": "s", "SecurityToken": "t"}
    command, same = request([], 310, ext, SECRET, binary=binary, opaque=99)
    assert not same
    assert command == Command(310, 99, 0, send_fields(), SECRET, binary=binary)
    command, _ = request([], 50, {"accessKey": "a", "secretKey": "s"})
    assert command.ext == {"accessKey": "a"}


@pytest.mark.parametrize("code", [3001, 3004, 25, 26, 54, 770_013])
def test_bodies_with_passwords_are_never_written(code):
    assert request([], code, {"username": "u"}, b'{"password":"p"}')[0].body == b""
    answer = frame(0, {"version": "1"}, b"password=p", flag=1)
    assert read(Redaction([]).redact_answer(code, answer)) == Command(0, 1, 1, {"version": "1"})


def test_frames_that_need_no_change_are_returned_as_they_are():
    data = frame(310, send_fields(), SECRET)
    answer = frame(0, {}, SECRET, flag=1)
    for rules in ([], [RedactionRule(topics=["other"], body="drop")], [RedactionRule()]):
        redaction = Redaction(rules)
        assert redaction.redact_request(read(data), data, "orders") is data
        assert redaction.redact_answer(310, answer) is answer
    assert Redaction([]).redact_answer(11, answer) is answer


BODIES = [
    (RedactionRule(body="drop"), b""),
    (RedactionRule(body="hash"), hashlib.sha256(SECRET).hexdigest().encode()),
    (RedactionRule(body="hash", hash_key="k"), hmac.new(b"k", SECRET, "sha256").hexdigest().encode()),
    (RedactionRule(body="truncate", truncate_bytes=3), b"PIN"),
]


@pytest.mark.parametrize(("rule", "left"), BODIES)
@pytest.mark.parametrize("wires", ["long", "short"])
def test_bodies_of_sends(rule, left, wires):
    code, ext = 310, send_fields(properties=PROPERTIES)
    if wires == "long":
        code, ext = (
            10,
            {"topic": "orders", "sysFlag": "0", "properties": encode_properties(PROPERTIES).decode()},
        )
    command, _ = request([rule], code, ext, SECRET)
    assert (command.body, command.ext) == (left, ext)


def test_properties_are_removed_by_name():
    rules = [RedactionRule(properties=["phone*", "KEYS"])]
    command, _ = request(rules, 310, send_fields(properties=PROPERTIES), SECRET)
    assert (command.ext["i"], command.body) == ("UNIQ_KEY\x01U1\x02", SECRET)


def test_a_compressed_body_is_truncated_plain_or_not_kept():
    import zlib

    rules = [RedactionRule(body="truncate", truncate_bytes=8)]
    flags = send_fields(sys_flag=0x301 | 0x4)
    command, _ = request(rules, 310, flags, zlib.compress(SECRET))
    assert (command.body, command.ext["f"]) == (SECRET[:8], "4")
    command, _ = request(rules, 310, send_fields(sys_flag=0x101), b"lz4 of something")
    assert (command.body, command.ext["f"]) == (b"", "0")


@pytest.mark.parametrize(("code", "more"), [(320, {}), (310, {"m": "true"})])
def test_batches_message_by_message(code, more):
    packed = encode_properties(PROPERTIES)
    body = encode_batch([(1, SECRET, packed), (2, b"x", b"")])
    rules = [RedactionRule(body="truncate", truncate_bytes=3, properties=["phone*"])]
    command, _ = request(rules, code, {**send_fields(), **more}, body)
    assert list(split_batch(command.body)) == [
        (1, b"PIN", b"KEYS\x01k1\x02UNIQ_KEY\x01U1\x02"),
        (2, b"x", b""),
    ]
    assert request(rules, code, {**send_fields(), **more}, b"no batch")[0].body == b""


def stored(topic, **properties):
    return encode_message(Message(topic, SECRET, properties, queue_offset=5, physical_offset=999))


@pytest.mark.parametrize("code", [11, 12, 33, 361, 200050])
def test_stored_messages_of_answers_each_by_its_own_topic(code):
    body = stored("orders", a="1") + stored("open") + stored("%RETRY%GID", RETRY_TOPIC="orders")
    redaction = Redaction([RedactionRule(topics=["ord*"], body="drop", properties=["a"])])
    command = read(redaction.redact_answer(code, frame(0, {"minOffset": "0"}, body, flag=1)))
    messages = list(iter_messages(command.body))
    assert [(each.topic, each.body) for each in messages] == [
        ("orders", b""),
        ("open", SECRET),
        ("%RETRY%GID", b""),
    ]
    assert {(each.queue_offset, each.physical_offset) for each in messages} == {(5, 999)}
    assert (messages[0].properties, command.ext) == ({}, {"minOffset": "0"})
    assert read(redaction.redact_answer(code, frame(0, {}, b"no messages", flag=1))).body == b""


def test_a_half_message_handed_to_its_producer():
    body = stored("RMQ_SYS_TRANS_HALF_TOPIC", REAL_TOPIC="orders")
    command, _ = request([RedactionRule(topics=["orders"], body="drop")], 39, {"topic": "x"}, body)
    assert [each.body for each in iter_messages(command.body)] == [b""]


def test_bodies_nobody_knows_are_left_out_when_anything_is():
    rules = [RedactionRule(topics=["orders"], body="hash")]
    assert request(rules, 98765, {"x": "1"}, SECRET)[0] == Command(98765, 1, 0, {"x": "1"})
    assert read(Redaction(rules).redact_answer(98765, frame(0, None, SECRET, flag=1))).body == b""
    assert request([], 98765, {"x": "1"}, SECRET)[1]
    assert request(rules, 34, {}, b'{"clientID":"c"}')[1]


def test_an_answer_that_cannot_be_read_is_left_out_where_it_would_be_changed():
    assert Redaction([RedactionRule(body="drop")]).redact_answer(11, b"\0\0\0\6\0\0\0\2{]") == b""


def test_the_first_rule_that_fits_counts():
    rules = [RedactionRule(topics=["orders"]), RedactionRule(body="drop")]
    assert request(rules, 310, send_fields(), SECRET)[1]
    assert request(rules, 310, send_fields("other"), SECRET, topic="other")[0].body == b""
