"""Private requests between a supervisor and its broker processes, over the control channel of each.

No listener answers their codes: a control channel is a socket pair that only the two processes have.
"""

from remoting.declare import Header, Request, i64
from remoting.fields import field
from remoting.json_body import JsonBody


class BrokerProcessReady(Request[None], code=770_005):
    """Report that the broker listens; ``address`` is its host:port for the ready line.

    If the supervisor has a namesrv, the answer comes when the broker is registered there, too.
    """

    address: str


class StopBrokerProcess(Request[None], code=770_006):
    """Stop cleanly; with ``at_once`` without waiting for requests in progress. Repeating it changes nothing."""

    at_once: bool


class MetricSample(JsonBody):
    """One counter or gauge of a broker process."""

    name: str
    value: float
    meaning: str
    kind: str
    labels: dict[str, str] = field(factory=dict)
    unit: str = ""


class HistogramSample(JsonBody):
    """One histogram of a broker process: ``counts`` has one number per bucket, and one for values above all bounds."""

    name: str
    bounds: list[float]
    counts: list[i64]
    total: float
    meaning: str
    labels: dict[str, str] = field(factory=dict)
    unit: str = ""


class BrokerProcessState(JsonBody):
    """The failing background tasks of a broker process, as text, and its metrics."""

    failing: list[str] = field(factory=list)
    metrics: list[MetricSample] = field(factory=list)
    histograms: list[HistogramSample] = field(factory=list)


class BrokerProcessStateReply(Header):
    """The state at the time of the request."""

    data: BrokerProcessState


class GetBrokerProcessState(Request[BrokerProcessStateReply], code=770_007):
    """Return the broker process's part of `/readyz` and `/metrics`; ``excluded`` names a task that may fail."""

    excluded: str = ""
