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
from gateway.shadow.mirror.mirror import Mirror
from gateway.shadow.mirror.mirror_factory import MakeWriter
from gateway.shadow.replication.consumer_offset_sync import ConsumerOffsetSync
from gateway.shadow.replication.feed_set import FeedSet
from gateway.shadow.replication.replication_writer import (
    ReplicationWriter,
    answer_hold_predicate,
    clear_healed_marks,
    queue_selector,
)
from gateway.shadow.replication.settings import ReplicationSettings
from gateway.shadow.traffic.outcome import Writer

HEAL_INTERVAL_S: Final = 1.0
MAX_STATUS_ROWS: Final = 500


class ReplicationService:
    """`between` makes it part of a mirror; `run` must be running. ``declared`` maps broker names to the target's."""

    feeds: FeedSet
    offset_sync: ConsumerOffsetSync
    mirrors: Mirror

    def __init__(self, settings: ReplicationSettings, declared: Mapping[str, str]) -> None:
        self._settings = settings
        self._declared = declared

    def between(self, primary: Cluster, target: Cluster, mirrors: Mirror) -> MakeWriter:
        """Follows what the mirror's rules and modes say; the maker of its writers."""
        rules, settings, declared = mirrors.rules, self._settings, self._declared

        def target_of(broker: str) -> str:
            return counterpart(broker, target.brokers, declared)

        def make(broker: str, target_broker: str) -> Writer:
            sides = primary, target, broker, target_broker
            return ReplicationWriter(*sides, self.feeds, settings.hold_ms, answer_hold_predicate(rules))

        self.mirrors = mirrors
        self.feeds = FeedSet(primary, target, settings, target_of, queue_selector(rules))
        self.offset_sync = ConsumerOffsetSync(primary, target, self.feeds, target_of)
        return make

    async def run(self) -> None:
        """Follows and heals until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.feeds.run)
            nursery.start_soon(tireless, self._sync_offsets)
            nursery.start_soon(tireless, self._clear_healed_marks)

    async def _clear_healed_marks(self) -> None:
        modes = self.mirrors.rules.mode_overrides()
        while True:
            await trio.sleep(HEAL_INTERVAL_S)
            clear_healed_marks(self.mirrors.diverged, self.feeds)
            if modes != self.mirrors.rules.mode_overrides():
                modes = self.mirrors.rules.mode_overrides()
                self.feeds.request_discovery()

    async def _sync_offsets(self) -> None:
        while True:
            await trio.sleep(self._settings.offsets_ms / 1000)
            with contextlib.suppress(*ASKING_FAILED, LookupError):  # the feeds say that a side is not there
                await self.offset_sync.sync_offsets()

    def figures(self) -> Iterator[Figure]:
        """See `KeptFeeds.figures`, and the offsets that were moved."""
        yield from self.feeds.figures()
        yield Figure(
            "kept_offsets_total", self.offset_sync.moved_total, "Consumer offsets moved by comparing tables."
        )

    def status(self) -> list[dict[str, Any]]:
        """The queues that are followed, those with problems and those far behind first, for people; bounded."""
        rows = self.feeds.status_rows()
        rows.sort(key=lambda row: (not row["problem"], row["target"] - row["primary"][1]))
        return rows[:MAX_STATUS_ROWS]
