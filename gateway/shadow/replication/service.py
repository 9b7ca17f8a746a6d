"""What a mirror has besides when its target keeps the primary's queue offsets: feeds, their writers, healed marks.

Not responsible for any of them.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import trio

from gateway.runtime.metrics import Figure
from gateway.runtime.supervise import tireless
from gateway.shadow.clusters.broker_pairs import counterpart
from gateway.shadow.clusters.cluster import ASKING_FAILED, Cluster
from gateway.shadow.mirror.making import MakeWriter
from gateway.shadow.mirror.mirrors import Mirrors
from gateway.shadow.replication.feeds import KeptFeeds
from gateway.shadow.replication.offset_follower import OffsetKeeper
from gateway.shadow.replication.settings import KeptSettings
from gateway.shadow.replication.writer import KeptWriter, heal, kept_by, waits_by
from gateway.shadow.traffic.outcome import Writer

LOOK_S: Final = 1.0
MOST_ROWS: Final = 500


class Keeping:
    """`between` makes it part of a mirror; `run` must be running. ``declared`` maps broker names to the target's."""

    feeds: KeptFeeds
    offsets: OffsetKeeper
    mirrors: Mirrors

    def __init__(self, settings: KeptSettings, declared: Mapping[str, str]) -> None:
        self._settings = settings
        self._declared = declared

    def between(self, primary: Cluster, target: Cluster, mirrors: Mirrors) -> MakeWriter:
        """Follows what the mirror's rules and modes say; the maker of its writers."""
        rules, settings, declared = mirrors.rules, self._settings, self._declared

        def target_of(broker: str) -> str:
            return counterpart(broker, target.brokers, declared)

        def make(broker: str, target_broker: str) -> Writer:
            sides = primary, target, broker, target_broker
            return KeptWriter(*sides, self.feeds, settings.hold_ms, waits_by(rules))

        self.mirrors = mirrors
        self.feeds = KeptFeeds(primary, target, settings, target_of, kept_by(rules))
        self.offsets = OffsetKeeper(primary, target, self.feeds, target_of)
        return make

    async def run(self) -> None:
        """Follows and heals until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.feeds.run)
            nursery.start_soon(tireless, self._keep_offsets)
            nursery.start_soon(tireless, self._heal)

    async def _heal(self) -> None:
        modes = self.mirrors.rules.modes()
        while True:
            await trio.sleep(LOOK_S)
            heal(self.mirrors.diverged, self.feeds)
            if modes != self.mirrors.rules.modes():
                modes = self.mirrors.rules.modes()
                self.feeds.changed()

    async def _keep_offsets(self) -> None:
        while True:
            await trio.sleep(self._settings.offsets_ms / 1000)
            with contextlib.suppress(*ASKING_FAILED, LookupError):  # the feeds say that a side is not there
                await self.offsets.look()

    def figures(self) -> Iterator[Figure]:
        """See `KeptFeeds.figures`, and the offsets that were moved."""
        yield from self.feeds.figures()
        yield Figure("kept_offsets_total", self.offsets.moved, "Consumer offsets moved by comparing tables.")

    def status(self) -> list[dict[str, Any]]:
        """The queues that are followed, those with problems and those far behind first, for people; bounded."""
        rows = self.feeds.rows()
        rows.sort(key=lambda row: (not row["problem"], row["target"] - row["primary"][1]))
        return rows[:MOST_ROWS]
