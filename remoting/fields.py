"""Fields declared by plain annotations, and the keyword constructor made from them.

`Declared` is the common base of headers and bodies.
"""

import re
from collections.abc import Callable
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, TypeVar, dataclass_transform, get_origin

from codec.java_numbers import I16, I32, I64

T = TypeVar("T")

i16: TypeAlias = Annotated[int, I16]
i32: TypeAlias = Annotated[int, I32]
i64: TypeAlias = Annotated[int, I64]

MISSING: Any = object()
"""Stands for "no default": the field is required."""


class FieldOptions(NamedTuple):
    wire: str | None
    default: Any
    factory: Callable[[], Any] | None


def field(*, wire: str | None = None, default: T = MISSING, factory: Callable[[], T] | None = None) -> T:
    """Declare a field with a wire name other than the camelCase of its name, or with a default factory."""
    options: Any = FieldOptions(wire, default, factory)
    return options  # type: ignore[no-any-return]


class Field(NamedTuple):
    """One declared field. ``default`` is MISSING when the field is required or made by ``factory``."""

    name: str
    wire: str
    type: Any
    default: Any
    factory: Callable[[], Any] | None

    @property
    def required(self) -> bool:
        return self.default is MISSING and self.factory is None


def camel_case(name: str) -> str:
    """Convert ``queue_id`` to Java's ``queueId``."""
    return re.sub(r"_([a-z0-9])", lambda match: match.group(1).upper(), name)


def _field(cls: type, name: str, annotation: Any) -> Field:
    if isinstance(annotation, str):
        raise TypeError(f"{cls.__name__}.{name}: write the type itself, not a string")
    class_value = cls.__dict__.get(name, MISSING)
    options = class_value if isinstance(class_value, FieldOptions) else FieldOptions(None, class_value, None)
    wire = options.wire if options.wire is not None else camel_case(name)
    return Field(name, wire, annotation, options.default, options.factory)


def _is_class_variable(annotation: Any) -> bool:
    origin: Any = get_origin(annotation)
    return origin is ClassVar


def own_fields(cls: type) -> list[Field]:
    """Return the fields annotated in the body of ``cls`` itself, class variables left out."""
    annotations = get_annotations(cls)
    return [
        _field(cls, name, annotation)
        for name, annotation in annotations.items()
        if not name.startswith("_") and not _is_class_variable(annotation)
    ]


def compile_function(name: str, source: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    """Compile and return the function ``name`` of ``source``, with ``names`` in scope. Done once per class."""
    scope = dict(names)
    exec("\n".join(source), scope)
    function: Callable[..., Any] = scope[name]
    return function


def _init_of(fields: list[Field]) -> Callable[..., None]:
    names: dict[str, Any] = {"MISSING": MISSING}
    parameters, lines = [], []
    for item in fields:
        names[f"default_{item.name}"], names[f"make_{item.name}"] = item.default, item.factory
        default = "MISSING" if item.factory else f"default_{item.name}"
        parameters.append(item.name if item.required else f"{item.name}={default}")
        value = (
            f"make_{item.name}() if {item.name} is MISSING else {item.name}" if item.factory else item.name
        )
        lines.append(f"    self.{item.name} = {value}")
    head = f"def __init__(self, *, {', '.join(parameters)}):" if parameters else "def __init__(self):"
    return compile_function("__init__", [head, *(lines or ["    pass"])], names)


def _late_init(cls: type[Any], fields: list[Field]) -> Callable[..., None]:
    """Return a constructor that compiles the real one at its first call: most classes are never instantiated."""

    def __init__(self: Any, **values: Any) -> None:
        cls.__init__ = _init_of(fields)
        cls.__init__(self, **values)

    return __init__


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Declared:
    """Base of everything declared by annotations: keyword constructor, equality by value, readable repr."""

    FIELDS: ClassVar[tuple[Field, ...]] = ()
    _UNSET_BY_INIT: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        merged: dict[str, Field] = {}
        for base in reversed(cls.__mro__[1:]):
            merged.update((item.name, item) for item in base.__dict__.get("_OWN_FIELDS", ()))
        own = own_fields(cls)
        merged.update((item.name, item) for item in own)
        cls._OWN_FIELDS = tuple(own)  # type: ignore[attr-defined]
        cls.FIELDS = tuple(merged.values())
        for item in own:
            _leave_default(cls, item)
        init_fields = [item for item in cls.FIELDS if item.name not in cls._UNSET_BY_INIT]
        cls.__init__ = _late_init(cls, init_fields)  # type: ignore[method-assign]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, item.name) == getattr(other, item.name) for item in self.FIELDS)

    def __repr__(self) -> str:
        shown = (f"{item.name}={getattr(self, item.name)!r}" for item in self.FIELDS if self._is_shown(item))
        return f"{type(self).__name__}({', '.join(shown)})"

    def _is_shown(self, item: Field) -> bool:
        return item.required or getattr(self, item.name) not in (item.default, None)


def _leave_default(cls: type, item: Field) -> None:
    """Leave plain defaults readable on the class, and remove the options of required fields and factories."""
    if item.default is not MISSING:
        setattr(cls, item.name, item.default)
    elif item.name in cls.__dict__:
        delattr(cls, item.name)
