"""Comparison of an official broker with ours by the gateway: answers to stock clients, and stored messages (parity)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.programs import run_mqadmin
from compat_tests.clients.typed import connect, create_group, has_route, send, topic_request
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import ROOT, OursEndpoint
from compat_tests.endpoints.shadow import ShadowEndpoint
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually

pytestmark = pytest.mark.both_servers

# The lag is generous because the target may be late on a busy machine: only differences that last that long count.
CONFIG = """
[target]
namesrv = ["{target}"]
[primary]
namesrv = ["{primary}"]
[[mirror]]
topics = ["planted"]
mode = "off"
[[mirror]]
[mirroring]
deadline_ms = 60000
[compare]
repeated_reads = 1.0
repeated_reads_per_s = 1000
second_reads = 0.2
settle_ms = 200
lag_ms = 60000
"""


class Clusters:
    """The target, and the gateway with the primary behind it."""

    def __init__(self, gateway: ShadowEndpoint, target: OursEndpoint, config: Path) -> None:
        self.gateway, self.target, self.config = gateway, target, config

    def get(self, path: str) -> dict[str, Any]:
        """Return a JSON page of the gateway's console."""
        with urlopen(f"http://{self.gateway.ready['console']}{path}", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def compared(self, request: str, count: int = 1) -> dict[str, Any]:
        """Return the counts for a request, once ``count`` comparisons are done and none is waiting."""

        def look() -> dict[str, Any]:
            status = self.get("/compare")
            found = {each["request"]: each for each in status["requests"]}.get(request, {"compared": 0})
            return found if found["compared"] >= count and not status["waiting"] else {}

        return eventually(look, 90, 0.2)

    def parity(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run the command and return its exit code and result."""
        command = [sys.executable, "-m", "gateway.commands.cli", "shadow", "-c", str(self.config), "parity"]
        done = subprocess.run(
            [*command, "--json", "--quiet", *arguments], capture_output=True, text=True, cwd=ROOT, timeout=180
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    config = tmp_path_factory.mktemp("shadow") / "shadow.toml"
    try:
        primary, target = OfficialEndpoint(), OursEndpoint()
    except Unavailable as missing:
        skip_or_fail(str(missing))
    config.write_text(CONFIG.format(target=target.namesrv, primary=primary.namesrv))
    with target, ShadowEndpoint(primary, ("-c", str(config))) as gateway:
        yield Clusters(gateway, target, config)


def test_nothing_differs_but_what_is_declared(clusters: Clusters, tmp_path: Path) -> None:
    """A stock producer, a stock consumer and the official admin tool get equivalent answers from both brokers."""
    with connect(clusters.gateway.broker) as broker:
        broker.ask(topic_request("orders", 2))
        create_group(broker, "readers")
    with connect(clusters.gateway.namesrv) as namesrv:
        eventually(lambda: has_route(namesrv, "orders"), 60)
    try:
        driver = JavaDriver("server-5.4", clusters.gateway.namesrv)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with closing(driver), JavaClient(driver, "5.4.0").producer("writers") as producer:
        producer.send_numbered("orders", 24, tags="red", keys="k1 k2", properties={"mine": "1"})
        with JavaClient(driver, "5.4.0").push("readers", "orders") as consumer:
            consumer.received(24, 90)
        assert len(producer.query("orders", "k1")) > 0
    for command in (
        ["topicStatus", "-t", "orders"],
        ["exportMetadata", "-c", "DefaultCluster", "-f", str(tmp_path)],
    ):
        run_mqadmin(tmp_path / "admin", *command, "-n", clusters.gateway.namesrv)
    for request, count in {
        "SEND_MESSAGE_V2": 24,
        "PULL_MESSAGE": 1,
        "QUERY_MESSAGE": 1,
        "GET_ROUTEINFO_BY_TOPIC": 2,
        "GET_TOPIC_STATS_INFO": 1,
        "GET_ALL_TOPIC_CONFIG": 1,
        "GET_ALL_SUBSCRIPTIONGROUP_CONFIG": 1,
    }.items():
        clusters.compared(request, count)
    assert clusters.get("/samples")["samples"] == []
    assert clusters.get("/compare")["diff_rate"] == 0
    code, found = clusters.parity("-t", "orders")
    assert (code, found["same"], found["wrong"], found["problems"]) == (0, 24, 0, 0)


def test_planted_faults_are_found_exactly(clusters: Clusters) -> None:
    """The target lacks one message, has changed one, has one twice and one at another position."""
    theirs = [0, 1, 2, *range(4, 9), 10, 11, 9, *range(12, 20), 15, *range(20, 30)]
    for where, numbers in ((clusters.gateway.broker, range(30)), (clusters.target.broker, theirs)):
        with connect(where) as broker:
            broker.ask(topic_request("planted", 1))
            for number in numbers:
                changed = where == clusters.target.broker and number == 5
                properties = {"UNIQ_KEY": f"key{number}", "TAGS": "changed" if changed else "a"}
                born_ms = 1_700_000_000_000 + number
                send(broker, "planted", b"body %d" % number, properties=properties, born_timestamp=born_ms)
    for place in (clusters.gateway.namesrv, clusters.target.namesrv):
        with connect(place) as namesrv:
            eventually(partial(has_route, namesrv, "planted"), 60)
    code, found = clusters.parity("-t", "planted", "--fail-if", "wrong>0")
    faults = {(fault["kind"], fault["key"], fault["part"]) for fault in found["queues"][0]["findings"]}
    assert faults == {
        ("missing", "key3", ""),
        ("changed", "key5", "properties"),
        ("reordered", "key9", ""),
        ("duplicated", "key15", ""),
    }
    assert (code, found["wrong"], found["same"]) == (3, 4, 28)
