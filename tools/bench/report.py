"""Turns samples into one table with medians, spreads, ratios, the bars we set ourselves, and what limited a load."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tools.bench.bottleneck import LIMITS
from tools.bench.loads import BATCH, FILTERED, PIPELINED, SENDS, SYNC_SENDS, TIMER, TRANSACTION, Figures


@dataclass(frozen=True)
class LoadSample:
    """The figures of one run of a load on one side (0: subject, usually ours; 1: baseline, usually official)."""

    load: str
    side: int
    round: int
    figures: Figures


@dataclass(frozen=True)
class Bar:
    """A limit for the ratio ours/official, or for our own figure if `absolute`."""

    limit: float
    at_least: bool = False
    absolute: bool = False

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:.3g}{'' if self.absolute else 'x'}"

    def is_met(self, ours: float, official: float | None) -> bool | None:
        """Return True if the figures meet the limit; None without the official figure that a ratio needs."""
        if not self.absolute and not official:
            return None
        value = ours if self.absolute else ours / (official or 1)
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class ReportLine:
    """One row of the table: a figure of a load."""

    load: str
    figure: str
    title: str
    bar: Bar | None = None


_UNITS = {"rate": "messages/s", "cpu_us": "server CPU µs/message", "deferred_us": "deferred work µs/message"}
_SEND_BARS: Mapping[str, tuple[Bar, Bar]] = {
    "send-64t-128B": (Bar(1.8, at_least=True), Bar(7, absolute=True)),
    "send-1t-128B": (Bar(1.0, at_least=True), Bar(35, absolute=True)),
    "pipelined-128B": (Bar(5.0, at_least=True), Bar(7, absolute=True)),
    "sync-64t-128B": (Bar(1.5, at_least=True), Bar(20, absolute=True)),
    "sync-1t-128B": (Bar(1.0, at_least=True), Bar(200, absolute=True)),
}
"""Bars for rate and processor time of the loads in the table of goals."""


def _report_lines() -> list[ReportLine]:
    lines = [
        ReportLine("start-up", "start_ms", "start to first accepted message, ms", Bar(500, absolute=True)),
        ReportLine("start-up", "start_rss_mib", "resident memory after start, MiB", Bar(60, absolute=True)),
    ]
    for load in (*SENDS, *PIPELINED, *SYNC_SENDS):
        lines += _send_lines(load.name, *_SEND_BARS.get(load.name, (None, None)))
    lines += _send_lines(BATCH.name, Bar(1.5, at_least=True), Bar(1 / 2))
    for load in (TIMER, TRANSACTION):
        lines += _send_lines(load.name, Bar(1.5, at_least=True), None)
    for load in FILTERED:
        lines += _send_lines(load.name, Bar(1.0, at_least=True), None)
    lines += [
        ReportLine("catch-up", "rate", f"catch-up, {_UNITS['rate']}", Bar(1.3, at_least=True)),
        ReportLine("catch-up", "cpu_us", f"catch-up, {_UNITS['cpu_us']}", Bar(1 / 2)),
        ReportLine("latency", "p50_ms", "end to end at 100/s, p50 ms", Bar(0.6)),
        ReportLine("latency", "p99_ms", "end to end at 100/s, p99 ms", Bar(0.6)),
        ReportLine("at rest", "anon_mib", "private memory after the run, MiB", Bar(1 / 8)),
        ReportLine("at rest", "idle_percent", "idle CPU, % of a core", Bar(1 / 10)),
    ]
    return lines


def _send_lines(name: str, rate: Bar | None, cpu: Bar | None) -> list[ReportLine]:
    bars = {"rate": rate, "cpu_us": cpu, "deferred_us": None}
    return [ReportLine(name, figure, f"{name}, {_UNITS[figure]}", bar) for figure, bar in bars.items()]


@dataclass
class ComparisonReport:
    """Collects samples and renders them; `names` are the table's titles of the two sides."""

    names: tuple[str, str]
    machine: dict[str, str] = field(default_factory=dict)
    samples: list[LoadSample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def median(self, load: str, figure: str, side: int) -> float | None:
        """Return the median over rounds; None without samples."""
        values = self._values(load, figure, side)
        return statistics.median(values) if values else None

    def _values(self, load: str, figure: str, side: int) -> list[float]:
        of_load = [sample.figures for sample in self.samples if (sample.load, sample.side) == (load, side)]
        return [figures[figure] for figures in of_load if figure in figures]

    def rows(self) -> list[tuple[str, ...]]:
        """Return (load, our median, official median, ratio, bar, bar met, limits) for every figure that was measured.

        The smallest and largest figure of all rounds follow a median.
        """
        return [row for line in _report_lines() if (row := self._row(line)) is not None]

    def _row(self, line: ReportLine) -> tuple[str, ...] | None:
        ours, official = (self.median(line.load, line.figure, side) for side in (0, 1))
        if ours is None:
            return None
        ratio = f"{ours / official:.2f}" if official else "-"
        met = line.bar.is_met(ours, official) if line.bar else None
        verdict = {True: "yes", False: "**no**", None: "-"}[met]
        return (
            line.title,
            self._format(line, 0),
            self._format(line, 1),
            ratio,
            str(line.bar or "-"),
            verdict,
            self._limits(line.load) if line.figure == "rate" else "",
        )

    def _format(self, line: ReportLine, side: int) -> str:
        values = self._values(line.load, line.figure, side)
        text = _format_figure(statistics.median(values) if values else None)
        if len(values) < 2:
            return text
        return f"{text} ({_format_figure(min(values))} to {_format_figure(max(values))})"

    def _limits(self, load: str) -> str:
        """Return what limited both sides in most rounds."""
        limits = [self._values(load, "limit", side) for side in (0, 1)]
        return " / ".join(LIMITS[int(statistics.mode(values))] if values else "-" for values in limits)

    def markdown(self) -> str:
        """Return the table and the notes a reader needs to judge it."""
        head = ("load", self.names[0], self.names[1], "ratio", "bar", "met", "limited by")
        body = [head, ("---", *["---:"] * 5, "---"), *self.rows()]
        table = "\n".join("| " + " | ".join(row) + " |" for row in body)
        return "\n\n".join([table, *self._notes()])

    def _notes(self) -> Sequence[str]:
        rounds = 1 + max((sample.round for sample in self.samples), default=0)
        notes = [
            f"Medians of {rounds} round(s) in one run, with the smallest and largest figures. The servers took turns, "
            "with the same clients and machine."
        ]
        if self.machine:
            notes.append(", ".join(f"{name}: {text}" for name, text in self.machine.items()) + ".")
        if any("limit" in sample.figures for sample in self.samples):
            notes.append(
                "Limited by: what had nothing left during the load, for both sides. Where it is the client, or the "
                "cores that client and server share, the rates say little about the servers; processor time does."
            )
        notes.append(
            "Deferred work: processor time a server uses after a send load until it is idle (ours builds its index "
            "then), divided by the messages of that load. Add it to the row above for the whole cost. It includes the "
            "server's constant background work in those seconds, which is most of the official server's figure."
        )
        shares = [
            sample.figures["others_cores"] for sample in self.samples if "others_cores" in sample.figures
        ]
        if shares:
            notes.append(
                f"Other processes used {statistics.median(shares):.2f} cores (median of the send loads)."
            )
        for side, name in enumerate(self.names):
            moves = [
                sample.figures["migrations_per_s"]
                for sample in self.samples
                if sample.side == side and "migrations_per_s" in sample.figures
            ]
            if moves:
                notes.append(
                    f"Threads of {name} moved between processors {statistics.median(moves):.0f} times a second (median "
                    "of the send loads)."
                )
        unsteady = sum(sample.figures.get("unsteady", 0) for sample in self.samples)
        if unsteady:
            notes.append(f"In {unsteady:.0f} runs the rate was not steady when its figures began.")
        errors = sum(sample.figures.get("client_errors", 0) for sample in self.samples)
        if errors:
            notes.append(f"Clients logged {errors:.0f} errors.")
        return [*notes, *(f"FAILED: {problem}" for problem in self.problems)]


def _format_figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
