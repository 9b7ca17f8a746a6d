"""The steps of a move: a topic and its groups go from the primary to the target, and back until the last step.

    topic   MIRRORING - CAUGHT_UP - PRODUCERS_SWITCHED - DONE        (PRODUCERS_SWITCHED - ROLLING_BACK - MIRRORING)
    group                           PRODUCERS_SWITCHED - DRAINED - CONSUMERS_SWITCHED

Where requests go follows from the states alone, so that a gateway that was killed goes on as it was. Pure: whether a
step may be taken is asked elsewhere (checks), and what it takes is done elsewhere (mover).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final, Self

from gateway.shadow.console.errors import OperationRefused
from gateway.shadow.traffic.exchange import Side


class State(Enum):
    """Where a topic is, or one of its groups."""

    MIRRORING = "MIRRORING"
    CAUGHT_UP = "CAUGHT_UP"
    """The target had all the primary had; sends are counted from here on."""
    PRODUCERS_SWITCHED = "PRODUCERS_SWITCHED"
    """Sends go to the target; a group in this state still consumes what the primary has."""
    DRAINED = "DRAINED"
    """The group has consumed all the primary has."""
    CONSUMERS_SWITCHED = "CONSUMERS_SWITCHED"
    """The group consumes from the target."""
    DONE = "DONE"
    ROLLING_BACK = "ROLLING_BACK"
    """Sends go to the primary again; groups that had been switched drain the target and follow one by one."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a queue ended on both sides when its producers were switched last."""

    primary: int
    target: int


@dataclass(frozen=True, slots=True)
class Step:
    """One possible step, of a topic or of one group of it."""

    topic: str
    group: str | None
    source: State
    goal: State

    @property
    def back(self) -> bool:
        """Whether it undoes something."""
        return (self.source, self.goal) in _BACK


_TOPIC_FORWARD: Final = {
    State.MIRRORING: State.CAUGHT_UP,
    State.CAUGHT_UP: State.PRODUCERS_SWITCHED,
}
_GROUP_FORWARD: Final = {
    State.PRODUCERS_SWITCHED: State.DRAINED,
    State.DRAINED: State.CONSUMERS_SWITCHED,
}
_BACK: Final = frozenset(
    {
        (State.CAUGHT_UP, State.MIRRORING),
        (State.PRODUCERS_SWITCHED, State.MIRRORING),
        (State.PRODUCERS_SWITCHED, State.ROLLING_BACK),
        (State.DRAINED, State.PRODUCERS_SWITCHED),
        (State.CONSUMERS_SWITCHED, State.PRODUCERS_SWITCHED),
        (State.ROLLING_BACK, State.MIRRORING),
    }
)


