"""Typed JSON bodies: classes that read what fastjson reads and write what stock clients read.

`remoting.requests` declares which request carries which body; the JSON dialect itself lives in `codec.fastjson`.
"""

from collections.abc import Callable, Iterable
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

from codec import fastjson
from codec.constants import ResponseCode
from codec.java_numbers import JavaInteger
from remoting.errors import RequestError
from remoting.fields import Declared, Field

Convert = Callable[[Any], Any]


class JsonBody(Declared):
    """A JSON object with declared fields.

    Reading is tolerant as fastjson is: unknown keys are ignored, ``null`` and absent mean the default (the
    Java zero when a number or bool has none), numbers and booleans may come as text. Only an absent object
    or text without default is refused. Writing leaves out None, as fastjson leaves out null.
    """

    _PLAN: ClassVar[tuple[tuple[Field, Convert, Convert], ...]] = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls._PLAN = tuple((item, json_reader(item.type), json_writer(item.type)) for item in cls.FIELDS)

    @classmethod
    def from_json(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read a whole body. Raises RequestError(SYSTEM_ERROR) when it is not JSON or lacks a field."""
        try:
            value = fastjson.loads(bytes(data))
        except ValueError as error:
            raise _refuse(f"the body is not JSON of a {cls.__name__}: {error}") from error
        return cls.from_value(value)

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Read one JSON object that is already a dict."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise _refuse(f"expected a JSON object for {cls.__name__}, not {type(value).__name__}")
        self = cls.__new__(cls)
        for item, read, _ in cls._PLAN:
            given = value.get(item.wire)
            setattr(self, item.name, _absent(cls, item) if given is None else _read(cls, item, read, given))
        return self

    def to_value(self) -> dict[str, Any]:
        """Return the JSON object as a dict, without the fields that are None."""
        out: dict[str, Any] = {}
        for item, _, write in self._PLAN:
            value = getattr(self, item.name)
            if value is not None:
                out[item.wire] = write(value)
        return out

    def to_json(self, *, standard: bool = False) -> bytes:
        """Encode the body in RocketMQ's dialect, or with text keys only when ``standard``."""
        value = self.to_value()
        return fastjson.dumps_standard(value) if standard else fastjson.dumps(value)


class JsonKeyBody(JsonBody):
    """A body that serves as a key of JSON objects (``{{"topic":…}:…}``); never change one that is in use as a key."""

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, item.name) for item in self.FIELDS))

    def to_json_key(self) -> dict[str, Any]:
        return self.to_value()


AnyBody = TypeVar("AnyBody", bound=JsonBody)


def read_json_list(kind: type[AnyBody], data: bytes | bytearray | memoryview) -> list[AnyBody]:
    """Decode a body that is a JSON array of objects. Raises RequestError(SYSTEM_ERROR) like `JsonBody.from_json`."""
    try:
        values = fastjson.loads(bytes(data))
    except ValueError as error:
        raise _refuse(f"the body is not JSON: {error}") from error
    if not isinstance(values, list):
        raise _refuse(f"expected a JSON array of {kind.__name__}, not {type(values).__name__}")
    return [kind.from_value(value) for value in values]


def write_json_list(items: Iterable[JsonBody]) -> bytes:
    """Encode a body that is a JSON array of objects."""
    return fastjson.dumps([item.to_value() for item in items])


def _refuse(remark: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)


def _absent(cls: type, item: Field) -> Any:
    if item.factory is not None:
        return item.factory()
    if not item.required:
        return item.default
    kind = get_origin(item.type) or item.type
    if kind is Annotated:
        return 0
    if kind in (bool, int, float, list, dict):
        return kind()
    raise _refuse(f"the field <{item.wire}> of the body {cls.__name__} is null")


def _read(cls: type, item: Field, read: Convert, value: Any) -> Any:
    try:
        return read(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise _refuse(f"the field <{item.wire}> of the body {cls.__name__}: {error}") from error


def _split(kind: Any) -> tuple[Any, Any]:
    """Return a type's origin and arguments without its Optional; (Annotated, limits) for a Java integer."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        (inner,) = [argument for argument in get_args(kind) if argument is not NoneType]
        return _split(inner)
    if origin is Annotated:
        return Annotated, kind.__metadata__[0]
    return origin or kind, get_args(kind)


def json_reader(kind: Any) -> Convert:
    """Return the function that converts a JSON value to a declared type. It raises ValueError or TypeError."""
    origin, arguments = _split(kind)
    if origin is Annotated:
        return _integer_reader(arguments)
    if origin in (list, set):
        return _list_reader(json_reader(arguments[0]))
    if origin is dict:
        return _dict_reader(_key_reader(arguments[0]), json_reader(arguments[1]))
    if origin is Literal:
        return _text
    if isinstance(origin, type) and issubclass(origin, JsonBody):
        return origin.from_value
    simple: dict[Any, Convert] = {
        str: _text,
        bool: _boolean,
        float: float,
        int: _whole,
        Any: lambda value: value,
    }
    return simple[origin]


def json_writer(kind: Any) -> Convert:
    """Return the function that converts a declared type to a JSON value."""
    origin, arguments = _split(kind)
    if origin is list:
        write = json_writer(arguments[0])
        return lambda value: [write(element) for element in value]
    if origin is dict:
        write = json_writer(arguments[1])
        return lambda value: {key: write(element) for key, element in value.items()}
    if isinstance(origin, type) and issubclass(origin, JsonBody):
        return lambda value: value.to_value()
    return lambda value: value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return fastjson.dumps(value).decode()


def _boolean(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in ("true", "1")
    return bool(value)


def _whole(value: Any) -> int:
    if isinstance(value, str):
        return int(value) if value not in ("", "null") else 0
    return int(value)


_SIMPLE_READERS: dict[Any, Convert] = {
    str: _text,
    bool: _boolean,
    float: float,
    int: _whole,
    Any: lambda value: value,
}


def _integer_reader(limits: JavaInteger) -> Convert:
    low, high = limits

    def read(value: Any) -> int:
        number = _whole(value)
        if not low <= number <= high:
            raise ValueError(f"{number} is outside {low} to {high}")
        return number

    return read


def _list_reader(read: Convert) -> Convert:
    def read_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise TypeError(f"expected a JSON array, not {type(value).__name__}")
        return [None if element is None else read(element) for element in value]

    return read_list


def _dict_reader(read_key: Convert, read: Convert) -> Convert:
    def read_dict(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise TypeError(f"expected a JSON object, not {type(value).__name__}")
        return {read_key(key): None if element is None else read(element) for key, element in value.items()}

    return read_dict


def _key_reader(kind: Any) -> Convert:
    origin, _ = _split(kind)
    if isinstance(origin, type) and issubclass(origin, JsonBody):
        return _object_key_reader(origin)
    return json_reader(kind)


def _object_key_reader(kind: type[JsonBody]) -> Convert:
    """Return a reader of object keys: objects of the dialect, or JSON text when the JSON is standard."""

    def read_key(key: Any) -> JsonBody:
        if isinstance(key, fastjson.ObjectKey):
            return kind.from_value(key.fields)
        return kind.from_json(str(key).encode())

    return read_key
