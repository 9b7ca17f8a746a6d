"""The answer comparison and content parity of a running gateway: parts, background tasks and console routes."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

import orjson
import trio

from codec.constants import ResponseCode
from codec.java_numbers import I64, JavaInteger
from gateway.http_server.errors import HTTP_BAD_GATEWAY, ConsoleError
from gateway.runtime.metrics import Distribution, Metric
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster
from gateway.shadow.clusters.cluster_pair import find_counterpart
from gateway.shadow.clusters.endpoints import make_cluster
from gateway.shadow.clusters.metadata_sync import is_system_topic
from gateway.shadow.compare.answer_diff import ComparisonTerms
from gateway.shadow.compare.comparison_counts import ComparisonCounts
from gateway.shadow.compare.comparison_observer import ComparisonObserver
from gateway.shadow.compare.expected_differences import CONSUMER_TOPIC_PREFIXES
from gateway.shadow.compare.noise import LearnedNoise
from gateway.shadow.compare.parity import (
    MAX_QUEUES,
    READ_ERRORS,
    ComparedClusters,
    ParityOptions,
    ParityRange,
    ParityResult,
    ProgressCallback,
    QueueParity,
    compare_topics,
    ignore_progress,
)
from gateway.shadow.compare.read_repeater import ReadRepeater, send_reads_to
from gateway.shadow.compare.repeatable_reads import MapOffset
from gateway.shadow.compare.settings import CompareSettings
from remoting.errors import RequestError
from remoting.requests.namesrv import GetAllTopicListFromNameserver, GetSystemTopicListFromNs
from remoting.requests.topics import GetTopicStatsInfo
from storage.clock import SystemClock

log = logging.getLogger(__name__)

REFRESH_INTERVAL_S: Final = 10.0
SAVE_INTERVAL_S: Final = 60.0
NOT_NEGATIVE: Final = JavaInteger(0, I64.high)
MATCHES_PER_TURN: Final = 2_000
"""Names that are matched with a pattern before other tasks have their turn: about 2 ms."""
MAX_PATTERNS: Final = 1000
MAX_PATTERN_CHARS: Final = 255
MAX_SIMILAR_TOPICS: Final = 3
MAX_QUEUES_PER_CHECK: Final = 20_000
"""Queues that a running gateway compares at a time: their results are one answer, and stay in memory."""
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
"""Suffix of a cluster's topic for reply messages."""


class ConsoleRoutes(Protocol):
    """The part of the console that registers routes."""

    def get(self, path: str, function: Callable[[dict[str, Any]], dict[str, Any]], /) -> None: ...

    def post(self, path: str, function: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], /) -> None: ...


def parity_options(
    settings: CompareSettings, *, same_offsets: bool, max_queues: int = MAX_QUEUES
) -> ParityOptions:
    """Return the options of a parity check as configured."""
    return ParityOptions(
        same_offsets=same_offsets,
        lag_s=settings.lag_ms / 1000,
        window=settings.parity_window,
        per_second=settings.parity_per_s,
        parallel=settings.parity_queues,
        max_queues=max_queues,
    )


