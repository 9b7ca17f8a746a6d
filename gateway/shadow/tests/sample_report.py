"""Test helper: an invented report in the form that `/report` returns."""

import math
from typing import Any

from gateway.shadow.report.traffic_series import (
    ALL_TOPICS,
    COUNT_NAMES,
    OTHER_TOPICS,
    QUANTILE_PERCENTS,
    SIDES,
)

POINT_COUNT = 60
STARTED_MS = 1_700_000_000_000
OUTAGE = range(20, 30)


def sample_report(**more: Any) -> dict[str, Any]:
    """Return a report with all known sections, an outage of the target, differences, and texts that must be escaped."""
    topics = {
        name: _topic_series(share)
        for name, share in ((ALL_TOPICS, 1), ("Orders", 0.7), ("<b>Clicks", 0.2), (OTHER_TOPICS, 0.1))
    }
    times = [STARTED_MS + 1000.0 * second for second in range(1, POINT_COUNT + 1)]
    queued = [100.0 * (at - 19) if at in OUTAGE else 0 for at in range(POINT_COUNT)]
    is_open = [float(at in OUTAGE) for at in range(POINT_COUNT)]
    series = {
        "started_ms": STARTED_MS,
        "step_s": 1,
        "times_ms": times,
        "topics": topics,
        "totals": {name: _totals(columns) for name, columns in topics.items()},
        "metrics": {"mirror_queued": queued, "mirror_breaker_open": is_open},
    }
    return {
        "format": 1,
        "title": "Orders & <friends>",
        "started_ms": STARTED_MS,
        "made_ms": STARTED_MS + 1000 * POINT_COUNT,
        "series": series,
        "metrics": [
            {
                "name": "forward_requests_total",
                "value": 7.0,
                "meaning": "Frames.",
                "kind": "counter",
                "labels": {"a": "x"},
            },
            {
                "name": "forward_requests_total",
                "value": 5.0,
                "meaning": "Frames.",
                "kind": "counter",
                "labels": {"a": "y"},
            },
        ],
        "sections": {
            "mirror": {
                "modes": {},
                "streams": [{"name": "primary-broker-a-0", "queued": 3, "breaker": "closed"}],
            },
            "compare": {
                "compared": 9,
                "requests": [
                    {
                        "request": "PULL_MESSAGE",
                        "compared": 9,
                        "differing": 2,
                        "fields": {"messages[].order": 2},
                        "latency_ms": {"primary": {"p50": 1.5}},
                    }
                ],
                "noise": [],
            },
            "samples": [{"request": "PULL_MESSAGE", "primary": "<script>alert(1)</script>", "target": "b"}],
            "parity": {
                "holds": False,
                "missing": 2,
                "queues": [
                    {
                        "topic": "Orders",
                        "broker": "broker-a",
                        "queue_id": 3,
                        "missing": 2,
                        "findings": [{"kind": "missing", "primary_offset": 7}],
                    }
                ],
            },
            "replication": [
                {"broker": "broker-a", "queue": 0, "phase": "live", "primary": [0, 7], "target": 7}
            ],
            "cutover": {"topics": {"Orders": {"state": "DRAINED"}, "Clicks": {"state": "MIRRORING"}}},
            "capture": {"files": 3},
        },
        "events": [{"at_ms": times[20], "text": "circuit breaker open"}],
        "configuration": {"console": {"port": 9880, "token": "(not shown)"}, "mirror": [{"mode": "async"}]},
        **more,
    }


def _topic_series(share: float) -> dict[str, list[Any]]:
    def rate(at: int) -> float:
        return 1000 * share * (1 + 0.1 * math.sin(at))

    columns: dict[str, list[Any]] = {f"{name}_per_s": [0.0] * POINT_COUNT for name in COUNT_NAMES}
    columns["sends_per_s"] = [rate(at) for at in range(POINT_COUNT)]
    columns["mirrored_per_s"] = [0 if at in OUTAGE else rate(at) for at in range(POINT_COUNT)]
    columns["compared_per_s"] = [rate(at) / 10 for at in range(POINT_COUNT)]
    columns["differing_per_s"] = [float(at == 40) for at in range(POINT_COUNT)]
    for side in SIDES:
        for percent in QUANTILE_PERCENTS:
            values = [
                None if side == "target" and at in OUTAGE else 0.01 * percent for at in range(POINT_COUNT)
            ]
            columns[f"{side}_p{percent}_ms"] = values
    return columns


def _totals(columns: dict[str, list[Any]]) -> dict[str, Any]:
    totals = {name: round(sum(columns[f"{name}_per_s"])) for name in COUNT_NAMES}
    return totals | {name: values[-1] for name, values in columns.items() if name.endswith("_ms")}
