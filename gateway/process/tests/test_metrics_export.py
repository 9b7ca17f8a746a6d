"""Metrics pushed to a receiver of OpenTelemetry, which may be missing, slow, or refuse them."""

import builtins
import gzip
import http.server
import io
import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
import pytest
import trio
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from gateway.config.metrics_export import MetricsExportConfig
from gateway.config.sources import load_config
from gateway.process.metrics_export import DATA_POINTS_PER_BATCH, build_metrics_push
from gateway.process.tests.test_server import address, served
from gateway.runtime.metrics import Distribution, FixedHistogram, Metric, MetricRegistry
from gateway.runtime.repeated_events import MAX_PER_EVENT
from gateway.tests.cluster import message
from remoting.client import open_client
from toolkit.settings import SettingsError


@dataclass
class Receiver:
    """The requests that a receiver got, with their headers; it answers with ``status`` after ``may_answer``.

    The first answers have the ``statuses``.
    """

    requests: list[ExportMetricsServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    status: int = 200
    statuses: list[int] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)
    got_one: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def metrics(self):
        """Yield all metrics of all requests."""
        for request in self.requests:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    yield from scope.metrics

    def points(self, name):
        found = [each for each in self.metrics() if each.name == name]
        return [point for each in found for point in getattr(each, each.WhichOneof("data")).data_points]


def attributes(point):
    return {each.key: each.value.string_value for each in point.attributes}


@contextmanager
def http_receiver(status=200, *, answers=True):
    receiver = Receiver(status=status)
    if answers:
        receiver.may_answer.set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.requests.append(ExportMetricsServiceRequest.FromString(body))
            receiver.headers.append(dict(self.headers))
            receiver.paths.append(self.path)
            receiver.got_one.set()
            receiver.may_answer.wait(20)
            self.send_response(receiver.statuses.pop(0) if receiver.statuses else receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *parts):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield receiver
        finally:
            receiver.may_answer.set()
            server.shutdown()
            thread.join()


@contextmanager
def grpc_receiver():
    receiver = Receiver()

    def export(request, context):
        receiver.requests.append(request)
        receiver.headers.append(dict(context.invocation_metadata()))
        receiver.got_one.set()
        return ExportMetricsServiceResponse()

    handler = grpc.unary_unary_rpc_method_handler(
        export, ExportMetricsServiceRequest.FromString, ExportMetricsServiceResponse.SerializeToString
    )
    service = "opentelemetry.proto.collector.metrics.v1.MetricsService"
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": handler})])
    receiver.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


def build(receiver_url, kind="OTLP_HTTP", registry=None, **settings):
    config = MetricsExportConfig(exporter_type=kind, target=receiver_url, **settings)
    push = build_metrics_push(config, registry or MetricRegistry(), "ours_")
    assert push is not None
    return push


def registry_of(*samples):
    registry = MetricRegistry()
    registry.register(lambda: samples)
    return registry


