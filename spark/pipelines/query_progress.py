"""What the progress of a streaming query amounts to: batches, rows, rate, and how far it is behind.

Not responsible for asking a query for its progress.
"""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any


class QueryTotals:
    """Totals of a query's batches, each counted once however often it is seen.

    `counted` is how many rows each batch had, for queries whose rows are no messages.
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
        """Since this was made."""
        return time.monotonic() - self._began_s

    def add_progress(self, progress: Iterable[Any]) -> bool:
        """Counts what was not counted yet; false when nothing was new."""
        fresh = [each for each in progress if each["batchId"] > self._newest]
        for each in fresh:
            self._newest = each["batchId"]
            rows = self._count_rows(each)
            self.batches += 1 if rows else 0
            self.rows += rows
            self.rows_per_second = 1000 * rows / max(1, each["durationMs"].get("triggerExecution", 1))
            self.behind = messages_behind(each["sources"])
        return bool(fresh)

    def _count_rows(self, progress: Any) -> int:
        if self._counted is not None:
            return self._counted.get(progress["batchId"], 0)
        return sum(source["numInputRows"] for source in progress["sources"])

    def status_line(self) -> str:
        """One line for people."""
        said = f"batch {self._newest}, {self.rows:,} rows, {self.rows_per_second:,.0f} rows/s"
        return said if self.behind is None else f"{said}, {self.behind:,} behind"


def messages_behind(sources: Iterable[Any]) -> int | None:
    """Messages between where the sources are and what there is; None where a source does not tell."""
    total = 0
    for source in sources:
        end, latest = _offsets_by_queue(source["endOffset"]), _offsets_by_queue(source["latestOffset"])
        if end is None or latest is None:
            return None
        total += sum(max(0, offset - end.get(queue, offset)) for queue, offset in latest.items())
    return total


def _offsets_by_queue(text: Any) -> dict[tuple[str, ...], int] | None:
    """Offsets by queue of a source's JSON, however it is nested."""
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
