"""Declares requests: one class has the code, the header fields, the body and the reply, as plain annotations.

    class GetMaxOffsetReply(Header):
        offset: i64

    class GetMaxOffset(TopicRequest[GetMaxOffsetReply], code=30):
        topic: str
        queue_id: i32

    @GetMaxOffset.on(handlers)
    def get_max_offset(broker: Broker, request: GetMaxOffset) -> GetMaxOffsetReply: ...

Theory of operation
-------------------
A subclass of `Header` collects its annotated fields when it is defined
(`remoting.fields.Declared`). Each field has a Python name, a wire name (camelCase unless `field` gives another), a
type and a default. A field named ``data`` is the typed JSON body; ``body``, ``code`` and ``remark`` are not header
fields.

Parsing and printing a header is on the path of every request, so both are compiled: for each class one function with
straight-line code is generated (`_parser_of`, `_printer_of`) and replaces a stub when it is first called. Start-up
therefore compiles nothing, and a process only pays for the requests it sees.

A subclass of `Request` with ``code=`` registers itself in `REQUESTS`; a code can be declared only once. The reply
class is the type argument: ``Request[SomeReply]`` or ``Request[None]``.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    NoReturn,
    Protocol,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from codec.command import Command
from codec.constants import ResponseCode
from codec.fastjson import MAX_TRUSTED_VALUES, MAX_VALUES
from codec.java_numbers import I64, JavaInteger, JavaNumberError, parse_java_float, parse_java_integer
from remoting.errors import RemotingClosed, RequestError
from remoting.fields import MISSING, Declared, Field, compile_function, field, i16, i32, i64
from remoting.json_body import JsonBody

__all__ = [
    "NOT_SERVED",
    "REQUESTS",
    "Header",
    "JsonBody",
    "Request",
    "RpcRequest",
    "TopicRequest",
    "declare_not_served",
    "field",
    "i16",
    "i32",
    "i64",
    "parse_integer",
]

Function = TypeVar("Function", bound=Callable[..., Any])


_NOT_EXT = frozenset(("body", "code", "remark", "data"))


def _reply_type(cls: type[Any]) -> type["Header"] | None:
    for base in getattr(cls, "__orig_bases__", ()):  # its own, or those of a base whose fields it shares
        for argument in get_args(base):
            if not isinstance(argument, TypeVar):
                return None if argument is NoneType else cast("type[Header]", argument)
    raise TypeError(f"{cls.__name__} does not declare its reply: Request[SomeReply] or Request[None]")


def without_optional(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) not in (Union, UnionType):
        return kind, False
    (inner,) = [argument for argument in get_args(kind) if argument is not NoneType]
    return inner, True


def _body_type(cls: type["Header"]) -> tuple[type[JsonBody] | None, bool]:
    for item in cls.FIELDS:
        if item.name == "data":
            kind, optional = without_optional(item.type)
            return kind, optional
    return None, True


def _read_body(cls: type["Header"], body: bytes | memoryview, max_values: int) -> JsonBody | None:
    assert cls.BODY is not None
    if body:
        return cls.BODY.from_json(body, max_values)
    if cls.BODY_OPTIONAL:
        return None
    raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body of {cls.__name__} is null")


def missing_field(wire: str) -> NoReturn:
    raise RequestError(ResponseCode.SYSTEM_ERROR, f"the custom field <{wire}> is null")


def parse_integer(text: str, wire: str, limits: JavaInteger = I64) -> int:
    """Parse an integer as Integer.parseInt and Long.parseLong do: sign, digits, nothing else, within range.

    Raises RequestError(SYSTEM_ERROR) with Java's text and the name of the field.
    """
    try:
        return parse_java_integer(text, limits)
    except JavaNumberError as error:
        raise _not_a_number(error, wire) from None


def _not_a_number(error: JavaNumberError, wire: str) -> RequestError:
    remark = f"java.lang.NumberFormatException: {error}, the custom field <{wire}>"
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)


def _parse_float(text: str, wire: str) -> float:
    try:
        return parse_java_float(text)
    except JavaNumberError as error:
        raise _not_a_number(error, wire) from None


def _check_type(item: Field) -> None:
    kind, _ = without_optional(item.type)
    if kind not in (str, bool, float) and get_origin(kind) is not Annotated:
        raise TypeError(f"{item.name}: a header field cannot be {kind}")


def _parse_expression(kind: Any, item: Field, names: dict[str, Any]) -> str:
    """Return the expression that converts the text ``v``; what it needs is added to ``names``."""
    if kind is str:
        return "v"
    if kind is bool:
        return "v.lower() == 'true'"
    if kind is float:
        return f"parse_float(v, {item.wire!r})"
    return integer_expression(item, kind.__metadata__[0], names)


def integer_expression(item: Field, limits: JavaInteger, names: dict[str, Any]) -> str:
    """Return the expression that converts the text ``v`` of a number; what it needs is added to ``names``.

    Few digits skip the careful function, `parse_integer`, which ``names`` must hold.
    """
    names[f"limits_{item.name}"] = limits
    safe_digits = len(str(limits.high)) - 1
    careful = f"parse_integer(v, {item.wire!r}, limits_{item.name})"
    return f"int(v) if len(v) <= {safe_digits} and v.isdecimal() else {careful}"


def _parser_of(cls: type["Header"]) -> Callable[..., Any]:
    names: dict[str, Any] = {
        "new": object.__new__,
        "missing": missing_field,
        "parse_integer": parse_integer,
        "parse_float": _parse_float,
    }
    lines = ["def from_ext(cls, ext):", "    self = new(cls)", "    get = ext.get"]
    for item in cls.WIRE_FIELDS:
        kind, _ = without_optional(item.type)
        names[f"default_{item.name}"] = item.default
        if item.wire in cls.NULL_TEXTS:
            absent = repr(cls.NULL_TEXTS[item.wire])
        else:
            absent = f"missing({item.wire!r})" if item.default is MISSING else f"default_{item.name}"
        lines.append(f"    v = get({item.wire!r})")
        lines.append(
            f"    self.{item.name} = {absent} if v is None else {_parse_expression(kind, item, names)}"
        )
    return compile_function("from_ext", [*lines, "    return self"], names)


def _late_parser(declared: type[Any]) -> Callable[..., Any]:
    """Return a parser that compiles the real one when it is first called, so that start-up compiles none."""

    def from_ext(cls: type[Any], ext: Mapping[str, str]) -> Any:
        declared.from_ext = classmethod(_parser_of(declared))
        return declared.from_ext(ext)

    return from_ext


def _late_printer(declared: type[Any]) -> Callable[..., dict[str, str]]:
    """Return a printer that compiles the real one when it is first called."""

    def to_ext(self: Any) -> dict[str, str]:
        declared.to_ext = _printer_of(declared)
        printed: dict[str, str] = declared.to_ext(self)
        return printed

    return to_ext


def _print_expression(kind: Any) -> str:
    if kind is str:
        return "v"
    return "'true' if v else 'false'" if kind is bool else "str(v)"


def _printer_of(cls: type["Header"]) -> Callable[..., Any]:
    lines = ["def to_ext(self):", "    ext = {}"]
    for item in cls.WIRE_FIELDS:
        kind, optional = without_optional(item.type)
        lines.append(f"    v = self.{item.name}")
        condition = "if v is not None: " if optional else ""
        lines.append(f"    {condition}ext[{item.wire!r}] = {_print_expression(kind)}")
    return compile_function("to_ext", [*lines, "    return ext"], {})


class Header(Declared):
    """The declared fields of one command, with its body.

    ``code`` is the response code of a reply (0 is success) or the request code of a request. ``body`` holds the bytes
    of a body without declared type; a typed one is in the subclass's ``data`` instead. Header fields that are not
    declared are dropped: the Command still has them.
    """

    body: bytes = b""
    code: int = 0
    remark: str | None = None

    BODY: ClassVar[type[JsonBody] | None] = None
    BODY_OPTIONAL: ClassVar[bool] = True
    WIRE_FIELDS: ClassVar[tuple[Field, ...]] = ()
    NULL_TEXTS: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Texts that stand for missing fields, by wire name. For these fields the official server answers as if a name did
    not exist, and its remark prints the text."""

    def __init_subclass__(cls, *, null_texts: Mapping[str, str] | None = None, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if null_texts is not None:
            cls.NULL_TEXTS = MappingProxyType(dict(null_texts))
        cls.WIRE_FIELDS = tuple(item for item in cls.FIELDS if item.name not in _NOT_EXT)
        for item in cls.WIRE_FIELDS:
            _check_type(item)
        cls.BODY, cls.BODY_OPTIONAL = _body_type(cls)
        cls.from_ext = classmethod(_late_parser(cls))  # type: ignore[assignment, method-assign]
        cls.to_ext = _late_printer(cls)  # type: ignore[method-assign]

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Parse the header from ``ext``; unknown keys are ignored.

        Raises RequestError(SYSTEM_ERROR) for a required field that is missing and for text that is not a number, or
        is out of its Java range.

        Source: RemotingCommand.decodeCommandCustomHeader, 5.4.0: the remark about a missing field.
        Deviation: where `NULL_TEXTS` has no text for it, the official server only logs it, continues with null or 0,
        and then answers with a NullPointerException or acts on queue 0; here the answer names the field.
        """
        return cls()

    def to_ext(self) -> dict[str, str]:
        """Return the header as wire text, None left out. Source: RemotingCommand.makeCustomHeaderToNet, 5.4.0."""
        return {}

    @classmethod
    def from_command(cls, command: Command, max_json_values: int = MAX_VALUES) -> Self:
        """Parse header and body of a command that arrived; ``max_json_values`` limits a JSON body.

        Raises RequestError as `from_ext` and `from_json` do.
        """
        self = cls.from_ext(command.ext)
        if cls.BODY is not None:
            self.data = _read_body(cls, command.body, max_json_values)  # type: ignore[attr-defined]
        elif command.body:
            self.body = bytes(command.body)
        return self

    def encode_body(self) -> bytes:
        """Return the bytes of the body: ``body`` when set, else ``data`` as JSON, else none."""
        if self.body or self.BODY is None:
            return self.body
        data: JsonBody | None = getattr(self, "data", None)
        return data.to_json() if data is not None else b""


Reply = TypeVar("Reply", bound=Header | None, covariant=True)


class HandlerRegistry(Protocol):
    """The table that `Request.on` registers a handler with."""

    def register_typed(self, request: type[Any], fn: Callable[..., Any], /) -> Any: ...


class Request(Header, Generic[Reply]):
    """A request.

    Class keywords: ``code``; ``name``, the official constant when it is not the class name in capitals;
    ``accept_codes``, response codes besides 0 that yield a reply instead of a RequestError.
    """

    NAME: ClassVar[str] = ""
    REPLY: ClassVar[type[Header] | None] = None
    ACCEPT_CODES: ClassVar[frozenset[int]] = frozenset((0,))
    _UNSET_BY_INIT: ClassVar[frozenset[str]] = frozenset(("code", "remark"))

    def __init_subclass__(
        cls, *, code: int | None = None, name: str = "", accept_codes: tuple[int, ...] = (), **keywords: Any
    ) -> None:
        super().__init_subclass__(**keywords)
        if code is None:
            return
        cls.code = code
        cls.NAME = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).upper()
        cls.REPLY = _reply_type(cls)
        cls.ACCEPT_CODES = frozenset((0, *accept_codes))
        if code in REQUESTS:
            raise TypeError(
                f"request code {code} is declared twice: {REQUESTS[code].__name__}, {cls.__name__}"
            )
        REQUESTS[code] = cls

    @classmethod
    def on(cls, handlers: HandlerRegistry) -> Callable[[Function], Function]:
        """Decorate a function as the handler of this request. It is returned unchanged."""

        def register(function: Function) -> Function:
            handlers.register_typed(cls, function)
            return function

        return register

    def to_command(self, opaque: int = 0, *, oneway: bool = False, binary: bool = False) -> Command:
        """Build the command that carries this request."""
        return Command(
            self.code, opaque, _ONEWAY if oneway else 0, self.to_ext(), self.encode_body(), binary=binary
        )

    def read_reply(self, command: Command, max_json_values: int = MAX_TRUSTED_VALUES) -> Reply:
        """Parse the typed reply of an answer, by default of a server that is trusted with large tables.

        Raises RequestError unless its code is 0 or in ``accept_codes``; RemotingClosed for the code of a server that
        stops, which asks its clients to connect again.
        """
        if command.code == ResponseCode.GO_AWAY:
            raise RemotingClosed(f"the server stops: {command.remark}")
        if command.code not in self.ACCEPT_CODES:
            raise RequestError(command.code, command.remark)
        if self.REPLY is None:
            return cast(Reply, None)
        reply = self.REPLY.from_command(command, max_json_values)
        reply.code, reply.remark = command.code, command.remark
        return cast(Reply, reply)


_ONEWAY = 2


class RpcRequest(Request[Reply]):
    """A request with the fields of the official RpcRequestHeader, which a proxy fills in to forward it."""

    ns: str | None = None
    nsd: bool | None = None
    bname: str | None = None
    oway: bool | None = None


class TopicRequest(RpcRequest[Reply]):
    """A request about one topic (official TopicRequestHeader). ``lo`` is true for a queue of a static topic."""

    lo: bool | None = None


REQUESTS: dict[int, type[Request[Any]]] = {}
"""Every declared request by code; importing ``remoting.requests`` fills it."""


class NotServed(NamedTuple):
    """An official request that has no declaration: its constant, and the reason."""

    name: str
    reason: str


NOT_SERVED: dict[int, NotServed] = {}
"""Official requests without a declaration by code; servers refuse them as codes that they do not know."""


def declare_not_served(reason: str, names: Mapping[int, str]) -> None:
    """Record the reason why official requests have no declaration; ``names`` are their constants by code."""
    for code, name in names.items():
        NOT_SERVED[code] = NotServed(name, reason)
