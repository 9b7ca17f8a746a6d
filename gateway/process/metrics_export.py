"""Pushes all metrics to a receiver of OpenTelemetry at an interval (`metricsExporterType=OTLP_GRPC` or `OTLP_HTTP`).

With `LOG` they are written to the log in place of it (`metrics_log.py`).

Metrics are collected on the event loop in slices, as for a scrape. A worker thread shapes, encodes and sends them,
because both the receiver and the encoding may take long: it encodes a batch at a time, and each batch is a request of
its own, so the loop waits for the interpreter for at most a few milliseconds. There is one push at a time; while it
lasts, the next one is not begun, so a slow receiver costs one thread and never memory. A push that fails is counted and
logged, and its numbers are not kept: all of them are cumulative, so that the next push has them. With
`metricsInDelta` the next push has the growth of both (`SampleGrowth`).

Source: BrokerMetricsManager, 5.4.0. Deviation: the official broker cannot push over HTTP.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

import trio

from gateway.config.metrics_export import MetricsExportConfig
from gateway.runtime.metrics import Distribution, Metric, MetricRegistry
from gateway.runtime.supervise import TaskSupervisor
from toolkit.install_command import DISTRIBUTION, install_command
from toolkit.settings import SettingsError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

log = logging.getLogger(__name__)

DATA_POINTS_PER_BATCH: Final = 128
"""Encoding one data point takes 20 to 30 us, and nothing else runs in the interpreter meanwhile."""
METRICS_PATH: Final = "/v1/metrics"
"""The path of a receiver's HTTP port. Source: the OTLP specification."""
LIBRARY_LOG: Final = "opentelemetry"
DELTA_LABEL: Final = {"aggregation": "delta"}
"""The label of everything that is pushed with `metricsInDelta`. Source: BrokerMetricsManager.init, 5.4.0."""


class Exporter(Protocol):
    """The part of the SDK's exporters that is used here."""

    def export(self, metrics_data: "MetricsData") -> Any: ...

    def shutdown(self) -> None: ...


class _LastMessage(logging.Handler):
    """Remembers the last line that the exporter's library logged, which is the only place of a failure's reason."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class MetricsPush:
    """Pushes the metrics of a registry until cancelled; its own counters are metrics as well."""

    def __init__(
        self,
        config: MetricsExportConfig,
        registry: MetricRegistry,
        exporter: Exporter,
        prefix: str,
        labels: Mapping[str, str],
    ) -> None:
        from gateway.process.otlp_samples import OtlpSamples, SampleGrowth

        self._registry = registry
        self._exporter = exporter
        self._target = config.target
        self._interval_s = (config.log_interval_ms if config.writes_log else config.interval_ms) / 1000
        growth = SampleGrowth() if config.in_delta else None
        self._samples = OtlpSamples(prefix, labels, {"service.name": DISTRIBUTION}, growth)
        self._started_ns = time.time_ns()
        self._one_thread = trio.CapacityLimiter(1)
        self._library = _LastMessage()
        self.pushed = self.failed = 0

    def metrics(self) -> Iterator[Metric]:
        """Yield the numbers of pushes that arrived, and of those that did not."""
        yield Metric("metric_pushes_total", self.pushed, "pushes of metrics to the receiver")
        yield Metric("metric_push_failures_total", self.failed, "pushes of metrics that failed")

    async def run(self, tasks: TaskSupervisor) -> None:
        """Push at the interval until cancelled. A push that fails or takes long delays nothing but the next one."""
        library_log = logging.getLogger(LIBRARY_LOG)
        library_log.addHandler(self._library)
        library_log.propagate = False
        try:
            await tasks.repeat("push metrics", self._interval_s, self.push)
        finally:
            library_log.removeHandler(self._library)
            library_log.propagate = True
            self._exporter.shutdown()

    async def push(self) -> None:
        """Push everything once. A failure is counted and logged."""
        samples = await self._registry.collect_all()
        reason = await trio.to_thread.run_sync(
            self._send, samples, abandon_on_cancel=True, limiter=self._one_thread
        )
        if reason is None:
            self.pushed += 1
        else:
            self.failed += 1
            log.warning("metrics not pushed", extra={"target": self._target, "reason": reason})

    def _send(self, samples: list[Metric | Distribution]) -> str | None:
        """Send all samples; return why that failed. Runs in a thread."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        from gateway.process.otlp_samples import SampleTimes

        times = SampleTimes(self._started_ns, time.time_ns())
        self._library.text = ""
        for batch in self._samples.batches(samples, times, DATA_POINTS_PER_BATCH):
            try:
                result = self._exporter.export(batch)
            except Exception as error:  # noqa: BLE001 - whatever the library raises must not end the server
                return f"{type(error).__name__}: {error}"
            if result is not MetricExportResult.SUCCESS:
                return self._library.text or "the receiver did not accept them"
        return None


