"""Builds the comparison service from a whole shadow configuration."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.clusters.endpoints import make_cluster
from gateway.shadow.compare.answer_diff import ComparisonTerms
from gateway.shadow.compare.repeatable_reads import MapOffset
from gateway.shadow.compare.service import ComparisonService
from storage.clock import SystemClock

OURS = "ours"


def identity_offset(broker: str, topic: str, queue_id: int, offset: int) -> int:
    """Map offsets for a target that stores messages at the primary's queue offsets."""
    return offset


def build_comparison(
    config: Any, map_offset: MapOffset | None = None, make: Callable[..., Cluster] = make_cluster
) -> ComparisonService:
    """Return the comparison service for a `ShadowConfig` with a target. Raises SettingsError.

    ``map_offset`` gives the target's offsets; without it, pulls are compared only if the target stores messages at the
    primary's offsets. ``make`` is called like `make_cluster`, its default.
    """
    target, settings = config.target, config.compare
    same_offsets = target.kind == OURS
    second = replace(config.primary, namesrv=settings.second_namesrv) if settings.second_namesrv else None
    return ComparisonService(
        settings,
        ComparisonTerms(
            same_offsets=same_offsets, target_broker_names=target.brokers, longer_remarks_allowed=same_offsets
        ),
        target.brokers,
        make(config.primary, "primary"),
        make(target, "target"),
        map_offset=identity_offset if same_offsets else map_offset or _unknown_offset,
        now_ms=SystemClock().now_ms,
        second=make(second, "primary") if second else None,
    )


def _unknown_offset(broker: str, topic: str, queue_id: int, offset: int) -> None:
    """Return None: no offset of the target is known."""
