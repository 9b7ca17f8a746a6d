"""What is looked at before a step: each check says whether it holds, what was measured, and why not.

Not responsible for which checks a step needs (mover) nor for doing anything.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import trio

from codec.topics import TOOL_GROUPS, is_system_group, retry_topic
from gateway.shadow.clusters.cluster_pair import CANNOT_LOOK, Range, Sides, queue_name
from gateway.shadow.cutover.copy_back import CopyBack
from gateway.shadow.cutover.machine import Ends, Move
from gateway.shadow.cutover.pending import TooMany, delayed_messages, half_messages, timer_messages
from gateway.shadow.cutover.retries import is_retry_of, retry_topics
from gateway.shadow.cutover.settings import CutoverSettings
from gateway.shadow.cutover.traffic import Traffic
from gateway.shadow.mirror.settings import TARGET_PRIMARY
from gateway.shadow.traffic.exchange import Side
from remoting.requests.topics import QueryTopicsByConsumer

REVIVED_MS: Final = 15_000
"""How much later than its time a popped message is back in its retry topic, at most, on a broker that is well.

Source: PopReviveService, 5.4.0: the revive topic is read for up to reviveScanTime (10 s), a check point's time must be
over by two seconds.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `reason` says why it does not hold, or what is left aside although it does not."""

    name: str
    ok: bool
    measured: str
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As a row of a table."""
        return {"check": self.name, "ok": self.ok, "measured": self.measured, "reason": self.reason}


class MirrorControl(Protocol):
    """What a move needs of mirroring."""

    def waiting(self, topic: str) -> int:
        """Exchanges of a topic that are still on their way to the target."""

    def stop(self, topic: str) -> None:
        """Nothing more of the topic goes to the target."""

    def resume(self, topic: str) -> None:
        """The topic is mirrored as its rule says."""

    def led(self, topic: str) -> bool:
        """Whether sends go to the target and come back, by the topic's mode."""


ParityOf = Callable[[str, int], Awaitable[Check]]
"""Says whether the target has the same messages of a topic, of those stored from a time on (ms since 1970)."""
Look = Callable[[], Awaitable[Check]]


async def looked(name: str, look: Look) -> Check:
    """The check, or that it could not be made."""
    try:
        return await look()
    except CANNOT_LOOK as problem:
        return Check(name, False, "unknown", f"{type(problem).__name__}: {problem}")


