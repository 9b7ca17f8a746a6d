"""Counts the waiting timer messages of each topic, for GET_TIMER_METRICS; stored in config/timermetrics."""

from codec import fastjson
from gateway.broker.topic_table import count_change
from gateway.runtime.config_file import ConfigFile
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

    def remove_topic(self, topic: str) -> None:
        """Forget a deleted topic. Source: TimerMetrics.removeTimingCount, 5.4.0."""
        self._dirty = self._counts.pop(topic, None) is not None or self._dirty

    def to_json(self) -> bytes:
        """Return the content of the file. Source: TimerMetrics.TimerMetricsSerializeWrapper, 5.4.0."""
        counts = {topic: {"count": count, "timeStamp": at} for topic, (count, at) in self._counts.items()}
        return fastjson.dumps({"dataVersion": self._version.to_value(), "timingCount": counts})

    def take_unsaved(self) -> bytes | None:
        """Return the new content of the file for `save`, which may run in a thread; None when nothing changed."""
        if not self._dirty:
            return None
        self._dirty = False
        count_change(self._version, self._clock.now_ms())
        return self.to_json()

    def save(self, data: bytes) -> None:
        """Write the file. A disk error is logged once."""
        self._file.try_save(data)


def _parse_file(data: bytes) -> tuple[dict[str, tuple[int, int]], DataVersion]:
    value = fastjson.loads(data)
    counts = {
        topic: (int(metric.get("count", 0)), int(metric.get("timeStamp", 0)))
        for topic, metric in value.get("timingCount", {}).items()
    }
    version = value.get("dataVersion")
    return counts, DataVersion.from_value(version) if version else DataVersion()
