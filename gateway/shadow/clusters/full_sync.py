"""All of `shadow sync`: topics, groups, offsets and orders of every broker, in the order in which they need each other.

Not responsible for the steps of each kind (sync and sync_offsets).
"""

from collections.abc import Collection

from gateway.shadow.clusters.cluster_pair import Sides
from gateway.shadow.clusters.copy_steps import Step, apply
from gateway.shadow.clusters.metadata_sync import Names, plan_groups, plan_orders, plan_topics
from gateway.shadow.clusters.offset_sync import Translate, Wanted, plan_offsets


class Syncing:
    """Copies the settings of one cluster to the other."""

    def __init__(self, sides: Sides, translate: Translate | None = None) -> None:
        self._sides = sides
        self._translate = translate

    async def run(
        self, topics: Names, groups: Names, moving: Collection[str] = (), *, dry_run: bool = False
    ) -> list[Step]:
        """Every step, taken unless ``dry_run``. Offsets of ``moving`` topics are left alone.

        Raises ASKING_FAILED when a cluster does not say what it has; KeyError for a broker without counterpart.
        """
        sides, steps = self._sides, []
        await sides.primary.refresh()
        await sides.target.refresh()
        names = {broker: sides.counterpart(broker) for broker in sorted(sides.primary.brokers)}
        for broker, there in names.items():
            both = sides.primary, sides.target, broker, there
            steps += await self._taken(
                [*await plan_topics(*both, topics), *await plan_groups(*both, groups)], dry_run
            )
            wanted = Wanted(topics, groups, moving)
            steps += await self._taken(await plan_offsets(sides, broker, wanted, self._translate), dry_run)
        orders = await plan_orders(sides.primary, sides.target, names, topics)
        return [*steps, *await self._taken(orders, dry_run)]

    async def _taken(self, steps: list[Step], dry_run: bool) -> list[Step]:
        if not dry_run:
            await apply(self._sides.target, steps)
        return steps
