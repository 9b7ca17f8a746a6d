"""Metrics of a namesrv's routes."""

from collections.abc import Iterator

from gateway.namesrv.route_table import RouteTable
from gateway.runtime.metrics import Metric


def namesrv_metrics(routes: RouteTable) -> Iterator[Metric]:
    """Yield the number of registered brokers and of topics with a route."""
    yield Metric("namesrv_brokers", routes.member_count, "registered brokers, replicas included", "gauge")
    yield Metric("namesrv_topics", routes.topic_count, "topics with a route", "gauge")
