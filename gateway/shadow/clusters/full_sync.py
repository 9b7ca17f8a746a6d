"""All of `shadow sync`: topics, groups, offsets and orders of every broker, in the order of their dependencies.

Topics, groups and orders are planned by `metadata_sync`, consumer offsets here: unchanged if the target preserves the
primary's offsets, and translated otherwise. An offset is never ahead of what the group consumed, never beyond the end
of the target's queue, and never overwrites that of a group that is active on the target. Offsets of topics that are
being moved are left to the mover.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from codec.topics import TOOL_GROUPS, is_system_group
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS
from gateway.shadow.clusters.cluster_pair import ClusterPair, QueueRange
from gateway.shadow.clusters.metadata_sync import (
    NAMES_PER_TURN,
    NameFilter,
    is_system_topic,
    plan_groups,
    plan_orders,
    plan_topics,
)
from gateway.shadow.clusters.sync_steps import SyncAction, SyncStep, apply_steps
from gateway.shadow.traffic.exchange import Side
from remoting.requests.offsets import GetAllConsumerOffset, UpdateConsumerOffset

TranslateOffset = Callable[[str, str, int, int], int | None]
"""Returns the target's offset for (the primary's broker, topic, queue id, offset), not ahead of it; None if unknown."""
QueueOffsets = dict[int, int]

UNKNOWN_OFFSETS: Final = "the target uses other offsets, and none is known for these"


@dataclass(frozen=True, slots=True)
class OffsetFilter:
    """Selects the offsets to copy: of these topics and groups (None: all), except for topics that are being moved."""

    topics: NameFilter = None
    groups: NameFilter = None
    moving: Collection[str] = ()

    def includes_pair(self, topic: str, group: str) -> bool:
        """Tell whether the offsets of a topic and group are selected."""
        return (self.topics is None or topic in self.topics) and (self.groups is None or group in self.groups)


class FullSync:
    """Copies the metadata of the primary to the target."""

    def __init__(self, sides: ClusterPair, translate: TranslateOffset | None = None) -> None:
        self._sides = sides
        self._translate = translate

    async def run(
        self, topics: NameFilter, groups: NameFilter, moving: Collection[str] = (), *, dry_run: bool = False
    ) -> list[SyncStep]:
        """Plan all steps, and take them unless ``dry_run``. Offsets of ``moving`` topics are left alone.

        A broker that cannot be asked, or has no counterpart, is a step that failed; the others are copied. Raises
        CLUSTER_ERRORS or LookupError if that is so for every broker, and CLUSTER_ERRORS if no namesrv answers.
        """
        sides, steps, names = self._sides, list[SyncStep](), dict[str, str]()
        problem: Exception | None = None
        await sides.primary.refresh()
        await sides.target.refresh()
        for broker in sorted(sides.primary.brokers):
            try:
                target_broker = sides.counterpart(broker)
                steps += await self._sync_broker(
                    broker, target_broker, OffsetFilter(topics, groups, moving), dry_run
                )
                names[broker] = target_broker
            # The other brokers are still copied: a partial copy can be completed by another run.
            except (*CLUSTER_ERRORS, LookupError) as error:
                problem = error
                reason = f"{type(error).__name__}: {error}"
                steps.append(SyncStep("broker", broker, SyncAction.FAILED, reason))
        if problem is not None and not names:
            raise problem
        # Last, because the order of a topic names brokers: only those that were copied.
        orders = await plan_orders(sides.primary, sides.target, names, topics)
        return [*steps, *await self._apply_unless_dry(orders, dry_run)]

    async def _sync_broker(
        self, broker: str, target_broker: str, offset_filter: OffsetFilter, dry_run: bool
    ) -> list[SyncStep]:
        both = self._sides.primary, self._sides.target, broker, target_broker
        steps = [
            *await plan_topics(*both, offset_filter.topics),
            *await plan_groups(*both, offset_filter.groups),
        ]
        await self._apply_unless_dry(steps, dry_run)
        offsets = await plan_offsets(self._sides, broker, offset_filter, self._translate)
        return [*steps, *await self._apply_unless_dry(offsets, dry_run)]

    async def _apply_unless_dry(self, steps: list[SyncStep], dry_run: bool) -> list[SyncStep]:
        if not dry_run:
            await apply_steps(self._sides.target, steps)
        return steps


# -- consumer offsets ----------------------------------------------------------------------------------------------


async def plan_offsets(
    sides: ClusterPair, broker: str, offset_filter: OffsetFilter, translate: TranslateOffset | None = None
) -> list[SyncStep]:
    """Return one step for each topic and group with offsets at the primary's ``broker``."""
    primary_offsets = await _all_offsets(sides, Side.PRIMARY, broker)
    target_offsets = await _all_offsets(sides, Side.TARGET, broker)
    ranges: dict[str, dict[int, QueueRange]] = {}
    active: dict[str, bool] = {}
    steps = []
    for number, ((topic, group), offsets) in enumerate(sorted(primary_offsets.items())):
        # Clients' requests wait for this loop.
        if not number % NAMES_PER_TURN:
            await trio.lowlevel.checkpoint()
        if not offset_filter.includes_pair(topic, group):
            continue
        reason = _exclusion_reason(topic, group, offset_filter)
        # One question per topic and group, not per pair of them.
        if not reason and topic not in ranges:
            ranges[topic] = await sides.queue_ranges(Side.TARGET, broker, topic)
        if not reason and group not in active:
            active[group] = bool(await sides.group_members(Side.TARGET, broker, group))
        if not reason and active[group]:
            reason = "the group is active on the target"
        name = f"{topic}@{group}"
        target = sides.counterpart(broker)
        if reason:
            steps.append(SyncStep("offset", name, SyncAction.LEFT_OUT, reason, target))
            continue
        translated = _translate_offsets(sides, broker, topic, offsets, translate)
        present = target_offsets.get((topic, group), {})
        steps.append(_offset_step(topic, group, target, translated, present, ranges[topic]))
    return steps


