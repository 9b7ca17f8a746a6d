"""Replacing the opaque of a frame changes nothing else."""

import pytest

from codec.command import Command, decode_frame, encode_command
from gateway.shadow.proxy.target_upstream import replace_opaque


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("opaque", [0, -(1 << 31), (1 << 31) - 1])
def test_a_changed_opaque_changes_nothing_else(binary, opaque):
    command = Command(15, 123, 1, {"name": "välue", "opaque2": "5"}, b"body", "remark", binary=binary)
    frame = encode_command(command)
    changed = decode_frame(replace_opaque(frame, opaque), 4, len(replace_opaque(frame, opaque)))
    assert changed.opaque == opaque
    command.opaque = opaque
    assert changed == command


@pytest.mark.parametrize(
    "header",
    [b'{"code":1,"extFields":{"opaque":7},"flag":0,"opaque":8}', b'{"code":1,"flag":0,"opaque" : 8}'],
)
def test_headers_in_an_unusual_form(header):
    frame = (len(header) + 4).to_bytes(4) + len(header).to_bytes(4) + header
    changed = replace_opaque(frame, 99)
    assert decode_frame(changed, 4, len(changed)).opaque == 99
