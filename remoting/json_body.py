"""Typed JSON bodies: classes that read what fastjson reads and write what stock clients read.

Reading is compiled: for each class one function with straight-line code is generated when it is first called
(`_reader_of`), because heartbeats and tables are lists of objects, and looping over the declared fields took twice as
long. Where a value does not fit, a slow pass over the same fields (`_explain`) names the field.

`remoting.requests` declares which request carries which body; the JSON dialect itself lives in `codec.fastjson`.
"""

import math
from collections.abc import Callable, Iterable
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar, Union, get_args, get_origin

from codec import fastjson
from codec.constants import ResponseCode
from codec.errors import JsonSizeError
from codec.fastjson import MAX_VALUES
from codec.java_numbers import JavaInteger, parse_java_float, parse_java_integer, read_json_integer
from remoting.errors import RequestError
from remoting.fields import Declared, Field, compile_function

Convert = Callable[[Any], Any]

MAX_KEY_CHARS: Final = 4096
"""Longest text of a map key that holds an object as JSON, such as a queue."""
_MAX_KEY_VALUES: Final = 100
_ZEROS: Final = {Annotated: "0", bool: "False", float: "0.0", list: "[]", dict: "{}"}
"""The expression that stands for null, as Java's zero does, by type; the other types have none."""


class JsonBody(Declared):
    """A JSON object with declared fields.

    Reading is as tolerant as fastjson: unknown keys are ignored; a ``null`` or absent value means the default, or for a
    number or bool without one Java's zero; numbers and booleans may come as text. Refused are an absent object or text
    without default, ``null`` within an array or map unless its type is optional, numbers beyond the declared Java type,
    and arrays or objects where a number or bool is declared. Writing leaves out None, as fastjson leaves out null.
    """

    _PLAN: ClassVar[tuple[tuple[Field, Convert, Convert], ...]] = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls._PLAN = tuple((item, json_reader(item.type), json_writer(item.type)) for item in cls.FIELDS)
        # The base class's reader may be compiled already, for the fields of that class.
        cls.from_value = JsonBody.__dict__["from_value"]  # type: ignore[method-assign]

    @classmethod
    def from_json(cls, data: bytes | bytearray | memoryview, max_values: int = MAX_VALUES) -> Self:
        """Read a whole body of at most ``max_values`` JSON values.

        Raises RequestError(SYSTEM_ERROR) when it is not JSON, too large, or lacks a field.
        """
        return cls.from_value(_load(data, max_values, cls))

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Read one JSON object that is already a dict. Replaced by the compiled reader when it is first called."""
        cls.from_value = classmethod(_reader_of(cls))  # type: ignore[assignment, method-assign]
        return cls.from_value(value)

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


def read_json_list(
    kind: type[AnyBody], data: bytes | bytearray | memoryview, max_values: int = MAX_VALUES
) -> list[AnyBody]:
    """Decode a body that is a JSON array of objects. Raises RequestError(SYSTEM_ERROR) like `JsonBody.from_json`."""
    values = _load(data, max_values, kind)
    if not isinstance(values, list):
        raise _refuse(f"expected a JSON array of {kind.__name__}, not {type(values).__name__}")
    return [kind.from_value(value) for value in values]


def write_json_list(items: Iterable[JsonBody]) -> bytes:
    """Encode a body that is a JSON array of objects."""
    return fastjson.dumps([item.to_value() for item in items])


def _refuse(remark: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)


def _load(data: bytes | bytearray | memoryview, max_values: int, kind: type[JsonBody]) -> Any:
    try:
        return fastjson.loads(bytes(data), max_values)
    except JsonSizeError as error:
        raise _refuse(
            f"the body of a {kind.__name__} has {error}: send less, or raise maxJsonValues"
        ) from error
    except ValueError as error:
        raise _refuse(f"the body is not JSON of a {kind.__name__}: {error}") from error


# -- compiled readers ---------------------------------------------------------------------------------------------


def _reader_of(cls: type[JsonBody]) -> Convert:
    names: dict[str, Any] = {"new": object.__new__, "not_object": _not_object, "explain": _explain}
    lines = [
        "def from_value(cls, value):",
        "    if type(value) is not dict:",
        "        return not_object(cls, value)",
        "    self, get = new(cls), value.get",
        "    try:",
        "        pass",
    ]
    for item, read, _ in cls._PLAN:
        names[f"read_{item.name}"] = read
        absent = _absent_expression(item, names)
        lines.append(f"        v = get({item.wire!r})")
        lines.append(f"        self.{item.name} = {absent} if v is None else {_fast_expression(item)}")
    lines += [
        "    except ValueError:",
        "        explain(cls, value)",
        "        raise",
        "    return self",
    ]
    return compile_function("from_value", lines, names)


def _not_object(cls: type[JsonBody], value: Any) -> JsonBody:
    if isinstance(value, cls):
        return value
    raise _refuse(f"expected a JSON object for {cls.__name__}, not {type(value).__name__}")


def _fast_expression(item: Field) -> str:
    """Return the expression that converts ``v``; a value of the declared type skips the careful function."""
    kind, arguments, _ = _split(item.type)
    if kind in (str, bool):
        return f"v if type(v) is {kind.__name__} else read_{item.name}(v)"
    if kind is Annotated:
        return f"v if type(v) is int and {arguments.low} <= v <= {arguments.high} else read_{item.name}(v)"
    return f"read_{item.name}(v)"


def _absent_expression(item: Field, names: dict[str, Any]) -> str:
    if item.factory is not None:
        names[f"make_{item.name}"] = item.factory
        return f"make_{item.name}()"
    if not item.required:
        names[f"default_{item.name}"] = item.default
        return f"default_{item.name}"
    return "explain(cls, value)" if _must_be_present(item) else _ZEROS[_split(item.type)[0]]


def _must_be_present(item: Field) -> bool:
    """Return True for a field that has neither a default nor a value that stands for null."""
    return item.required and item.factory is None and _split(item.type)[0] not in _ZEROS


def _explain(cls: type[JsonBody], value: dict[Any, Any]) -> None:
    """Raise the RequestError that names the field of an object which cannot be read."""
    for item, read, _ in cls._PLAN:
        field_value = value.get(item.wire)
        if field_value is None:
            if _must_be_present(item):
                raise _refuse(f"the field <{item.wire}> of the body {cls.__name__} is null")
            continue
        try:
            read(field_value)
        except ValueError as error:
            raise _refuse(f"the field <{item.wire}> of the body {cls.__name__}: {error}") from error


# -- values of one type ---------------------------------------------------------------------------------------------


def _split(kind: Any) -> tuple[Any, Any, bool]:
    """Return a type's origin, its arguments and whether it is optional; a Java integer is (Annotated, limits, …)."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        (inner,) = [argument for argument in get_args(kind) if argument is not NoneType]
        return *_split(inner)[:2], True
    if origin is Annotated:
        return Annotated, kind.__metadata__[0], False
    return origin or kind, get_args(kind), False


