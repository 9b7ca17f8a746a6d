"""Totals of a streaming query's progress: batches, rows, rate, and lag."""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any


class QueryTotals:
    """Totals of a query's batches, each counted once however often it is reported.

    `counted` are the rows of each batch, for queries whose rows are not messages.
    """

    def __init__(self, counted: Mapping[int, int] | None = None) -> None:
        self._counted = counted
        self.batches = 0
        self.rows = 0
        self.rows_per_second = 0.0
        self.behind: int | None = None
        self._newest = -1
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the totals were created."""
        return time.monotonic() - self._began_s

    def add_progress(self, progress: Iterable[Any]) -> bool:
        """Add batches that were not counted yet; return whether there were any."""
        new_batches = [each for each in progress if each["batchId"] > self._newest]
        for each in new_batches:
            self._newest = each["batchId"]
            rows = self._count_rows(each)
            self.batches += 1 if rows else 0
            self.rows += rows
            self.rows_per_second = 1000 * rows / max(1, each["durationMs"].get("triggerExecution", 1))
            self.behind = messages_behind(each["sources"])
        return bool(new_batches)

    def _count_rows(self, progress: Any) -> int:
        if self._counted is not None:
            return self._counted.get(progress["batchId"], 0)
        return sum(source["numInputRows"] for source in progress["sources"])

    def status_line(self) -> str:
        """Return a one-line status."""
        said = f"batch {self._newest}, {self.rows:,} rows, {self.rows_per_second:,.0f} rows/s"
        return said if self.behind is None else f"{said}, {self.behind:,} behind"


def messages_behind(sources: Iterable[Any]) -> int | None:
    """Return the messages between the sources' positions and their ends, or None if a source does not report them."""
    total = 0
    for source in sources:
        end, latest = _offsets_by_queue(source["endOffset"]), _offsets_by_queue(source["latestOffset"])
        if end is None or latest is None:
            return None
        total += sum(max(0, offset - end.get(queue, offset)) for queue, offset in latest.items())
    return total


def _offsets_by_queue(text: Any) -> dict[tuple[str, ...], int] | None:
    """Return offsets by queue from a source's JSON, however it is nested."""
    try:
        content = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None
    return dict(_iter_leaves(content, ())) if isinstance(content, Mapping) else None


def _iter_leaves(content: Any, path: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], int]]:
    if isinstance(content, Mapping):
        for key, below in content.items():
            yield from _iter_leaves(below, (*path, str(key)))
    elif isinstance(content, int):
        yield path, content
