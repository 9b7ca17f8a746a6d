"""`shadow sync` without a running gateway: connects to both clusters, copies the metadata, and ends."""

from collections.abc import Sequence
from typing import Any

import trio

from gateway.shadow.clusters.endpoints import make_cluster
from gateway.shadow.clusters.full_sync import FullSync
from gateway.shadow.clusters.sync_steps import SyncStep
from gateway.shadow.clusters.target_check import refuse_same_cluster
from gateway.shadow.commands.read_config import read_config
from gateway.shadow.commands.run_async import run_async
from gateway.shadow.config import ShadowConfig
from gateway.shadow.cutover.assembly import open_move_file, pair_clusters
from gateway.shadow.cutover.routes import parse_names
from toolkit.exit_codes import ConfigurationError


def sync_once(file: str, sets: Sequence[str], given: dict[str, Any]) -> list[dict[str, str]]:
    """Return the rows of the steps taken, or planned with `dry_run`. Raises ClickException."""
    config = read_config(file, tuple(sets))
    if not config.target.namesrv:
        raise ConfigurationError(f"{file}: target.namesrv must be set")
    return [step.to_dict() for step in run_async(_run_sync, config, given)]


async def _run_sync(config: ShadowConfig, given: dict[str, Any]) -> list[SyncStep]:
    primary, target = make_cluster(config.primary, "primary"), make_cluster(config.target, "target")
    async with trio.open_nursery() as nursery:
        await nursery.start(primary.run)
        await nursery.start(target.run)
        await refuse_same_cluster(primary, target)
        syncing = FullSync(pair_clusters(primary, target, config.target.brokers, config.target.kind))
        topics, groups = parse_names(given["topics"]) or None, parse_names(given["groups"]) or None
        moving = [move.topic for move in open_move_file(config.cutover) if not move.is_mirrored]
        steps = await syncing.run(topics, groups, moving, dry_run=given["dry_run"])
        nursery.cancel_scope.cancel()
    return steps
