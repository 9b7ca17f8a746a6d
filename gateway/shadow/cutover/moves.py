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


class MoveState(Enum):
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
class QueueEnds:
    """Where a queue ended on both sides when its producers were switched last."""

    primary: int
    target: int


@dataclass(frozen=True, slots=True)
class MoveStep:
    """One possible step, of a topic or of one group of it."""

    topic: str
    group: str | None
    source: MoveState
    goal: MoveState

    @property
    def is_backward(self) -> bool:
        """Whether it undoes something."""
        return (self.source, self.goal) in _BACKWARD_STEPS


_NEXT_TOPIC_STATES: Final = {
    MoveState.MIRRORING: MoveState.CAUGHT_UP,
    MoveState.CAUGHT_UP: MoveState.PRODUCERS_SWITCHED,
}
_NEXT_GROUP_STATES: Final = {
    MoveState.PRODUCERS_SWITCHED: MoveState.DRAINED,
    MoveState.DRAINED: MoveState.CONSUMERS_SWITCHED,
}
_BACKWARD_STEPS: Final = frozenset(
    {
        (MoveState.CAUGHT_UP, MoveState.MIRRORING),
        (MoveState.PRODUCERS_SWITCHED, MoveState.MIRRORING),
        (MoveState.PRODUCERS_SWITCHED, MoveState.ROLLING_BACK),
        (MoveState.DRAINED, MoveState.PRODUCERS_SWITCHED),
        (MoveState.CONSUMERS_SWITCHED, MoveState.PRODUCERS_SWITCHED),
        (MoveState.ROLLING_BACK, MoveState.MIRRORING),
    }
)


