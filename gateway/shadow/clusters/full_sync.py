"""All of `shadow sync`: topics, groups, offsets and orders of every broker, in the order of their dependencies."""

from collections.abc import Collection

from gateway.shadow.clusters.cluster_pair import ClusterPair
from gateway.shadow.clusters.metadata_sync import NameFilter, plan_groups, plan_orders, plan_topics
from gateway.shadow.clusters.offset_sync import OffsetFilter, TranslateOffset, plan_offsets
from gateway.shadow.clusters.sync_steps import SyncStep, apply_steps


class FullSync:
    """Copies the metadata of the primary to the target."""

    def __init__(self, sides: ClusterPair, translate: TranslateOffset | None = None) -> None:
        self._sides = sides
        self._translate = translate

    async def run(
        self, topics: NameFilter, groups: NameFilter, moving: Collection[str] = (), *, dry_run: bool = False
    ) -> list[SyncStep]:
        """Plan all steps, and take them unless ``dry_run``. Offsets of ``moving`` topics are left alone.

        Raises CLUSTER_ERRORS if a cluster cannot be asked for its metadata; LookupError for a broker without
        counterpart.
        """
        sides, steps = self._sides, []
        await sides.primary.refresh()
        await sides.target.refresh()
        names = {broker: sides.counterpart(broker) for broker in sorted(sides.primary.brokers)}
        for broker, there in names.items():
            both = sides.primary, sides.target, broker, there
            steps += await self._apply_unless_dry(
                [*await plan_topics(*both, topics), *await plan_groups(*both, groups)], dry_run
            )
            wanted = OffsetFilter(topics, groups, moving)
            steps += await self._apply_unless_dry(
                await plan_offsets(sides, broker, wanted, self._translate), dry_run
            )
        orders = await plan_orders(sides.primary, sides.target, names, topics)
        return [*steps, *await self._apply_unless_dry(orders, dry_run)]

    async def _apply_unless_dry(self, steps: list[SyncStep], dry_run: bool) -> list[SyncStep]:
        if not dry_run:
            await apply_steps(self._sides.target, steps)
        return steps
