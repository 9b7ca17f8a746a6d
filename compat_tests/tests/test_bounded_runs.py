"""Runs of `rmq-gateway compat` at an address: which requests they send, and that nothing of them stays."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from compat_tests.clients.request_guard import CLUSTER_WIDE_REQUESTS
from compat_tests.clients.typed import connect
from compat_tests.endpoints.ours import OursEndpoint, process_environment
from compat_tests.report.runs import Selection, SuiteRun
from compat_tests.server import eventually
from compat_tests.tests.recording_proxy import RecordingProxy
from remoting.requests.groups import GetAllSubscriptionGroupConfig
from remoting.requests.namesrv import GetAllTopicListFromNameserver
from remoting.requests.offsets import GetAllConsumerOffset
from remoting.requests.topics import GetAllTopicConfig

UNKNOWN_CODE = 29_999
READ_ONLY_REQUESTS = {
    26: "settings of the broker, of which some cases need one",
    28: "runtime information of the broker",
    30: "largest offset of a queue",
    31: "smallest offset of a queue",
    32: "store time of the first message of a queue",
    33: "a message by its id",
    38: "members of a group",
    46: "is this subscription valid",
    101: "a value of the KV configuration",
    105: "route of a topic",
    106: "brokers of the cluster",
    203: "connections of a group",
    219: "a namespace of the KV configuration",
    307: "running information of a client",
    351: "settings of a topic",
    UNKNOWN_CODE: "no request at all",
    0: "no request: an answer nobody waits for, or a header without a code",
}
"""All that a read-only run sends."""
Listing = dict[str, set[str]]


@pytest.fixture(scope="module")
def ours() -> Iterator[OursEndpoint]:
    with OursEndpoint() as endpoint:
        yield endpoint


def list_all(endpoint: OursEndpoint) -> Listing:
    """Return the topics, groups and consumer offsets of a server, and the files of its namesrv and users."""
    with connect(endpoint.broker) as broker, connect(endpoint.namesrv) as namesrv:
        return {
            "topics": set(broker.ask(GetAllTopicConfig()).data.topic_config_table),
            "routes": set(namesrv.ask(GetAllTopicListFromNameserver()).data.topic_list),
            "groups": set(broker.ask(GetAllSubscriptionGroupConfig()).data.subscription_group_table),
            "offsets": set(broker.ask(GetAllConsumerOffset()).data.offset_table),
        }


def test_a_read_only_run_sends_these_requests_and_creates_nothing(ours: OursEndpoint) -> None:
    before, proxy = list_all(ours), RecordingProxy(ours)
    with proxy.running():
        results = SuiteRun(proxy.namesrv, Selection(read_only=True), workers=1).run()
    assert {name: line["reason"] for name, line in results.items() if line["outcome"] != "passed"} == {}
    assert len(results) > 40
    assert proxy.codes == READ_ONLY_REQUESTS.keys()
    assert list_all(ours) == before


def test_cases_about_filters_are_not_run_where_the_broker_has_none() -> None:
    """They deviated in red on every server with the official default."""
    with OursEndpoint({"enablePropertyFilter": "false"}) as endpoint:
        results = SuiteRun(endpoint.namesrv, Selection(("filter",), read_only=True), workers=1).run()
    assert len(results) > 10
    assert {(line["outcome"], line["reason"]) for line in results.values()} == {
        ("skipped", "the broker has enablePropertyFilter=false: set it to true")
    }


@pytest.mark.parametrize("is_allowed", [False, True])
def test_cluster_wide_requests_are_sent_only_if_allowed(ours: OursEndpoint, is_allowed: bool) -> None:
    before, proxy = list_all(ours), RecordingProxy(ours)
    with proxy.running():
        results = SuiteRun(proxy.namesrv, Selection(("namesrv",), allow_admin=is_allowed), workers=2).run()
    outcomes = {line["outcome"] for line in results.values()}
    assert "failed" not in outcomes, results
    assert bool(proxy.codes & CLUSTER_WIDE_REQUESTS.keys()) is is_allowed
    reasons = {line["reason"] for line in results.values() if line["outcome"] == "skipped"}
    assert ("registers a broker: run it with --allow-admin" in reasons) is not is_allowed
    assert list_all(ours) == before


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_stays_after_ctrl_c(ours: OursEndpoint, workers: int, tmp_path: Path) -> None:
    before = list_all(ours)
    command = [sys.executable, "-m", "gateway.commands.cli", "compat", "--namesrv", ours.namesrv]
    command += ["--area", "pull", "--area", "offsets", "--workers", str(workers), "--against", "ours"]
    with (tmp_path / "output").open("wb") as output:
        run = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **process_environment()},
        )
    try:
        # A busy machine takes a minute to collect the cases.
        eventually(lambda: len(list_all(ours)["groups"] - before["groups"]) > 3, 240)
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(60) != 0
        text = (tmp_path / "output").read_text()
        assert "interrupted: the cases delete what they created" in text
        assert list_all(ours) == before
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)  # with the processes that run the cases
        run.wait()