async def match_topics(primary: Cluster, patterns: Iterable[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the user topics of a cluster that match names or shell patterns, and the patterns without a match.

    Each of the latter maps to a few topics that it matches regardless of case. Retry and dead-letter topics match only
    patterns that begin with "%": their content depends on consumers. Raises CLUSTER_ERRORS.
    """
    patterns = list(patterns)
    # Routes of a few names cost less than the list of all topics.
    if all(not set(pattern) & set("*?[") for pattern in patterns) and all(
        [await _has_topic(primary, pattern) for pattern in patterns]
    ):
        return patterns, {}
    all_topics = (await primary.ask_namesrv(GetAllTopicListFromNameserver())).data.topic_list
    system = (await primary.ask_namesrv(GetSystemTopicListFromNs())).data.topic_list
    topics = []
    matched: set[str] = set()
    similar: dict[str, list[str]] = {pattern: [] for pattern in patterns}
    for number, name in enumerate(sorted(set(all_topics) - set(system))):
        if not number % max(1, MATCHES_PER_TURN // len(patterns)):
            await trio.lowlevel.checkpoint()
        if is_system_topic(name) or name.endswith(REPLY_TOPIC_SUFFIX):
            continue
        matching = [pattern for pattern in patterns if _matches_pattern(name, pattern)]
        if matching:
            topics.append(name)
            matched.update(matching)
        for pattern in patterns:
            if _matches_pattern(name.lower(), pattern.lower()) and len(similar[pattern]) < MAX_SIMILAR_TOPICS:
                similar[pattern].append(name)
    return topics, {pattern: similar[pattern] for pattern in patterns if pattern not in matched}


async def find_consumer_topics(
    primary: Cluster, target: Cluster, patterns: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return the retry and dead-letter topics that no pattern includes, and those that only the target has.

    The former match patterns such as "*", but are compared only where a pattern begins with "%". Of the latter only
    those are returned that a pattern includes. Raises CLUSTER_ERRORS.
    """
    patterns = list(patterns)
    # Exact names of user topics, as a gateway checks while it runs, need no list of all topics.
    if not any(pattern.startswith("%") or set(pattern) & set("*?[") for pattern in patterns):
        return [], []
    topics = {}
    for cluster in (primary, target):
        names = (await cluster.ask_namesrv(GetAllTopicListFromNameserver())).data.topic_list
        topics[cluster] = {name for name in names if name.startswith(CONSUMER_TOPIC_PREFIXES)}
    left_out, only_at_target = [], []
    for number, name in enumerate(sorted(topics[primary] | topics[target])):
        if not number % max(1, MATCHES_PER_TURN // len(patterns)):
            await trio.lowlevel.checkpoint()
        if any(_matches_pattern(name, pattern) for pattern in patterns):
            only_at_target += [name] if name not in topics[primary] else []
        elif any(fnmatchcase(name, pattern) for pattern in patterns):
            left_out.append(name)
    return left_out, only_at_target


async def _count_messages(cluster: Cluster, topic: str) -> int:
    """Return the number of messages of a topic. Raises CLUSTER_ERRORS, LookupError."""
    brokers = {data.broker_name for data in (await cluster.route(topic)).queue_datas}
    tables = [
        (await cluster.ask_broker(broker, GetTopicStatsInfo(topic=topic))).data.offset_table
        for broker in sorted(brokers)
    ]
    return sum(offsets.max_offset - offsets.min_offset for table in tables for offsets in table.values())


async def _describe_extra_topic(target: Cluster, topic: str) -> str:
    """Return the problem of a topic that only the target has; "" if it is empty.

    A broker that does not answer is a problem of this topic alone: the finished comparison of the others must be kept.
    """
    try:
        number = await _count_messages(target, topic)
    except READ_ERRORS as problem:
        return f"only the target has this topic, and it cannot be read: {type(problem).__name__}: {problem}"
    return f"only the target has this topic, with {number} messages" if number else ""


async def _has_topic(primary: Cluster, topic: str) -> bool:
    try:
        await primary.route(topic)
    except RequestError as refused:
        if refused.code == ResponseCode.TOPIC_NOT_EXIST:
            return False
        raise
    return True


def _is_topic_pattern(text: Any) -> bool:
    return isinstance(text, str) and 0 < len(text) <= MAX_PATTERN_CHARS


def _matches_pattern(topic: str, pattern: str) -> bool:
    return fnmatchcase(topic, pattern) and topic.startswith("%") == pattern.startswith("%")


class ComparisonService:
    """Compares passing traffic while it runs, and content parity on request.

    ``broker_names`` maps the primary's broker names to the target's. ``second`` is another upstream of the primary for
    second reads, the primary itself when None. `counts.add_listener` reports every comparison. `last_parity` is the
    JSON result of the last parity check, empty before the first.
    """

    def __init__(
        self,
        settings: CompareSettings,
        terms: ComparisonTerms,
        broker_names: Mapping[str, str],
        primary: Cluster,
        target: Cluster,
        *,
        map_offset: MapOffset,
        now_ms: Callable[[], int],
        second: Cluster | None = None,
        chance: Random | None = None,
    ) -> None:
        self.tasks = TaskSupervisor("comparison")
        self.primary, self.target = primary, target
        self._settings = settings
        self._terms = terms
        self._now_ms = now_ms
        self._second = second or primary
        self._counterpart = partial(_target_broker_name, target, broker_names)
        self._noise = LearnedNoise(settings.noise_reads, settings.noise_share, settings.noise_memory)
        chance = chance or Random()
        self.counts = ComparisonCounts(self._noise, settings.samples, chance)
        self.repeater = ReadRepeater(
            settings,
            terms,
            self._noise,
            target=send_reads_to(target, self._counterpart),
            primary=send_reads_to(self._second),
            map_offset=map_offset,
            on_compared=self.counts.record_read,
        )
        self.observer = ComparisonObserver(
            settings,
            terms,
            self._noise,
            self.counts,
            repeat_read=self.repeater.submit,
            learn_heartbeat=self.repeater.subscriptions.learn_heartbeat,
            chance=chance,
        )
        self._parity_limiter = trio.CapacityLimiter(1)
        self.last_parity: dict[str, Any] = {}

    def register_routes(self, routes: ConsoleRoutes) -> None:
        """Serve GET `/compare` and `/samples` (`request`, `field`), and POST `/parity` (`topics`, fields of
        `ParityRange`)."""
        routes.get("/compare", lambda _: self.status())
        routes.get(
            "/samples", lambda query: self.counts.samples(query.get("request", ""), query.get("field", ""))
        )
        routes.post("/parity", self._handle_parity_request)

    def status(self) -> dict[str, Any]:
        """Return all counts as a JSON object."""
        left_out, waiting = dict(self.repeater.left_out), self.repeater.waiting_count
        return {**self.counts.status(), "left_out": left_out, "waiting": waiting}

    def collect_metrics(self) -> Iterator[Metric | Distribution]:
        """Yield the metrics of the comparison."""
        yield from self.counts.collect_metrics()
        yield Metric(
            "compare_waiting",
            self.repeater.waiting_count,
            "Repeated reads that wait for their turn.",
            "gauge",
        )
        for reason, number in self.repeater.left_out.items():
            meaning = "Exchanges whose read was not repeated, by reason."
            yield Metric("compare_left_out_total", number, meaning, labels={"reason": reason})

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Compare until cancelled. A cluster that cannot be reached does not prevent the start."""
        self._load_noise()
        try:
            async with trio.open_nursery() as nursery:
                for cluster in {id(cluster): cluster for cluster in self._all_clusters()}.values():
                    await nursery.start(cluster.run)
                    nursery.start_soon(_refresh_periodically, cluster)
                repeat, keep_running = self.tasks.repeat, self.tasks.keep_running
                nursery.start_soon(repeat, "save learned noise", SAVE_INTERVAL_S, self._save_noise)
                nursery.start_soon(keep_running, "repeat reads", self.repeater.run)
                task_status.started()
        finally:
            self._save_noise()

    async def check_parity(
        self,
        topics: Iterable[str],
        parity_range: ParityRange | None = None,
        on_progress: ProgressCallback = ignore_progress,
        max_queues: int = MAX_QUEUES,
    ) -> ParityResult:
        """Compare the content of topics; one check at a time. `run` must be running. Raises CLUSTER_ERRORS."""
        async with self._parity_limiter:
            topics = list(topics)
            names, unmatched = await match_topics(self.primary, topics)
            left_out, only_at_target = await find_consumer_topics(self.primary, self.target, topics)
            result = await compare_topics(
                ComparedClusters(self.primary, self.target, self._counterpart),
                names,
                parity_options(
                    self._settings,
                    same_offsets=self._terms.same_offsets,
                    max_queues=max_queues,
                ),
                self._now_ms,
                parity_range or ParityRange(),
                on_progress,
            )
            for topic in only_at_target:
                if problem := await _describe_extra_topic(self.target, topic):
                    result.queues.append(QueueParity(topic, "", -1, problem=problem))
        result.unmatched = {
            pattern: similar
            for pattern, similar in unmatched.items()
            if not any(_matches_pattern(topic, pattern) for topic in only_at_target)
        }
        result.left_out_topics = left_out
        self.last_parity = {"at_ms": self._now_ms(), **result.to_value()}
        return result

    async def _handle_parity_request(self, query: dict[str, Any]) -> dict[str, Any]:
        topics, window = (
            query.get("topics") or ["*"],
            {name: query.get(name) for name in ParityRange.__dataclass_fields__},
        )
        numbers = all(
            bound is None or (type(bound) is int and bound in NOT_NEGATIVE) for bound in window.values()
        )
        if not numbers:
            raise ConsoleError(f"{', '.join(window)} must be whole numbers from 0 to {NOT_NEGATIVE.high}")
        if not isinstance(topics, list) or not all(_is_topic_pattern(pattern) for pattern in topics):
            raise ConsoleError(f"topics must be a list of names of 1 to {MAX_PATTERN_CHARS} characters")
        if len(topics) > MAX_PATTERNS:
            raise ConsoleError(f"topics are more than {MAX_PATTERNS}; use patterns such as orders*")
        try:
            result = await self.check_parity(topics, ParityRange(**window), max_queues=MAX_QUEUES_PER_CHECK)
        except CLUSTER_ERRORS as problem:
            raise ConsoleError(f"{type(problem).__name__}: {problem}", HTTP_BAD_GATEWAY) from problem
        return result.to_value()

    def _all_clusters(self) -> tuple[Cluster, ...]:
        return self.primary, self.target, self._second

    def _load_noise(self) -> None:
        file = self._settings.noise_file
        if not file or not Path(file).exists():
            return
        try:
            self._noise.restore(orjson.loads(Path(file).read_bytes()))
        except (OSError, ValueError) as error:
            log.warning("noise file cannot be read", extra={"file": file, "reason": str(error)})

    def _save_noise(self) -> None:
        file = self._settings.noise_file
        if not file:
            return
        try:
            part = Path(file + ".part")
            part.write_bytes(orjson.dumps(self._noise.to_value()))
            part.replace(file)
        except OSError as error:
            log.warning("noise file cannot be written", extra={"file": file, "reason": str(error)})


def _target_broker_name(target: Cluster, declared: Mapping[str, str], broker: str) -> str:
    return find_counterpart(broker, target.brokers, declared)


async def _refresh_periodically(cluster: Cluster) -> None:
    """Look up the cluster's brokers at intervals, because brokers move and new ones appear."""
    while True:
        try:
            await cluster.refresh()
        except Exception as error:  # noqa: BLE001 - a faulty target must not end the task; it is tried again
            log.debug("cluster topology cannot be refreshed", extra={"reason": str(error)})
        await trio.sleep(REFRESH_INTERVAL_S)


OURS = "ours"


def identity_offset(broker: str, topic: str, queue_id: int, offset: int) -> int:
    """Map offsets for a target that stores messages at the primary's queue offsets."""
    return offset


def build_comparison(
    config: Any, map_offset: MapOffset | None = None, make: Callable[..., Cluster] = make_cluster
) -> ComparisonService:
    """Return the comparison service for a `ShadowConfig` with a target. Raises SettingsError.

    ``map_offset`` gives the target's offsets; without it, pulls are compared only if the target stores messages at the
    primary's offsets. ``make`` is called like `make_cluster`, its default.
    """
    target, settings = config.target, config.compare
    same_offsets = target.kind == OURS
    second = replace(config.primary, namesrv=settings.second_namesrv) if settings.second_namesrv else None
    return ComparisonService(
        settings,
        ComparisonTerms(
            same_offsets=same_offsets, target_broker_names=target.brokers, longer_remarks_allowed=same_offsets
        ),
        target.brokers,
        make(config.primary, "primary"),
        make(target, "target"),
        map_offset=identity_offset if same_offsets else map_offset or _unknown_offset,
        now_ms=SystemClock().now_ms,
        second=make(second, "primary") if second else None,
    )


def _unknown_offset(broker: str, topic: str, queue_id: int, offset: int) -> None:
    """Return None: no offset of the target is known."""
