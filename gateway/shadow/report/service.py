"""The report of a running gateway: collects traffic series, events and the state of parts, and writes the final files.

Parts register their routes with `console` and their state with `add_section`; the service notes changes of named states
as events.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import trio

from gateway.http_server.errors import ConsoleError
from gateway.http_server.server import Console
from gateway.http_server.settings import ConsoleSettings
from gateway.runtime.metrics import MetricRegistry
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.compare.parity import PARITY_OF_MOVES
from gateway.shadow.compare.service import ComparisonService
from gateway.shadow.mirror.circuit_breaker import BreakerState
from gateway.shadow.mirror.mirror import Mirror
from gateway.shadow.report.charts import MOVE_PREFIX
from gateway.shadow.report.optional_packages import import_optional
from gateway.shadow.report.settings import ReportSettings
from gateway.shadow.report.snapshot import EventLog, ReportSnapshot, without_secrets
from gateway.shadow.report.traffic_series import TrafficSeries
from gateway.shadow.traffic.exchange import Hub

log = logging.getLogger(__name__)

NamedStates = Callable[[], dict[str, str]]
CHECK_INTERVAL_S: Final = 1.0
METRIC_PREFIX: Final = "rocketmq_shadow_"


class ReportService:
    """Collects what the report shows. It is built before all other parts, so that they can register with it.

    Raises ClickException when a required library is missing.
    """

    def __init__(
        self,
        console: ConsoleSettings,
        report: ReportSettings,
        configuration: Any,
        hub: Hub,
        registry: MetricRegistry,
    ) -> None:
        if report.file:
            import_optional("matplotlib")
        self.tasks = TaskSupervisor("report")
        self._settings = report
        self.console = Console(console, registry, METRIC_PREFIX)
        self.events = EventLog()
        self._changes: list[StateChanges] = []
        self._parity_results: list[Callable[[], dict[str, Any]]] = []
        self._sent_parity: dict[str, Any] = {}
        self.series = TrafficSeries(registry, topics=report.topics) if report.series else None
        self.snapshot = ReportSnapshot(
            registry,
            self.series,
            self.events,
            title=report.title,
            configuration=without_secrets(configuration),
        )
        self.snapshot.register_routes(self.console)
        self.problems = Problems()
        self.add_section("problems", self.problems.to_json)
        self.watch_states(self._problem_states, "solved", flapping=True)
        if self.series is not None:
            hub.add_observer(self.series)
            registry.register(self.series.collect_metrics)

    def add_section(self, name: str, function: Callable[[], Any]) -> None:
        """Show what ``function`` returns at `/status`, in the live view and in the report.

        It must return JSON quickly and of bounded size. Raises ValueError for a name that is taken.
        """
        self.console.add_section(name, function)
        self.snapshot.add_section(name, function)

    def _problem_states(self) -> dict[str, str]:
        return {f"problem: {problem['problem']}": "appeared" for problem in self.problems.to_json()}

    def show_mirror(self, mirror: Mirror) -> None:
        """Count outcomes, show streams and diverged queues, and note changes of modes and circuit breakers."""
        if self.series is not None:
            mirror.add_outcome_listener(self.series.observe_outcome)
        self.add_section("mirror", mirror.status)
        self.watch_states(lambda: _open_breakers(mirror), "circuit breaker closed", flapping=True)
        self.watch_states(lambda: _topic_modes(mirror), "mode of its mirror rule")

    def show_comparison(self, comparison: ComparisonService) -> None:
        """Count comparisons, show differences with examples, and the last parity check."""
        if self.series is not None:
            comparison.counts.add_listener(self.series.record_comparison)
        self.add_section("compare", comparison.status)
        self.snapshot.add_section("samples", lambda: comparison.counts.samples()["samples"], live=False)
        self.show_parity(lambda: comparison.last_parity)

    def show_parity(self, last_result: Callable[[], dict[str, Any]]) -> None:
        """Show the newest result of the parity checks of a part; it is empty before the first check."""
        if not self._parity_results:
            self.snapshot.add_section("parity", self._newest_parity, live=False)
            self.console.post("/parity/result", self._take_parity)
            self._parity_results.append(lambda: self._sent_parity)
        self._parity_results.append(last_result)

    def _newest_parity(self) -> dict[str, Any]:
        """Return the newest result. One of a move, which covers its topic only, counts where there is no other."""
        results = [result for last_result in self._parity_results if (result := last_result())]
        return max(results, key=lambda result: (PARITY_OF_MOVES not in result, result["at_ms"]), default={})

    def _take_parity(self, value: dict[str, Any]) -> dict[str, Any]:
        """Take the result of the command `parity`, which reads from the clusters itself."""
        queues = value.get("queues")
        if not isinstance(value.get("holds"), bool) or not isinstance(queues, list):
            raise ConsoleError("this is not a result of shadow parity --json")
        if not all(isinstance(queue, dict) and _has_findings(queue) for queue in queues):
            raise ConsoleError("queues must be objects with a list of findings")
        self._sent_parity = {**value, "at_ms": round(time.time() * 1000)}
        return {"taken": True}

    def show_moves(self, status: Callable[[], dict[str, Any]]) -> None:
        """Show the progress of topics and groups that move, and note each of their steps."""
        self.add_section("cutover", status)
        self.watch_states(lambda: _move_states(status()), "at the primary")

    def watch_states(self, states: NamedStates, usual: str, *, flapping: bool = False) -> None:
        """Check named states every second and add an event for each change.

        A name that is absent has the state ``usual``. Changes of ``flapping`` states that follow each other are joined.
        """
        self._changes.append(StateChanges(states, usual, self.events, flapping=flapping))

    async def run(
        self, task_status: trio.TaskStatus[tuple[str, int] | None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Count and serve until cancelled; report the address of the console, None without one.

        Raises OSError when the console cannot listen on its port.
        """
        async with trio.open_nursery() as nursery:
            if self.series is not None:
                nursery.start_soon(self.tasks.keep_running, "traffic over time", self.series.run)
            nursery.start_soon(self.tasks.repeat, "note changes", CHECK_INTERVAL_S, self._check_states)
            address = None
            if self.console.settings.enabled:
                address = await nursery.start(self.console.run)
            task_status.started(address)
            await trio.sleep_forever()

    def _check_states(self) -> None:
        for changes in self._changes:
            changes.check()

    async def write_files(self) -> None:
        """Write the files of `[report]`, if any; errors are logged."""
        if not (self._settings.file or self._settings.json_file):
            return
        data = orjson.dumps(await self.snapshot.build())
        await trio.to_thread.run_sync(_write_reports, self._settings, data, abandon_on_cancel=True)


