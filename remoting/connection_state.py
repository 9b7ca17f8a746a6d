"""Typed places for what the parts of a server store about a peer, in `Connection.state`.

A part declares its slot once, as a constant, and only code that imports the constant can read the value::

    HOST_VIEW: Final = StateSlot[HostView]("host view")
    view = connection.state.get(HOST_VIEW)  # HostView | None

At run time the state of a connection is a plain dict whose keys are the slots, so a look-up costs what it costs there.
"""

from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class StateSlot(Generic[T]):
    """The place of one value, of type T; two slots are never the same, whatever their names."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<StateSlot {self._name}>"


class ConnectionState(Protocol):
    """The values of one connection by slot: what type checkers know of the dict."""

    def __contains__(self, slot: object, /) -> bool: ...

    def get(self, slot: StateSlot[T], /) -> T | None:
        """Return the value of a slot; None if nothing was stored."""

    def pop(self, slot: StateSlot[T], default: T, /) -> T:
        """Remove the value of a slot and return it; ``default`` if nothing was stored."""

    def __setitem__(self, slot: StateSlot[T], value: T, /) -> None: ...


def new_state() -> ConnectionState:
    """Return the state of a new connection, without values."""
    values: dict[StateSlot[Any], Any] = {}
    return values
