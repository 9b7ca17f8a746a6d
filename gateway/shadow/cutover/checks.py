"""The checks before each step of a move. Each result is a `MoveCheck`: what was measured, and why it does not hold.

`mover` chooses the checks of a step.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import trio

from codec.topics import TOOL_GROUPS, is_system_group, retry_topic
from gateway.shadow.clusters.cluster_pair import LOOKUP_ERRORS, ClusterPair, QueueRange, queue_name
from gateway.shadow.cutover.copy_back import CopyBack
from gateway.shadow.cutover.held_back import (
    TooManyHeldBack,
    count_delayed_messages,
    count_half_messages,
    count_timer_messages,
)
from gateway.shadow.cutover.move_traffic import MoveTraffic
from gateway.shadow.cutover.moves import Move, QueueEnds
from gateway.shadow.cutover.retry_topics import is_retry_topic_of, retry_topics
from gateway.shadow.cutover.settings import CutoverSettings
from gateway.shadow.mirror.settings import TARGET_PRIMARY
from gateway.shadow.traffic.exchange import Side
from remoting.requests.topics import QueryTopicsByConsumer

ABANDONED_RETRIES_CHECK: Final = "abandoned retries"
MAX_REVIVE_DELAY_MS: Final = 15_000
"""Time after which a popped message is in its retry topic at the latest, counted from the end of its invisible time.

Source: PopReviveService, 5.4.0: the revive topic is read for up to reviveScanTime (10 s), and the time of a pop
checkpoint must be over by two seconds.
"""


@dataclass(frozen=True, slots=True)
class MoveCheck:
    """The result of one check; `reason` says why it does not hold, or what was ignored although it does not hold."""

    name: str
    ok: bool
    measured: str
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the check as a row of a table."""
        return {"check": self.name, "ok": self.ok, "measured": self.measured, "reason": self.reason}


class MirrorControl(Protocol):
    """The part of mirroring that a move needs."""

    def count_waiting(self, topic: str) -> int:
        """Return the number of exchanges of a topic that are still on their way to the target."""

    def stop_mirroring(self, topic: str) -> None:
        """Send nothing more of the topic to the target."""

    def resume_mirroring(self, topic: str) -> None:
        """Mirror the topic as its rule says."""

    def is_led_by_target(self, topic: str) -> bool:
        """Tell whether the topic's mode sends messages to the target first and copies them back."""


ParityFunction = Callable[[str, int], Awaitable[MoveCheck]]
"""Compares the messages of a topic that were stored at or after a time (ms since 1970)."""
CheckFunction = Callable[[], Awaitable[MoveCheck]]


async def run_check(name: str, check: CheckFunction) -> MoveCheck:
    """Run a check. If a cluster does not answer, return a check that does not hold."""
    try:
        return await check()
    except LOOKUP_ERRORS as problem:
        return MoveCheck(name, False, "unknown", f"{type(problem).__name__}: {problem}")


def _describe_lag(lag: int, total: int) -> str:
    copied = f"all {total:,}" if not lag else f"{max(0, total - lag):,} of {total:,}"
    return f"{copied} messages copied ({lag:,} remaining)"