def _exclusion_reason(topic: str, group: str, offset_filter: OffsetFilter) -> str:
    if "@" in group:
        return "offsets of broadcasting clients are their own"
    if is_system_topic(topic) or group in TOOL_GROUPS or is_system_group(group):
        return "the system's own"
    return "the topic is being moved" if topic in offset_filter.moving else ""


async def _all_offsets(sides: ClusterPair, side: Side, broker: str) -> dict[tuple[str, str], QueueOffsets]:
    cluster, name = sides.locate_broker(side, broker)
    table = (await cluster.ask_broker(name, GetAllConsumerOffset())).data.offset_table
    by_pair = {}
    for key, offsets in table.items():
        topic, _, group = key.partition("@")
        by_pair[topic, group] = offsets
    return by_pair


def _translate_offsets(
    sides: ClusterPair, broker: str, topic: str, offsets: QueueOffsets, translate: TranslateOffset | None
) -> dict[int, int | None]:
    if sides.preserves_offsets:
        return dict(offsets)
    if translate is None:
        return dict.fromkeys(offsets)
    return {queue: translate(broker, topic, queue, offset) for queue, offset in offsets.items()}


def _offset_step(
    topic: str,
    group: str,
    broker: str,
    translated: Mapping[int, int | None],
    present: QueueOffsets,
    ranges: Mapping[int, QueueRange],
) -> SyncStep:
    """Return the step for one topic and group; offsets beyond the end of the target's queue become that end."""
    name = f"{topic}@{group}"
    desired = {queue: offset for queue, offset in translated.items() if offset is not None}
    # Nothing is better than a guess: an offset that is too late would lose messages for the group.
    if not desired and translated:
        return SyncStep("offset", name, SyncAction.LEFT_OUT, UNKNOWN_OFFSETS, broker)
    if not ranges:
        return SyncStep("offset", name, SyncAction.LEFT_OUT, "the target has no such topic", broker)
    # An offset beyond the end would skip messages that are still to come.
    reachable = {
        queue: min(offset, ranges[queue].high) for queue, offset in desired.items() if queue in ranges
    }
    changes = {queue: offset for queue, offset in reachable.items() if present.get(queue) != offset}
    missing_count = sum(desired[queue] - offset for queue, offset in reachable.items())
    missing = f"{missing_count} messages are not at the target yet" if missing_count else ""
    if not changes:
        return SyncStep("offset", name, SyncAction.SAME, missing, broker)
    text = ", ".join(f"{queue}: {present.get(queue, '-')} -> {offset}" for queue, offset in changes.items())
    requests = tuple(
        UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue, commit_offset=offset)
        for queue, offset in changes.items()
    )
    action = SyncAction.CHANGE if present else SyncAction.CREATE
    return SyncStep("offset", name, action, f"{text}; {missing}" if missing else text, broker, requests)
