import json
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.shadow.commands.root import shadow
from gateway.shadow.compare import build
from gateway.shadow.compare.parity import ParityRange, compare_topics
from gateway.shadow.compare.service import ComparisonService
from gateway.shadow.compare.tests.test_parity import LATER_MS
from gateway.shadow.tests.fake_queues import BORN_MS, FakeQueues, stored

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

    real = build.build_comparison
    monkeypatch.setattr(build, "build_comparison", made)
    monkeypatch.setattr(ComparisonService, "check_parity", look)
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