@dataclass(frozen=True, slots=True)
class Move:
    """A topic on its way. `ends` by "broker/queue id" of the primary; `groups` has a state for every known group."""

    topic: str
    state: State = State.MIRRORING
    groups: Mapping[str, State] = field(default_factory=dict)
    ends: Mapping[str, Ends] = field(default_factory=dict)
    since_ms: int = 0

    # -- what follows from the states -----------------------------------------------------------------------------

    @property
    def producers(self) -> Side:
        """Where sends go."""
        return Side.TARGET if self.state in (State.PRODUCERS_SWITCHED, State.DONE) else Side.PRIMARY

    def consumers(self, group: str) -> Side:
        """Where a group consumes; one that is not known goes with `home`."""
        state = self.groups.get(group)
        if state is None:
            return self.home
        return Side.TARGET if state in (State.CONSUMERS_SWITCHED, State.DONE) else Side.PRIMARY

    @property
    def home(self) -> Side:
        """Where questions about the topic go that name no group."""
        if self.state is State.DONE:
            return Side.TARGET
        switched = self.groups and all(each is State.CONSUMERS_SWITCHED for each in self.groups.values())
        return Side.TARGET if self.state is State.PRODUCERS_SWITCHED and switched else Side.PRIMARY

    @property
    def under_way(self) -> bool:
        """Whether its requests have to be looked at."""
        return self.state is not State.MIRRORING

    @property
    def mirrored(self) -> bool:
        """Whether what the primary stores has to get to the target."""
        return self.state in (State.MIRRORING, State.CAUGHT_UP)

    @property
    def shown(self) -> State:
        """The state of the whole: as far as the group that is least far."""
        if self.state is not State.PRODUCERS_SWITCHED or not self.groups:
            return self.state
        order = [State.PRODUCERS_SWITCHED, State.DRAINED, State.CONSUMERS_SWITCHED]
        return min(self.groups.values(), key=order.index)

    # -- steps ----------------------------------------------------------------------------------------------------

    def forward(self, group: str | None = None) -> list[Step]:
        """Return the next steps of the topic, of its groups, or of one group.

        Raises OperationRefused when there are none.
        """
        if self.state in _TOPIC_FORWARD:
            if group is not None:
                raise OperationRefused(
                    f"{self.topic} is {self.state.value}: its producers have to be switched first"
                )
            return [Step(self.topic, None, self.state, _TOPIC_FORWARD[self.state])]
        if self.state is not State.PRODUCERS_SWITCHED:
            raise OperationRefused(f"{self.topic} is {self.state.value}: {_NO_FORWARD[self.state]}")
        chosen = self._chosen(group)
        steps = [
            Step(self.topic, name, state, _GROUP_FORWARD[state])
            for name, state in chosen
            if state in _GROUP_FORWARD
        ]
        if steps:
            return steps
        if group is not None:
            raise OperationRefused(
                f"group {group} of {self.topic} is {State.CONSUMERS_SWITCHED.value} already"
            )
        return [Step(self.topic, None, self.state, State.DONE)]

    def backward(self, group: str | None = None) -> list[Step]:
        """The steps that undo the last one. Raises OperationRefused when there are none."""
        if group is not None:
            return [self._group_backward(name, state) for name, state in self._chosen(group)]
        if self.state is State.CAUGHT_UP:
            return [Step(self.topic, None, self.state, State.MIRRORING)]
        if self.state is State.PRODUCERS_SWITCHED:
            switched = State.CONSUMERS_SWITCHED in self.groups.values()
            return [Step(self.topic, None, self.state, State.ROLLING_BACK if switched else State.MIRRORING)]
        if self.state is State.ROLLING_BACK:
            return [self._group_backward(name, state) for name, state in self.switched()]
        raise OperationRefused(f"{self.topic} is {self.state.value}: {_NO_BACKWARD[self.state]}")

    def _group_backward(self, group: str, state: State) -> Step:
        if state is State.DRAINED:
            return Step(self.topic, group, state, State.PRODUCERS_SWITCHED)
        if state is State.CONSUMERS_SWITCHED and self.state is State.ROLLING_BACK:
            return Step(self.topic, group, state, State.PRODUCERS_SWITCHED)
        if state is State.CONSUMERS_SWITCHED and self.state is State.PRODUCERS_SWITCHED:
            raise OperationRefused(
                f"group {group} has to follow the producers of {self.topic}: roll the topic back first"
            )
        raise OperationRefused(f"group {group} of {self.topic} is {state.value}: there is nothing to undo")

    def switched(self) -> list[tuple[str, State]]:
        """The groups that consume from the target."""
        return [(name, state) for name, state in self.groups.items() if state is State.CONSUMERS_SWITCHED]

    def _chosen(self, group: str | None) -> Iterable[tuple[str, State]]:
        if group is None:
            return self.groups.items()
        if group not in self.groups:
            raise OperationRefused(f"group {group} is not known to consume {self.topic}")
        return [(group, self.groups[group])]

    def taken(self, step: Step, now_ms: int) -> Self:
        """The move after a step that was checked and done."""
        if step.group is None:
            groups = self._groups_after(step.goal)
            return replace(self, state=step.goal, groups=groups, since_ms=now_ms)
        groups = {**self.groups, step.group: step.goal}
        moved = replace(self, groups=groups, since_ms=now_ms)
        if moved.state is State.ROLLING_BACK and not moved.switched():
            moved = replace(moved, state=State.MIRRORING, groups={})
        return moved

    def _groups_after(self, goal: State) -> Mapping[str, State]:
        if goal is State.DONE:
            return dict.fromkeys(self.groups, State.DONE)
        if goal is State.ROLLING_BACK:
            kept = State.CONSUMERS_SWITCHED
            return {
                name: state if state is kept else State.PRODUCERS_SWITCHED
                for name, state in self.groups.items()
            }
        return self.groups if goal is State.PRODUCERS_SWITCHED else {}

    def with_groups(self, names: Iterable[str]) -> Self:
        """The same with groups that were not known; they still consume from the primary."""
        new = {name: State.PRODUCERS_SWITCHED for name in names if name not in self.groups}
        return replace(self, groups={**self.groups, **new}) if new else self

    def with_ends(self, ends: Mapping[str, Ends]) -> Self:
        """The same with where its queues ended."""
        return replace(self, ends=dict(ends))

    # -- as JSON --------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """As it is kept in the file."""
        return {
            "topic": self.topic,
            "state": self.state.value,
            "groups": {name: state.value for name, state in self.groups.items()},
            "ends": {queue: asdict(ends) for queue, ends in self.ends.items()},
            "since_ms": self.since_ms,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError, ValueError for what `to_dict` did not write."""
        return cls(
            topic=value["topic"],
            state=State(value["state"]),
            groups={name: State(state) for name, state in value["groups"].items()},
            ends={queue: Ends(**ends) for queue, ends in value["ends"].items()},
            since_ms=value["since_ms"],
        )


_NO_FORWARD: Final = {
    State.DONE: "there is nothing left to do",
    State.ROLLING_BACK: "finish the roll-back first",
}
_NO_BACKWARD: Final = {
    State.DONE: "that was the last step, which is final",
    State.MIRRORING: "there is nothing to undo",
}
