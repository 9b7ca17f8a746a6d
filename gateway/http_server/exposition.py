"""The metrics of a `MetricRegistry` in the exposition format of Prometheus."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import trio

from gateway.runtime.metrics import Distribution, Metric, MetricRegistry, prefixed_name

if TYPE_CHECKING:
    from prometheus_client.core import Metric as MetricFamily

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SAMPLES_PER_SLICE: Final = 256
_UNITS: Final = {"ms": "milliseconds"}


class _OneFamily:
    """Implements the collector interface of prometheus_client for one metric family."""

    def __init__(self, families: Iterable["MetricFamily"]) -> None:
        self._families = families

    def collect(self) -> Iterable["MetricFamily"]:
        return self._families


async def render_exposition(registry: MetricRegistry, prefix: str) -> bytes:
    """Return the text of `/metrics`: the registry's metrics under a prefix, and the process's own metrics.

    There are checkpoints in between, so that clients' requests do not wait for the whole text.
    """
    import prometheus_client as client  # only servers with a console need it

    families: dict[str, MetricFamily] = {}
    for number, sample in enumerate(await registry.collect_all()):
        if isinstance(sample, Metric):
            _add_metric(families, sample, prefix)
        else:
            _add_distribution(families, sample, prefix)
        if number % SAMPLES_PER_SLICE == 0:
            await trio.lowlevel.checkpoint()
    process = client.ProcessCollector(registry=None).collect()
    texts = []
    for family in (*families.values(), *process):
        texts.append(client.generate_latest(_OneFamily([family])))
        await trio.lowlevel.checkpoint()
    return b"".join(texts)


def _find_family(families: dict[str, "MetricFamily"], name: str, meaning: str, kind: str) -> "MetricFamily":
    family = families.get(name)
    if family is None:
        from prometheus_client.core import Metric as MetricFamily

        family = families[name] = MetricFamily(name, meaning, kind)
    return family


def _name_with_unit(sample: Metric | Distribution, prefix: str) -> str:
    """Return the whole name of a metric as Prometheus sees it on an official broker: with its unit last.

    Source: PrometheusMetricReader of the SDK of OpenTelemetry, 1.44, which the 5.4.0 broker uses.
    """
    name, unit = prefixed_name(sample.name, prefix), _UNITS.get(sample.unit, sample.unit)
    return name if not unit or name.endswith(unit) else f"{name}_{unit}"


def _add_metric(families: dict[str, "MetricFamily"], metric: Metric, prefix: str) -> None:
    name = _name_with_unit(metric, prefix)
    if metric.kind == "counter":
        name = name.removesuffix("_total")
    family = _find_family(families, name, metric.meaning, metric.kind)
    suffix = "_total" if metric.kind == "counter" else ""
    family.add_sample(name + suffix, dict(metric.labels), metric.value)


def _add_distribution(families: dict[str, "MetricFamily"], shown: Distribution, prefix: str) -> None:
    name = _name_with_unit(shown, prefix)
    family = _find_family(families, name, shown.meaning, "histogram")
    labels = dict(shown.labels)
    for bound, count in shown.histogram.shown_buckets():
        le = "+Inf" if math.isinf(bound) else f"{bound:.6g}"
        family.add_sample(name + "_bucket", {**labels, "le": le}, count)
    family.add_sample(name + "_count", labels, shown.histogram.count)
    family.add_sample(name + "_sum", labels, shown.histogram.total)