@pytest.mark.parametrize("kind", ["OTLP_HTTP", "OTLP_GRPC"])
def test_samples_arrive_with_kind_name_labels_and_times(kind):
    sizes = FixedHistogram((10, 100))
    for value in (5, 10, 50, 5000):
        sizes.record(value)
    registry = registry_of(
        Metric("rocketmq_messages_in_total", 7, "messages stored", labels={"topic": "t", "zone": "own"}),
        Metric("connections", 2.5, "open connections", "gauge", unit="{connections}"),
        Metric("rocketmq_messages_in_total", 8, "messages stored", labels={"topic": "u"}),
        Distribution("rocketmq_sizes", sizes, "sizes"),
    )
    before_ns = time.time_ns()
    with (grpc_receiver if kind == "OTLP_GRPC" else http_receiver)() as receiver:
        push = build(receiver.url, kind, registry, labels="zone:a, rack:7", header="authorization:Bearer x:y")
        trio.run(push.push)
        assert (push.pushed, push.failed) == (1, 0)
    (request,) = receiver.requests
    assert receiver.headers[0].get("authorization", receiver.headers[0].get("Authorization")) == "Bearer x:y"
    (resource,) = request.resource_metrics
    assert attributes(resource.resource)["service.name"] == "rocketmq-gateway"
    metrics = {each.name: each for each in receiver.metrics()}
    assert sorted(metrics) == ["ours_connections", "rocketmq_messages_in_total", "rocketmq_sizes"]
    stored = metrics["rocketmq_messages_in_total"]
    assert (stored.description, stored.sum.is_monotonic, stored.sum.aggregation_temporality) == (
        "messages stored", True, 2,
    )  # fmt: skip
    first, second = stored.sum.data_points
    assert (first.as_int, second.as_int) == (7, 8)
    assert attributes(first) == {"topic": "t", "zone": "own", "rack": "7"}
    assert first.start_time_unix_nano <= first.time_unix_nano <= time.time_ns()
    assert first.start_time_unix_nano >= before_ns
    assert metrics["ours_connections"].unit == "{connections}"
    assert metrics["ours_connections"].gauge.data_points[0].as_double == 2.5
    (sized,) = metrics["rocketmq_sizes"].histogram.data_points
    assert (list(sized.explicit_bounds), list(sized.bucket_counts)) == ([10, 100], [2, 1, 1])
    assert (sized.count, sized.sum) == (4, 5065)


def test_many_samples_are_pushed_in_several_requests():
    count = 2 * DATA_POINTS_PER_BATCH + 1
    registry = registry_of(*(Metric("rocketmq_x", each, "x", "gauge") for each in range(count)))
    with http_receiver() as receiver:
        trio.run(build(receiver.url, registry=registry).push)
    assert receiver.paths == ["/v1/metrics"] * 3
    assert sorted(each.as_int for each in receiver.points("rocketmq_x")) == list(range(count))


def test_other_processes_are_asked_as_well():
    async def ask():
        return [Metric("rocketmq_x", 3, "x", "gauge", {"broker": "b"})]

    registry = MetricRegistry()
    registry.register_remote(ask)
    with http_receiver() as receiver:
        trio.run(build(receiver.url, registry=registry).push)
    assert [(each.as_int, attributes(each)) for each in receiver.points("rocketmq_x")] == [
        (3, {"broker": "b"})
    ]


def test_a_receiver_that_refuses_is_counted_and_named(caplog):
    with http_receiver(status=400) as receiver:
        push = build(receiver.url, registry=registry_of(Metric("rocketmq_x", 3, "x")))
        trio.run(push.push)
        trio.run(push.push)
    assert [each.value for each in push.metrics()] == [0, 2]
    lines = [each for each in caplog.records if each.name == "gateway.process.metrics_export"]
    assert [each.getMessage() for each in lines] == ["metrics not pushed"] * 2
    assert lines[0].target == receiver.url


def test_a_server_pushes_beside_its_work(tmp_path):
    with http_receiver() as receiver:
        settings = MetricsExportConfig(exporter_type="OTLP_HTTP", target=receiver.url, interval_ms=100)

        async def test(facts, server, nursery):
            await trio.to_thread.run_sync(receiver.got_one.wait, 10)

        served(tmp_path, test, metrics_export=settings)
    names = {each.name for each in receiver.metrics()}
    assert {"rocketmq_topic_number", "rocketmq_storage_size", "rocketmq_gateway_connections"} <= names
    (node,) = {attributes(each)["node_id"] for each in receiver.points("rocketmq_topic_number")}
    assert node == "broker-0"


def test_a_receiver_that_never_answers_delays_neither_requests_nor_the_end(tmp_path):
    with http_receiver(answers=False) as receiver:
        settings = MetricsExportConfig(
            exporter_type="OTLP_HTTP", target=receiver.url, interval_ms=100, timeout_ms=60_000
        )
        began_s = time.monotonic()

        async def test(facts, server, nursery):
            assert await trio.to_thread.run_sync(receiver.got_one.wait, 20)
            (broker,) = facts["brokers"].values()
            with trio.fail_after(20):
                async with open_client(*address(broker)) as client:
                    await client.ask(message())
            assert server._push.pushed == server._push.failed == 0

        served(tmp_path, test, metrics_export=settings)
        assert time.monotonic() - began_s < 50


