"""Comparing, put together: clusters of its own, what observes, what asks, what is shown.

Not responsible for any of these parts, nor for the forwarder and the mirrors, which it joins.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

import orjson
import trio

from gateway.runtime.metrics import Distribution, Figure
from gateway.shadow.clusters.broker_pairs import counterpart
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.clusters.metadata_sync import is_system_topic
from gateway.shadow.compare.answer_diff import ComparisonTerms
from gateway.shadow.compare.comparison_counts import ComparisonCounts
from gateway.shadow.compare.comparison_observer import ComparisonObserver
from gateway.shadow.compare.noise import LearnedNoise
from gateway.shadow.compare.parity import (
    ComparedClusters,
    ParityOptions,
    ParityRange,
    ParityResult,
    ProgressCallback,
    compare_topics,
    ignore_progress,
)
from gateway.shadow.compare.read_repeater import ReadRepeater, send_reads_to
from gateway.shadow.compare.repeatable_reads import MapOffset
from gateway.shadow.compare.settings import CompareSettings
from gateway.shadow.console.errors import ConsoleError
from remoting.requests.namesrv import GetAllTopicListFromNameserver, GetSystemTopicListFromNs

log = logging.getLogger(__name__)

REFRESH_INTERVAL_S: Final = 10.0
SAVE_INTERVAL_S: Final = 60.0
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
"""What the name of a cluster's topic of replies ends with."""


class ConsoleRoutes(Protocol):
    """Where JSON is served; the console of `report`."""

    def get(self, path: str, function: Callable[[dict[str, Any]], dict[str, Any]], /) -> None: ...

    def post(self, path: str, function: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], /) -> None: ...


def parity_options(settings: CompareSettings, *, same_offsets: bool) -> ParityOptions:
    """How parity is looked for, as the settings say."""
    return ParityOptions(
        same_offsets=same_offsets,
        lag_s=settings.lag_ms / 1000,
        window=settings.parity_window,
        per_second=settings.parity_per_s,
        parallel=settings.parity_queues,
    )


async def match_topics(primary: Cluster, patterns: Iterable[str]) -> list[str]:
    """Users' topics of a cluster that fit shell patterns; a plain name is taken as it is. Raises ASKING_FAILED.

    Retry and dead-letter topics fit only patterns that begin with "%": what is in them depends on consumers.
    """
    wanted = list(patterns)
    if all(not set(each) & set("*?[") for each in wanted):
        return wanted
    known = (await primary.ask_namesrv(GetAllTopicListFromNameserver())).data.topic_list
    system = (await primary.ask_namesrv(GetSystemTopicListFromNs())).data.topic_list
    users = [name for name in sorted(set(known) - set(system)) if not is_system_topic(name)]
    return [
        name
        for name in users
        if any(_matches_pattern(name, each) for each in wanted) and not name.endswith(REPLY_TOPIC_SUFFIX)
    ]


def _matches_pattern(topic: str, pattern: str) -> bool:
    return fnmatchcase(topic, pattern) and topic.startswith("%") == pattern.startswith("%")


class ComparisonService:
    """Compares whatever passes, while it runs; looks at parity when asked.

    ``declared`` maps the primary's broker names to the target's. ``second`` is another upstream of the primary for
    second reads, the primary itself when None. `comparer.listen` tells of every comparison; `last_parity` is the result
    of the last look, as JSON, empty before.
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
        """GET `/compare` and `/samples` (`request`, `field`); POST `/parity` (`topics`, and as `Window` has them)."""
        routes.get("/compare", lambda _: self.status())
        routes.get(
            "/samples", lambda query: self.counts.samples(query.get("request", ""), query.get("field", ""))
        )
        routes.post("/parity", self._handle_parity_request)

    def status(self) -> dict[str, Any]:
        """Counts, as JSON."""
        left_out, waiting = dict(self.repeater.left_out), self.repeater.waiting_count
        return {**self.counts.status(), "left_out": left_out, "waiting": waiting}

    def figures(self) -> Iterator[Figure | Distribution]:
        """What a `figures.Source` gives."""
        yield from self.counts.figures()
        yield Figure(
            "compare_waiting", self.repeater.waiting_count, "Questions that wait for their turn.", "gauge"
        )
        for reason, number in self.repeater.left_out.items():
            meaning = "Exchanges that were not asked about."
            yield Figure("compare_left_out_total", number, meaning, labels={"reason": reason})

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Asks questions until cancelled. A cluster that is not there does not keep it from starting."""
        self._load_noise()
        try:
            async with trio.open_nursery() as nursery:
                for cluster in {id(each): each for each in self._all_clusters()}.values():
                    await nursery.start(cluster.run)
                    nursery.start_soon(_refresh_periodically, cluster)
                nursery.start_soon(self._save_noise_periodically)
                await nursery.start(self.repeater.run)
                task_status.started()
        finally:
            self._save_noise()

    async def check_parity(
        self,
        topics: Iterable[str],
        window: ParityRange | None = None,
        on_progress: ProgressCallback = ignore_progress,
    ) -> ParityResult:
        """Looks at the content of topics; one look at a time. `run` must be running. Raises ASKING_FAILED."""
        async with self._parity_limiter:
            found = await compare_topics(
                ComparedClusters(self.primary, self.target, self._counterpart),
                await match_topics(self.primary, topics),
                parity_options(self._settings, same_offsets=self._terms.same_offsets),
                self._now_ms,
                window or ParityRange(),
                on_progress,
            )
        self.last_parity = {"at_ms": self._now_ms(), **found.to_value()}
        return found

    async def _handle_parity_request(self, given: dict[str, Any]) -> dict[str, Any]:
        topics, window = (
            given.get("topics") or ["*"],
            {name: given.get(name) for name in ParityRange.__dataclass_fields__},
        )
        numbers = all(each is None or type(each) is int for each in window.values())
        if not numbers or not isinstance(topics, list) or not all(isinstance(each, str) for each in topics):
            raise ConsoleError(f"topics must be a list of names, {', '.join(window)} whole numbers")
        return (await self.check_parity(topics, ParityRange(**window))).to_value()

    def _all_clusters(self) -> tuple[Cluster, ...]:
        return self.primary, self.target, self._second

    async def _save_noise_periodically(self) -> None:
        while True:
            await trio.sleep(SAVE_INTERVAL_S)
            self._save_noise()

    def _load_noise(self) -> None:
        file = self._settings.noise_file
        if not file or not Path(file).exists():
            return
        try:
            self._noise.restore(orjson.loads(Path(file).read_bytes()))
        except (OSError, ValueError) as error:
            log.warning("learned noise cannot be read", extra={"file": file, "reason": str(error)})

    def _save_noise(self) -> None:
        file = self._settings.noise_file
        if not file:
            return
        try:
            part = Path(file + ".part")
            part.write_bytes(orjson.dumps(self._noise.to_value()))
            part.replace(file)
        except OSError as error:
            log.warning("learned noise cannot be kept", extra={"file": file, "reason": str(error)})


def _target_broker_name(target: Cluster, declared: Mapping[str, str], broker: str) -> str:
    return counterpart(broker, target.brokers, declared)


async def _refresh_periodically(cluster: Cluster) -> None:
    """Brokers move and appear; what is asked of one that is not known is left out."""
    while True:
        try:
            await cluster.refresh()
        except Exception as error:  # noqa: BLE001 - whatever a target does wrong; it is asked again
            log.debug("a cluster cannot be asked", extra={"reason": str(error)})
        await trio.sleep(REFRESH_INTERVAL_S)
