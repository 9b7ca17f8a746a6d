"""Problems of a gateway are said in the log, in `status`, `watch` and `plan`, and in the report."""

import contextlib
import json
import logging

import pytest
import trio
from click.testing import CliRunner

from gateway.shadow.commands.root import shadow
from gateway.shadow.report.service import MAX_PROBLEMS, Problems
from gateway.shadow.tests.served_gateway import (
    in_thread,
    send_messages,
    served_cluster,
    served_gateway,
    without_signals,
)

TOPIC = "Orders"
KEY = "mirrorTarget is not set at the target's broker broker-a"


@pytest.fixture(autouse=True)
def signals(monkeypatch):
    without_signals(monkeypatch)


def command(console, *arguments, code=0):
    done = CliRunner().invoke(shadow, [*arguments, "--console", console], color=True)
    assert done.exit_code == code, done.output
    return done.output


def test_a_target_of_kind_ours_that_takes_no_mirror(tmp_path, caplog):
    """The log was empty, status said that no topic moves, and plan that the target did not catch up."""

    @contextlib.asynccontextmanager
    async def open_all():
        async with (
            served_cluster(tmp_path / "p") as primary,
            served_cluster(tmp_path / "t") as target,
            served_gateway(
                tmp_path,
                f"primary.namesrv=['{primary['namesrv']}']",
                f"target.namesrv=['{target['namesrv']}']",
                "target.kind=ours",
            ) as (_, facts),
        ):
            await send_messages(facts["brokers"]["broker-a"], TOPIC, 3)
            yield facts["console"]

    with caplog.at_level(logging.ERROR), in_thread(open_all) as console:
        logged = [record.reason for record in caplog.records if hasattr(record, "reason")]
        assert any(KEY in each for each in logged), "in the log"
        red = "\x1b[31mProblem (target): "
        assert red in command(console, "status")
        assert KEY in command(console, "status")
        assert "--set mirrorTarget=true" in command(console, "status")
        plan = command(console, "plan", TOPIC)
        assert f"{red}target.kind" in plan
        assert "target  NO  cannot be mirrored to" in plan
        assert "PROBLEM: target.kind" in command(console, "watch", "--times", "1")
        page = tmp_path / "report.html"
        command(console, "report", "-o", str(page))
        assert "mirrorTarget is not set" in page.read_text()


def test_a_primary_that_does_not_answer_is_one_line_with_the_next_attempt(tmp_path, caplog):
    async def main():
        async with served_gateway(tmp_path, "primary.namesrv=['127.0.0.1:1']", "listen.refresh_s=0.05") as (
            server,
            _,
        ):
            with trio.fail_after(20):
                while server.forwarder.broker_listeners._failed_lookups < 9:
                    await trio.sleep(0.01)
            (problem,) = server.report.problems.to_json()
            assert problem["problem"].startswith("the primary does not answer at 127.0.0.1:1: ")

    with caplog.at_level(logging.WARNING):
        trio.run(main)
    lines = [record for record in caplog.records if "primary does not answer" in record.message]
    assert [record.attempts for record in lines] == [1, 2, 4, 8]
    assert {record.next_attempt_in_s for record in lines} == {0.05}
    assert not any(record.exc_info for record in caplog.records)


def test_a_problem_that_several_parts_report_is_shown_once():
    problems = Problems()
    problems.add_source("a", lambda: ["it is gone", "it is full"])
    problems.add_source("b", lambda: ["it is gone"])
    assert problems.to_json() == [
        {"part": "a", "problem": "it is gone"},
        {"part": "a", "problem": "it is full"},
    ]


def test_problems_are_bounded_and_survive_a_defect():
    def broken():
        yield "first"
        raise KeyError("x")

    problems = Problems()
    problems.add_source("a", broken)
    problems.add_source("b", lambda: map(str, range(1_000)))
    found = problems.to_json()
    assert len(json.dumps(found)) < 2_000
    assert len(found) == MAX_PROBLEMS
    assert found[1]["problem"] == "its state is not available: KeyError: 'x'"