def test_a_receiver_that_is_down_leaves_the_server_ready(tmp_path, unused_port):
    settings = MetricsExportConfig(
        exporter_type="OTLP_HTTP", target=f"http://127.0.0.1:{unused_port}", interval_ms=100, timeout_ms=200
    )

    async def test(facts, server, nursery):
        while not server._push.failed:
            await trio.sleep(0.01)
        assert await server._readiness.report({}) == {"ready": True}

    served(tmp_path, test, metrics_export=settings)


@pytest.fixture
def unused_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.mark.parametrize("kind", ["OTLP_HTTP", "OTLP_GRPC"])
def test_without_the_library_the_error_says_what_to_install(kind, monkeypatch):
    real_import = builtins.__import__

    def missing(name, *rest):
        if name.startswith("opentelemetry.exporter"):
            raise ModuleNotFoundError("No module named 'opentelemetry'", name="opentelemetry")
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SettingsError, match=rf"metricsExporterType={kind} needs a library .*\[otel\]"):
        build("http://127.0.0.1:1", kind)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"target": ""}, r"OTLP_HTTP needs metricsGrpcExporterTarget.*http://collector:4318"),
        ({"labels": "zone"}, r"metricsLabel: expected name:value,…, not 'zone'"),
        ({"header": "s3cret"}, r"metricsGrpcExporterHeader: expected name:value,…$"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings, text):
    with pytest.raises(SettingsError, match=text):
        build(settings.pop("target", "http://127.0.0.1:1"), **settings)


DELTA, CUMULATIVE = 1, 2


