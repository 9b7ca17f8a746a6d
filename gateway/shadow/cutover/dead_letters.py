"""Copies a group's dead letters to the side where it is going to consume, so that none stays on a side nobody uses.

Theory of operation. A broker stores a message that a group gave up on in the group's dead-letter topic, on the side
where the group consumed it. Replication copies this topic while the group consumes at the primary, and stops once the
group has switched. From then on the topic grows at the target; it also grows at the primary if the group still consumes
another topic there. So before a group changes sides, and before DONE, the topic is compared and what only the other
side has is copied.

Queue offsets cannot say what is missing, because both sides may have grown. Messages are compared by content
(`_identity`) and counted, since a group may give up on the same message twice. Only the part of a queue after the last
common message is read: with preserved offsets the first difference is found by bisection; for any other target the part
begins at the ends of the queues when the group switched. Only the side with fewer of these messages is held in memory,
at most MAX_COMPARED_LETTERS of them.

A group may give up on messages all the time, so copying has an end: the ends of the source's queues before it begins.
Later letters are left to the next step.

A crash or a lost answer leaves copies behind, which the next attempt finds on the other side, so nothing is copied
twice. Replication may still copy the same messages to the target, but only while the target's queue is a beginning of
the primary's. In that case they are put at their offsets, which both may do. Otherwise the target refuses what
replication puts, and the messages are sent. Since putting goes as far as those ends, nothing is left to send in the
first case, also when replication goes on meanwhile.
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
MAX_COMPARED_LETTERS: Final = 500_000
"""Largest number of dead letters of one broker that are held in memory to compare both sides, at about 150 bytes each.