class StateChanges:
    """Adds an event for each named state that changed since the last check."""

    def __init__(self, states: NamedStates, usual: str, events: EventLog, *, flapping: bool = False) -> None:
        self._flapping = flapping
        self._states = states
        self._usual = usual
        self._events = events
        self._last: dict[str, str] | None = None

    def check(self) -> None:
        """Compare the states with those of the last check; the first check adds no events."""
        try:
            now = dict(self._states())
        except Exception:
            log.exception("state of a part is not available")
            return
        last, self._last = self._last, now
        if last is not None:
            for name in last | now:
                state = now.get(name, self._usual)
                if last.get(name, self._usual) == state:
                    continue
                if self._flapping:
                    self._events.add_change(name, state)
                else:
                    self._events.add_event(f"{name}: {state}")


def _has_findings(queue: dict[str, Any]) -> bool:
    findings = queue.get("findings", [])
    return isinstance(findings, list) and all(isinstance(finding, dict) for finding in findings)


def write_file(path: str, data: bytes) -> None:
    """Replace a file atomically. Raises OSError."""
    part = Path(path + ".part")
    part.write_bytes(data)
    part.replace(path)


def _open_breakers(mirror: Mirror) -> dict[str, str]:
    open_streams = (stream for stream in mirror.streams() if stream.breaker.state is not BreakerState.CLOSED)
    return {f"mirror {stream.name}": f"circuit breaker open: {stream.problem}" for stream in open_streams}


