"""The table of a benchmark of one server, or of several on the same work: a figure in each row, with its limit."""

from collections.abc import Sequence
from dataclasses import dataclass

from tools.bench.loads import Figures


@dataclass(frozen=True)
class FigureRow:
    """A row of the table, and the largest acceptable figure of the first server."""

    figure: str
    title: str
    limit: float | None = None


def is_met(row: FigureRow, figures: Figures) -> bool | None:
    """Return True if a figure is within its limit; None without a limit, or if it was not measured."""
    return None if row.limit is None or row.figure not in figures else figures[row.figure] <= row.limit


def figure_table(bars: Sequence[FigureRow], names: Sequence[str], results: Sequence[Figures]) -> str:
    """Return the results of one or more servers as a Markdown table; the limits are for the first."""
    rows = [["figure", *names, "bar", "met"], ["---", *["---:"] * (len(names) + 2)]]
    for row in bars:
        values = [f"{figures[row.figure]:,.4g}" if row.figure in figures else "-" for figures in results]
        limit = "-" if row.limit is None else f"≤ {row.limit:g}"
        met = {True: "yes", False: "**no**", None: "-"}[is_met(row, results[0])]
        rows.append([row.title, *values, limit, met])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least this percentage of the values does not exceed, about."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