class Checks:
    """The checks against two running clusters."""

    def __init__(
        self,
        sides: Sides,
        traffic: Traffic,
        mirror: MirrorControl,
        settings: CutoverSettings,
        now_ms: Callable[[], int],
        parity: ParityOf | None = None,
    ) -> None:
        self.sides = sides
        self.traffic = traffic
        self.mirror = mirror
        self._settings = settings
        self._now_ms = now_ms
        self._parity = parity

    # -- the target has what the primary has -----------------------------------------------------------------------

    async def caught_up(self, move: Move) -> list[Check]:
        """What CAUGHT_UP needs. What came back by a roll-back is known to have another born host at the primary."""
        topic, since_ms = move.topic, move.since_ms
        if self.mirror.led(topic):
            reason = f"the target leads it: rmq-gateway shadow mode {topic} async"
            return [Check("mode", False, TARGET_PRIMARY, reason)]
        checks = await self.reached(topic)
        parity = self._parity
        if parity is not None and all(each.ok for each in checks):
            checks.append(await looked("parity", lambda: parity(topic, since_ms)))
        return checks

    async def reached(self, topic: str) -> list[Check]:
        """The target has the queues, and gets what the primary has now."""
        checks = [await looked("topic", lambda: self._topic(topic))]
        if checks[0].ok:
            checks.append(await looked("lag", lambda: self._reached(topic)))
        return checks

    async def _topic(self, topic: str) -> Check:
        """The target has the queues the primary has."""
        brokers = await self.sides.brokers_of(topic)
        if not brokers:
            return Check("topic", False, "not at the primary", f"the primary has no topic {topic}")
        lacking, queues = [], 0
        for broker in brokers:
            ours = await self.sides.ranges(Side.PRIMARY, broker, topic)
            theirs = await self.sides.ranges(Side.TARGET, broker, topic)
            lacking += [queue_name(broker, queue) for queue in ours if queue not in theirs]
            queues += len(ours)
        reason = f"the target lacks {', '.join(lacking)}: rmq-gateway shadow sync" if lacking else ""
        return Check("topic", not lacking, f"{queues} queues", reason)

    async def _reached(self, topic: str) -> Check:
        """The target gets, in a bounded time, what the primary had when this began."""
        wanted = await self.ranges(Side.PRIMARY, topic)
        lag = -1
        with trio.move_on_after(self._settings.catch_up_ms / 1000):
            while True:
                lag = await self._lag(topic, wanted)
                if lag <= (
                    0 if self.sides.kept else self._settings.max_lag
                ):  # there is always something under way
                    total = sum(each.high for each in wanted.values())
                    return Check("lag", True, f"{lag} behind {total} messages")
                await trio.sleep(self._settings.poll_ms / 1000)
        return Check(
            "lag", False, f"{lag} messages", f"the target did not catch up in {self._settings.catch_up_ms} ms"
        )

    async def lag(self, topic: str) -> Check:
        """How much the target lacks now, which may be a little."""
        lag = await self._lag(topic, await self.ranges(Side.PRIMARY, topic))
        ok = lag <= self._settings.max_lag
        return Check(
            "lag", ok, f"{lag} messages", "" if ok else f"more than max_lag = {self._settings.max_lag}"
        )

    async def _lag(self, topic: str, wanted: Mapping[str, Range]) -> int:
        if not self.sides.kept:
            return self.mirror.waiting(topic)
        there = await self.ranges(Side.TARGET, topic)
        return sum(max(0, each.high - there.get(queue, Range(0, 0)).high) for queue, each in wanted.items())

    async def ranges(self, side: Side, topic: str) -> dict[str, Range]:
        """All queues of a topic by "broker/queue id"."""
        return {
            queue_name(broker, queue): each
            for broker in await self.sides.brokers_of(topic)
            for queue, each in (await self.sides.ranges(side, broker, topic)).items()
        }

    async def ends(self, topic: str) -> dict[str, Ends]:
        """Where the queues of a topic end on both sides."""
        ours, theirs = await self.ranges(Side.PRIMARY, topic), await self.ranges(Side.TARGET, topic)
        return {queue: Ends(each.high, theirs.get(queue, Range(0, 0)).high) for queue, each in ours.items()}

    async def quiet(self, topic: str) -> Check:
        """While sends wait: none is unanswered, and the target has all the primary has. Does not wait."""
        flying, waiting = self.traffic.flying(topic), self.mirror.waiting(topic)
        if flying or waiting:
            measured = f"{flying} unanswered, {waiting} on their way to the target"
            return Check("quiet", False, measured, "the pause was too short for what was under way")
        ends = await self.ends(topic)
        late = [
            queue for queue, each in ends.items() if each.primary < self._answered(Side.PRIMARY, topic, queue)
        ]
        lacking = sum(max(0, each.primary - each.target) for each in ends.values()) if self.sides.kept else 0
        if late or lacking:
            return Check("quiet", False, f"{lacking} messages not at the target", "the target lacks messages")
        return Check("quiet", True, "0 unanswered, 0 not at the target")

    async def answered(self, topic: str) -> Check:
        """While sends wait: none is unanswered. Does not wait."""
        flying = self.traffic.flying(topic)
        return Check("answered", not flying, f"{flying} unanswered", "sends are under way" if flying else "")

    async def returned(self, topic: str) -> Check:
        """While sends wait: none is unanswered, and the primary has all of them. Does not wait."""
        flying, waiting = self.traffic.flying(topic), self.mirror.waiting(topic)
        measured = f"{flying} unanswered, {waiting} on their way to the primary"
        ok = not flying and not waiting
        return Check("returned", ok, measured, "" if ok else "the pause was too short for what was under way")

    async def unread(self, topic: str) -> Check:
        """No read of the topic waits at the target. Does not wait.

        A read that began before its consumers went back would else be answered with what is mirrored later, at an
        offset of the target, and its consumer would go on behind that at the primary.
        """
        reading = self.traffic.reading(topic)
        return Check(
            "unread", not reading, f"{reading} waiting", "reads wait at the target" if reading else ""
        )

    async def back(self, topic: str, copy: CopyBack) -> Check:
        """The primary shows all that was copied to it, and the target all that it answered."""
        ends = await self.ends(topic)
        late = [
            queue
            for queue, each in ends.items()
            if each.target < self._answered(Side.TARGET, topic, queue) or each.primary < copy.end_of(queue)
        ]
        lacking = await copy.lacking()
        ok = not late and not lacking
        reason = "" if ok else f"{lacking} messages to copy, {len(late)} queues not shown yet"
        return Check("copied back", ok, f"{copy.copied} messages", reason)

    def same_ends(self, ends: Mapping[str, Ends]) -> tuple[str, str]:
        """Whether queues end alike on both sides, in words: what was measured, and what follows from a difference."""
        apart = sum(each.primary != each.target for each in ends.values()) if self.sides.kept else 0
        if not apart:
            return f"{len(ends)} queues", ""
        return (
            f"{apart} queues end differently",
            "delete the topic at the target and backfill it to mirror it again",
        )

    def _answered(self, side: Side, topic: str, queue: str) -> int:
        broker, _, queue_id = queue.rpartition("/")
        name = broker if side is Side.PRIMARY else self.sides.counterpart(broker)
        return max(self.traffic.end(side, topic, each, int(queue_id)) for each in (broker, name))

    # -- what a side still holds back ------------------------------------------------------------------------------

    async def held_back(self, topic: str, side: Side) -> list[Check]:
        """Half messages without end, and messages that wait for their time."""
        return [
            await looked("transactions", lambda: self._count("transactions", topic, side, half_messages)),
            await looked("delays", lambda: self._count("delays", topic, side, delayed_messages)),
            await looked("timers", lambda: self._count("timers", topic, side, timer_messages)),
        ]

    async def _count(
        self, name: str, topic: str, side: Side, count: Callable[[Sides, Side, str, str], Awaitable[int]]
    ) -> Check:
        try:
            brokers = await self.sides.brokers_of(topic)
            number = sum([await count(self.sides, side, broker, topic) for broker in brokers])
        except TooMany as problem:
            return Check(name, False, "too many to look at", str(problem))
        reason = f"{number} at the {side.value}, which delivers them later" if number else ""
        return Check(name, not number, f"{number} waiting", reason)

    # -- a group has consumed all of a side ------------------------------------------------------------------------

    async def groups(self, topic: str) -> set[str]:
        """The groups of a topic on both sides, without those of tools."""
        found: set[str] = set()
        for broker in await self.sides.brokers_of(topic):
            for side in (Side.PRIMARY, Side.TARGET):
                found |= await self.sides.groups_of(side, broker, topic)
        return {group for group in found if group not in TOOL_GROUPS and not is_system_group(group)}

    async def drained(self, move: Move, group: str) -> list[Check]:
        """What DRAINED needs on the side the group consumes: all consumed, nothing held back for it."""
        side = move.consumers(group)
        if not await self._online(side, move.topic, group):
            return [await looked("online", lambda: self._idle(move, group))]
        checks = [await looked("drained", lambda: self._consumed(side, move.topic, group))]
        checks.append(await looked("retries", lambda: self._consumed(side, move.topic, group, retries=True)))
        checks += await self.held_back(move.topic, side)
        checks += [
            Check(f"retry {each.name}", each.ok, each.measured, each.reason)
            for each in (await self.held_back(retry_topic(group), side))[1:2]
        ]
        checks.append(self._popped(move.topic, group))
        return checks

    async def _online(self, side: Side, topic: str, group: str) -> bool:
        for broker in await self.sides.brokers_of(topic):
            if await self.sides.members(Side.PRIMARY, broker, group):
                return True
        return False

    async def _idle(self, move: Move, group: str) -> Check:
        """A group without consumers goes on at the same offsets, if the target keeps them."""
        if self.sides.kept:
            return await self._history(move, group)
        check = await self._consumed(move.consumers(group), move.topic, group)
        reason = "" if check.ok else "nobody consumes, and offsets of the target are other ones"
        return Check("online", check.ok, f"no consumers, {check.measured}", reason)

    async def _history(self, move: Move, group: str) -> Check:
        """The target has all that a group has still to consume."""
        lacking, side = 0, move.consumers(group)
        other = Side.TARGET if side is Side.PRIMARY else Side.PRIMARY
        for broker in await self.sides.brokers_of(move.topic):
            there = await self.sides.ranges(other, broker, move.topic)
            for queue, each in (await self.sides.ranges(side, broker, move.topic)).items():
                offset = await self.sides.consumer_offset(side, broker, group, move.topic, queue)
                begin = there.get(queue, Range(0, 0)).low
                lacking += max(0, min(begin, each.high) - max(each.low, offset or 0))
        reason = f"{lacking} messages it has not consumed are not at the {other.value}" if lacking else ""
        return Check("online", not lacking, "no consumers; goes on at the offsets it has", reason)

    async def _consumed(self, side: Side, topic: str, group: str, *, retries: bool = False) -> Check:
        """Whether a group has consumed a topic, or the topics of its retries."""
        brokers = await self.sides.brokers_of(topic)
        left = {
            name: sum([await self._left(side, broker, name, group) for broker in brokers])
            for name in (retry_topics(group, topic) if retries else (topic,))
        }
        behind = ", ".join(name for name, count in left.items() if count) or next(iter(left))
        count = sum(left.values())
        reason = f"{group} has not consumed all of {behind} at the {side.value}" if count else ""
        name = "retries" if retries else "drained"
        return Check(name, not count, f"{count} messages left in {behind}", reason)

    async def _left(self, side: Side, broker: str, topic: str, group: str) -> int:
        left = 0
        for queue, each in (await self.sides.ranges(side, broker, topic)).items():
            end = max(each.high, self._answered(side, topic, queue_name(broker, queue)))
            offset = await self.sides.consumer_offset(side, broker, group, topic, queue)
            left += max(0, end - max(each.low, offset or 0))
        return left

    def _popped(self, topic: str, group: str) -> Check:
        out_until_ms = self.traffic.out_until_ms(group, topic)
        left_ms = out_until_ms + REVIVED_MS - self._now_ms()
        reason = "popped messages may come back until then" if left_ms > 0 else ""
        return Check("popped", left_ms <= 0, f"{max(0, left_ms)} ms left", reason)

    # -- a group may follow ----------------------------------------------------------------------------------------

    async def other_topics(self, move: Move, group: str, moves: Mapping[str, Move]) -> Check:
        """A group's retry topic and locks are at one side, so its topics should be as well."""
        behind = []
        for topic in sorted(await self._topics_of(move, group)):
            other = moves.get(topic, Move(topic))
            if topic != move.topic and group not in other.groups:
                behind.append(f"{topic} is {other.shown.value}")
        reason = f"{group} consumes more topics: {', '.join(behind)}" if behind else ""
        return Check("together", not behind, f"{len(behind)} other topics behind", reason)

    async def _topics_of(self, move: Move, group: str) -> set[str]:
        found: set[str] = set()
        for broker in await self.sides.brokers_of(move.topic):
            reply = await self.sides.primary.ask(broker, QueryTopicsByConsumer(group=group))
            found |= set(reply.data.topic_list)
        return {topic for topic in found if not is_retry_of(topic, group)}
