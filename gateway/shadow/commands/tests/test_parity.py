import contextlib
import json
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.shadow.clusters import target_check
from gateway.shadow.commands.root import shadow
from gateway.shadow.compare import service
from gateway.shadow.compare.parity import ParityRange, compare_topics
from gateway.shadow.compare.service import ComparisonService
from gateway.shadow.compare.tests.test_parity import LATER_MS
from gateway.shadow.console import client
from gateway.shadow.tests.fake_queues import BORN_MS, FakeQueues, stored
from gateway.shadow.tests.served_gateway import in_thread, send_messages, served_cluster, without_signals

CONFIG = ("--set", 'primary.namesrv=["127.0.0.1:1"]', "--set", 'target.namesrv=["127.0.0.1:2"]')


class Reachable(FakeQueues):
    """A cluster without a network, filled by the test."""

    async def run(self, task_status):
        task_status.started()

    async def refresh(self):
        pass


@pytest.fixture
def queues(monkeypatch):
    """Two clusters without a network, which the test fills."""
    sides: list[Any] = [Reachable([]), Reachable([])]
    seen = []

    def made(config, map_offset=None):
        comparing = real(config, map_offset)
        comparing.primary, comparing.target = sides
        return comparing

    async def look(self, topics, window=None, on_progress=None):
        from gateway.shadow.compare.parity import ComparedClusters, ParityOptions

        seen.append((list(topics), window))
        clusters = ComparedClusters(sides[0], sides[1], str)
        return await compare_topics(
            clusters, topics, ParityOptions(lag_s=0), lambda: LATER_MS, window, on_progress
        )

    real = service.build_comparison
    monkeypatch.setattr(service, "build_comparison", made)
    monkeypatch.setattr(ComparisonService, "check_parity", look)

    async def are_different(*_sides):
        pass

    monkeypatch.setattr(target_check, "refuse_same_cluster", are_different)
    return *sides, seen


def run(*arguments):
    return CliRunner().invoke(shadow, [*CONFIG, "parity", "-t", "orders", *arguments])


def test_equal_queues(queues):
    primary, target, _ = queues
    primary.queue, target.queue = [stored(1)], [stored(1)]
    result = run("--quiet")
    assert result.exit_code == 0
    assert "nothing is wrong" in result.output


def test_findings_are_described_and_fail(queues):
    primary, target, _ = queues
    primary.queue, target.queue = [stored(1), stored(2)], [stored(1, body=b"x")]
    result = run("--quiet")
    assert result.exit_code == 3
    assert "orders broker-a 0: 1 missing, 1 changed" in result.output
    assert "changed (body) U00000001: primary 0, target 0" in result.output
    assert "missing U00000002: primary 1, target -" in result.output


def test_conditions_decide_the_exit_code(queues):
    primary, target, _ = queues
    primary.queue, target.queue = [stored(1), stored(2)], [stored(1)]
    assert run("--quiet", "--fail-if", "missing>1").exit_code == 0
    assert run("--quiet", "--fail-if", "missing>1", "--fail-if", "same<2").exit_code == 3
    assert run("--quiet", "--fail-if", "nonsense>1").exit_code == 2


def test_json_of_a_window(queues):
    primary, target, seen = queues
    primary.queue, target.queue = [stored(1)], [stored(1)]
    result = run("--quiet", "--json", "--from", "0", "--until", "2023-11-14T22:13:21+00:00")
    assert json.loads(result.output)["holds"] is True
    assert seen == [(["orders"], ParityRange(from_offset=0, until_ms=BORN_MS + 1000))]


def test_errors_are_reported(queues):
    assert "neither a queue offset nor a time" in run("--from", "yesterday").output
    result = CliRunner().invoke(shadow, [*CONFIG[:2], "parity"])
    assert "target.namesrv must be set" in result.output


def test_progress(queues):
    primary, target, _ = queues
    primary.queue, target.queue = [stored(1)], [stored(1)]
    assert "1 queues, 1 messages, 0 wrong" in run().stderr