@dataclass(frozen=True, slots=True)
class Move:
    """A topic on its way. `ends` by "broker/queue id" of the primary; `groups` has a state for every known group."""

    topic: str
    state: MoveState = MoveState.MIRRORING
    groups: Mapping[str, MoveState] = field(default_factory=dict)
    ends: Mapping[str, QueueEnds] = field(default_factory=dict)
    since_ms: int = 0

    # -- what follows from the states -----------------------------------------------------------------------------

    @property
    def producer_side(self) -> Side:
        """Where sends go."""
        return Side.TARGET if self.state in (MoveState.PRODUCERS_SWITCHED, MoveState.DONE) else Side.PRIMARY

    def consumer_side(self, group: str) -> Side:
        """Where a group consumes; one that is not known goes with `home`."""
        state = self.groups.get(group)
        if state is None:
            return self.default_side
        return Side.TARGET if state in (MoveState.CONSUMERS_SWITCHED, MoveState.DONE) else Side.PRIMARY

    @property
    def default_side(self) -> Side:
        """Where questions about the topic go that name no group."""
        if self.state is MoveState.DONE:
            return Side.TARGET
        switched = self.groups and all(each is MoveState.CONSUMERS_SWITCHED for each in self.groups.values())
        return Side.TARGET if self.state is MoveState.PRODUCERS_SWITCHED and switched else Side.PRIMARY

    @property
    def is_under_way(self) -> bool:
        """Whether its requests have to be looked at."""
        return self.state is not MoveState.MIRRORING

    @property
    def is_mirrored(self) -> bool:
        """Whether what the primary stores has to get to the target."""
        return self.state in (MoveState.MIRRORING, MoveState.CAUGHT_UP)

    @property
    def overall_state(self) -> MoveState:
        """The state of the whole: as far as the group that is least far."""
        if self.state is not MoveState.PRODUCERS_SWITCHED or not self.groups:
            return self.state
        order = [MoveState.PRODUCERS_SWITCHED, MoveState.DRAINED, MoveState.CONSUMERS_SWITCHED]
        return min(self.groups.values(), key=order.index)

    # -- steps ----------------------------------------------------------------------------------------------------

    def forward_steps(self, group: str | None = None) -> list[MoveStep]:
        """Return the next steps of the topic, of its groups, or of one group.

        Raises OperationRefused when there are none.
        """
        if self.state in _NEXT_TOPIC_STATES:
            if group is not None:
                raise OperationRefused(
                    f"{self.topic} is {self.state.value}: its producers have to be switched first"
                )
            return [MoveStep(self.topic, None, self.state, _NEXT_TOPIC_STATES[self.state])]
        if self.state is not MoveState.PRODUCERS_SWITCHED:
            raise OperationRefused(f"{self.topic} is {self.state.value}: {_WHY_NOT_FORWARD[self.state]}")
        chosen = self._select_groups(group)
        steps = [
            MoveStep(self.topic, name, state, _NEXT_GROUP_STATES[state])
            for name, state in chosen
            if state in _NEXT_GROUP_STATES
        ]
        if steps:
            return steps
        if group is not None:
            raise OperationRefused(
                f"group {group} of {self.topic} is {MoveState.CONSUMERS_SWITCHED.value} already"
            )
        return [MoveStep(self.topic, None, self.state, MoveState.DONE)]

    def backward_steps(self, group: str | None = None) -> list[MoveStep]:
        """The steps that undo the last one. Raises OperationRefused when there are none."""
        if group is not None:
            return [self._group_backward_step(name, state) for name, state in self._select_groups(group)]
        if self.state is MoveState.CAUGHT_UP:
            return [MoveStep(self.topic, None, self.state, MoveState.MIRRORING)]
        if self.state is MoveState.PRODUCERS_SWITCHED:
            switched = MoveState.CONSUMERS_SWITCHED in self.groups.values()
            return [
                MoveStep(
                    self.topic, None, self.state, MoveState.ROLLING_BACK if switched else MoveState.MIRRORING
                )
            ]
        if self.state is MoveState.ROLLING_BACK:
            return [self._group_backward_step(name, state) for name, state in self.switched_groups()]
        raise OperationRefused(f"{self.topic} is {self.state.value}: {_WHY_NOT_BACKWARD[self.state]}")

    def _group_backward_step(self, group: str, state: MoveState) -> MoveStep:
        if state is MoveState.DRAINED:
            return MoveStep(self.topic, group, state, MoveState.PRODUCERS_SWITCHED)
        if state is MoveState.CONSUMERS_SWITCHED and self.state is MoveState.ROLLING_BACK:
            return MoveStep(self.topic, group, state, MoveState.PRODUCERS_SWITCHED)
        if state is MoveState.CONSUMERS_SWITCHED and self.state is MoveState.PRODUCERS_SWITCHED:
            raise OperationRefused(
                f"group {group} has to follow the producers of {self.topic}: roll the topic back first"
            )
        raise OperationRefused(f"group {group} of {self.topic} is {state.value}: there is nothing to undo")

    def switched_groups(self) -> list[tuple[str, MoveState]]:
        """The groups that consume from the target."""
        return [(name, state) for name, state in self.groups.items() if state is MoveState.CONSUMERS_SWITCHED]

    def _select_groups(self, group: str | None) -> Iterable[tuple[str, MoveState]]:
        if group is None:
            return self.groups.items()
        if group not in self.groups:
            raise OperationRefused(f"group {group} is not known to consume {self.topic}")
        return [(group, self.groups[group])]

    def after_step(self, step: MoveStep, now_ms: int) -> Self:
        """The move after a step that was checked and done."""
        if step.group is None:
            groups = self._groups_after(step.goal)
            return replace(self, state=step.goal, groups=groups, since_ms=now_ms)
        groups = {**self.groups, step.group: step.goal}
        moved = replace(self, groups=groups, since_ms=now_ms)
        if moved.state is MoveState.ROLLING_BACK and not moved.switched_groups():
            moved = replace(moved, state=MoveState.MIRRORING, groups={})
        return moved

    def _groups_after(self, goal: MoveState) -> Mapping[str, MoveState]:
        if goal is MoveState.DONE:
            return dict.fromkeys(self.groups, MoveState.DONE)
        if goal is MoveState.ROLLING_BACK:
            kept = MoveState.CONSUMERS_SWITCHED
            return {
                name: state if state is kept else MoveState.PRODUCERS_SWITCHED
                for name, state in self.groups.items()
            }
        return self.groups if goal is MoveState.PRODUCERS_SWITCHED else {}

    def with_groups(self, names: Iterable[str]) -> Self:
        """The same with groups that were not known; they still consume from the primary."""
        new = {name: MoveState.PRODUCERS_SWITCHED for name in names if name not in self.groups}
        return replace(self, groups={**self.groups, **new}) if new else self

    def with_ends(self, ends: Mapping[str, QueueEnds]) -> Self:
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
            state=MoveState(value["state"]),
            groups={name: MoveState(state) for name, state in value["groups"].items()},
            ends={queue: QueueEnds(**ends) for queue, ends in value["ends"].items()},
            since_ms=value["since_ms"],
        )


_WHY_NOT_FORWARD: Final = {
    MoveState.DONE: "there is nothing left to do",
    MoveState.ROLLING_BACK: "finish the roll-back first",
}
_WHY_NOT_BACKWARD: Final = {
    MoveState.DONE: "that was the last step, which is final",
    MoveState.MIRRORING: "there is nothing to undo",
}
