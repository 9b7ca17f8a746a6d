"""`shadow sync` where no gateway runs: connects to both clusters, copies, and ends."""

from collections.abc import Sequence
from typing import Any

import click
import trio

from gateway.shadow.clusters.cluster import ASKING_FAILED
from gateway.shadow.clusters.copy_steps import Step
from gateway.shadow.clusters.endpoints import cluster_of
from gateway.shadow.clusters.full_sync import Syncing
from gateway.shadow.config import ShadowConfig, load_config
from gateway.shadow.cutover.build import open_book, sides_of
from gateway.shadow.cutover.routes import names_in
from toolkit.settings import SettingsError


def sync_once(file: str, sets: Sequence[str], given: dict[str, Any]) -> list[dict[str, str]]:
    """The rows of what was done, or would be with `dry_run`. Raises ClickException."""
    try:
        config = load_config(file, sets)
        if not config.target.namesrv:
            raise click.ClickException(f"{file}: target.namesrv must be given")
        steps: list[Step] = trio.run(_sync, config, given)
    except* (*ASKING_FAILED, LookupError, SettingsError) as problems:
        raise click.ClickException("; ".join(map(str, problems.exceptions))) from None
    return [step.to_dict() for step in steps]


async def _sync(config: ShadowConfig, given: dict[str, Any]) -> list[Step]:
    primary, target = cluster_of(config.primary, "primary"), cluster_of(config.target, "target")
    async with trio.open_nursery() as nursery:
        await nursery.start(primary.run)
        await nursery.start(target.run)
        syncing = Syncing(sides_of(primary, target, config.target.brokers, config.target.kind))
        topics, groups = names_in(given["topics"]) or None, names_in(given["groups"]) or None
        moving = [move.topic for move in open_book(config.cutover) if not move.mirrored]
        steps = await syncing.run(topics, groups, moving, dry_run=given["dry_run"])
        nursery.cancel_scope.cancel()
    return steps
