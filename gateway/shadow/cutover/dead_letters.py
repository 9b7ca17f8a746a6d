"""Copies a group's dead letters to the side where it is going to consume, so that none stays on a side nobody uses.

Theory of operation. A broker stores a message that a group gave up on in the group's dead-letter topic, on the side
where the group consumed it. Replication copies this topic while the group consumes at the primary, and stops once the
group has switched. From then on the topic grows at the target; it also grows at the primary if the group still consumes
another topic there. So before a group changes sides, and before DONE, the topic is compared and what only the other
side has is copied.

Queue offsets cannot say what is missing, because both sides may have grown. Messages are compared by content
(`_identity`) and counted, since a group may give up on the same message twice. Only the part of a queue after the last
common message is read: with preserved offsets the first difference is found by bisection; for any other target the part
begins at the ends of the queues when the group switched.

A crash or a lost answer leaves copies behind, which the next attempt finds on the other side, so nothing is copied
twice. Replication may still copy the same messages to the target, but only while the target's queue is a beginning of
the primary's. In that case they are put at their offsets, which both may do. Otherwise the target refuses what
replication puts, and the messages are sent.
"""

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import trio

from codec import properties as names
from codec.message import Message
from codec.topics import dlq_topic
from gateway.shadow.clusters.cluster_pair import LOOKUP_ERRORS, ClusterPair, QueueRange, queue_name
from gateway.shadow.clusters.metadata_sync import copy_topic, find_topic
from gateway.shadow.clusters.sync_steps import SyncAction
from gateway.shadow.cutover.checks import MoveCheck
from gateway.shadow.cutover.copy_back import resend_request
from gateway.shadow.cutover.moves import Move, QueueEnds
from gateway.shadow.replication.queue_copier import PullOptions, QueueCopier, QueuePlace, QueueStuck
from gateway.shadow.traffic.exchange import Side
from remoting.errors import RequestError

