"""Requests about timed messages of a broker; the timer wheel is not here."""

from remoting.declare import Header, Request, field


class GetTimerCheckPoint(Request[Header], code=60):
    """The body is the timer checkpoint, for the slave. Source: AdminBrokerProcessor.getTimerCheckPoint."""


class GetTimerMetrics(Request[Header], code=61):
    """The body is JSON: waiting timed messages by topic. Source: AdminBrokerProcessor.getTimerMetrics."""


class SwitchTimerEngine(Request[None], code=5001):
    """Keep timed messages in files or in RocksDB. Source: AdminBrokerProcessor.switchTimerEngine."""

    engine_type: str | None = field(wire="E_T", default=None)