def test_changed_fields_are_named_with_their_values(queues):
    primary, target, _ = queues
    primary.queue = [stored(1, properties={"UNIQ_KEY": "U1", "KEYS": "a"}), stored(2)]
    target.queue = [stored(1, properties={"UNIQ_KEY": "U1", "KEYS": "b", "TAGS": "t"}), stored(2, flag=7)]
    output = run("--quiet").output
    assert "changed (properties) U1: primary 0, target 0" in output
    assert "property KEYS: a at the primary, b at the target" in output
    assert "property TAGS: - at the primary, t at the target" in output
    assert "flag: 0 at the primary, 7 at the target" in output


TOPIC = "Orders"


@pytest.fixture(scope="module")
def two_real_clusters(tmp_path_factory):
    """Two clusters with the topic Orders, in which the primary has three messages and the target as many."""

    @contextlib.asynccontextmanager
    async def open_both():
        here = tmp_path_factory.mktemp("clusters")
        async with served_cluster(here / "primary") as primary, served_cluster(here / "target") as target:
            for side in (primary, target):
                await send_messages(side["brokers"]["broker-a"], TOPIC, 3)
            yield primary["namesrv"], target["namesrv"]

    with pytest.MonkeyPatch.context() as patched:
        without_signals(patched)
        with in_thread(open_both) as addresses:
            yield addresses


def compare(two_real_clusters, *arguments):
    primary, target = two_real_clusters
    given = ["--set", f"primary.namesrv=['{primary}']", "--set", f"target.namesrv=['{target}']"]
    return CliRunner().invoke(shadow, [*given, "--set", "compare.lag_ms=0", "parity", "--quiet", *arguments])


def test_topics_that_exist_are_compared(two_real_clusters):
    done = compare(two_real_clusters, "-t", "Orders*")
    assert (done.exit_code, "3 messages of the primary, 3 of the target, 3 equal" in done.output) == (0, True)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("nope*", 'no topic that matches "nope*".'),
        ("orders*", 'no topic that matches "orders*"; there is Orders.'),
        ("orders", 'no topic that matches "orders"; there is Orders.'),
    ],
)
def test_a_name_that_matches_no_topic_is_no_verdict(two_real_clusters, name, advice):
    """It said "nothing is wrong", with exit code 0."""
    done = compare(two_real_clusters, "-t", name)
    assert done.exit_code == 4
    assert f"No verdict: the primary has {advice}" in done.stderr
    assert "nothing is wrong" not in done.output


def test_one_wrong_name_among_right_ones_is_no_verdict(two_real_clusters):
    assert compare(two_real_clusters, "-t", TOPIC, "-t", "Bills").exit_code == 4
    assert compare(two_real_clusters, "-t", TOPIC, "--fail-if", "same>0", "-t", "Bills").exit_code == 3


def test_a_range_without_messages_is_no_verdict(two_real_clusters):
    done = compare(two_real_clusters, "--from", "2000-01-01", "--until", "2000-01-02")
    assert (done.exit_code, "have no message in the range" in done.stderr) == (4, True)


def test_the_configuration_may_follow_the_name(two_real_clusters, tmp_path):
    primary, target = two_real_clusters
    file = tmp_path / "shadow.toml"
    file.write_text(f"[primary]\nnamesrv = ['{primary}']\n[target]\nnamesrv = ['{target}']\n")
    done = CliRunner().invoke(shadow, ["parity", "-c", str(file), "-q", "--set", "compare.lag_ms=0"][:4])
    assert done.exit_code == 0


def test_the_gateway_that_runs_gets_the_result(queues, tmp_path, monkeypatch):
    primary, target, _ = queues
    primary.queue, target.queue = [stored(1), stored(2)], [stored(1)]
    sent = []

    class FakeConsole:
        def post(self, path, body):
            sent.append((path, body))

    monkeypatch.setattr(client, "make_console_client", lambda *_, **__: FakeConsole())
    config = tmp_path / "shadow.toml"
    config.write_text("")
    result = run("-c", str(config))
    assert result.exit_code == 3
    ((path, value),) = sent
    assert (path, value["holds"], value["missing"]) == ("/parity/result", False, 1)
    assert [queue["topic"] for queue in value["queues"]] == ["orders"], "those without findings are left out"
    assert "--parity FILE" not in result.output

    def refuse(*_, **__):
        raise client.ConsoleUnreachable("nobody there")

    monkeypatch.setattr(client, "make_console_client", refuse)
    result = run("-c", str(config))
    assert (result.exit_code, len(sent)) == (3, 1)
    assert "No gateway took this result" in result.output
