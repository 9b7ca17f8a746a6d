"""Tests of header declarations on classes made for the purpose; real requests are tested in test_requests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from codec.command import Command
from codec.constants import ResponseCode
from remoting.declare import REQUESTS, Header, Request, TopicRequest, field, i16, i32, i64
from remoting.errors import RemotingClosed, RequestError
from remoting.json_body import JsonBody


class Sample(Header):
    name: str
    note: str | None = None
    small: i16 = 0
    number: i32
    large: i64 | None = None
    flag: bool = False
    maybe: bool | None = None
    ratio: float | None = None
    odd: i32 = field(wire="ODD_NAME", default=7)


class Answer(Header):
    offset: i64


class Payload(JsonBody):
    text: str


class AnswerWithBody(Header):
    data: Payload


MINIMAL = {"name": "n", "number": "1"}


@pytest.fixture
def declared() -> Iterator[Callable[..., Any]]:
    """Declares requests that are forgotten again after the test."""
    codes: list[int] = []

    def declare(name: str, base: Any, *, code: int, annotations: dict[str, Any], **keywords: Any) -> Any:
        codes.append(code)
        space = {"__annotations__": annotations, "__orig_bases__": (base,)}
        return type(base.__origin__)(name, (base.__origin__,), space, code=code, **keywords)

    yield declare
    for code in codes:
        REQUESTS.pop(code, None)


def test_a_minimal_header_takes_the_defaults() -> None:
    assert Sample.from_ext(MINIMAL) == Sample(name="n", number=1)
    assert Sample.from_ext(MINIMAL).odd == 7


def test_every_type_is_read() -> None:
    text = {"note": "é", "small": "-5", "large": "-9223372036854775808", "flag": "TRUE", "maybe": "no"}
    header = Sample.from_ext(MINIMAL | text | {"ratio": "0.5", "ODD_NAME": "+2"})
    assert header == Sample(
        name="n", number=1, note="é", small=-5, large=-(2**63), flag=True, maybe=False, ratio=0.5, odd=2
    )


def test_a_header_is_written_as_wire_text_without_none() -> None:
    header = Sample(name="n", number=-1, flag=True, large=2**40)
    expected = {
        "name": "n",
        "small": "0",
        "number": "-1",
        "large": "1099511627776",
        "flag": "true",
        "ODD_NAME": "7",
    }
    assert header.to_ext() == expected


def test_unknown_fields_are_ignored() -> None:
    assert Sample.from_ext(MINIMAL | {"queueid": "1"}) == Sample(name="n", number=1)


def test_a_missing_field_is_refused_with_the_official_remark() -> None:
    with pytest.raises(RequestError) as caught:
        Sample.from_ext({"name": "n"})
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert caught.value.remark == "the custom field <number> is null"


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        ("number", ""),
        ("number", "-"),
        ("number", "1_0"),
        ("number", " 1"),
        ("number", "1.0"),
        ("number", "0x1"),
        ("number", "2147483648"),
        ("number", "-2147483649"),
        ("number", "00000000002147483648"),
        ("small", "32768"),
        ("large", "9223372036854775808"),
        ("large", "++1"),
        ("ratio", "much"),
    ],
)
def test_text_java_would_not_read_is_refused_with_java_s_words(wire: str, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        Sample.from_ext(MINIMAL | {wire: text})
    assert caught.value.remark is not None
    assert caught.value.remark.startswith(f'java.lang.NumberFormatException: For input string: "{text}"')
    assert f"<{wire}>" in caught.value.remark


@pytest.mark.parametrize("text", ["2147483647", "-2147483648", "+5", "000000000000005", "٣"])
def test_text_java_would_read_is_read(text: str) -> None:
    assert Sample.from_ext(MINIMAL | {"number": text}).number == int(text)


def test_a_request_knows_its_code_name_and_reply(declared: Callable[..., Any]) -> None:
    kind = declared("LookAround", Request[Answer], code=-1, annotations={"far": i32})
    assert (kind.code, kind.NAME, kind.REPLY) == (-1, "LOOK_AROUND", Answer)
    command = kind(far=3).to_command(5, oneway=True, binary=True)
    assert (command.code, command.opaque, command.ext) == (-1, 5, {"far": "3"})
    assert command.is_oneway
    assert REQUESTS[-1] is kind
    assert command.binary


def test_one_code_cannot_be_declared_twice(declared: Callable[..., Any]) -> None:
    declared("First", Request[None], code=-2, annotations={})
    with pytest.raises(TypeError, match="-2 is declared twice: First, Second"):
        declared("Second", Request[None], code=-2, annotations={})
    assert REQUESTS[-2].__name__ == "First"


def test_requests_about_topics_have_the_routing_fields(declared: Callable[..., Any]) -> None:
    kind = declared("AboutTopic", TopicRequest[None], code=-3, annotations={"topic": str})
    request = kind.from_ext({"topic": "T", "bname": "broker-a", "lo": "true", "nsd": "false"})
    assert (request.bname, request.lo, request.nsd, request.ns) == ("broker-a", True, False, None)


def test_replies_and_refusals_are_distinguished(declared: Callable[..., Any]) -> None:
    request = declared("Ask", Request[Answer], code=-4, annotations={}, accept_codes=(19,))()
    assert request.read_reply(Command(0, ext={"offset": "8"})).offset == 8
    late = request.read_reply(Command(19, ext={"offset": "9"}, remark="later"))
    assert (late.code, late.remark, late.offset) == (19, "later", 9)
    with pytest.raises(RequestError) as caught:
        request.read_reply(Command(17, remark="no such topic"))
    assert (caught.value.code, caught.value.remark) == (17, "no such topic")
    with pytest.raises(RemotingClosed, match="the server stops: please go away"):
        request.read_reply(Command(1500, remark="please go away"))


def test_a_request_without_reply_gives_none(declared: Callable[..., Any]) -> None:
    assert declared("Order", Request[None], code=-5, annotations={})().read_reply(Command(0)) is None


def test_a_typed_body_is_read_and_written() -> None:
    reply = AnswerWithBody.from_command(Command(0, body=b'{"text":"x"}'))
    assert reply == AnswerWithBody(data=Payload(text="x"))
    assert reply.body == b""
    assert AnswerWithBody(data=Payload(text="y")).encode_body() == b'{"text":"y"}'
    assert AnswerWithBody(data=Payload(text="y"), body=b"raw").encode_body() == b"raw"


def test_a_required_body_that_is_absent_is_refused() -> None:
    with pytest.raises(RequestError, match="the body of AnswerWithBody is null"):
        AnswerWithBody.from_command(Command(0))


def test_a_plain_header_carries_any_body() -> None:
    reply = Header.from_command(Command(0, ext={"a": "b"}, body=b"text"))
    assert (reply.body, reply.to_ext(), reply.encode_body()) == (b"text", {}, b"text")


def test_handlers_are_registered_and_left_as_they_are(declared: Callable[..., Any]) -> None:
    kind = declared("Handled", Request[None], code=-6, annotations={})
    table: list[tuple[Any, Any]] = []

    class Routes:
        def register_typed(self, request: Any, function: Any) -> None:
            table.append((request, function))

    def handler() -> None: ...

    assert kind.on(Routes())(handler) is handler
    assert table == [(kind, handler)]


def test_a_header_field_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="a header field cannot be"):
        type("Wrong", (Header,), {"__annotations__": {"when": complex}})


def test_a_field_with_a_text_for_null_may_be_missing_in_what_arrives() -> None:
    class NullableRequest(Request[None], null_texts={"topic": "null"}):
        topic: str
        queue_id: i32

    parsed = NullableRequest.from_ext({"queueId": "1"})
    assert (parsed.topic, parsed.queue_id) == ("null", 1)
    with pytest.raises(RequestError, match="the custom field <queueId> is null"):
        NullableRequest.from_ext({})
