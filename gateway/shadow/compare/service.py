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
from gateway.shadow.compare.answer_diff import Terms
from gateway.shadow.compare.comparison_observer import Comparer
from gateway.shadow.compare.noise import Noise
from gateway.shadow.compare.parity import Clusters, How, Parity, Progress, Window, compare_topics, silent
from gateway.shadow.compare.read_repeater import Asker, asking
from gateway.shadow.compare.repeatable_reads import MapOffset
from gateway.shadow.compare.settings import CompareSettings
from gateway.shadow.console.errors import ConsoleError
from remoting.requests.namesrv import GetAllTopicListFromNameserver, GetSystemTopicListFromNs

log = logging.getLogger(__name__)

REFRESH_S: Final = 10.0
SAVE_S: Final = 60.0
REPLIES: Final = "_REPLY_TOPIC"
"""What the name of a cluster's topic of replies ends with."""


class Routes(Protocol):
    """Where JSON is served; the console of `report`."""

    def get(self, path: str, function: Callable[[dict[str, Any]], dict[str, Any]], /) -> None: ...

    def post(self, path: str, function: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], /) -> None: ...


def how(settings: CompareSettings, *, kept: bool) -> How:
    """How parity is looked for, as the settings say."""
    return How(
        kept=kept,
        lag_s=settings.lag_ms / 1000,
        window=settings.parity_window,
        per_second=settings.parity_per_s,
        parallel=settings.parity_queues,
    )


async def topics_like(primary: Cluster, patterns: Iterable[str]) -> list[str]:
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
        name for name in users if any(_fits(name, each) for each in wanted) and not name.endswith(REPLIES)
    ]


def _fits(topic: str, pattern: str) -> bool:
    return fnmatchcase(topic, pattern) and topic.startswith("%") == pattern.startswith("%")


class Comparing:
    """Compares whatever passes, while it runs; looks at parity when asked.

    ``declared`` maps the primary's broker names to the target's. ``second`` is another upstream of the primary for
    second reads, the primary itself when None. `comparer.listen` tells of every comparison; `last_parity` is the result
    of the last look, as JSON, empty before.
    """

    def __init__(
        self,
        settings: CompareSettings,
        terms: Terms,
        declared: Mapping[str, str],
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
        self._counterpart = partial(_counterpart, target, declared)
        self._noise = Noise(settings.noise_reads, settings.noise_share, settings.noise_memory)
        self.comparer = Comparer(settings, terms, self._noise, chance)
        self.asker = Asker(
            settings,
            terms,
            self._noise,
            target=asking(target, self._counterpart),
            primary=asking(self._second),
            map_offset=map_offset,
            tell=self.comparer.compared,
        )
        self.comparer.ask_with(self.asker.add, self.asker.subscriptions.learn)
        self._looking = trio.CapacityLimiter(1)
        self.last_parity: dict[str, Any] = {}

    def serve_on(self, routes: Routes) -> None:
        """GET `/compare` and `/samples` (`request`, `field`); POST `/parity` (`topics`, and as `Window` has them)."""
        routes.get("/compare", lambda _: self.status())
        routes.get(
            "/samples", lambda query: self.comparer.samples(query.get("request", ""), query.get("field", ""))
        )
        routes.post("/parity", self._parity_asked)

    def status(self) -> dict[str, Any]:
        """Counts, as JSON."""
        left_out, waiting = dict(self.asker.left_out), self.asker.waiting
        return {**self.comparer.status(), "left_out": left_out, "waiting": waiting}

    def figures(self) -> Iterator[Figure | Distribution]:
        """What a `figures.Source` gives."""
        yield from self.comparer.figures()
        yield Figure("compare_waiting", self.asker.waiting, "Questions that wait for their turn.", "gauge")
        for reason, number in self.asker.left_out.items():
            meaning = "Exchanges that were not asked about."
            yield Figure("compare_left_out_total", number, meaning, labels={"reason": reason})

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Asks questions until cancelled. A cluster that is not there does not keep it from starting."""
        self._load_noise()
        try:
            async with trio.open_nursery() as nursery:
                for cluster in {id(each): each for each in self._clusters()}.values():
                    await nursery.start(cluster.run)
                    nursery.start_soon(_keep_looking, cluster)
                nursery.start_soon(self._keep_saving)
                await nursery.start(self.asker.run)
                task_status.started()
        finally:
            self._save_noise()

    async def parity(
        self, topics: Iterable[str], window: Window | None = None, on_progress: Progress = silent
    ) -> Parity:
        """Looks at the content of topics; one look at a time. `run` must be running. Raises ASKING_FAILED."""
        async with self._looking:
            found = await compare_topics(
                Clusters(self.primary, self.target, self._counterpart),
                await topics_like(self.primary, topics),
                how(self._settings, kept=self._terms.kept),
                self._now_ms,
                window or Window(),
                on_progress,
            )
        self.last_parity = {"at_ms": self._now_ms(), **found.to_value()}
        return found

    async def _parity_asked(self, given: dict[str, Any]) -> dict[str, Any]:
        topics, window = (
            given.get("topics") or ["*"],
            {name: given.get(name) for name in Window.__dataclass_fields__},
        )
        numbers = all(each is None or type(each) is int for each in window.values())
        if not numbers or not isinstance(topics, list) or not all(isinstance(each, str) for each in topics):
            raise ConsoleError(f"topics must be a list of names, {', '.join(window)} whole numbers")
        return (await self.parity(topics, Window(**window))).to_value()

    def _clusters(self) -> tuple[Cluster, ...]:
        return self.primary, self.target, self._second

    async def _keep_saving(self) -> None:
        while True:
            await trio.sleep(SAVE_S)
            self._save_noise()

    def _load_noise(self) -> None:
        file = self._settings.noise_file
        if not file or not Path(file).exists():
            return
        try:
            self._noise.take(orjson.loads(Path(file).read_bytes()))
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


def _counterpart(target: Cluster, declared: Mapping[str, str], broker: str) -> str:
    return counterpart(broker, target.brokers, declared)


async def _keep_looking(cluster: Cluster) -> None:
    """Brokers move and appear; what is asked of one that is not known is left out."""
    while True:
        try:
            await cluster.refresh()
        except Exception as error:  # noqa: BLE001 - whatever a target does wrong; it is asked again
            log.debug("a cluster cannot be asked", extra={"reason": str(error)})
        await trio.sleep(REFRESH_S)
