"""Requests about the timer messages of a broker."""

from remoting.declare import Header, Request, field


class GetTimerCheckPoint(Request[Header], code=60):
    """Return the timer checkpoint in the body, for the slave. Source: AdminBrokerProcessor.getTimerCheckPoint."""


class GetTimerMetrics(Request[Header], code=61):
    """Return waiting timer messages by topic, as JSON in the body. Source: AdminBrokerProcessor.getTimerMetrics."""


class SwitchTimerEngine(Request[Header], code=5001):
    """Store timer messages in files or in RocksDB. Source: AdminBrokerProcessor.switchTimerEngine."""

    engine_type: str | None = field(wire="E_T", default=None)