def json_reader(kind: Any) -> Convert:
    """Return the function that converts a JSON value to a declared type.

    It raises ValueError for a value that does not fit, and RequestError for one within an object.
    """
    origin, arguments, _ = _split(kind)
    if origin is Annotated:
        return _integer_reader(arguments)
    if origin is list:
        return _list_reader(_element_reader(arguments[0]))
    if origin is dict:
        return _dict_reader(_key_reader(arguments[0]), _element_reader(arguments[1]))
    if isinstance(origin, type) and issubclass(origin, JsonBody):
        return lambda value: origin.from_value(value)  # Looked up late, because it is compiled late.
    simple: dict[Any, Convert] = {str: _text, bool: _boolean, float: _fraction, Any: lambda value: value}
    if origin not in simple:
        raise TypeError(f"a JSON body cannot have a field of {kind}; integers are i16, i32 or i64")
    return simple[origin]


def _element_reader(kind: Any) -> Convert:
    """Return the reader of the elements of an array or the values of a map; readers refuse null by themselves."""
    read, (_, _, optional) = json_reader(kind), _split(kind)
    return (lambda value: None if value is None else read(value)) if optional else read


def json_writer(kind: Any) -> Convert:
    """Return the function that converts a declared type to a JSON value."""
    origin, arguments, _ = _split(kind)
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
    """Return text, and anything else as its JSON: fastjson reads numbers and whole objects into String fields."""
    if isinstance(value, str):
        return value
    if value is None:
        raise ValueError("expected a text, not null")
    return fastjson.dumps(value).decode()


def _described(value: Any) -> str:
    return repr(value) if isinstance(value, int | float) else type(value).__name__


def _boolean(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in ("true", "1")
    if not isinstance(value, int | float):
        raise ValueError(f"expected true or false, not {type(value).__name__}")
    return bool(value)


def _whole(value: Any) -> int:
    """Return a whole number: fractions are cut off, and text without a number is 0, as for fastjson."""
    if isinstance(value, str):
        return parse_java_integer(value) if value not in ("", "null") else 0
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a number, not {_described(value)}")
    return math.trunc(value)


def _fraction(value: Any) -> float:
    if isinstance(value, str):
        return parse_java_float(value)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a finite number, not {_described(value)}")
    return float(value)


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
            raise ValueError(f"expected a JSON array, not {type(value).__name__}")
        return [read(element) for element in value]

    return read_list


def _dict_reader(read_key: Convert, read: Convert) -> Convert:
    def read_dict(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"expected a JSON object, not {type(value).__name__}")
        return {read_key(key): read(element) for key, element in value.items()}

    return read_dict


def _key_reader(kind: Any) -> Convert:
    origin, arguments, _ = _split(kind)
    if isinstance(origin, type) and issubclass(origin, JsonBody):
        return _object_key_reader(origin)
    if origin is Annotated:
        return lambda key: read_json_integer(key, arguments)
    return json_reader(kind)


def _object_key_reader(kind: type[JsonBody]) -> Convert:
    """Return a reader of object keys: objects of the dialect, or JSON text when the JSON is standard."""

    def read_key(key: Any) -> JsonBody:
        if isinstance(key, fastjson.ObjectKey):
            return kind.from_value(key.fields)
        if not isinstance(key, str):
            return kind.from_value(key)  # Refuses it by name.
        if len(key) > MAX_KEY_CHARS:
            raise ValueError(f"a key of {len(key)} characters")
        return kind.from_json(key.encode("utf-8", "replace"), _MAX_KEY_VALUES)

    return read_key
