"""The needs of a request, and the facts that they depend on. `request_needs.py` finds them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from codec.fastjson import MAX_VALUES
from gateway.auth.resources import Action, Resource


@dataclass(frozen=True, slots=True)
class Need:
    """One of the actions on a single resource; without a resource, on any topic or group."""

    actions: Sequence[Action]
    resource: Resource | None


@dataclass(frozen=True, slots=True)
class NeedContext:
    """Facts of the server that needs depend on.

    ``topic_at`` returns the topic of the message at a physical offset: for a half message the topic it is meant for,
    None where no message begins. ``has_group`` tells whether a consumer group exists,
    ``max_json_values`` limits a JSON body as `ConnectionLimits` does.
    """

    cluster: str
    topic_at: Callable[[int], str | None] = lambda offset: None
    has_group: Callable[[str], bool] = lambda name: False
    max_json_values: int = MAX_VALUES