DEAD_LETTERS_CHECK: Final = "dead letters"
SHOW_INTERVAL_S: Final = 0.1
MAX_SHOW_S: Final = 15.0
"""Longest wait for messages that were acknowledged: an official broker builds its queues in the background."""
NOT_MIRRORED: Final = (
    'only a target of kind "ours" gets dead letters of the primary, unless [replication] dead_letters = false: consume '
    "or resend them before the primary is shut down"
)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Compares and copies the dead-letter topics of groups.

    ``are_replicated``: the target has the primary's dead letters, at the primary's offsets.
    """

    clusters: ClusterPair
    are_replicated: bool

    async def queue_ends(self, move: Move, group: str) -> dict[str, QueueEnds]:
        """Return the ends of the group's dead-letter queues on both sides. Raises LOOKUP_ERRORS."""
        ends = {}
        for broker in await self.clusters.brokers_of(move.topic):
            primary_ranges = await self._queue_ranges(Side.PRIMARY, broker, group)
            target_ranges = await self._queue_ranges(Side.TARGET, broker, group)
            for queue_id in primary_ranges.keys() | target_ranges.keys():
                ends[queue_name(broker, queue_id)] = QueueEnds(
                    primary_ranges.get(queue_id, QueueRange(0, 0)).high,
                    target_ranges.get(queue_id, QueueRange(0, 0)).high,
                )
        return ends

    async def count_missing(self, move: Move, group: str, goal: Side) -> int:
        """Return the number of dead letters that the goal lacks and the other side has. Raises LOOKUP_ERRORS."""
        missing_messages = 0
        for broker in await self.clusters.brokers_of(move.topic):
            async with aclosing(self._iter_missing(move, group, broker, goal)) as messages:
                async for _ in messages:
                    missing_messages += 1
        return missing_messages

    async def plan_copy(self, move: Move, group: str) -> MoveCheck:
        """Return the check of a step to the target, before it is taken. Raises LOOKUP_ERRORS."""
        if not self.are_replicated:
            return await self._name_unmirrored(move, group)
        missing_messages = await self.count_missing(move, group, Side.TARGET)
        copies = "; the step copies them" if missing_messages else ""
        return MoveCheck(DEAD_LETTERS_CHECK, True, f"{group}: {missing_messages} only at the primary{copies}")

    async def copy_missing(self, move: Move, group: str, goal: Side) -> MoveCheck:
        """Copy what the goal lacks, and check that it lacks nothing afterwards.

        A target with offsets of its own does not get the primary's dead letters; their number is in the check.
        """
        topic = dlq_topic(group)
        copied_messages = 0
        try:
            if goal is Side.TARGET and not self.are_replicated:
                return await self._name_unmirrored(move, group)
            for broker in await self.clusters.brokers_of(move.topic):
                copied_messages += await self._copy_broker(move, group, broker, goal)
            missing_messages = await self._wait_until_shown(move, group, goal)
        except LOOKUP_ERRORS as problem:
            reason = f"{topic} cannot be copied to the {goal.value}: {type(problem).__name__}: {problem}"
            return MoveCheck(DEAD_LETTERS_CHECK, False, f"{group}: {copied_messages} copied", reason)
        reason = f"the {goal.value} still lacks {missing_messages} messages of {topic}"
        measured = f"{group}: {copied_messages} copied to the {goal.value}"
        return MoveCheck(
            DEAD_LETTERS_CHECK, not missing_messages, measured, reason if missing_messages else ""
        )

    async def _name_unmirrored(self, move: Move, group: str) -> MoveCheck:
        number = 0
        for broker in await self.clusters.brokers_of(move.topic):
            ranges = await self._queue_ranges(Side.PRIMARY, broker, group)
            copies = await self._queue_ranges(Side.TARGET, broker, group)
            number += sum(queue_range.high - queue_range.low for queue_range in ranges.values())
            if copies:
                number -= await self._count_common(broker, group, ranges, copies)
        measured = f"{group}: {number} only at the primary"
        return MoveCheck(DEAD_LETTERS_CHECK, True, measured, NOT_MIRRORED if number else "")

    async def _count_common(
        self,
        broker: str,
        group: str,
        primary_ranges: Mapping[int, QueueRange],
        target_ranges: Mapping[int, QueueRange],
    ) -> int:
        at_primary = await self._count_identities(Side.PRIMARY, broker, group, primary_ranges)
        at_target = await self._count_identities(Side.TARGET, broker, group, target_ranges)
        return (at_primary & at_target).total()

    # -- comparing -------------------------------------------------------------------------------------------------

    async def _queue_ranges(self, side: Side, broker: str, group: str) -> dict[int, QueueRange]:
        return await self.clusters.queue_ranges(side, broker, dlq_topic(group))

    async def _iter_missing(
        self, move: Move, group: str, broker: str, goal: Side
    ) -> AsyncGenerator[tuple[int, Message], None]:
        """Yield the queue id and the message of each dead letter that the goal lacks, in the order of its queue."""
        source = Side.TARGET if goal is Side.PRIMARY else Side.PRIMARY
        source_ranges, goal_ranges = await self._differing_ranges(move, group, broker, source, goal)
        if not any(queue_range.low < queue_range.high for queue_range in source_ranges.values()):
            return
        present = await self._count_identities(goal, broker, group, goal_ranges)
        for queue_id, queue_range in sorted(source_ranges.items()):
            async with aclosing(self._read_queue(source, broker, group, queue_id, queue_range)) as messages:
                async for message in messages:
                    identity = _identity(message)
                    if present[identity]:
                        present[identity] -= 1
                    else:
                        yield queue_id, message

    async def _differing_ranges(
        self, move: Move, group: str, broker: str, source: Side, goal: Side
    ) -> tuple[dict[int, QueueRange], dict[int, QueueRange]]:
        """Return the parts of each queue of source and goal that may differ."""
        source_ranges = await self._queue_ranges(source, broker, group)
        goal_ranges = await self._queue_ranges(goal, broker, group)
        differing_source, differing_goal = {}, {}
        for queue_id in source_ranges.keys() | goal_ranges.keys():
            source_range = source_ranges.get(queue_id, QueueRange(0, 0))
            goal_range = goal_ranges.get(queue_id, QueueRange(0, 0))
            if self.are_replicated:
                pair = (source_range, goal_range) if source is Side.PRIMARY else (goal_range, source_range)
                start = await self._first_difference(broker, group, queue_id, *pair)
                starts = {source: start, goal: start}
            else:
                ends = move.dead_letter_ends.get(group, {}).get(queue_name(broker, queue_id))
                starts = {
                    Side.PRIMARY: 0 if ends is None else ends.primary,
                    Side.TARGET: 0 if ends is None else ends.target,
                }
            differing_source[queue_id] = _from(source_range, starts[source])
            differing_goal[queue_id] = _from(goal_range, starts[goal])
        return differing_source, differing_goal

    async def _first_difference(
        self, broker: str, group: str, queue_id: int, primary_range: QueueRange, target_range: QueueRange
    ) -> int:
        """Return the first offset at which the sides have different messages, or the end of the shorter queue.

        Messages before the first one of either side are not compared: retention has deleted them there.
        """
        low = max(primary_range.low, target_range.low)
        high = min(primary_range.high, target_range.high)
        if 0 < primary_range.high < target_range.low:
            return 0  # the primary's topic was deleted and created again, so all of its messages count
        # Once both sides are equal at one offset they are equal before it, but for the order of what was copied.
        if low < high and await self._is_equal_at(broker, group, queue_id, high - 1):
            return high
        while low < high:
            middle = (low + high) // 2
            if await self._is_equal_at(broker, group, queue_id, middle):
                low = middle + 1
            else:
                high = middle
        return low

    async def _is_equal_at(self, broker: str, group: str, queue_id: int, offset: int) -> bool:
        identities = []
        for side in (Side.PRIMARY, Side.TARGET):
            read = self.clusters.read_messages(side, broker, dlq_topic(group), queue_id, offset, offset + 1)
            async with aclosing(read) as messages:
                message = await anext(messages, None)
                if message is None or message.queue_offset != offset:
                    return False
                identities.append(_identity(message))
        return identities[0] == identities[1]

    async def _count_identities(
        self, side: Side, broker: str, group: str, ranges: Mapping[int, QueueRange]
    ) -> Counter[bytes]:
        counts: Counter[bytes] = Counter()
        for queue_id, queue_range in ranges.items():
            async with aclosing(self._read_queue(side, broker, group, queue_id, queue_range)) as messages:
                async for message in messages:
                    counts[_identity(message)] += 1
        return counts

    async def _read_queue(
        self, side: Side, broker: str, group: str, queue_id: int, queue_range: QueueRange
    ) -> AsyncGenerator[Message, None]:
        """Yield the messages of a range. Raises OSError if it ends early: messages would be lost or copied twice."""
        topic, next_offset = dlq_topic(group), queue_range.low
        read = self.clusters.read_messages(side, broker, topic, queue_id, next_offset, queue_range.high)
        async with aclosing(read) as messages:
            async for message in messages:
                next_offset = message.queue_offset + 1
                yield message
        if next_offset < queue_range.high:
            raise OSError(
                f"queue {queue_id} of {topic} cannot be read at the {side.value} from offset {next_offset} on"
            )

    # -- copying ---------------------------------------------------------------------------------------------------

    async def _copy_broker(self, move: Move, group: str, broker: str, goal: Side) -> int:
        """Copy what the goal lacks of one broker; return the number of messages. Raises LOOKUP_ERRORS."""
        topic, copied_messages = dlq_topic(group), 0
        source = Side.TARGET if goal is Side.PRIMARY else Side.PRIMARY
        source_ranges = await self._queue_ranges(source, broker, group)
        if not any(queue_range.high for queue_range in source_ranges.values()):
            return 0
        await self._ensure_topic(topic, broker, source, goal)
        if goal is Side.TARGET:
            for queue_id in source_ranges:
                copied_messages += await self._put_at_offsets(group, broker, queue_id)
        cluster, name = self.clusters.locate_broker(goal, broker)
        async with aclosing(self._iter_missing(move, group, broker, goal)) as messages:
            async for queue_id, message in messages:
                await cluster.ask_broker(name, resend_request(message, queue_id))
                copied_messages += 1
        return copied_messages

    async def _ensure_topic(self, topic: str, broker: str, source: Side, goal: Side) -> None:
        source_cluster, source_name = self.clusters.locate_broker(source, broker)
        goal_cluster, goal_name = self.clusters.locate_broker(goal, broker)
        if await find_topic(goal_cluster, goal_name, topic) is None:
            step = await copy_topic(source_cluster, goal_cluster, source_name, goal_name, topic)
            if step.action is SyncAction.FAILED:
                raise OSError(f"{topic} cannot be created at the {goal.value}: {step.detail}")

    async def _put_at_offsets(self, group: str, broker: str, queue_id: int) -> int:
        """Continue the target's queue at the primary's offsets if it is a beginning of the primary's."""
        topic = dlq_topic(group)
        queues = [
            (await self._queue_ranges(side, broker, group)).get(queue_id, QueueRange(0, 0))
            for side in (Side.PRIMARY, Side.TARGET)
        ]
        if queues[1].high >= queues[0].high:
            return 0
        if await self._first_difference(broker, group, queue_id, *queues) < queues[1].high:
            return 0
        clusters = self.clusters
        queue_place = QueuePlace(broker, clusters.counterpart(broker), topic, queue_id)
        copier = QueueCopier(clusters.primary, clusters.target, queue_place, PullOptions())
        # The target may store a dead letter of its own meanwhile; then the rest is sent.
        with contextlib.suppress(QueueStuck, RequestError):
            await copier.refresh_offsets()
            while copier.target_end < queues[0].high:
                end = copier.target_end
                await copier.copy_once(0)
                if copier.target_end <= end:
                    break
        return copier.copied_messages

    async def _wait_until_shown(self, move: Move, group: str, goal: Side) -> int:
        missing_messages = await self.count_missing(move, group, goal)
        interval_s = SHOW_INTERVAL_S
        with trio.move_on_after(MAX_SHOW_S):
            while missing_messages:
                await trio.sleep(interval_s)
                interval_s *= 2
                missing_messages = await self.count_missing(move, group, goal)
        return missing_messages


def _from(queue_range: QueueRange, start: int) -> QueueRange:
    return QueueRange(min(max(queue_range.low, start), queue_range.high), queue_range.high)


def _identity(message: Message) -> bytes:
    """Return a digest of what a copy has in common with its original: key, original message id, born time and body."""
    digest = blake2b(digest_size=16)
    for part in (message.unique_key or "", message.properties.get(names.ORIGIN_MESSAGE_ID, "")):
        digest.update(part.encode("utf-8", "surrogateescape"))
        digest.update(b"\x01")
    digest.update(b"%d\x01" % message.born_timestamp)
    digest.update(message.body)
    return digest.digest()
