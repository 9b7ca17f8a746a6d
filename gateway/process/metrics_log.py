"""Writes metrics to the log, as lines of OTLP in JSON (`metricsExporterType=LOG`).

Source: BrokerMetricsManager.init and OtlpJsonLoggingMetricExporter, which the 5.4.0 broker uses. Deviation: a line
holds at most as many data points as one request of a push, so that no line is long enough to keep the interpreter busy.
"""

import logging

from google.protobuf.json_format import MessageToJson
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

from gateway.runtime.logs import WholeText
from gateway.runtime.repeated_events import ALWAYS_WRITTEN

log = logging.getLogger(__name__)


class LogExporter:
    """An exporter that cannot fail."""

    def export(self, metrics_data: MetricsData) -> MetricExportResult:
        """Write one line for each batch."""
        for resource in encode_metrics(metrics_data).resource_metrics:
            # Ids and times are text and enumerations are numbers, as the specification of OTLP wants it.
            text = MessageToJson(resource, indent=None, use_integers_for_enums=True)
            log.info("metrics", extra={"otlp": WholeText(text), ALWAYS_WRITTEN: True})
        return MetricExportResult.SUCCESS

    def shutdown(self) -> None:
        """Do nothing: the log stays open."""
