"""Shows how far a run of the cases is: a live line on a terminal, and a line now and then anywhere else."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import click

from compat_tests.areas import AREAS
from compat_tests.report.comparison import DEVIATES, judge
from compat_tests.results_file import Results, parse_lines

if TYPE_CHECKING:
    pass

LINE_EVERY_S: Final = 15.0
"""Time between two lines where the output is no terminal."""
ESTIMATED_SPEED_S: Final = 60.0
"""Period whose speed the time that is left is estimated from."""


@dataclass
class RunState:
    """The state of a run, read from its results files; it may have several parts.

    ``expected`` are the results to compare with; without them, failures count as deviations.
    """

    results: Sequence[Path]
    expected: Results | None = None
    area: str = ""
    deviations: int = 0
    _totals: dict[Path, int] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _positions: dict[Path, int] = field(default_factory=dict)

    @property
    def total(self) -> int | None:
        """Number of selected cases; None until every part has collected its own."""
        return sum(self._totals.values()) if len(self._totals) == len(self.results) else None

    @property
    def done(self) -> int:
        """Number of cases that have ended."""
        return len(self._done)

    def update(self) -> None:
        """Read the lines that were written since the last call."""
        for path in self.results:
            for line in self._new_lines(path):
                if "id" in line:
                    self._done.add(line["id"])
                    self.area = line["area"]
                    self.deviations += self._deviates(line["id"], line["outcome"])
                else:
                    self._totals[path] = line["cases"]

    def _new_lines(self, path: Path) -> Iterator[dict[str, Any]]:
        if not path.exists():
            return
        with path.open() as file:
            file.seek(self._positions.get(path, 0))
            text = file.read()
        text = text[: text.rfind("\n") + 1]
        self._positions[path] = self._positions.get(path, 0) + len(text.encode())
        yield from parse_lines(text)

    def _deviates(self, case_id: str, outcome: str) -> bool:
        if self.expected is None:
            return outcome == "failed"
        return judge(outcome, self.expected.get(case_id, {}).get("outcome")) == DEVIATES


class ProgressView:
    """Shows a `RunState` whenever `update` is called, until the block ends. ``title`` begins each line."""

    def __init__(self, title: str, state: RunState, now: Callable[[], float] = time.monotonic) -> None:
        self._title = title
        self._state = state
        self._now = now
        self._began_s = self._last_line_s = now()
        # Imported here, because the help of every command imports this module.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[found]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(
                *columns, console=console, transient=True, speed_estimate_period=ESTIMATED_SPEED_S
            )
            self._task = self._bar.add_task(title, total=None, found="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self) -> None:
        """Read the state anew and show it, on a terminal always and elsewhere every `LINE_EVERY_S`."""
        self._state.update()
        area = AREAS.get(self._state.area, "")
        if self._bar is not None:
            self._bar.update(
                self._task,
                description=f"{self._title}: {area}" if area else self._title,
                total=self._state.total,
                completed=self._state.done,
                found=self._found(),
            )
        elif self._now() - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = self._now()
            click.echo(f"{self._title}: {self._as_line(area)}", err=True)

    def _as_line(self, area: str) -> str:
        total = "?" if self._state.total is None else self._state.total
        parts = [f"{self._state.done} of {total} cases", self._found()]
        if self._state.total is not None and self._state.done:
            rate = (self._now() - self._began_s) / self._state.done
            parts.append(f"about {round(rate * (self._state.total - self._state.done))} s left")
        return ", ".join([*parts, *([area] if area else [])])

    def _found(self) -> str:
        if self._state.total is None:
            return "starting"
        word = "failed" if self._state.expected is None else "deviate"
        return f"{self._state.deviations} {word}"
