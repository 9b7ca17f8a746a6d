"""Takes the steps of a move: runs the checks, does the step's work, writes the file, then updates the director.

docs/reference/cutover-guarantees.md says what each step guarantees. Steps are taken one at a time.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import trio

from codec.topics import dlq_topic
from gateway.runtime.metrics import Figure
from gateway.shadow.clusters.cluster_pair import CANNOT_LOOK
from gateway.shadow.console.errors import OperationRefused
from gateway.shadow.cutover.book import Book
from gateway.shadow.cutover.checks import Check, Checks
from gateway.shadow.cutover.copy_back import CopyBack
from gateway.shadow.cutover.director import Director
from gateway.shadow.cutover.followers import Followers
from gateway.shadow.cutover.machine import Move, State, Step
from gateway.shadow.cutover.retries import retry_topics
from gateway.shadow.cutover.settings import CutoverSettings
from gateway.shadow.traffic.exchange import Side
from storage.errors import StoreFull

log = logging.getLogger(__name__)

ALLOWED: Final = {
    "transactions": ("transactions",),
    "delays": ("delays", "timers"),
    "apart": ("together",),
}
"""What can be allowed, and the checks that then do not keep a step from being taken."""
RETRY_S: Final = 0.5
ROUNDS: Final = 5


@dataclass(slots=True)
class Report:
    """One step: whether it was taken, and what was looked at."""

    step: Step
    checks: list[Check] = field(default_factory=list)
    done: bool = False

    @property
    def reason(self) -> str:
        """Why it was not taken."""
        return "" if self.done else "; ".join(each.reason or each.name for each in self.checks if not each.ok)

    def to_dict(self) -> dict[str, Any]:
        """For the console."""
        step = self.step
        return {
            "topic": step.topic,
            "group": step.group or "",
            "from": step.source.value,
            "to": step.goal.value,
            "done": self.done,
            "reason": self.reason,
            "checks": [each.to_dict() for each in self.checks],
        }


class Mover:
    """Moves topics and groups. `start` makes everything follow what the file says; `one` is held during each step."""

    def __init__(
        self,
        book: Book,
        director: Director,
        checks: Checks,
        settings: CutoverSettings,
        now_ms: Callable[[], int],
    ) -> None:
        self.book = book
        self.checks = checks
        self._director = director
        self._settings = settings
        self._now_ms = now_ms
        self._followers = Followers(checks)
        self.one = trio.Lock()
        self._steps = {"taken": 0, "refused": 0}

    def start(self) -> None:
        """Goes on as the file says, after a start."""
        for move in self.book:
            self._mirror_as(move)
        self._director.update(self.book)

    def _mirror_as(self, move: Move) -> None:
        """What is consumed or produced at the target is not brought there from the primary as well."""
        self._mirror(move.topic, move.mirrored)
        for group in move.groups:
            there = move.consumers(group) is Side.TARGET
            for topic in (*retry_topics(group, move.topic), dlq_topic(group)):
                self._mirror(topic, not there)

    def _mirror(self, topic: str, wanted: bool) -> None:
        if wanted:
            self.checks.mirror.resume(topic)
        else:
            self.checks.mirror.stop(topic)

    def figures(self) -> Iterable[Figure]:
        """Where topics are, and steps."""
        for state in State:
            count = sum(move.shown is state for move in self.book)
            yield Figure("cutover_topics", count, "Topics by state.", "gauge", {"state": state.value})
        for result, count in self._steps.items():
            yield Figure("cutover_steps_total", count, "Steps by result.", labels={"result": result})

    # -- from outside ----------------------------------------------------------------------------------------------

    async def advance(
        self, topic: str, group: str | None = None, allow: Collection[str] = (), wait_s: float = 0.0
    ) -> list[Report]:
        """Takes the next step of a topic, or of its groups. Raises OperationRefused; see `_taken`."""
        return await self._patiently(lambda move: move.forward(group), topic, allow, wait_s)

    async def rollback(
        self, topic: str, group: str | None = None, allow: Collection[str] = (), wait_s: float = 0.0
    ) -> list[Report]:
        """Undoes the last step of a topic, or of a group. Raises OperationRefused; see `_taken`."""
        return await self._patiently(lambda move: move.backward(group), topic, allow, wait_s)

    async def look(self, topic: str, group: str | None = None) -> list[Report]:
        """The next steps with their checks as they are now; nothing is done. Raises OperationRefused."""
        async with self.one:
            await self.refresh()
            move = await self._known(topic)
            return [Report(step, await self._looks(move, step)) for step in move.forward(group)]

    async def _patiently(
        self, steps: Callable[[Move], list[Step]], topic: str, allow: Collection[str], wait_s: float
    ) -> list[Report]:
        """Tries what is refused again until ``wait_s`` are over."""
        until_s = trio.current_time() + wait_s
        async with self.one:
            await self.refresh()
            reports = [await self._taken(step, allow) for step in steps(await self._known(topic))]
        while not all(report.done for report in reports) and trio.current_time() < until_s:
            await trio.sleep(RETRY_S)
            async with self.one:
                for index, report in enumerate(reports):
                    if not report.done:
                        reports[index] = await self._taken(report.step, allow)
        return reports

    async def refresh(self) -> None:
        """Looks for brokers on both sides. Raises ASKING_FAILED."""
        await self.checks.sides.primary.refresh()
        await self.checks.sides.target.refresh()

    async def _known(self, topic: str) -> Move:
        """The move with all groups that are there by now."""
        move = self.book.get(topic)
        if move.state is State.PRODUCERS_SWITCHED:
            more = move.with_groups(await self.checks.groups(topic))
            if more is not move:
                await self.book.put(more)
                move = more
        return move

    # -- steps -----------------------------------------------------------------------------------------------------

    async def _taken(self, step: Step, allow: Collection[str]) -> Report:
        """Takes one step if its checks hold. What a cluster does not answer is a check that does not hold."""
        self._check_state(step)
        allowed = {name for each in allow for name in ALLOWED.get(each, ())}
        report = Report(step)
        try:
            report.done = await self._way(step)(step, report.checks, allowed)
        except (*CANNOT_LOOK, StoreFull) as problem:
            report.checks.append(Check("step", False, "failed", f"{type(problem).__name__}: {problem}"))
        self._steps["taken" if report.done else "refused"] += 1
        log.info("step", extra=report.to_dict())
        return report

    def _check_state(self, step: Step) -> None:
        move = self.book.get(step.topic)
        state = move.state if step.group is None else move.groups.get(step.group)
        if state is not step.source:
            raise OperationRefused(f"{step.group or step.topic} is not {step.source.value} any more")

    def _way(self, step: Step) -> Callable[[Step, list[Check], set[str]], Awaitable[bool]]:
        if step.group is not None:
            return self._mark_drained if step.goal is State.DRAINED else self._group
        if step.back:
            return self._producers_back if step.source is State.PRODUCERS_SWITCHED else self._simple
        if step.goal is State.PRODUCERS_SWITCHED:
            return self._producers
        return self._catch_up if step.goal is State.CAUGHT_UP else self._done

    async def _looks(self, move: Move, step: Step) -> list[Check]:
        """What would be looked at before a forward step."""
        checks = self.checks
        if step.goal is State.CAUGHT_UP:
            return await checks.caught_up(move)
        if step.goal is State.PRODUCERS_SWITCHED:
            return [await checks.lag(move.topic), *await checks.held_back(move.topic, Side.PRIMARY)]
        if step.group is not None:
            drained = await checks.drained(move, step.group)
            together = await checks.other_topics(move, step.group, self._moves())
            return drained if step.goal is State.DRAINED else [*drained, together]
        return await checks.held_back(move.topic, Side.PRIMARY)

    def _moves(self) -> dict[str, Move]:
        return {move.topic: move for move in self.book}

    async def _catch_up(self, step: Step, checks: list[Check], allowed: set[str]) -> bool:
        checks += await self._looks(self.book.get(step.topic), step)
        return holds(checks) and await self._write(step)

    async def _simple(self, step: Step, checks: list[Check], allowed: set[str]) -> bool:
        return await self._write(step)

    async def _mark_drained(self, step: Step, checks: list[Check], allowed: set[str]) -> bool:
        checks += await self._looks(self.book.get(step.topic), step)
        return holds(checks) and await self._write(step)

    async def _done(self, step: Step, checks: list[Check], allowed: set[str]) -> bool:
        checks += excused(await self._looks(self.book.get(step.topic), step), allowed)
        return holds(checks) and await self._write(step)

    async def _write(self, step: Step, move: Move | None = None) -> bool:
        """The step counts from here on: the file first, then everything that goes by it."""
        self._mirror_as(await self._note(step, move))
        return True

    async def _note(self, step: Step, move: Move | None = None) -> Move:
        """The step counts, and requests go by it; what is mirrored has to follow the move that this returns."""
        before = move or self.book.get(step.topic)
        after = before.taken(step, self._now_ms())
        await self.book.put(after)
        self._director.update(self.book)
        return replace(after, groups={**dict.fromkeys(before.groups, State.DRAINED), **after.groups})

    # -- producers -------------------------------------------------------------------------------------------------

    async def _producers(self, step: Step, checks: list[Check], allowed: set[str]) -> bool:
        move = self.book.get(step.topic)
        checks += excused(await self._looks(move, step), allowed)
        return holds(checks) and await self.in_a_pause(
            step.topic, checks, lambda: self._producers_now(step, checks, allowed)
        )

    async def _producers_now(self, step: Step, checks: list[Check], allowed: set[str]) -> bool:
        topic = step.topic
        await self.until_ok(checks, lambda: self.checks.quiet(topic))
        checks += excused((await self.checks.held_back(topic, Side.PRIMARY))[:1], allowed)
        if not holds(checks):
            return False
        ends, groups = await self.checks.ends(topic), await self.checks.groups(topic)
        return await self._write(step, self.book.get(topic).with_ends(ends).with_groups(groups))

    async def in_a_pause(self, topic: str, checks: list[Check], work: Callable[[], Awaitable[bool]]) -> bool:
        """Does something while sends of the topic wait, which is not for long."""
        done = False
        self._director.hold(topic)
        try:
            with trio.move_on_after(self._settings.hold_sends_ms / 1000) as limit:
                done = await work()
            if limit.cancelled_caught:
                reason = "sends must not wait longer; they go on as before"
                checks.append(Check("pause", False, f"{self._settings.hold_sends_ms} ms", reason))
        finally:
            self._director.release(topic)
        return done

    async def until_ok(self, checks: list[Check], look: Callable[[], Awaitable[Check]]) -> None:
        """Looks again and again; the last look is among the checks, also when the pause ends first."""
        place = len(checks)
        while True:
            checks[place:] = [await look()]
            if checks[place].ok:
                return
            await trio.sleep(self._settings.poll_ms / 1000)

    async def _producers_back(self, step: Step, checks: list[Check], allowed: set[str]) -> bool:
        topic = step.topic
        move = self.book.get(topic)
        checks += excused(await self.checks.held_back(topic, Side.TARGET), allowed)
        if not holds(checks):
            return False
        copy = CopyBack(self.checks.sides, topic, move.ends)
        await copy.begin()
        for _ in range(ROUNDS):  # most of it while producers go on
            if await copy.copy() <= self._settings.max_lag:
                break
        return await self.in_a_pause(topic, checks, lambda: self._producers_back_now(step, copy, checks))

    async def _producers_back_now(self, step: Step, copy: CopyBack, checks: list[Check]) -> bool:
        topic = step.topic
        await self.until_ok(checks, lambda: self.checks.answered(topic))
        await copy.copy()
        await self.until_ok(checks, lambda: self.checks.back(topic, copy))
        ends = await self.checks.ends(topic)
        checks.append(Check("offsets", True, *self.checks.same_ends(ends)))
        return await self._write(step, self.book.get(topic).with_ends(ends))

    # -- groups ----------------------------------------------------------------------------------------------------

    async def _group(self, step: Step, checks: list[Check], allowed: set[str]) -> bool:
        move, group = self.book.get(step.topic), step.group or ""
        if step.source is State.DRAINED and step.back:
            return await self._write(step)
        checks += await self.checks.drained(move, group)
        if not step.back:
            checks += excused([await self.checks.other_topics(move, group, self._moves())], allowed)
        if not holds(checks):
            return False
        checks += await self._followers.bring(move, group)
        if not holds(checks):
            return False
        return await (self._group_back(step, checks) if step.back else self._write(step))

    async def _group_back(self, step: Step, checks: list[Check]) -> bool:
        """With the last group the topic is mirrored again, but not into reads that still wait at the target."""
        move = await self._note(step)
        try:
            if move.mirrored:
                await self.until_ok(checks, lambda: self.checks.unread(step.topic))
        finally:
            self._mirror_as(move)
        return True


def holds(checks: Iterable[Check]) -> bool:
    """Whether all hold."""
    return all(each.ok for each in checks)


def excused(checks: Iterable[Check], allowed: Collection[str]) -> list[Check]:
    """Those that were allowed not to hold, hold."""
    return [
        replace(each, ok=True, reason=f"allowed: {each.reason}")
        if not each.ok and each.name in allowed
        else each
        for each in checks
    ]
