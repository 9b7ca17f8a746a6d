"""Keys of the metrics that a server pushes to a receiver of OpenTelemetry; `gateway/metrics_export` pushes them."""

from dataclasses import dataclass

from gateway.config.keys import key

EXPORTER_TYPES = ("DISABLE", "OTLP_GRPC", "OTLP_HTTP", "PROM", "LOG")
PUSHING_TYPES = ("OTLP_GRPC", "OTLP_HTTP")


@dataclass(frozen=True, slots=True)
class MetricsExportConfig:
    """Source: BrokerConfig, 5.4.0. OTLP_HTTP is ours."""

    exporter_type: str = key(
        "metricsExporterType",
        "DISABLE",
        "how metrics are pushed: OTLP_GRPC, or OTLP_HTTP (only here); PROM and LOG push nothing, since Prometheus asks "
        "httpPort",
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
    labels: str = key("metricsLabel", "", "labels added to all metrics that are pushed: name:value,…")

    @property
    def pushes(self) -> bool:
        """Tell whether metrics are pushed at all."""
        return self.exporter_type in PUSHING_TYPES
