import pytest

from codec.command import Command, encode_command
from gateway.shadow.report.traffic_series import is_refusal, peek_topic
from gateway.shadow.tests.exchanges import make_exchange


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("code", "ext", "topic"),
    [
        (10, {"producerGroup": "b", "topic": "T-1"}, b"T-1"),
        (310, {"a": "g", "b": "T-1", "i": 'b":"no'}, b"T-1"),
        (320, {"b": "T-1"}, b"T-1"),
        (11, {"consumerGroup": "g", "topic": "%RETRY%g"}, b"%RETRY%g"),
        (310, {"topic": "T-1"}, b""),
        (34, {"topic": "T-1"}, b""),
    ],
)
def test_the_topic_is_found_in_either_serialisation(binary, code, ext, topic):
    body = b'"topic":"X","b":"X"'
    passed = make_exchange(code, encode_command(Command(code, ext=ext, body=body, binary=binary)), None)
    assert peek_topic(passed) == topic


def test_a_topic_that_cannot_be_read_is_none():
    assert peek_topic(make_exchange(10, b"\x00\x00\x00\x08\x01\x00\x00\x04oops", None)) == b""
    assert peek_topic(make_exchange(10, b"\x00\x00\x00\x08\x00\x00\x00\x04oops", None)) == b""


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("code", "refused"), [(0, False), (19, False), (10, False), (1, True), (215, True)])
def test_refusals_are_recognised_in_either_serialisation(binary, code, refused):
    answer = Command(code, ext={"code": "7"}, remark='"code":7', body=b'"code":7', binary=binary)
    assert is_refusal(encode_command(answer)) is refused
    spaced = b'{"language": "GO", "code" : %d}' % code
    assert is_refusal(bytes(4) + len(spaced).to_bytes(4, "big") + spaced) is refused
