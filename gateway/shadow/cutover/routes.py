"""Moves as JSON: what the console serves and the commands show. Plain functions from a dict to a dict.

Not responsible for HTTP (report is) nor for tables on a terminal (commands).
"""

from typing import Any, Final

from gateway.shadow.clusters.cluster import ASKING_FAILED
from gateway.shadow.clusters.full_sync import Syncing
from gateway.shadow.console.errors import HTTP_BAD_GATEWAY, HTTP_CONFLICT, ConsoleError, OperationRefused
from gateway.shadow.console.server import RouteRegistry
from gateway.shadow.cutover.machine import State
from gateway.shadow.cutover.mover import ALLOWED, Mover, Report

MAX_WAIT_S: Final = 3_600.0
_ORDER: Final = (
    State.MIRRORING,
    State.CAUGHT_UP,
    State.PRODUCERS_SWITCHED,
    State.DRAINED,
    State.CONSUMERS_SWITCHED,
    State.DONE,
)


class CutoverRoutes:
    """`/cutover…` of the console. Errors are ConsoleError: 409 what the states do not allow, 502 no cluster answers."""

    def __init__(self, mover: Mover, syncing: Syncing) -> None:
        self._mover = mover
        self._syncing = syncing

    def register(self, console: RouteRegistry) -> None:
        """Adds all routes."""
        console.get("/cutover", lambda _: self.status())
        console.get("/cutover/plan", self.plan)
        console.post("/cutover/advance", self.advance)
        console.post("/cutover/rollback", self.rollback)
        console.post("/cutover/sync", self.sync)

    def status(self) -> dict[str, Any]:
        """Every move that is under way."""
        return {"moves": [{**move.to_dict(), "shown": move.shown.value} for move in self._mover.book]}

    async def plan(self, given: dict[str, Any]) -> dict[str, Any]:
        """What the next step needs: of `topic` (several with commas), else of all that are under way."""
        topics = names_in(given.get("topic")) or [move.topic for move in self._mover.book if move.under_way]
        return {"topics": [await self._plan_of(topic, given.get("group") or None) for topic in topics]}

    async def _plan_of(self, topic: str, group: str | None) -> dict[str, Any]:
        move = self._mover.book.get(topic)
        plan: dict[str, Any] = {"topic": topic, "state": move.shown.value, "steps": [], "reason": ""}
        try:
            plan["steps"] = [report.to_dict() for report in await self._mover.look(topic, group)]
        except OperationRefused as refused:
            plan["reason"] = str(refused)
        except (*ASKING_FAILED, LookupError) as problem:
            plan["reason"] = f"{type(problem).__name__}: {problem}"
        return plan

    async def advance(self, given: dict[str, Any]) -> dict[str, Any]:
        """Takes the next step of `topic` (and `group`); `to`: all steps up to this state. See `_given`."""
        topic, group, allow, wait_s = _given(given)
        goal = _state(given.get("to"))
        reports: list[Report] = []
        while True:
            reports += await self._step(self._mover.advance, topic, group, allow, wait_s)
            reached = self._mover.book.get(topic)
            state = reached.groups.get(group, reached.state) if group else reached.shown
            if goal is None or not reports[-1].done or state not in _ORDER or _far(state) >= _far(goal):
                return self._answer(topic, reports)

    async def rollback(self, given: dict[str, Any]) -> dict[str, Any]:
        """Undoes the last step of `topic` (and `group`); `all`: until the topic is where it began."""
        topic, group, allow, wait_s = _given(given)
        reports = await self._step(self._mover.rollback, topic, group, allow, wait_s)
        while given.get("all") and all(each.done for each in reports):
            if self._mover.book.get(topic).state is State.MIRRORING:
                break
            reports += await self._step(self._mover.rollback, topic, group, allow, wait_s)
        return self._answer(topic, reports)

    async def _step(
        self, take: Any, topic: str, group: str | None, allow: list[str], wait_s: float
    ) -> list[Report]:
        try:
            reports: list[Report] = await take(topic, group, allow, wait_s)
        except OperationRefused as refused:
            raise ConsoleError(str(refused), HTTP_CONFLICT) from refused
        except (*ASKING_FAILED, LookupError) as problem:
            raise ConsoleError(f"{type(problem).__name__}: {problem}", HTTP_BAD_GATEWAY) from problem
        return reports

    def _answer(self, topic: str, reports: list[Report]) -> dict[str, Any]:
        return {
            "topic": topic,
            "state": self._mover.book.get(topic).shown.value,
            "done": all(report.done for report in reports),
            "steps": [report.to_dict() for report in reports],
        }

    async def sync(self, given: dict[str, Any]) -> dict[str, Any]:
        """Copies topics, groups, offsets and orders; only shows it with `dry_run`."""
        topics, groups = names_in(given.get("topics")) or None, names_in(given.get("groups")) or None
        moving = [move.topic for move in self._mover.book if not move.mirrored]
        try:
            steps = await self._syncing.run(topics, groups, moving, dry_run=bool(given.get("dry_run")))
        except (*ASKING_FAILED, LookupError) as problem:
            raise ConsoleError(f"{type(problem).__name__}: {problem}", HTTP_BAD_GATEWAY) from problem
        return {"steps": [step.to_dict() for step in steps]}


def _given(given: dict[str, Any]) -> tuple[str, str | None, list[str], float]:
    """`topic`, `group`, `allow` (names with commas), `wait_s`. Raises ConsoleError."""
    topic, allow = str(given.get("topic") or ""), names_in(given.get("allow"))
    if not topic:
        raise ConsoleError("a topic must be given")
    unknown = [each for each in allow if each not in ALLOWED]
    if unknown:
        raise ConsoleError(f"cannot allow {', '.join(unknown)}; known are {', '.join(ALLOWED)}")
    try:
        wait_s = float(given.get("wait_s") or 0)
    except (TypeError, ValueError) as problem:
        raise ConsoleError("wait_s is no number") from problem
    return topic, given.get("group") or None, allow, min(max(0.0, wait_s), MAX_WAIT_S)


def names_in(given: Any) -> list[str]:
    """Names from a list or from a text with commas."""
    parts = given if isinstance(given, list) else str(given or "").split(",")
    return [name for part in parts if (name := str(part).strip())]


def _state(given: Any) -> State | None:
    if not given:
        return None
    try:
        state = State(str(given).upper())
    except ValueError:
        state = State.ROLLING_BACK
    if state not in _ORDER:
        raise ConsoleError(f"{given} is none of {', '.join(each.value for each in _ORDER)}")
    return state


def _far(state: State) -> int:
    return _ORDER.index(state)
