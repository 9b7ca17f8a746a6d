"""Metrics of a namesrv's routes."""

from collections.abc import Iterator

from gateway.namesrv.route_table import RouteTable
from gateway.runtime.metrics import Metric


def namesrv_metrics(routes: RouteTable) -> Iterator[Metric]:
    """Yield the number of registered brokers and of topics with a route."""
    names = routes.cluster_info(local_host="").broker_addr_table.values()
    brokers = sum(len(each.broker_addrs) for each in names)
    yield Metric("namesrv_brokers", brokers, "registered brokers, replicas included", "gauge")
    yield Metric("namesrv_topics", len(routes.topic_list().topic_list), "topics with a route", "gauge")
