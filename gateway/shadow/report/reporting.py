"""What an operator sees of a running gateway, put together: console, series, events, report, files at the end.

Parts register their routes with `console`, their state with `section`, and tell `events` what happened.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import trio

from gateway.shadow.exchange import Hub
from gateway.shadow.figures import Figures
from gateway.shadow.report.console import Console
from gateway.shadow.report.needs import need
from gateway.shadow.report.series import Series
from gateway.shadow.report.settings import ConsoleSettings, ReportSettings
from gateway.shadow.report.snapshot import Events, Snapshot, without_secrets

log = logging.getLogger(__name__)

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
            hub.observe_with(self.series)
            figures.add(self.series.figures)

    def section(self, name: str, function: Callable[[], Any]) -> None:
        """Shows what ``function`` returns (JSON; quickly made, bounded) at `/status`, in the live view and in the
        report. Raises ValueError for a name that is taken."""
        self.console.section(name, function)
        self.snapshot.section(name, function)

    async def run(
        self, task_status: trio.TaskStatus[tuple[str, int] | None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Counts and serves until cancelled; tells where the console is, None when there is none.

        Raises OSError when the console's port cannot be had.
        """
        async with trio.open_nursery() as nursery:
            if self.series is not None:
                await nursery.start(self.series.run)
            address = None
            if self.console.settings.enabled:
                address = await nursery.start(self.console.run)
            task_status.started(address)
            await trio.sleep_forever()

    async def write_files(self) -> None:
        """The files of `[report]`, if any are wanted; what goes wrong is logged."""
        if not (self._settings.file or self._settings.json_file):
            return
        data = orjson.dumps(await self.snapshot.build())
        await trio.to_thread.run_sync(_write, self._settings, data, abandon_on_cancel=True)


def write_file(path: str, data: bytes) -> None:
    """Replaces a file in one step. Raises OSError."""
    part = Path(path + ".part")
    part.write_bytes(data)
    part.replace(path)


def _write(settings: ReportSettings, data: bytes) -> None:
    from gateway.shadow.report.html import render

    try:
        if settings.json_file:
            write_file(settings.json_file, data)
        if settings.file:
            write_file(settings.file, render(orjson.loads(data)).encode())
    except Exception:
        log.exception("the report could not be written")
