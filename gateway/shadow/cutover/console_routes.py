"""The console routes of the cut-over. Each takes and returns a dict; the commands show the answers as tables."""

import math
from functools import partial
from typing import Any, Final

from gateway.http_server.errors import HTTP_BAD_GATEWAY, HTTP_CONFLICT, ConsoleError, OperationRefused
from gateway.http_server.server import RouteRegistry
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS
from gateway.shadow.clusters.full_sync import FullSync
from gateway.shadow.cutover.mover import ALLOWANCES, ConfirmationNeeded, Mover, StepReport
from gateway.shadow.cutover.moves import FORWARD_STATES, MoveState
from gateway.shadow.traffic.exchange import Side
from storage.errors import StoreFull

MAX_WAIT_S: Final = 3_600.0
MAX_NAME_CHARS: Final = 255
MAX_NAMES: Final = 1_000


class CutoverConsoleRoutes:
    """The routes below `/cutover`.

    Errors are ConsoleError: status 409 if the states do not allow the operation, 502 if a cluster does not answer.
    """

    def __init__(self, mover: Mover, syncing: FullSync) -> None:
        self._mover = mover
        self._syncing = syncing

    def register_routes(self, console: RouteRegistry) -> None:
        """Add all routes to the console."""
        console.get("/cutover", lambda _: self.moves_status())
        console.get("/cutover/plan", self.serve_plan)
        console.post("/cutover/advance", self.serve_advance)
        console.post("/cutover/rollback", self.serve_rollback)
        console.post("/cutover/read-only", self.serve_read_only)
        console.post("/cutover/sync", self.serve_sync)

    def moves_status(self) -> dict[str, Any]:
        """Return every move in the file."""
        return {
            "moves": [
                {**move.to_dict(), "overall_state": move.overall_state.value}
                for move in self._mover.move_file
            ]
        }

    async def serve_plan(self, query: dict[str, Any]) -> dict[str, Any]:
        """Show the checks for the next step of `topic` (several with commas), or of all topics that are being moved."""
        topics = parse_names(query.get("topic")) or [
            move.topic for move in self._mover.move_file if move.is_under_way
        ]
        group = _parse_name(query, "group") or None
        return {"topics": [await self._plan_topic(topic, group) for topic in topics]}

    async def _plan_topic(self, topic: str, group: str | None) -> dict[str, Any]:
        move = self._mover.move_file.get_move(topic)
        plan: dict[str, Any] = {"topic": topic, "state": move.overall_state.value, "steps": [], "reason": ""}
        try:
            plan["steps"] = [report.to_dict() for report in await self._mover.plan_steps(topic, group)]
        except OperationRefused as refused:
            plan["reason"] = str(refused)
        except (*CLUSTER_ERRORS, LookupError) as problem:
            plan["reason"] = f"{type(problem).__name__}: {problem}"
        return plan

    async def serve_advance(self, query: dict[str, Any]) -> dict[str, Any]:
        """Take the next step of `topic` (and `group`); with `to`, all steps up to that state.

        The step to DONE is taken only if `confirmed` is true; without it the answer says under `confirm` what cannot
        be undone. With `read_only`, the topic becomes read-only at the primary once its producers are switched.
        `_parse_step_request` lists the other parameters.
        """
        topic, group, allow, wait_s = _parse_step_request(query)
        goal = _parse_goal(query.get("to"))
        take = partial(self._mover.advance, confirmed=query.get("confirmed") is True, goal=goal)
        reports: list[StepReport] = []
        while True:
            try:
                new_reports = await self._take_steps(take, topic, group, allow, wait_s)
            except ConfirmationNeeded as needed:
                return {**self._steps_answer(topic, reports), "done": False, "confirm": str(needed)}
            reports += new_reports
            reached = self._mover.move_file.get_move(topic)
            # As soon as sends go to the target: before, producers that bypass the gateway still reach consumers.
            if query.get("read_only") and reached.producer_side is Side.TARGET and not reached.is_read_only:
                await self._change_permission(topic, undo=False)
            # Without a goal one step is taken. Otherwise it ends at the goal, after a refusal, and in a roll-back.
            state = reached.groups.get(group, reached.state) if group else reached.overall_state
            if (
                goal is None
                or not new_reports
                or not new_reports[-1].done
                or state not in FORWARD_STATES
                or FORWARD_STATES.index(state) >= FORWARD_STATES.index(goal)
            ):
                return self._steps_answer(topic, reports)

    async def serve_rollback(self, query: dict[str, Any]) -> dict[str, Any]:
        """Undo the last step of `topic` (and `group`); with `all`, every step."""
        topic, group, allow, wait_s = _parse_step_request(query)
        reports = await self._take_steps(self._mover.rollback, topic, group, allow, wait_s)
        while query.get("all") and all(report.done for report in reports):
            if self._mover.move_file.get_move(topic).state is MoveState.MIRRORING:
                break
            reports += await self._take_steps(self._mover.rollback, topic, group, allow, wait_s)
        return self._steps_answer(topic, reports)

    async def serve_read_only(self, query: dict[str, Any]) -> dict[str, Any]:
        """Make `topic` read-only at the primary; with `undo`, writable again."""
        topic = _parse_name(query, "topic")
        if not topic:
            raise ConsoleError("topic is missing")
        return await self._change_permission(topic, undo=bool(query.get("undo")))

    async def _change_permission(self, topic: str, *, undo: bool) -> dict[str, Any]:
        change = self._mover.give_back_write_permission if undo else self._mover.take_write_permission
        try:
            move = await change(topic)
        except OperationRefused as refused:
            raise ConsoleError(str(refused), HTTP_CONFLICT) from refused
        except (*CLUSTER_ERRORS, LookupError, StoreFull) as problem:
            text = (
                f"the permission of {topic} was not changed everywhere: {type(problem).__name__}: {problem}"
            )
            raise ConsoleError(text, HTTP_BAD_GATEWAY) from problem
        return {"topic": topic, "read_only": move.is_read_only, "brokers": sorted(move.taken_permissions)}

    async def _take_steps(
        self, take: Any, topic: str, group: str | None, allow: list[str], wait_s: float
    ) -> list[StepReport]:
        try:
            reports: list[StepReport] = await take(topic, group, allow, wait_s)
        except ConfirmationNeeded:
            raise
        except OperationRefused as refused:
            raise ConsoleError(str(refused), HTTP_CONFLICT) from refused
        except (*CLUSTER_ERRORS, LookupError) as problem:
            raise ConsoleError(f"{type(problem).__name__}: {problem}", HTTP_BAD_GATEWAY) from problem
        return reports

    def _steps_answer(self, topic: str, reports: list[StepReport]) -> dict[str, Any]:
        return {
            "topic": topic,
            "state": self._mover.move_file.get_move(topic).overall_state.value,
            "done": all(report.done for report in reports),
            "steps": [report.to_dict() for report in reports],
        }

    async def serve_sync(self, query: dict[str, Any]) -> dict[str, Any]:
        """Copy topics, groups, offsets and orders to the target; with `dry_run` only show the steps."""
        topics, groups = parse_names(query.get("topics")) or None, parse_names(query.get("groups")) or None
        moving = [move.topic for move in self._mover.move_file if not move.is_mirrored]
        try:
            steps = await self._syncing.run(topics, groups, moving, dry_run=bool(query.get("dry_run")))
        except (*CLUSTER_ERRORS, LookupError) as problem:
            raise ConsoleError(f"{type(problem).__name__}: {problem}", HTTP_BAD_GATEWAY) from problem
        return {"steps": [step.to_dict() for step in steps]}


