"""Makes the parts of comparing from a whole configuration. Not responsible for running them."""

from functools import partial
from typing import Any

from gateway.shadow.cluster import Cluster
from gateway.shadow.compare.answers import Terms
from gateway.shadow.compare.comparing import Comparing
from gateway.shadow.compare.questions import MapOffset
from gateway.shadow.security import signer, upstream_opener
from remoting.transport import connect
from storage.clock import SystemClock

OURS = "ours"


def same_offset(broker: str, topic: str, queue_id: int, offset: int) -> int:
    """The map of a target that keeps the primary's queue offsets."""
    return offset


def build_comparing(config: Any, map_offset: MapOffset | None = None) -> Comparing:
    """For a `ShadowConfig` with a target. ``map_offset`` gives the target's offsets; without it only a target that
    keeps the primary's has its pulls compared. Raises SettingsError.
    """
    target, settings = config.target, config.compare
    kept = target.kind == OURS
    make = partial(_cluster, config.primary, "primary")
    return Comparing(
        settings,
        Terms(kept=kept, rename=target.brokers, words_added=kept),
        target.brokers,
        make(config.primary.namesrv),
        _cluster(target, "target", target.namesrv),
        map_offset=same_offset if kept else map_offset or _unknown,
        now_ms=SystemClock().now_ms,
        second=make(settings.second_namesrv) if settings.second_namesrv else None,
    )


def _unknown(broker: str, topic: str, queue_id: int, offset: int) -> None:
    """No offset is known."""


def _cluster(settings: Any, table: str, namesrvs: list[str]) -> Cluster:
    return Cluster(
        namesrvs,
        opener=upstream_opener(settings.tls, connect, f"{table}.tls"),
        sign=signer(settings.credentials, f"{table}.credentials"),
    )