def build_metrics_push(
    config: MetricsExportConfig, registry: MetricRegistry, prefix: str
) -> MetricsPush | None:
    """Return the push that the settings ask for, None if they ask for none.

    Raises SettingsError when the library is missing, or a setting cannot be used.
    """
    if not config.pushes:
        return None
    labels = _parse_pairs("metricsLabel", config.labels)
    if config.in_delta:
        labels |= DELTA_LABEL
    headers = _parse_pairs("metricsGrpcExporterHeader", config.header, is_secret=True)
    if not config.target and not config.writes_log:
        raise SettingsError(
            f"metricsExporterType={config.exporter_type} needs metricsGrpcExporterTarget, the URL of the receiver, for "
            f"example {_EXAMPLES[config.exporter_type]}"
        )
    try:
        exporter = _BUILDERS[config.exporter_type](config, headers)
    except ModuleNotFoundError as missing:
        raise SettingsError(
            f"metricsExporterType={config.exporter_type} needs a library that is not installed "
            f"({missing.name}): {install_command('otel')}"
        ) from missing
    return MetricsPush(config, registry, exporter, prefix, labels)


def _build_http_exporter(config: MetricsExportConfig, headers: Mapping[str, str]) -> Exporter:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    url = urlsplit(config.target if "://" in config.target else f"https://{config.target}")
    if url.path in ("", "/"):
        url = url._replace(path=METRICS_PATH)
    return OTLPMetricExporter(endpoint=url.geturl(), headers=dict(headers), timeout=config.timeout_ms / 1000)


def _build_grpc_exporter(config: MetricsExportConfig, headers: Mapping[str, str]) -> Exporter:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    # Without a scheme the connection is encrypted, as in the official broker.
    target = config.target if config.target.startswith("http") else f"https://{config.target}"
    return OTLPMetricExporter(
        endpoint=target,
        headers={name.lower(): value for name, value in headers.items()},
        timeout=config.timeout_ms / 1000,
    )


def _build_log_exporter(config: MetricsExportConfig, headers: Mapping[str, str]) -> Exporter:
    from gateway.process.metrics_log import LogExporter

    return LogExporter()


_BUILDERS: Final[Mapping[str, Callable[[MetricsExportConfig, Mapping[str, str]], Exporter]]] = {
    "OTLP_HTTP": _build_http_exporter,
    "OTLP_GRPC": _build_grpc_exporter,
    "LOG": _build_log_exporter,
}
_EXAMPLES: Final = {"OTLP_HTTP": "http://collector:4318", "OTLP_GRPC": "http://collector:4317"}


def _parse_pairs(setting: str, text: str, *, is_secret: bool = False) -> dict[str, str]:
    """Return the pairs of a list ``name:value,…``. Raises SettingsError, which does not show secrets."""
    pairs = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, separator, value = (part.strip() for part in item.partition(":"))
        if not separator or not name or not value:
            shown = "" if is_secret else f", not {item!r}"
            raise SettingsError(f"{setting}: expected name:value,…{shown}")
        pairs[name] = value
    return pairs
