"""All of `shadow sync`: topics, groups, offsets and orders of every broker, in the order of their dependencies."""

from collections.abc import Collection

from gateway.shadow.clusters.cluster import CLUSTER_ERRORS
from gateway.shadow.clusters.cluster_pair import ClusterPair
from gateway.shadow.clusters.metadata_sync import NameFilter, plan_groups, plan_orders, plan_topics
from gateway.shadow.clusters.offset_sync import OffsetFilter, TranslateOffset, plan_offsets
from gateway.shadow.clusters.sync_steps import SyncAction, SyncStep, apply_steps


class FullSync:
    """Copies the metadata of the primary to the target."""

    def __init__(self, sides: ClusterPair, translate: TranslateOffset | None = None) -> None:
        self._sides = sides
        self._translate = translate

    async def run(
        self, topics: NameFilter, groups: NameFilter, moving: Collection[str] = (), *, dry_run: bool = False
    ) -> list[SyncStep]:
        """Plan all steps, and take them unless ``dry_run``. Offsets of ``moving`` topics are left alone.

        A broker that cannot be asked, or has no counterpart, is a step that failed; the others are copied. Raises
        CLUSTER_ERRORS or LookupError if that is so for every broker, and CLUSTER_ERRORS if no namesrv answers.
        """
        sides, steps, names = self._sides, list[SyncStep](), dict[str, str]()
        problem: Exception | None = None
        await sides.primary.refresh()
        await sides.target.refresh()
        for broker in sorted(sides.primary.brokers):
            try:
                there = sides.counterpart(broker)
                steps += await self._sync_broker(broker, there, OffsetFilter(topics, groups, moving), dry_run)
                names[broker] = there
            except (*CLUSTER_ERRORS, LookupError) as error:
                problem = error
                reason = f"{type(error).__name__}: {error}"
                steps.append(SyncStep("broker", broker, SyncAction.FAILED, reason))
        if problem is not None and not names:
            raise problem
        orders = await plan_orders(sides.primary, sides.target, names, topics)
        return [*steps, *await self._apply_unless_dry(orders, dry_run)]

    async def _sync_broker(
        self, broker: str, there: str, wanted: OffsetFilter, dry_run: bool
    ) -> list[SyncStep]:
        both = self._sides.primary, self._sides.target, broker, there
        steps = [*await plan_topics(*both, wanted.topics), *await plan_groups(*both, wanted.groups)]
        await self._apply_unless_dry(steps, dry_run)
        offsets = await plan_offsets(self._sides, broker, wanted, self._translate)
        return [*steps, *await self._apply_unless_dry(offsets, dry_run)]

    async def _apply_unless_dry(self, steps: list[SyncStep], dry_run: bool) -> list[SyncStep]:
        if not dry_run:
            await apply_steps(self._sides.target, steps)
        return steps