class MoveChecks:
    """Makes the checks of moves on both clusters.

    ``target_problem`` returns why nothing can be mirrored to the target; "" if it can.
    """

    def __init__(
        self,
        clusters: ClusterPair,
        traffic: MoveTraffic,
        mirror: MirrorControl,
        settings: CutoverSettings,
        now_ms: Callable[[], int],
        parity: ParityFunction | None = None,
        target_problem: Callable[[], str] = lambda: "",
    ) -> None:
        self.clusters = clusters
        self.traffic = traffic
        self.mirror = mirror
        self._settings = settings
        self._now_ms = now_ms
        self._parity = parity
        self._target_problem = target_problem

    # -- the target has all messages of the primary ----------------------------------------------------------------

    async def check_caught_up(self, move: Move) -> list[MoveCheck]:
        """Return the checks before CAUGHT_UP.

        Parity leaves out messages stored before the last step of the move: those that a roll-back copied to the primary
        have another born host there.
        """
        topic, since_ms = move.topic, move.since_ms
        if problem := self._target_problem():
            return [MoveCheck("target", False, "cannot be mirrored to", problem)]
        if self.mirror.is_led_by_target(topic):
            reason = f"the target leads the topic; first run: rmq-gateway shadow mode {topic} async"
            return [MoveCheck("mode", False, TARGET_PRIMARY, reason)]
        checks = await self.check_reached(topic)
        parity = self._parity
        if parity is not None and all(check.ok for check in checks):
            checks.append(await run_check("parity", lambda: parity(topic, since_ms)))
        return checks

    async def check_reached(self, topic: str) -> list[MoveCheck]:
        """Check that the target has the queues of the topic and all messages that the primary has now."""
        checks = [await run_check("topic", lambda: self._check_queues(topic))]
        if checks[0].ok:
            checks.append(await run_check("lag", lambda: self._wait_until_reached(topic)))
        return checks

    async def _check_queues(self, topic: str) -> MoveCheck:
        """Check that the target has every queue of the primary."""
        brokers = await self.clusters.brokers_of(topic)
        if not brokers:
            return MoveCheck("topic", False, "not at the primary", f"the primary has no topic {topic}")
        missing_queues, queues = [], 0
        for broker in brokers:
            primary_queues = await self.clusters.queue_ranges(Side.PRIMARY, broker, topic)
            target_queues = await self.clusters.queue_ranges(Side.TARGET, broker, topic)
            missing_queues += [
                queue_name(broker, queue) for queue in primary_queues if queue not in target_queues
            ]
            queues += len(primary_queues)
        reason = (
            f"the target lacks {', '.join(missing_queues)}: rmq-gateway shadow sync" if missing_queues else ""
        )
        return MoveCheck("topic", not missing_queues, f"{queues} queues", reason)

    async def _wait_until_reached(self, topic: str) -> MoveCheck:
        """Wait, for at most `catch_up_ms`, until the target has the messages that the primary has now."""
        goal_ranges = await self.queue_ranges(Side.PRIMARY, topic)
        lag = -1
        with trio.move_on_after(self._settings.catch_up_ms / 1000):
            while True:
                lag = await self._count_lag(topic, goal_ranges)
                # Without preserved offsets only the backlog is known, in which there is always something under way.
                if lag <= (0 if self.clusters.preserves_offsets else self._settings.max_lag):
                    return MoveCheck(
                        "lag",
                        True,
                        _describe_lag(lag, sum(queue_range.high for queue_range in goal_ranges.values())),
                    )
                await trio.sleep(self._settings.poll_ms / 1000)
        return MoveCheck(
            "lag", False, f"{lag} messages", f"the target did not catch up in {self._settings.catch_up_ms} ms"
        )

    async def check_lag(self, topic: str) -> MoveCheck:
        """Check that the target lacks at most `max_lag` messages now."""
        lag = await self._count_lag(topic, await self.queue_ranges(Side.PRIMARY, topic))
        ok = lag <= self._settings.max_lag
        return MoveCheck(
            "lag", ok, f"{lag} messages", "" if ok else f"more than max_lag = {self._settings.max_lag}"
        )

    async def _count_lag(self, topic: str, goal_ranges: Mapping[str, QueueRange]) -> int:
        if not self.clusters.preserves_offsets:
            return self.mirror.count_waiting(topic)
        target_ranges = await self.queue_ranges(Side.TARGET, topic)
        return sum(
            max(0, queue_range.high - target_ranges.get(queue, QueueRange(0, 0)).high)
            for queue, queue_range in goal_ranges.items()
        )

    async def queue_ranges(self, side: Side, topic: str) -> dict[str, QueueRange]:
        """Return the range of every queue of a topic, by "broker/queue id"."""
        return {
            queue_name(broker, queue): queue_range
            for broker in await self.clusters.brokers_of(topic)
            for queue, queue_range in (await self.clusters.queue_ranges(side, broker, topic)).items()
        }

    async def queue_ends(self, topic: str) -> dict[str, QueueEnds]:
        """Return the end offsets of a topic's queues on both sides."""
        primary_ranges, target_ranges = (
            await self.queue_ranges(Side.PRIMARY, topic),
            await self.queue_ranges(Side.TARGET, topic),
        )
        return {
            queue: QueueEnds(queue_range.high, target_ranges.get(queue, QueueRange(0, 0)).high)
            for queue, queue_range in primary_ranges.items()
        }

    async def check_quiet(self, topic: str) -> MoveCheck:
        """Check, while sends are held, that none is unanswered and that the target has all messages. Does not wait."""
        unanswered, waiting = self.traffic.count_unanswered_sends(topic), self.mirror.count_waiting(topic)
        if unanswered or waiting:
            measured = f"{unanswered} unanswered, {waiting} on their way to the target"
            return MoveCheck("quiet", False, measured, "the pause was too short for the messages under way")
        ends = await self.queue_ends(topic)
        # A broker may answer a send before its queue shows the message.
        late = [
            queue
            for queue, queue_ends in ends.items()
            if queue_ends.primary < self._answered_end(Side.PRIMARY, topic, queue)
        ]
        missing_messages = (
            sum(max(0, queue_ends.primary - queue_ends.target) for queue_ends in ends.values())
            if self.clusters.preserves_offsets
            else 0
        )
        if late or missing_messages:
            return MoveCheck(
                "quiet", False, f"{missing_messages} messages not at the target", "the target lacks messages"
            )
        return MoveCheck("quiet", True, "0 unanswered, 0 not at the target")

    async def check_sends_answered(self, topic: str) -> MoveCheck:
        """Check, while sends are held, that none is unanswered. Does not wait."""
        unanswered = self.traffic.count_unanswered_sends(topic)
        return MoveCheck(
            "answered",
            not unanswered,
            f"{unanswered} unanswered",
            "sends are under way" if unanswered else "",
        )

    async def check_sends_returned(self, topic: str) -> MoveCheck:
        """Check, while sends are held, that none is unanswered and that the primary has all messages. Does not wait."""
        unanswered, waiting = self.traffic.count_unanswered_sends(topic), self.mirror.count_waiting(topic)
        measured = f"{unanswered} unanswered, {waiting} on their way to the primary"
        ok = not unanswered and not waiting
        return MoveCheck(
            "returned", ok, measured, "" if ok else "the pause was too short for the messages under way"
        )

    async def check_no_waiting_reads(self, topic: str) -> MoveCheck:
        """Check that no read of the topic waits at the target. Does not wait.

        Otherwise a read that began before its consumer went back would be answered with a message that is mirrored
        later, at an offset of the target, and the consumer would continue after that offset at the primary.
        """
        reading = self.traffic.count_waiting_reads(topic)
        return MoveCheck(
            "unread", not reading, f"{reading} waiting", "reads wait at the target" if reading else ""
        )

    async def check_copied_back(self, topic: str, copy: CopyBack) -> MoveCheck:
        """Check that the primary shows all messages copied to it, and the target all messages it acknowledged."""
        ends = await self.queue_ends(topic)
        late = [
            queue
            for queue, queue_ends in ends.items()
            if queue_ends.target < self._answered_end(Side.TARGET, topic, queue)
            or queue_ends.primary < copy.stored_end(queue)
        ]
        missing_messages = await copy.count_missing()
        ok = not late and not missing_messages
        reason = "" if ok else f"{missing_messages} messages to copy, {len(late)} queues not shown yet"
        return MoveCheck("copied back", ok, f"{copy.copied_messages} messages", reason)

    def compare_ends(self, ends: Mapping[str, QueueEnds]) -> tuple[str, str]:
        """Compare the ends of queues on both sides; return the measurement, and advice if they differ."""
        apart = (
            sum(queue_ends.primary != queue_ends.target for queue_ends in ends.values())
            if self.clusters.preserves_offsets
            else 0
        )
        if not apart:
            return f"{len(ends)} queues", ""
        return (
            f"{apart} queues end differently",
            "delete the topic at the target and backfill it to mirror it again",
        )

    def _answered_end(self, side: Side, topic: str, queue: str) -> int:
        broker, _, queue_id = queue.rpartition("/")
        name = broker if side is Side.PRIMARY else self.clusters.counterpart(broker)
        return max(
            self.traffic.answered_end(side, topic, broker_name, int(queue_id))
            for broker_name in (broker, name)
        )

    # -- messages that a side still holds back ---------------------------------------------------------------------

    async def check_held_back(self, topic: str, side: Side) -> list[MoveCheck]:
        """Return checks for half messages that have not ended, and for messages that wait for their time."""
        return [
            await run_check(
                "transactions", lambda: self._check_count("transactions", topic, side, count_half_messages)
            ),
            await run_check(
                "delays", lambda: self._check_count("delays", topic, side, count_delayed_messages)
            ),
            await run_check("timers", lambda: self._check_count("timers", topic, side, count_timer_messages)),
        ]

    async def _check_count(
        self,
        name: str,
        topic: str,
        side: Side,
        count: Callable[[ClusterPair, Side, str, str], Awaitable[int]],
    ) -> MoveCheck:
        try:
            brokers = await self.clusters.brokers_of(topic)
            number = sum([await count(self.clusters, side, broker, topic) for broker in brokers])
        except TooManyHeldBack as problem:
            return MoveCheck(name, False, "too many to count", str(problem))
        reason = f"{number} at the {side.value}, which delivers them later" if number else ""
        return MoveCheck(name, not number, f"{number} waiting", reason)

    # -- a group has consumed all of a side ------------------------------------------------------------------------

    async def find_groups(self, topic: str) -> set[str]:
        """Return the groups of a topic on both sides, those of tools excluded."""
        groups: set[str] = set()
        for broker in await self.clusters.brokers_of(topic):
            for side in (Side.PRIMARY, Side.TARGET):
                groups |= await self.clusters.groups_of(side, broker, topic)
        return {group for group in groups if group not in TOOL_GROUPS and not is_system_group(group)}

    async def check_drained(self, move: Move, group: str) -> list[MoveCheck]:
        """Return the checks before DRAINED: the group has consumed all of its side, which holds nothing back for it."""
        side = move.consumer_side(group)
        # Also without consumers: what the side delivers later, or waits in a retry topic, would reach nobody there.
        if await self._has_consumers(move.topic, group):
            checks = [
                await run_check("drained", lambda: self._check_consumed(side, move.topic, group)),
                await run_check(
                    "retries", lambda: self._check_consumed(side, move.topic, group, retries=True)
                ),
            ]
        else:
            checks = [
                await run_check("online", lambda: self._check_idle_group(move, group)),
                await run_check(ABANDONED_RETRIES_CHECK, lambda: self._check_abandoned_retries(move, group)),
            ]
        checks += await self.check_held_back(move.topic, side)
        # A retried message waits for a delay level under the name of the retry topic, hence only the check of delays.
        checks += [
            MoveCheck(f"retry {check.name}", check.ok, check.measured, check.reason)
            for check in (await self.check_held_back(retry_topic(group), side))[1:2]
        ]
        checks.append(self._check_popped(move.topic, group))
        return checks

    async def _has_consumers(self, topic: str, group: str) -> bool:
        # The primary gets the heartbeats of all clients, also of those that consume from the target.
        for broker in await self.clusters.brokers_of(topic):
            if await self.clusters.group_members(Side.PRIMARY, broker, group):
                return True
        return False

    async def _check_idle_group(self, move: Move, group: str) -> MoveCheck:
        """Check a group without consumers: it continues at the same offsets if the target preserves them."""
        if self.clusters.preserves_offsets:
            return await self._check_unread_history(move, group)
        check = await self._check_consumed(move.consumer_side(group), move.topic, group)
        reason = "" if check.ok else "the group has no consumers, and the target uses offsets of its own"
        return MoveCheck("online", check.ok, f"no consumers, {check.measured}", reason)

    async def _check_unread_history(self, move: Move, group: str) -> MoveCheck:
        """Check that the other side has every message that a group has not consumed yet."""
        missing_messages, side = 0, move.consumer_side(group)
        other = Side.TARGET if side is Side.PRIMARY else Side.PRIMARY
        for broker in await self.clusters.brokers_of(move.topic):
            there = await self.clusters.queue_ranges(other, broker, move.topic)
            for queue, queue_range in (await self.clusters.queue_ranges(side, broker, move.topic)).items():
                offset = await self.clusters.consumer_offset(side, broker, group, move.topic, queue)
                begin = there.get(queue, QueueRange(0, 0)).low
                missing_messages += max(0, min(begin, queue_range.high) - max(queue_range.low, offset or 0))
        reason = (
            f"{missing_messages} messages it has not consumed are not at the {other.value}"
            if missing_messages
            else ""
        )
        return MoveCheck(
            "online", not missing_messages, "no consumers; continues at its present offsets", reason
        )

    async def _check_abandoned_retries(self, move: Move, group: str) -> MoveCheck:
        """Check the retries of a group without consumers, which nobody is going to consume by waiting."""
        side = move.consumer_side(group)
        check = await self._check_consumed(side, move.topic, group, retries=True)
        advice = (
            f"{check.reason}, and has no consumers: start one, or reset its offset to the end of that topic at the "
            f"{side.value}; --allow retries moves the group without them, and nobody gets them"
        )
        return MoveCheck(ABANDONED_RETRIES_CHECK, check.ok, check.measured, "" if check.ok else advice)

    async def _check_consumed(
        self, side: Side, topic: str, group: str, *, retries: bool = False
    ) -> MoveCheck:
        """Check that a group has consumed a topic, or the topics of its retries."""
        brokers = await self.clusters.brokers_of(topic)
        unconsumed = {
            name: sum([await self._count_unconsumed(side, broker, name, group) for broker in brokers])
            for name in (retry_topics(group, topic) if retries else (topic,))
        }
        topics = ", ".join(name for name, count in unconsumed.items() if count) or next(iter(unconsumed))
        count = sum(unconsumed.values())
        reason = f"{group} has not consumed all of {topics} at the {side.value}" if count else ""
        name = "retries" if retries else "drained"
        return MoveCheck(name, not count, f"{count} messages left in {topics}", reason)

    async def _count_unconsumed(self, side: Side, broker: str, topic: str, group: str) -> int:
        unconsumed = 0
        for queue, queue_range in (await self.clusters.queue_ranges(side, broker, topic)).items():
            end = max(queue_range.high, self._answered_end(side, topic, queue_name(broker, queue)))
            offset = await self.clusters.consumer_offset(side, broker, group, topic, queue)
            unconsumed += max(0, end - max(queue_range.low, offset or 0))
        return unconsumed

    def _check_popped(self, topic: str, group: str) -> MoveCheck:
        if self.traffic.is_first_pop_waiting(group, topic):
            return MoveCheck(
                "popped",
                False,
                "unknown",
                f"the first pop of {group} since the gateway's start is not answered yet",
            )
        out_until_ms = self.traffic.invisible_until_ms(group, topic)
        left_ms = out_until_ms + MAX_REVIVE_DELAY_MS - self._now_ms()
        reason = "popped messages may come back until then" if left_ms > 0 else ""
        return MoveCheck("popped", left_ms <= 0, f"{max(0, left_ms)} ms left", reason)

    # -- a group may follow ----------------------------------------------------------------------------------------

    async def compare_retry_topics(self, move: Move, group: str, moves: Mapping[str, Move]) -> MoveCheck:
        """Name the group's retry topics that hold more at the target: they cannot be mirrored at the same offsets.

        Nothing of this topic waits in them, because the group has consumed it. The retry topic belongs to all topics of
        the group, so it must not be deleted while another of them is consumed at the target. The check only informs: it
        holds also if a cluster does not answer.
        """
        try:
            ahead = await self._retry_topics_ahead(move, group)
        except LOOKUP_ERRORS as problem:
            reason = f"the retry topics cannot be compared: {type(problem).__name__}: {problem}"
            return MoveCheck("retry topics", True, "unknown", reason)
        moved_topics = sorted(
            topic
            for topic, other in moves.items()
            if topic != move.topic and group in other.groups and other.consumer_side(group) is Side.TARGET
        )
        reason = f"{', '.join(sorted(ahead))} has more messages at the target: " + (
            f"keep it there while {group} consumes {', '.join(moved_topics)} at the target"
            if moved_topics
            else "all of them are consumed; delete it there to mirror it again"
        )
        return MoveCheck("retry topics", True, f"{len(ahead)} differ", reason if ahead else "")

    async def _retry_topics_ahead(self, move: Move, group: str) -> set[str]:
        """Return the group's retry topics that hold more at the target. Raises LOOKUP_ERRORS."""
        ahead = set()
        for broker in await self.clusters.brokers_of(move.topic):
            for topic in retry_topics(group, move.topic):
                primary_ranges = await self.clusters.queue_ranges(Side.PRIMARY, broker, topic)
                for queue, queue_range in (
                    await self.clusters.queue_ranges(Side.TARGET, broker, topic)
                ).items():
                    if queue_range.high > primary_ranges.get(queue, QueueRange(0, 0)).high:
                        ahead.add(topic)
        return ahead

    async def check_other_topics(self, move: Move, group: str, moves: Mapping[str, Move]) -> MoveCheck:
        """Check that the group's other topics have got as far.

        A group has one retry topic and one set of locks, which can be on one side only.
        """
        behind = []
        for topic in sorted(await self._topics_of_group(move, group)):
            other = moves.get(topic, Move(topic))
            if topic != move.topic and group not in other.groups:
                behind.append(f"{topic} is {other.overall_state.value}")
        reason = f"{group} consumes more topics: {', '.join(behind)}" if behind else ""
        return MoveCheck("together", not behind, f"{len(behind)} other topics behind", reason)

    async def _topics_of_group(self, move: Move, group: str) -> set[str]:
        topics: set[str] = set()
        for broker in await self.clusters.brokers_of(move.topic):
            reply = await self.clusters.primary.ask_broker(broker, QueryTopicsByConsumer(group=group))
            topics |= set(reply.data.topic_list)
        return {topic for topic in topics if not is_retry_topic_of(topic, group)}
