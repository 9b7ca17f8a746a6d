"""`shadow sync` without a running gateway: connects to both clusters, copies the metadata, and ends."""

from collections.abc import Sequence
from typing import Any

import click
import trio

from gateway.shadow.clusters.cluster import CLUSTER_ERRORS
from gateway.shadow.clusters.endpoints import make_cluster
from gateway.shadow.clusters.full_sync import FullSync
from gateway.shadow.clusters.same_cluster import refuse_same_cluster
from gateway.shadow.clusters.sync_steps import SyncStep
from gateway.shadow.config import ShadowConfig, load_config
from gateway.shadow.cutover.assembly import open_move_file, pair_clusters
from gateway.shadow.cutover.routes import parse_names
from toolkit.exit_codes import ConfigurationError
from toolkit.settings import SettingsError


def sync_once(file: str, sets: Sequence[str], given: dict[str, Any]) -> list[dict[str, str]]:
    """Return the rows of the steps taken, or planned with `dry_run`. Raises ClickException."""
    try:
        config = load_config(file, sets)
        if not config.target.namesrv:
            raise ConfigurationError(f"{file}: target.namesrv must be set")
        steps: list[SyncStep] = trio.run(_run_sync, config, given)
    except* SettingsError as problems:
        raise ConfigurationError("; ".join(map(str, problems.exceptions))) from None
    except* (*CLUSTER_ERRORS, LookupError) as problems:
        raise click.ClickException("; ".join(map(str, problems.exceptions))) from None
    return [step.to_dict() for step in steps]


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
