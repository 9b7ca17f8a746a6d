"""What an operator sees of a running gateway, put together: console, series, events, report, files at the end.

Parts register their routes with `console`, their state with `section`, and tell `events` what happened.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
import trio

from gateway.runtime.metrics import Figures
from gateway.shadow.compare.service import Comparing
from gateway.shadow.console.optional_packages import need
from gateway.shadow.console.server import Console
from gateway.shadow.console.settings import ConsoleSettings, ReportSettings
from gateway.shadow.mirror.circuit_breaker import BreakerState
from gateway.shadow.mirror.mirror import Mirror
from gateway.shadow.report.snapshot import Events, Snapshot, without_secrets
from gateway.shadow.report.traffic_series import Series
from gateway.shadow.traffic.exchange import Hub

log = logging.getLogger(__name__)

States = Callable[[], dict[str, str]]
NOTICE_S: Final = 1.0
CONSOLE_NEEDS = ("h11", "prometheus_client")
PLOTS_NEED = ("matplotlib",)


class Reporting:
    """Built before all other parts; `run` after them. Raises ClickException when a library it needs is missing."""

    def __init__(
        self, console: ConsoleSettings, report: ReportSettings, configuration: Any, hub: Hub, figures: Figures
    ) -> None:
        for name in (CONSOLE_NEEDS if console.enabled else ()) + (PLOTS_NEED if report.file else ()):
            need(name)
        self._settings = report
        self.console = Console(console, figures)
        self.events = Events()
        self._changes: list[Changes] = []
        self.series = Series(figures, topics=report.topics) if report.series else None
        self.snapshot = Snapshot(
            figures,
            self.series,
            self.events,
            title=report.title,
            configuration=without_secrets(configuration),
        )
        self.snapshot.serve_on(self.console)
        if self.series is not None:
            hub.add_observer(self.series)
            figures.add(self.series.figures)

    def section(self, name: str, function: Callable[[], Any]) -> None:
        """Shows what ``function`` returns (JSON; quickly made, bounded) at `/status`, in the live view and in the
        report. Raises ValueError for a name that is taken."""
        self.console.section(name, function)
        self.snapshot.section(name, function)

    def show_mirrors(self, mirrors: Mirror) -> None:
        """Counts outcomes, shows streams and what diverged, and notes when modes and breakers change."""
        if self.series is not None:
            mirrors.add_outcome_listener(self.series.outcome)
        self.section("mirror", mirrors.status)
        self.notice(lambda: _breakers(mirrors), "the target is asked")
        self.notice(lambda: _modes(mirrors), "the mode of its rule")

    def show_comparing(self, comparing: Comparing) -> None:
        """Counts comparisons, shows what differs with examples, and the last look at parity."""
        if self.series is not None:
            comparing.comparer.listen(self.series.compared)
        self.section("compare", comparing.status)
        self.snapshot.section("samples", lambda: comparing.comparer.samples()["samples"], live=False)
        self.snapshot.section("parity", lambda: comparing.last_parity, live=False)

    def show_moves(self, status: Callable[[], dict[str, Any]]) -> None:
        """Shows how far topics and groups have moved, and notes each of their steps."""
        self.section("cutover", status)
        self.notice(lambda: _moves(status()), "at the primary")

    def notice(self, states: States, usual: str) -> None:
        """Looks every second at named states, and makes an event of each that changed; who has no name is as usual."""
        self._changes.append(Changes(states, usual, self.events))

    async def run(
        self, task_status: trio.TaskStatus[tuple[str, int] | None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Counts and serves until cancelled; tells where the console is, None when there is none.

        Raises OSError when the console's port cannot be had.
        """
        async with trio.open_nursery() as nursery:
            if self.series is not None:
                await nursery.start(self.series.run)
            nursery.start_soon(self._notice_changes)
            address = None
            if self.console.settings.enabled:
                address = await nursery.start(self.console.run)
            task_status.started(address)
            await trio.sleep_forever()

    async def _notice_changes(self) -> None:
        while True:
            for changes in self._changes:
                changes.look()
            await trio.sleep(NOTICE_S)

    async def write_files(self) -> None:
        """The files of `[report]`, if any are wanted; what goes wrong is logged."""
        if not (self._settings.file or self._settings.json_file):
            return
        data = orjson.dumps(await self.snapshot.build())
        await trio.to_thread.run_sync(_write, self._settings, data, abandon_on_cancel=True)


class Changes:
    """Makes an event of each named state that is another one than at the last look."""

    def __init__(self, states: States, usual: str, events: Events) -> None:
        self._states = states
        self._usual = usual
        self._events = events
        self._last: dict[str, str] | None = None

    def look(self) -> None:
        """What is there at the first look is no event."""
        try:
            now = dict(self._states())
        except Exception:
            log.exception("a part could not say how it is")
            return
        last, self._last = self._last, now
        if last is not None:
            for name in last | now:
                state = now.get(name, self._usual)
                if last.get(name, self._usual) != state:
                    self._events.add(f"{name}: {state}")


def write_file(path: str, data: bytes) -> None:
    """Replaces a file in one step. Raises OSError."""
    part = Path(path + ".part")
    part.write_bytes(data)
    part.replace(path)


def _breakers(mirrors: Mirror) -> dict[str, str]:
    left_alone = (stream for stream in mirrors.streams() if stream.breaker.state is not BreakerState.CLOSED)
    return {f"mirror {stream.name}": f"the target is left alone: {stream.problem}" for stream in left_alone}


def _modes(mirrors: Mirror) -> dict[str, str]:
    return {f"mode of {topic}": mode for topic, mode in mirrors.rules.mode_overrides().items()}


def _moves(status: dict[str, Any]) -> dict[str, str]:
    moves = status["moves"]
    topics = {f"move of {move['topic']}": str(move["shown"]) for move in moves}
    groups = {
        f"move of {move['topic']}, group {group}": str(state)
        for move in moves
        for group, state in move["groups"].items()
    }
    return topics | groups


def _write(settings: ReportSettings, data: bytes) -> None:
    from gateway.shadow.report.html import render

    try:
        if settings.json_file:
            write_file(settings.json_file, data)
        if settings.file:
            write_file(settings.file, render(orjson.loads(data)).encode())
    except Exception:
        log.exception("the report could not be written")