def test_deltas_are_the_growth_since_the_last_push_that_arrived():
    sizes = FixedHistogram((10, 100))
    counts = {"t": 7, "u": 1}

    def collect():
        yield from (Metric("rocketmq_x_total", n, "x", labels={"topic": name}) for name, n in counts.items())
        yield Metric("rocketmq_now", 5, "now", "gauge")
        yield Distribution("rocketmq_sizes", sizes, "sizes")

    def newest():
        (request,) = receiver.requests[-1:]
        found = {
            metric.name: metric
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        points = {attributes(each)["topic"]: each for each in found["rocketmq_x_total"].sum.data_points}
        (sized,) = found["rocketmq_sizes"].histogram.data_points
        (now,) = found["rocketmq_now"].gauge.data_points
        assert now.as_int == 5
        assert attributes(now) == {"aggregation": "delta"}
        assert found["rocketmq_x_total"].sum.aggregation_temporality == DELTA
        assert found["rocketmq_sizes"].histogram.aggregation_temporality == DELTA
        return points, sized

    registry = MetricRegistry()
    registry.register(collect)
    sizes.record(5)
    with http_receiver() as receiver:
        push = build(receiver.url, registry=registry, in_delta=True)
        trio.run(push.push)
        points, sized = newest()
        assert {name: each.as_int for name, each in points.items()} == {"t": 7, "u": 1}
        assert attributes(points["t"]) == {"topic": "t", "aggregation": "delta"}
        assert (list(sized.bucket_counts), sized.count, sized.sum) == ([1, 0, 0], 1, 5)
        first_ns = sized.time_unix_nano
        counts["t"] = 10
        sizes.record(50)
        receiver.status = 400
        trio.run(push.push)
        receiver.status = 200
        counts["t"] = 12
        del counts["u"]
        trio.run(push.push)
        points, sized = newest()
        assert {name: each.as_int for name, each in points.items()} == {"t": 5}
        assert points["t"].start_time_unix_nano == first_ns
        assert (list(sized.bucket_counts), sized.count, sized.sum) == ([0, 1, 0], 1, 50)
        counts |= {"t": 2, "u": 3}
        trio.run(push.push)
        points, sized = newest()
        assert {name: each.as_int for name, each in points.items()} == {"t": 2, "u": 3}
        assert sized.count == 0


def test_a_push_that_fails_half_way_tells_nothing_twice():
    count = DATA_POINTS_PER_BATCH + 1
    registry = registry_of(*(Metric("rocketmq_x_total", 1, "x", labels={"n": str(n)}) for n in range(count)))
    with http_receiver() as receiver:
        push = build(receiver.url, registry=registry, in_delta=True)
        receiver.statuses = [200, 400]
        trio.run(push.push)
        assert (push.pushed, push.failed) == (0, 1)
        refused = receiver.requests.pop()
        trio.run(push.push)
        told = {attributes(each)["n"]: 0 for each in receiver.points("rocketmq_x_total")}
        for each in receiver.points("rocketmq_x_total"):
            told[attributes(each)["n"]] += each.as_int
    assert refused.resource_metrics
    assert told == {str(n): 1 for n in range(count)}


@pytest.mark.parametrize("in_delta", [False, True])
def test_metrics_are_written_to_the_log(in_delta):
    """Each line is whole, and is written however often there is one."""
    from gateway.runtime.logs import CountingHandler, JsonFormatter

    registry = registry_of(
        *(Metric("rocketmq_x_total", n, "a long meaning", labels={"n": str(n)}) for n in range(100))
    )
    push = build("", "LOG", registry, labels="zone:a", in_delta=in_delta)
    output = io.StringIO()
    handler = CountingHandler(output)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("gateway.process.metrics_log")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        for _ in range(MAX_PER_EVENT + 1):
            trio.run(push.push)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert len(lines) == MAX_PER_EVENT + 1
    assert {line["event"] for line in lines} == {"metrics"}
    (scope,) = json.loads(lines[-1]["otlp"])["scopeMetrics"]
    (metric,) = scope["metrics"]
    assert metric["name"] == "rocketmq_x_total"
    assert metric["sum"]["aggregationTemporality"] == (DELTA if in_delta else CUMULATIVE)
    point = metric["sum"]["dataPoints"][99]
    assert point["asInt"] == ("0" if in_delta else "99")
    own = {each["key"]: each["value"]["stringValue"] for each in point["attributes"]}
    assert own == {"n": "99", "zone": "a", **({"aggregation": "delta"} if in_delta else {})}


def test_a_server_writes_metrics_to_the_log_at_their_own_interval(tmp_path, caplog):
    caplog.set_level(logging.INFO, "gateway.process.metrics_log")
    settings = MetricsExportConfig(exporter_type="LOG", log_interval_ms=100)

    async def test(facts, server, nursery):
        while not any("rocketmq_topic_number" in getattr(each, "otlp", "") for each in caplog.records):
            await trio.sleep(0.01)

    served(tmp_path, test, metrics_export=settings)


def test_official_files_with_other_exporters_push_nothing():
    sets = ["metricsExporterType=PROM", "metricsLabel=zone:a"]
    config = load_config("serve", sets=sets)
    assert config.process.metrics_export.labels == "zone:a"
    assert build_metrics_push(config.process.metrics_export, MetricRegistry(), "") is None
    assert "metricsExporterType=PROM opens no port here: set httpPort" in config.notices[0]
    assert load_config("serve", sets=[*sets, "httpPort=0"]).notices == ()
    (notice,) = load_config("serve", sets=[*sets, "httpPort=0", "metricsInDelta=true"]).notices
    assert notice == "metricsInDelta has no effect: metricsExporterType pushes nothing"
    log = ["metricsExporterType=LOG", "metricsInDelta=true", "metricLoggingExporterIntervalInMills=500"]
    config = load_config("serve", sets=log)
    export = config.process.metrics_export
    assert (export.in_delta, export.log_interval_ms, config.notices) == (True, 500, ())
