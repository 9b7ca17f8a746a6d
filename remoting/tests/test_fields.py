"""Tests of constructor, equality and repr made from annotations; wire forms are tested elsewhere."""

from typing import ClassVar

import pytest

from remoting.fields import Declared, camel_case, field, i32


class Base(Declared):
    KIND: ClassVar[str] = "base"
    name: str


class Derived(Base):
    items: list[str] = field(factory=list)
    count: i32 = 3
    odd: str | None = field(wire="ODD_one", default=None)


@pytest.mark.parametrize(
    ("name", "wire"),
    [("queue_id", "queueId"), ("topic", "topic"), ("is_support_v2", "isSupportV2"), ("a_b_c", "aBC")],
)
def test_wire_names_are_camel_case(name: str, wire: str) -> None:
    assert camel_case(name) == wire


def test_fields_are_inherited_in_order_and_class_variables_are_none() -> None:
    assert [item.name for item in Derived.FIELDS] == ["name", "items", "count", "odd"]
    assert Derived.FIELDS[3].wire == "ODD_one"


def test_defaults_of_factories_are_not_shared() -> None:
    one, two = Derived(name="a"), Derived(name="a")
    one.items.append("x")
    assert two.items == []
    assert one != two


def test_required_and_unknown_names_are_refused() -> None:
    with pytest.raises(TypeError, match="name"):
        Derived()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="colour"):
        Derived(name="a", colour=1)  # type: ignore[call-arg]


def test_equality_is_by_value_within_one_class() -> None:
    assert Derived(name="a", count=4) == Derived(name="a", count=4)
    assert Derived(name="a") != Derived(name="b")
    assert Base(name="a") != Derived(name="a")


def test_repr_shows_what_differs_from_the_defaults() -> None:
    assert repr(Derived(name="a", odd="x")) == "Derived(name='a', items=[], odd='x')"


def test_annotations_as_text_are_refused() -> None:
    with pytest.raises(TypeError, match="write the type itself"):
        type("Wrong", (Declared,), {"__annotations__": {"name": "str"}})


def test_defaults_can_be_read_on_the_class_and_required_fields_cannot() -> None:
    assert Derived.count == 3
    assert not hasattr(Derived, "name")
    assert not hasattr(Derived, "items")