def _parse_step_request(query: dict[str, Any]) -> tuple[str, str | None, list[str], float]:
    """Return `topic`, `group`, `allow` (names with commas) and `wait_s`. Raises ConsoleError."""
    topic, allow = _parse_name(query, "topic"), parse_names(query.get("allow"))
    if not topic:
        raise ConsoleError("topic is missing")
    unknown = [name for name in allow if name not in ALLOWANCES]
    if unknown:
        raise ConsoleError(f"cannot allow {', '.join(unknown)}; pass one of {', '.join(ALLOWANCES)}")
    return topic, _parse_name(query, "group") or None, allow, _parse_wait(query.get("wait_s") or 0)


def _parse_name(query: dict[str, Any], name: str) -> str:
    """Return the name of a topic or group, "" if there is none. Raises ConsoleError."""
    value = query.get(name) or ""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS:
        raise ConsoleError(f"{name} must be a name of at most {MAX_NAME_CHARS} characters")
    return value


def _parse_wait(value: Any) -> float:
    """Return the seconds to wait, from a number or a text. Raises ConsoleError."""
    try:
        wait_s = float(value) if isinstance(value, int | float | str) and len(str(value)) < 64 else math.nan
    except (ValueError, OverflowError):
        wait_s = math.nan
    if not wait_s >= 0:
        raise ConsoleError("wait_s must be a number of seconds, 0 or more")
    return min(wait_s, MAX_WAIT_S)


def parse_names(value: Any) -> list[str]:
    """Return names from a list, or from a text with commas. Raises ConsoleError."""
    parts = (
        value if isinstance(value, list) else value.split(",") if isinstance(value, str) else [value or ""]
    )
    if not all(isinstance(part, str) and len(part) <= MAX_NAME_CHARS for part in parts):
        raise ConsoleError(f"names must be texts of at most {MAX_NAME_CHARS} characters")
    if len(parts) > MAX_NAMES:
        raise ConsoleError(f"at most {MAX_NAMES} names can be given at a time")
    return [name for part in parts if (name := part.strip())]


def _parse_goal(value: Any) -> MoveState | None:
    if not value:
        return None
    try:
        state = MoveState(str(value).upper())
    except ValueError:
        state = MoveState.ROLLING_BACK
    if state not in FORWARD_STATES:
        raise ConsoleError(f"{value} is not one of {', '.join(state.value for state in FORWARD_STATES)}")
    return state
