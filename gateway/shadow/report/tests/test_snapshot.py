import math
from dataclasses import dataclass

import orjson
import trio

from gateway.runtime.metrics import Distribution, LatencyHistogram, Metric, MetricRegistry
from gateway.shadow.report.snapshot import (
    MAX_EVENTS,
    EventLog,
    ReportSnapshot,
    named_metrics,
    without_secrets,
)
from gateway.shadow.report.traffic_series import TrafficSeries
from gateway.shadow.tests.exchanges import make_send_exchange
from gateway.shadow.tests.sample_report import sample_report
from gateway.shadow.traffic.exchange import Hub
from toolkit.settings import setting


@dataclass
class Inner:
    password: str = setting("", secret=True)
    names: list[str] = setting(list)


@dataclass
class Outer:
    inner: Inner = setting(Inner)
    many: dict[str, Inner] = setting(dict)
    port: int = setting(1)


def test_secrets_are_not_shown():
    shown = without_secrets(Outer(Inner("s3cret", ["a"]), {"x": Inner("s3cret")}))
    assert "s3cret" not in str(shown)
    assert shown["inner"] == {"password": "(not shown)", "names": ["a"]}
    assert without_secrets(Outer())["inner"]["password"] == ""


def test_everything_is_put_together():
    metrics, hub = MetricRegistry(), Hub()
    metrics.register(
        lambda: [Metric("lag_messages", 3, "", "gauge"), Distribution("x_seconds", LatencyHistogram(), "")]
    )
    series = TrafficSeries(metrics)
    hub.add_observer(series)
    metrics.register(series.collect_metrics)
    snapshot = ReportSnapshot(metrics, series, EventLog(lambda: 5.0), title="T", configuration={"a": 1})
    snapshot.add_section("good", lambda: {"n": 1, 2: "two"})
    snapshot.add_section("broken", lambda: 1 / 0)
    hub.publish_exchange(make_send_exchange("A"))
    report = orjson.loads(orjson.dumps(trio.run(snapshot.build)))
    assert report["sections"] == {
        "good": {"n": 1, "2": "two"},
        "broken": {"error": "ZeroDivisionError: division by zero"},
    }
    assert [each["name"] for each in report["metrics"]] == ["lag_messages"]
    assert report["series"]["totals"]["A"]["sends"] == 1
    assert snapshot.live_state()["sections"]["good"] == {"n": 1, 2: "two"}


def test_events_are_bounded():
    events = EventLog(lambda: 7.4)
    for number in range(MAX_EVENTS + 5):
        events.add_event(str(number))
    assert len(events.to_json()) == MAX_EVENTS
    assert events.to_json()[0] == {"at_ms": 7, "text": "5"}


def test_names_of_conditions():
    metrics = named_metrics(sample_report())
    assert metrics["forward_requests_total"] == 12
    assert metrics["parity.missing"] == 2
    assert metrics["parity.holds"] == 0
    assert 0 < metrics["diff_rate"] < 0.001
    assert metrics["diff_rate[Orders]"] > metrics["diff_rate"]
    assert metrics["p99_added_ms"] == 0.99
    assert metrics["sends"] == 60_000 or metrics["sends"] > 0
    report = sample_report()
    report["series"]["totals"]["(all)"] |= {"compared": 0, "share_p99_ms": None}
    assert math.isnan(named_metrics(report)["diff_rate"])
    assert math.isnan(named_metrics(report)["p99_added_ms"])
    assert "sends" not in named_metrics(sample_report(series=None))
