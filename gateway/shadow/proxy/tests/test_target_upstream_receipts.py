"""The broker's name is replaced in receipt handles, and nothing else."""

import json

import pytest

from codec.command import Command, decode_frame, encode_command
from gateway.shadow.proxy.target_upstream import replace_broker_name

HANDLE = "7 1700000000000 60000 3 0 {} 2 9"


@pytest.mark.parametrize("code", [200051, 200053])
def test_the_name_in_a_handle_is_replaced(code):
    ext = {"consumerGroup": "g", "topic": "t", "extraInfo": HANDLE.format("broker-a"), "offset": "9"}
    frame = encode_command(Command(code, 5, 0, ext, b"x"))
    passed = replace_broker_name(frame, "broker-t")
    command = decode_frame(passed, 4, len(passed))
    assert command.ext == {**ext, "extraInfo": HANDLE.format("broker-t")}
    assert (command.code, command.opaque, bytes(command.body)) == (code, 5, b"x")
    assert replace_broker_name(passed, "broker-t") is passed


def test_the_name_in_a_batch_is_replaced():
    body = {"brokerName": "broker-a", "acks": [{"c": "g", "t": "t", "so": 7, "b": "AQ=="}]}
    frame = encode_command(Command(200151, 5, 0, {}, json.dumps(body).encode()))
    passed = replace_broker_name(frame, "broker-t")
    assert json.loads(bytes(decode_frame(passed, 4, len(passed)).body)) == {**body, "brokerName": "broker-t"}


@pytest.mark.parametrize(
    "frame",
    [
        encode_command(Command(200051, 5, 0, {"extraInfo": "7 8"})),
        encode_command(Command(200051, 5)),
        encode_command(Command(200151, 5, 0, {}, b"not json")),
        encode_command(Command(200151, 5, 0, {}, b"[1]")),
        b"\0\0\0\x08\0\0\0\x04xxxx",
    ],
)
def test_unreadable_handles_stay(frame):
    assert replace_broker_name(frame, "broker-t") is frame
