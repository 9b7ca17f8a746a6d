"""State machine of a move: one topic and its groups go from the primary to the target, and back until the last
step.

    topic   MIRRORING - CAUGHT_UP - PRODUCERS_SWITCHED - DONE        (PRODUCERS_SWITCHED - ROLLING_BACK - MIRRORING)
    group                           PRODUCERS_SWITCHED - DRAINED - CONSUMERS_SWITCHED

Theory of operation. The order of messages in a queue must survive the move, so producers and consumers never switch
together. First the target holds all of the primary's messages (CAUGHT_UP). Then producers switch in a short pause of
sends (PRODUCERS_SWITCHED); from here on the primary's queues no longer grow. Each group finishes the primary's queues
(DRAINED) and only then consumes from the target (CONSUMERS_SWITCHED). When all groups have switched, DONE makes the
move final. A roll-back walks the same way in reverse: producers first, after the messages that only the target has
were copied to the primary, then the groups one by one.

Invariant: the side of every request follows from the persisted states alone. A gateway that is killed reads the
states from `move_file` and sends requests where it sent them before. A step that was not recorded did not happen, and
everything it did besides (copied messages, offsets, locks) can be done again.

The module is pure. `checks` decides whether a step may be taken, `mover` takes it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final, Self

from gateway.http_server.errors import OperationRefused
from gateway.shadow.traffic.exchange import Side


class MoveState(Enum):
    """The state of a topic, or of one of its groups."""

    MIRRORING = "MIRRORING"
    CAUGHT_UP = "CAUGHT_UP"
    """The target held all messages of the primary; sends of the topic are counted from here on."""
    PRODUCERS_SWITCHED = "PRODUCERS_SWITCHED"
    """Sends go to the target. A group in this state still consumes from the primary."""
    DRAINED = "DRAINED"
    """The group has consumed all messages of the primary."""
    CONSUMERS_SWITCHED = "CONSUMERS_SWITCHED"
    """The group consumes from the target."""
    DONE = "DONE"
    ROLLING_BACK = "ROLLING_BACK"
    """Sends go to the primary again; groups that had switched drain the target and follow one by one."""


FORWARD_STATES: Final = (
    MoveState.MIRRORING,
    MoveState.CAUGHT_UP,
    MoveState.PRODUCERS_SWITCHED,
    MoveState.DRAINED,
    MoveState.CONSUMERS_SWITCHED,
    MoveState.DONE,
)
"""The states of a move that is not rolled back, in their order."""


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """The end offsets of a queue on both sides when its producers were switched last."""

    primary: int
    target: int


@dataclass(frozen=True, slots=True)
class MoveStep:
    """One possible step, of a topic or of one of its groups."""

    topic: str
    group: str | None
    source: MoveState
    goal: MoveState

    @property
    def is_backward(self) -> bool:
        """True if the step undoes another one."""
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
    """The move of one topic.

    `ends` is keyed by "broker/queue id" of the primary. `groups` has a state for every known group. `taken_permissions`
    has the topic's permission, before the write permission was taken, of each broker of the primary. `dead_letter_ends`
    has the ends of each group's dead-letter queues when the group switched to a target with offsets of its own.
    """

    topic: str
    state: MoveState = MoveState.MIRRORING
    groups: Mapping[str, MoveState] = field(default_factory=dict)
    ends: Mapping[str, QueueEnds] = field(default_factory=dict)
    since_ms: int = 0
    taken_permissions: Mapping[str, int] = field(default_factory=dict)
    dead_letter_ends: Mapping[str, Mapping[str, QueueEnds]] = field(default_factory=dict)

    # -- sides that follow from the states -------------------------------------------------------------------------

    @property
    def producer_side(self) -> Side:
        """The side that receives sends."""
        return Side.TARGET if self.state in (MoveState.PRODUCERS_SWITCHED, MoveState.DONE) else Side.PRIMARY

    def consumer_side(self, group: str) -> Side:
        """Return the side that a group consumes from; an unknown group follows `default_side`."""
        state = self.groups.get(group)
        if state is None:
            return self.default_side
        return Side.TARGET if state in (MoveState.CONSUMERS_SWITCHED, MoveState.DONE) else Side.PRIMARY

    @property
    def default_side(self) -> Side:
        """The side of requests about the topic that name no group."""
        if self.state is MoveState.DONE:
            return Side.TARGET
        # Such requests, of tools for instance, change sides once every group has.
        switched = self.groups and all(
            state is MoveState.CONSUMERS_SWITCHED for state in self.groups.values()
        )
        return Side.TARGET if self.state is MoveState.PRODUCERS_SWITCHED and switched else Side.PRIMARY

    @property
    def is_under_way(self) -> bool:
        """True if requests of the topic have to be inspected."""
        return self.state is not MoveState.MIRRORING

    @property
    def is_read_only(self) -> bool:
        """True if the topic's write permission at the primary was taken."""
        return bool(self.taken_permissions)

    @property
    def is_mirrored(self) -> bool:
        """True if messages stored by the primary must be mirrored to the target."""
        return self.state in (MoveState.MIRRORING, MoveState.CAUGHT_UP)

    @property
    def overall_state(self) -> MoveState:
        """The state of the whole move: that of the group that lags behind most."""
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
        # Every group has switched, or there is none: only making the move final is left.
        return [MoveStep(self.topic, None, self.state, MoveState.DONE)]

    def backward_steps(self, group: str | None = None) -> list[MoveStep]:
        """Return the steps that undo the last one. Raises OperationRefused when there are none."""
        if group is not None:
            return [self._group_backward_step(name, state) for name, state in self._select_groups(group)]
        if self.state is MoveState.CAUGHT_UP:
            return [MoveStep(self.topic, None, self.state, MoveState.MIRRORING)]
        if self.state is MoveState.PRODUCERS_SWITCHED:
            # Groups that consume from the target must drain it first: the topic is ROLLING_BACK until they have
            # followed.
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
        """Return the groups that consume from the target, with their state."""
        return [(name, state) for name, state in self.groups.items() if state is MoveState.CONSUMERS_SWITCHED]

    def _select_groups(self, group: str | None) -> Iterable[tuple[str, MoveState]]:
        if group is None:
            return self.groups.items()
        if group not in self.groups:
            raise OperationRefused(f"group {group} is not known to consume {self.topic}")
        return [(group, self.groups[group])]

    def after_step(self, step: MoveStep, now_ms: int) -> Self:
        """Return the move after a step that was checked and carried out."""
        if step.group is None:
            groups = self._groups_after(step.goal)
            return replace(self, state=step.goal, groups=groups, since_ms=now_ms)
        groups = {**self.groups, step.group: step.goal}
        moved = replace(self, groups=groups, since_ms=now_ms)
        # The last group is back. The move keeps only its queue ends, from which a later copy-back continues.
        if moved.state is MoveState.ROLLING_BACK and not moved.switched_groups():
            moved = replace(moved, state=MoveState.MIRRORING, groups={}, dead_letter_ends={})
        return moved

    def _groups_after(self, goal: MoveState) -> Mapping[str, MoveState]:
        if goal is MoveState.DONE:
            return dict.fromkeys(self.groups, MoveState.DONE)
        if goal is MoveState.ROLLING_BACK:
            switched = MoveState.CONSUMERS_SWITCHED
            return {
                name: state if state is switched else MoveState.PRODUCERS_SWITCHED
                for name, state in self.groups.items()
            }
        return self.groups if goal is MoveState.PRODUCERS_SWITCHED else {}

    def with_groups(self, names: Iterable[str]) -> Self:
        """Return the move with these groups added; groups that were not known still consume from the primary."""
        new = {name: MoveState.PRODUCERS_SWITCHED for name in names if name not in self.groups}
        return replace(self, groups={**self.groups, **new}) if new else self

    def with_ends(self, ends: Mapping[str, QueueEnds]) -> Self:
        """Return the move with these queue ends."""
        return replace(self, ends=dict(ends))

    def with_dead_letter_ends(self, group: str, ends: Mapping[str, QueueEnds]) -> Self:
        """Return the move with the ends of a group's dead-letter queues at its switch."""
        return replace(self, dead_letter_ends={**self.dead_letter_ends, group: dict(ends)})

    def with_taken_permissions(self, permissions: Mapping[str, int]) -> Self:
        """Return the move with these permissions of the primary's brokers to give back."""
        return replace(self, taken_permissions=dict(permissions))

    # -- as JSON --------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the move as it is stored in the file."""
        return {
            "topic": self.topic,
            "state": self.state.value,
            "groups": {name: state.value for name, state in self.groups.items()},
            "ends": {queue: asdict(ends) for queue, ends in self.ends.items()},
            "since_ms": self.since_ms,
            "taken_permissions": dict(self.taken_permissions),
            "dead_letter_ends": {
                group: {queue: asdict(queue_ends) for queue, queue_ends in ends.items()}
                for group, ends in self.dead_letter_ends.items()
            },
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read a move that `to_dict` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        topic, since_ms = value["topic"], value["since_ms"]
        if not isinstance(topic, str) or type(since_ms) is not int:
            raise TypeError("a move has no topic, or no time")
        return cls(
            topic=topic,
            state=MoveState(value["state"]),
            groups={name: MoveState(state) for name, state in value["groups"].items()},
            ends={queue: _read_ends(ends) for queue, ends in value["ends"].items()},
            since_ms=since_ms,
            taken_permissions=dict(value.get("taken_permissions", {})),
            dead_letter_ends={
                group: {queue: _read_ends(queue_ends) for queue, queue_ends in ends.items()}
                for group, ends in value.get("dead_letter_ends", {}).items()
            },
        )


def _read_ends(value: Mapping[str, Any]) -> QueueEnds:
    ends = QueueEnds(**value)
    if type(ends.primary) is not int or type(ends.target) is not int:
        raise TypeError(f"the ends of a queue are not numbers: {value}")
    return ends


_WHY_NOT_FORWARD: Final = {
    MoveState.DONE: "there is nothing left to do",
    MoveState.ROLLING_BACK: "finish the roll-back first",
}
_WHY_NOT_BACKWARD: Final = {
    MoveState.DONE: "that was the last step, which is final",
    MoveState.MIRRORING: "there is nothing to undo",
}
