"""The two sides of a comparison: a live cluster, an ingested table, or a gateway's capture files."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from codec.constants import STORED_CODES
from spark.errors import OptionError
from spark.options import Option, choice, text
from spark.source.options import OPTIONS, SOURCE, check_batch_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENDPOINT, TABLE, CAPTURE = "endpoint", "table", "capture"
OWN: Final = (
    Option(
        "kind",
        choice(ENDPOINT, TABLE, CAPTURE),
        ENDPOINT,
        "`endpoint`: a cluster, with the options of the source `rocketmq` below; `table`: a table of `ingest`; "
        "`capture`: capture files of a shadow gateway, with the answers of the primary or the target.",
    ),
    Option("path", text, None, "Table: root directory. Captures: file, folder or pattern."),
    Option("table", text, "messages", "Table: name below the root."),
    Option("format", text, "auto", "Table: `auto`, `delta`, `directory`; or `parquet`, at the path itself."),
)
SIDE: Final = (*OWN, *OPTIONS)
"""Options of `[primary]` and `[target]`."""

_CHOSEN: Final = ("subscribe", "topic", "subscribepattern", "assign")
_STARTS: Final = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
_ENDS: Final = ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp")


@dataclass(frozen=True, slots=True)
class ReadWindow:
    """The minimum to be read: topics (empty: all), and store times in ms since 1970 (None: no limit)."""

    topics: Sequence[str] = ()
    from_ms: int | None = None
    until_ms: int | None = None
    retries: bool = False


@dataclass(frozen=True, slots=True)
class ComparisonSide:
    """One side as configured: `values` are typed, `texts` as given. `name` is primary or target."""

    name: str
    values: Mapping[str, Any]
    texts: Mapping[str, str]

    @property
    def is_capture(self) -> bool:
        """Tell whether this side is read from a gateway's captures."""
        return bool(self.values["kind"] == CAPTURE)

    @property
    def is_table(self) -> bool:
        """Tell whether this side is a table, which may end anywhere in the past."""
        return bool(self.values["kind"] == TABLE)

    def check_options(self, window: ReadWindow) -> None:
        """Check the options, as far as that is possible without Spark. Raises OptionError."""
        if self.values["kind"] == ENDPOINT:
            check_batch_options(_add_window_options(self._source_texts(), window))
        else:
            self._required_path()

    def _source_texts(self) -> dict[str, str]:
        own = {option.name.lower() for option in OWN}
        return {name: value for name, value in self.texts.items() if name.lower() not in own}

    def read_messages(self, session: "SparkSession", window: ReadWindow) -> "DataFrame":
        """Return the side's messages, with at least the source's columns. Raises OptionError."""
        readers = {ENDPOINT: self._read_endpoint, TABLE: self._read_table, CAPTURE: self._read_capture}
        messages = readers[self.values["kind"]](session, window)
        if window.topics:
            messages = messages.where(messages.topic.isin(*window.topics))
        return messages

    def _read_endpoint(self, session: "SparkSession", window: ReadWindow) -> "DataFrame":
        return session.read.format(SOURCE).options(**_add_window_options(self._source_texts(), window)).load()

    def _read_table(self, session: "SparkSession", window: ReadWindow) -> "DataFrame":
        path = self._required_path()
        if self.values["format"] == "parquet":
            messages = session.read.parquet(path)
        else:
            from spark.tables import open_table

            table = open_table(path, self.values["table"], self.values["format"], session)
            messages = table.read(session)
        return _filter_window(messages, window)

    def _read_capture(self, session: "SparkSession", window: ReadWindow) -> "DataFrame":
        """Read sends that this side stored. Half and delayed messages have no queue offset yet and are left out."""
        from pyspark.sql import functions as f

        path = self._required_path()
        captured = session.read.format("rocketmq-capture").option("rows", "messages").load(path)
        sent = captured.where((f.col("how") == "sent") & f.col("waits").isNull())
        sent = sent.withColumn("storeTimestamp", f.col("time"))
        if self.name == "target":
            sent = sent.withColumn("queueId", f.col("targetQueueId"))
            sent = sent.withColumn("queueOffset", f.col("targetQueueOffset"))
            stored = sent.where(f.col("targetCode").isin(*map(int, STORED_CODES)))
        else:
            stored = sent.where(f.col("answerCode").isin(*map(int, STORED_CODES)))
        return _filter_window(stored.withColumn("body", f.when(~f.col("redacted"), f.col("body"))), window)

    def _required_path(self) -> str:
        if not self.values["path"]:
            raise OptionError(f"[{self.name}]: kind {self.values['kind']} requires a path")
        return str(self.values["path"])


def _add_window_options(texts: Mapping[str, str], window: ReadWindow) -> dict[str, str]:
    """Return the source's options, completed with topics and times of the window."""
    options = dict(texts)
    if not _has_option(texts, _CHOSEN):
        options["subscribePattern"] = _topic_pattern(window)
    if window.from_ms is not None and not _has_option(texts, _STARTS):
        options["startingTimestamp"] = str(window.from_ms)
        options.setdefault("startingOffsetsByTimestampStrategy", "latest")
    if window.until_ms is not None and not _has_option(texts, _ENDS):
        options["endingTimestamp"] = str(window.until_ms)
    return options


def _has_option(texts: Mapping[str, str], names: Collection[str]) -> bool:
    return any(name.lower() in names for name in texts)


def _topic_pattern(window: ReadWindow) -> str:
    """Return a pattern: unlike in a list of names, its topics need not exist on both sides."""
    if window.topics:
        return "|".join(map(re.escape, window.topics))
    return ".+|%(RETRY|DLQ)%.+" if window.retries else ".+"


def _filter_window(messages: "DataFrame", window: ReadWindow) -> "DataFrame":
    from pyspark.sql import functions as f

    if window.from_ms is not None:
        messages = messages.where(f.col("storeTimestamp") >= f.timestamp_millis(f.lit(window.from_ms)))
    if window.until_ms is not None:
        messages = messages.where(f.col("storeTimestamp") < f.timestamp_millis(f.lit(window.until_ms)))
    return messages
