"""Keys of the metrics that a server pushes to a receiver of OpenTelemetry, or writes to its log.

`gateway/process/metrics_export` does both.
"""

from dataclasses import dataclass

from gateway.config.keys import key

EXPORTER_TYPES = ("DISABLE", "OTLP_GRPC", "OTLP_HTTP", "PROM", "LOG")
PUSHING_TYPES = ("OTLP_GRPC", "OTLP_HTTP", "LOG")


@dataclass(frozen=True, slots=True)
class MetricsExportConfig:
    """Source: BrokerConfig, 5.4.0, which does not have OTLP_HTTP."""

    exporter_type: str = key(
        "metricsExporterType",
        "DISABLE",
        "how metrics are pushed: OTLP_GRPC, OTLP_HTTP (only here), or LOG, to the log; PROM pushes nothing, since "
        "Prometheus asks httpPort",
        choices=EXPORTER_TYPES,
    )
    target: str = key(
        "metricsGrpcExporterTarget",
        "",
        "URL that metrics are pushed to: http://collector:4317 (gRPC) or http://collector:4318 (HTTP)",
    )
    header: str = key(
        "metricsGrpcExporterHeader",
        "",
        "headers of each push, for example a token: name:value,…",
        secret=True,
    )
    timeout_ms: int = key(
        "metricGrpcExporterTimeOutInMills",
        3_000,
        "longest time of one request of a push",
        low=1,
        high=600_000,
    )
    interval_ms: int = key(
        "metricGrpcExporterIntervalInMills",
        60_000,
        "time between two pushes",
        low=100,
        high=86_400_000,
    )
    log_interval_ms: int = key(
        "metricLoggingExporterIntervalInMills",
        10_000,
        "time between two writings of all metrics with metricsExporterType=LOG",
        low=100,
        high=86_400_000,
    )
    in_delta: bool = key(
        "metricsInDelta",
        False,
        "push what counters and histograms grew by since the last push, labelled aggregation=delta",
    )
    labels: str = key("metricsLabel", "", "labels added to all metrics that are pushed: name:value,…")

    @property
    def pushes(self) -> bool:
        """True if metrics are pushed or written to the log."""
        return self.exporter_type in PUSHING_TYPES

    @property
    def writes_log(self) -> bool:
        """True if metrics are written to the log."""
        return self.exporter_type == "LOG"