Counts that a step only shows read no more than this either; beyond it they are an upper bound.
"""
MAX_IDLE_PULLS: Final = 1
"""Pulls in a row without progress before putting at offsets ends: replication may have put the same messages first."""
ALLOWANCE_ADVICE: Final = "--allow dead-letters takes the step without them"
NOT_MIRRORED: Final = (
    'only a target of kind "ours" gets dead letters of the primary, unless [replication] dead_letters = false: consume '
    "or resend them before the primary is shut down"
)


QueueParts = list[tuple[int, QueueRange]]
"""Queue ids and the parts of these queues to read, in order."""
SourceEnds = Mapping[str, Mapping[int, int]]
"""By broker and queue id: the end of the letters to copy."""


@dataclass(frozen=True, slots=True)
class LetterCount:
    """A number of dead letters; an upper bound if they were too many to compare."""

    number: int = 0
    is_exact: bool = True

    def __add__(self, other: "LetterCount") -> "LetterCount":
        return LetterCount(self.number + other.number, self.is_exact and other.is_exact)

    def __str__(self) -> str:
        return f"{self.number}" if self.is_exact else f"at most {self.number}"


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

    async def plan_copy(self, move: Move, group: str) -> MoveCheck:
        """Return the check of a step to the target, before it is taken. Raises LOOKUP_ERRORS."""
        if not self.are_replicated:
            return await self._name_unmirrored(move, group)
        missing = LetterCount()
        for broker in await self.clusters.brokers_of(move.topic):
            source_parts, goal_parts = await self._differing_parts(move, group, broker, Side.TARGET, None)
            missing += await self._count_difference(broker, group, source_parts, goal_parts)
        copies = "; the step copies them" if missing.number else ""
        return MoveCheck(DEAD_LETTERS_CHECK, True, f"{group}: {missing} only at the primary{copies}")

    async def copy_missing(self, move: Move, group: str, goal: Side) -> MoveCheck:
        """Copy what the goal lacks, and check that it lacks nothing afterwards.

        A target with offsets of its own does not get the primary's dead letters; their number is in the check.
        """
        topic = dlq_topic(group)
        copied_messages = 0
        try:
            if goal is Side.TARGET and not self.are_replicated:
                return await self._name_unmirrored(move, group)
            source_ends = await self._source_ends(move, group, goal)
            for broker in source_ends:
                copied_messages += await self._copy_broker(move, group, broker, goal, source_ends)
            missing_messages = await self._wait_until_shown(move, group, goal, source_ends)
        except LOOKUP_ERRORS as problem:
            reason = (
                f"{topic} cannot be copied to the {goal.value}: {type(problem).__name__}: {problem}; "
                f"{ALLOWANCE_ADVICE}"
            )
            return MoveCheck(DEAD_LETTERS_CHECK, False, f"{group}: {copied_messages} copied", reason)
        reason = f"the {goal.value} still lacks {missing_messages} messages of {topic}; {ALLOWANCE_ADVICE}"
        measured = f"{group}: {copied_messages} copied to the {goal.value}"
        return MoveCheck(
            DEAD_LETTERS_CHECK, not missing_messages, measured, reason if missing_messages else ""
        )

    async def _name_unmirrored(self, move: Move, group: str) -> MoveCheck:
        number = LetterCount()
        for broker in await self.clusters.brokers_of(move.topic):
            primary_parts = _whole_queues(await self._queue_ranges(Side.PRIMARY, broker, group))
            target_parts = _whole_queues(await self._queue_ranges(Side.TARGET, broker, group))
            number += await self._count_difference(broker, group, primary_parts, target_parts)
        measured = f"{group}: {number} only at the primary"
        return MoveCheck(DEAD_LETTERS_CHECK, True, measured, NOT_MIRRORED if number.number else "")

    # -- comparing -------------------------------------------------------------------------------------------------

    async def _queue_ranges(self, side: Side, broker: str, group: str) -> dict[int, QueueRange]:
        return await self.clusters.queue_ranges(side, broker, dlq_topic(group))

    async def _source_ends(self, move: Move, group: str, goal: Side) -> SourceEnds:
        source = _other_side(goal)
        return {
            broker: {
                queue_id: queue_range.high
                for queue_id, queue_range in (await self._queue_ranges(source, broker, group)).items()
            }
            for broker in await self.clusters.brokers_of(move.topic)
        }

    async def _count_difference(
        self, broker: str, group: str, primary_parts: QueueParts, target_parts: QueueParts
    ) -> LetterCount:
        """Count what only the primary has; return an upper bound where that needs too much reading."""
        if not _count_letters(target_parts) or not primary_parts:
            return LetterCount(_count_letters(primary_parts))
        if _count_letters(primary_parts) + _count_letters(target_parts) > MAX_COMPARED_LETTERS:
            return LetterCount(_count_letters(primary_parts), is_exact=False)
        missing_messages = 0
        async with aclosing(
            self._iter_difference(broker, group, Side.TARGET, primary_parts, target_parts)
        ) as messages:
            async for _ in messages:
                missing_messages += 1
        return LetterCount(missing_messages)

    async def _iter_missing(
        self, move: Move, group: str, broker: str, goal: Side, source_ends: SourceEnds
    ) -> AsyncGenerator[tuple[int, Message], None]:
        """Yield the queue id and the message of each dead letter that the goal lacks, in the order of its queue."""
        parts = await self._differing_parts(move, group, broker, goal, source_ends)
        async with aclosing(self._iter_difference(broker, group, goal, *parts)) as messages:
            async for queue_id, message in messages:
                yield queue_id, message

    async def _iter_difference(
        self, broker: str, group: str, goal: Side, source_parts: QueueParts, goal_parts: QueueParts
    ) -> AsyncGenerator[tuple[int, Message], None]:
        """Yield what the parts of the source have and those of the goal lack. Raises OSError if both are too long."""
        if not source_parts:
            return
        present = await self._count_present(broker, group, goal, source_parts, goal_parts)
        async with aclosing(self._read_parts(_other_side(goal), broker, group, source_parts)) as messages:
            async for queue_id, message in messages:
                identity = _identity(message)
                if present[identity]:
                    present[identity] -= 1
                else:
                    yield queue_id, message

    async def _count_present(
        self, broker: str, group: str, goal: Side, source_parts: QueueParts, goal_parts: QueueParts
    ) -> Counter[bytes]:
        """Count the messages of the goal by identity, but none that the source has not if the source is smaller."""
        source_letters, goal_letters = _count_letters(source_parts), _count_letters(goal_parts)
        if min(source_letters, goal_letters) > MAX_COMPARED_LETTERS:
            raise OSError(
                f"{source_letters} and {goal_letters} messages at {broker} are too many to compare: more than "
                f"{MAX_COMPARED_LETTERS} on both sides"
            )
        candidates: Counter[bytes] | None = None
        if source_letters < goal_letters:
            candidates = Counter()
            async with aclosing(self._read_parts(_other_side(goal), broker, group, source_parts)) as messages:
                async for _, message in messages:
                    candidates[_identity(message)] += 1
        present: Counter[bytes] = Counter()
        async with aclosing(self._read_parts(goal, broker, group, goal_parts)) as messages:
            async for _, message in messages:
                identity = _identity(message)
                if candidates is None or present[identity] < candidates[identity]:
                    present[identity] += 1
        return present

    async def _differing_parts(
        self, move: Move, group: str, broker: str, goal: Side, source_ends: SourceEnds | None
    ) -> tuple[QueueParts, QueueParts]:
        """Return the parts of the queues of source and goal that may differ, without empty ones.

        With ``source_ends``, the source is not looked at beyond them.
        """
        source = _other_side(goal)
        source_ranges = await self._queue_ranges(source, broker, group)
        goal_ranges = await self._queue_ranges(goal, broker, group)
        source_parts, goal_parts = [], []
        for queue_id in sorted(source_ranges.keys() | goal_ranges.keys()):
            source_range = source_ranges.get(queue_id, QueueRange(0, 0))
            goal_range = goal_ranges.get(queue_id, QueueRange(0, 0))
            if self.are_replicated:
                pair = (source_range, goal_range) if source is Side.PRIMARY else (goal_range, source_range)
                start = await self._first_difference(broker, group, queue_id, *pair)
                starts = {source: start, goal: start}
                goal_parts.append((queue_id, _uncompared_part(source_range, goal_range, start)))
                # That part ends where both sides were compared for the first time.
                starts[goal] = max(start, source_range.low, goal_range.low)
            else:
                ends = move.dead_letter_ends.get(group, {}).get(queue_name(broker, queue_id))
                starts = {
                    Side.PRIMARY: 0 if ends is None else ends.primary,
                    Side.TARGET: 0 if ends is None else ends.target,
                }
            if source_ends is not None:
                stop = source_ends.get(broker, {}).get(queue_id, 0)
                source_range = QueueRange(min(source_range.low, stop), min(source_range.high, stop))
            source_parts.append((queue_id, _from(source_range, starts[source])))
            goal_parts.append((queue_id, _from(goal_range, starts[goal])))
        return _not_empty(source_parts), _not_empty(goal_parts)

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

    async def _read_parts(
        self, side: Side, broker: str, group: str, parts: QueueParts
    ) -> AsyncGenerator[tuple[int, Message], None]:
        """Yield queue id and message of all messages of the parts."""
        for queue_id, part in parts:
            async with aclosing(self._read_queue(side, broker, group, queue_id, part)) as messages:
                async for message in messages:
                    yield queue_id, message

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

    async def _copy_broker(
        self, move: Move, group: str, broker: str, goal: Side, source_ends: SourceEnds
    ) -> int:
        """Copy what the goal lacks of one broker; return the number of messages. Raises LOOKUP_ERRORS."""
        topic, copied_messages = dlq_topic(group), 0
        if not any(source_ends[broker].values()):
            return 0
        await self._ensure_topic(topic, broker, _other_side(goal), goal)
        if goal is Side.TARGET:
            for queue_id, end in source_ends[broker].items():
                copied_messages += await self._put_at_offsets(group, broker, queue_id, end)
        cluster, name = self.clusters.locate_broker(goal, broker)
        async with aclosing(self._iter_missing(move, group, broker, goal, source_ends)) as messages:
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

    async def _put_at_offsets(self, group: str, broker: str, queue_id: int, end: int) -> int:
        """Continue the target's queue to an end at the primary's offsets if it is a beginning of the primary's."""
        topic = dlq_topic(group)
        queues = [
            (await self._queue_ranges(side, broker, group)).get(queue_id, QueueRange(0, 0))
            for side in (Side.PRIMARY, Side.TARGET)
        ]
        if queues[1].high >= end:
            return 0
        if await self._first_difference(broker, group, queue_id, *queues) < queues[1].high:
            return 0
        clusters = self.clusters
        queue_place = QueuePlace(broker, clusters.counterpart(broker), topic, queue_id)
        copier = QueueCopier(clusters.primary, clusters.target, queue_place, PullOptions())
        # The target may store a dead letter of its own meanwhile; then the rest is sent.
        with contextlib.suppress(QueueStuck, RequestError):
            await copier.refresh_offsets()
            idle_pulls = 0
            while copier.target_end < end and idle_pulls <= MAX_IDLE_PULLS:
                target_end = copier.target_end
                await copier.copy_once(0)
                idle_pulls = 0 if copier.target_end > target_end else idle_pulls + 1
        return copier.copied_messages

    async def _wait_until_shown(self, move: Move, group: str, goal: Side, source_ends: SourceEnds) -> int:
        """Return the number of letters before the source's ends that the goal lacks, after waiting for it to be 0."""
        missing_messages = await self._count_missing(move, group, goal, source_ends)
        interval_s = SHOW_INTERVAL_S
        with trio.move_on_after(MAX_SHOW_S):
            while missing_messages:
                await trio.sleep(interval_s)
                interval_s *= 2
                missing_messages = await self._count_missing(move, group, goal, source_ends)
        return missing_messages

    async def _count_missing(self, move: Move, group: str, goal: Side, source_ends: SourceEnds) -> int:
        missing_messages = 0
        for broker in source_ends:
            async with aclosing(self._iter_missing(move, group, broker, goal, source_ends)) as messages:
                async for _ in messages:
                    missing_messages += 1
        return missing_messages


def _other_side(side: Side) -> Side:
    return Side.TARGET if side is Side.PRIMARY else Side.PRIMARY


def _count_letters(parts: QueueParts) -> int:
    return sum(part.high - part.low for _, part in parts)


def _not_empty(parts: QueueParts) -> QueueParts:
    return [(queue_id, part) for queue_id, part in parts if part.low < part.high]


def _whole_queues(ranges: Mapping[int, QueueRange]) -> QueueParts:
    return _not_empty(sorted(ranges.items()))


def _uncompared_part(source_range: QueueRange, goal_range: QueueRange, start: int) -> QueueRange:
    """Return the goal's messages at offsets where retention has deleted those of the source.

    Where the sides differ from ``start`` on, these may be the copies of later messages of the source. Empty if the goal
    is a beginning of the source: then no message stands at another offset there.
    """
    is_beginning = start == goal_range.high and start > max(source_range.low, goal_range.low)
    high = goal_range.low if is_beginning else min(source_range.low, goal_range.high)
    return QueueRange(goal_range.low, max(goal_range.low, high))


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
