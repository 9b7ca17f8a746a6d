"""Everything the report shows, as one JSON object, for the console's `/report` and for the files written at the end."""

import dataclasses
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
import trio

from gateway.http_server.http_connection import Page
from gateway.http_server.server import JSON, Console
from gateway.runtime.metrics import Metric, MetricRegistry
from gateway.shadow.report.traffic_series import TrafficSeries
from toolkit.pages import format_time
from toolkit.settings import settings_of

log = logging.getLogger(__name__)

REPORT_FORMAT: Final = 1
MAX_METRICS: Final = 5000
MAX_EVENTS: Final = 500
FLAPPING_MS: Final = 60_000
"""Time within which a further change of a problem is no event of its own."""
HIDDEN_TEXT: Final = "(not shown)"
METRIC_ALIASES: Final = {
    "diff_rate": "compare.diff_rate",
    "compared": "compare.compared",
    "differing": "compare.differing",
    "dropped": "mirror_dropped_total",
    "mirrored": "mirror_mirrored_total",
    "diverged": "mirror_diverged_queues",
    "lag": "mirror_queued",
}
"""Short names of the metrics that conditions use most."""
SectionState = Callable[[], Any]


@dataclass(slots=True)
class _Change:
    """The last event of something that changes, and the time of its last change."""

    event: dict[str, Any]
    last_ms: int
    count: int = 1


class EventLog:
    """The latest `MAX_EVENTS` events, as text with a time. Plots mark them."""

    def __init__(self, wall_ms: Callable[[], float] = lambda: time.time() * 1000) -> None:
        self._wall_ms = wall_ms
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._changes: dict[str, _Change] = {}

    def add_event(self, text: str) -> None:
        """Add an event that happened now."""
        self._events.append({"at_ms": round(self._wall_ms()), "text": text})

    def add_change(self, name: str, state: str) -> None:
        """Add the event that something has another state now.

        A thing that changes again within `FLAPPING_MS` of its last change gets no further event: the one it has tells
        how often it changed and how it is now. Otherwise a broker that comes and goes would push all others out.
        """
        now_ms = round(self._wall_ms())
        change = self._changes.get(name)
        if change is not None and now_ms - change.last_ms <= FLAPPING_MS:
            change.count += 1
            change.last_ms = now_ms
            since = format_time(change.event["at_ms"])
            change.event["text"] = f"{name}: {state} (changed {change.count} times since {since})"
            return
        self.add_event(f"{name}: {state}")
        if len(self._changes) >= MAX_EVENTS:
            del self._changes[next(iter(self._changes))]
        self._changes[name] = _Change(self._events[-1], now_ms)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the events, oldest first."""
        return list(self._events)


class ReportSnapshot:
    """Builds the report from series, metrics, events, configuration, and the sections that parts add."""

    def __init__(
        self,
        registry: MetricRegistry,
        series: TrafficSeries | None,
        events: EventLog,
        *,
        title: str,
        configuration: dict[str, Any],
    ) -> None:
        self._registry = registry
        self._series = series
        self._events = events
        self._title = title
        self._configuration = configuration
        self._started_ms = round(time.time() * 1000)
        self._sections: dict[str, SectionState] = {}
        self._live: list[str] = []

    def add_section(self, name: str, function: SectionState, *, live: bool = True) -> None:
        """Add the state that ``function`` returns; it must be quick and bounded. ``live``: also show it in the live
        view.

        Raises ValueError for a name that is taken.
        """
        if name in self._sections:
            raise ValueError(f"there is a section {name!r} already")
        self._sections[name] = function
        if live:
            self._live.append(name)

    def register_routes(self, console: Console) -> None:
        """Serve `/report` (everything) and `/live` (the newest second)."""
        console.get("/report", self._report_page)
        console.get("/live", lambda _: self.live_state())

    async def build(self) -> dict[str, Any]:
        """Return everything as it is now, yielding to other tasks in between so that no request waits for it."""
        # The report contains the numbers of the series already, as totals by topic.
        own_source = None if self._series is None else self._series.collect_metrics
        collected = await self._registry.collect_in_slices(leave_out=own_source)
        shown = [dataclasses.asdict(metric) for metric in collected if isinstance(metric, Metric)]
        sections = {}
        for name, function in self._sections.items():
            sections[name] = orjson.Fragment(
                orjson.dumps(_section_state(name, function), option=orjson.OPT_NON_STR_KEYS)
            )
            await trio.lowlevel.checkpoint()
        return {
            "format": REPORT_FORMAT,
            "title": self._title,
            "made_ms": round(time.time() * 1000),
            "started_ms": self._started_ms,
            "series": None if self._series is None else await self._series.to_report(),
            "metrics": shown[:MAX_METRICS],
            "sections": sections,
            "events": self._events.to_json(),
            "configuration": self._configuration,
        }

    def live_state(self) -> dict[str, Any]:
        """Return the newest second and the live sections."""
        sections = {name: _section_state(name, self._sections[name]) for name in self._live}
        newest = {} if self._series is None else self._series.newest_point()
        return {"title": self._title, "started_ms": self._started_ms, **newest, "sections": sections}

    async def _report_page(self, _: dict[str, Any]) -> Page:
        return Page(JSON, orjson.dumps(await self.build()))


def _section_state(name: str, function: SectionState) -> Any:
    try:
        return function()
    except Exception as error:
        log.exception("state of a part is not available", extra={"section": name})
        return {"error": f"{type(error).__name__}: {error}"}


def without_secrets(settings: Any) -> Any:
    """Return a settings dataclass as JSON; a field declared `secret` only shows whether it is set."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        declared = settings_of(type(settings))
        return {
            item.name: _mask_secret(getattr(settings, item.name))
            if item.name in declared and declared[item.name].secret
            else without_secrets(getattr(settings, item.name))
            for item in dataclasses.fields(settings)
        }
    if isinstance(settings, dict):
        return {str(key): without_secrets(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [without_secrets(item) for item in settings]
    return settings if isinstance(settings, str | int | float | bool | None) else str(settings)


def _mask_secret(value: Any) -> str:
    return HIDDEN_TEXT if value else ""


def named_metrics(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a report by the names that conditions use; NaN where there is no value yet.

    Numbers of a topic are ``name[topic]``, metrics have their own names with all labels added up, and numbers of
    sections are ``section.name``.
    """
    metrics: dict[str, float] = {}
    for name, section in report["sections"].items():
        metrics.update(_flatten_numbers(name, section))
    for metric in report["metrics"]:
        metrics[metric["name"]] = metrics.get(metric["name"], 0.0) + metric["value"]
    for name, other in METRIC_ALIASES.items():
        if other in metrics:
            metrics[name] = metrics[other]
    for topic, totals in ((report.get("series") or {}).get("totals") or {}).items():
        suffix = "" if topic == "(all)" else f"[{topic}]"
        for name, value in _topic_metrics(totals).items():
            metrics[name + suffix] = math.nan if value is None else value
    return metrics


def _flatten_numbers(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flatten_numbers(f"{prefix}.{name}", inner)
    elif isinstance(value, int | float):
        yield prefix, float(value)


def _topic_metrics(totals: dict[str, float | None]) -> dict[str, float | None]:
    compared, differing = totals["compared"] or 0, totals["differing"] or 0
    return {
        **totals,
        "diff_rate": differing / compared if compared else None,
        "p50_added_ms": totals["share_p50_ms"],
        "p90_added_ms": totals["share_p90_ms"],
        "p99_added_ms": totals["share_p99_ms"],
    }