def _topic_modes(mirror: Mirror) -> dict[str, str]:
    return {f"mode of {topic}": mode for topic, mode in mirror.rules.mode_overrides().items()}


def _move_states(status: dict[str, Any]) -> dict[str, str]:
    moves = status["moves"]
    topics = {f"{MOVE_PREFIX}{move['topic']}": str(move["overall_state"]) for move in moves}
    groups = {
        f"{MOVE_PREFIX}{move['topic']}, group {group}": str(state)
        for move in moves
        for group, state in move["groups"].items()
    }
    return topics | groups


def _write_reports(settings: ReportSettings, data: bytes) -> None:
    from gateway.shadow.report.html import render_report

    try:
        if settings.json_file:
            write_file(settings.json_file, data)
        if settings.file:
            write_file(settings.file, render_report(orjson.loads(data)).encode())
    except Exception:
        log.exception("report could not be written")


MAX_PROBLEMS: Final = 20
MAX_PROBLEM_CHARS: Final = 1_000

ProblemSource = Callable[[], Iterable[str]]
"""Returns the present problems of a part as sentences."""


class Problems:
    """Collects the problems of parts, by name of the part, in the order in which the parts were added."""

    def __init__(self) -> None:
        self._sources: list[tuple[str, ProblemSource]] = []

    def add_source(self, part: str, source: ProblemSource) -> None:
        """Ask a part for its problems from now on. ``source`` must be quick."""
        self._sources.append((part, source))

    def to_json(self) -> list[dict[str, Any]]:
        """Return at most `MAX_PROBLEMS` problems; a sentence that several parts say appears once."""
        part_by_sentence: dict[str, str] = {}
        for part, source in self._sources:
            for sentence in _sentences(part, source):
                part_by_sentence.setdefault(sentence[:MAX_PROBLEM_CHARS], part)
        return [{"part": part, "problem": sentence} for sentence, part in part_by_sentence.items()][
            :MAX_PROBLEMS
        ]


def _sentences(part: str, source: ProblemSource) -> Iterator[str]:
    try:
        yield from source()
    except Exception as error:
        log.exception("problems of a part are not available", extra={"part": part})
        yield f"its state is not available: {type(error).__name__}: {error}"


def mirror_problems(mirror: Mirror) -> Iterator[str]:
    """Yield what keeps mirror streams from writing, once for streams with the same problem."""
    failing = ((stream.name, stream.problem) for stream in mirror.streams() if stream.problem)
    for problem, names in _group_by_problem(failing):
        some = names[0] if len(names) == 1 else f"{len(names)} streams, such as {names[0]}"
        yield f"{some} cannot write to the target: {problem}"


def queue_problems(failing: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield why queues are not copied at the primary's offsets, once for queues with the same reason.

    ``failing`` are names of queues with their problems.
    """
    for problem, names in _group_by_problem(failing):
        some = names[0] if len(names) == 1 else f"{len(names)} queues, such as {names[0]},"
        yield f"{some} {'is' if len(names) == 1 else 'are'} not copied: {problem}"


def _group_by_problem(failing: Iterable[tuple[str, str]]) -> Iterable[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for name, problem in failing:
        groups.setdefault(problem, []).append(name)
    return groups.items()


def task_problems(supervisors: Iterable[TaskSupervisor]) -> Iterator[str]:
    """Yield the background tasks that fail at the moment."""
    for tasks in supervisors:
        for health in tasks.failing:
            yield f"the background task {tasks.part}: {health.name} fails: {health.last_error}"
