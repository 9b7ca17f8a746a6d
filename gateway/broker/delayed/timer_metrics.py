"""Counts the waiting timer messages of each topic, for GET_TIMER_METRICS; stored in config/timermetrics."""

from typing import Any

from codec import fastjson
from codec.java_numbers import read_json_integer
from gateway.broker.topics.topic_table import count_change
from gateway.runtime.config_file import ConfigFile
from gateway.runtime.saved_tables import dump_table, load_table, parse_entries, parse_name, parse_version
from remoting.bodies.queues import DataVersion
from storage.clock import Clock


class TimerMetrics:
    """Counts by real topic. Source: TimerMetrics, 5.4.0."""

    def __init__(self, file: ConfigFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._dirty = False
        self._counts: dict[str, tuple[int, int]] = {}
        self._version = DataVersion(timestamp=clock.now_ms())
        saved = file.load(_parse_file)
        if saved is not None:
            self._counts, self._version = saved

    def adjust_count(self, topic: str, number: int, now_ms: int) -> None:
        """Add ``number``, which may be negative, to the count of a topic's waiting messages."""
        count, _ = self._counts.get(topic, (0, 0))
        self._counts[topic] = (count + number, now_ms)
        self._dirty = True

    def count(self, topic: str) -> int:
        """Return the number of waiting messages of a topic."""
        return self._counts.get(topic, (0, 0))[0]

    def topics(self) -> list[str]:
        """Return the topics that have, or had, waiting messages."""
        return list(self._counts)

    def remove_topic(self, topic: str) -> None:
        """Forget a deleted topic. Source: TimerMetrics.removeTimingCount, 5.4.0."""
        self._dirty = self._counts.pop(topic, None) is not None or self._dirty

    def to_json(self) -> bytes:
        """Return the content of the file. Source: TimerMetrics.TimerMetricsSerializeWrapper, 5.4.0."""
        return fastjson.dumps(self._to_value())

    def _to_value(self) -> dict[str, Any]:
        counts = {topic: {"count": count, "timeStamp": at} for topic, (count, at) in self._counts.items()}
        return {"dataVersion": self._version.to_value(), "timingCount": counts}

    def take_unsaved(self) -> bytes | None:
        """Return the new content of the file for `save`, which may run in a thread; None when the file has it."""
        if not self._dirty and not self._file.is_behind:
            return None
        if self._dirty:
            count_change(self._version, self._clock.now_ms())
        content = dump_table("timermetrics", self._to_value())
        self._dirty = False
        return content

    def save(self, data: bytes) -> None:
        """Write the file. A disk error is logged once."""
        self._file.try_save(data)


def _parse_file(content: bytes) -> tuple[dict[str, tuple[int, int]], DataVersion]:
    """Parse the file. A topic whose count cannot be read is left out. Raises ValueError."""
    saved = load_table(content)
    counts = parse_entries("timermetrics", saved.get("timingCount"), _parse_count)
    return counts, parse_version(saved.get("dataVersion")) or DataVersion()


def _parse_count(topic: object, metric: dict[str, Any]) -> tuple[str, tuple[int, int]]:
    numbers = read_json_integer(metric.get("count", 0)), read_json_integer(metric.get("timeStamp", 0))
    return parse_name(topic), numbers
