import click
import pytest
from click.testing import CliRunner

from gateway.commands.cli import main
from gateway.shadow.commands import cutover as commands
from gateway.shadow.commands.cutover import render_table
from gateway.shadow.console.client import ConsoleRefused, ConsoleUnreachable

STEP = {
    "topic": "orders", "group": "", "from": "MIRRORING", "to": "CAUGHT_UP", "done": True, "reason": "",
    "checks": [{"check": "lag", "ok": True, "measured": "0 of 7 messages", "reason": ""}],
}  # fmt: skip
FAILED = {**STEP, "group": "GID", "done": False,
          "checks": [{"check": "drained", "ok": False, "measured": "3 left", "reason": "GID is slow"}]}  # fmt: skip
MOVE = {
    "topic": "orders", "state": "PRODUCERS_SWITCHED", "overall_state": "DRAINED", "groups": {"GID": "DRAINED"},
    "taken_permissions": {},
}  # fmt: skip
BYPASSED = {
    **STEP,
    "done": False,
    "checks": [{"check": "bypass", "ok": False, "measured": "3", "reason": "3 past"}],
}


class FakeConsole:
    """Returns or raises a given answer, and records the requests."""

    host, port = "127.0.0.1", 9880

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def get(self, path, **query):
        return self.post(path, query)

    def post(self, path, body):
        self.asked.append((path, body))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def run(monkeypatch):
    def run(answer, *words, stdin=None):
        console = FakeConsole(answer)
        monkeypatch.setattr(commands, "console_from_options", lambda file, address: console)
        return CliRunner().invoke(main, ["shadow", *words], input=stdin), console.asked

    return run


def test_status_is_a_table(run):
    result, _ = run({"moves": [MOVE]}, "status")
    lines = result.output.splitlines()
    assert [line.split() for line in lines] == [
        ["topic", "group", "state", "producers", "consumers"],
        ["orders", "DRAINED", "target"],
        ["GID", "DRAINED", "primary"],
    ]
    result, _ = run({"moves": []}, "status")
    assert (result.output, result.exit_code) == (
        "No topic is being moved. To see what a move needs: rmq-gateway shadow plan TOPIC\n",
        0,
    )


def test_plan_shows_readiness(run):
    topics = [
        {"topic": "orders", "state": "MIRRORING", "reason": "", "steps": [STEP, FAILED]},
        {"topic": "bills", "state": "DONE", "reason": "there is nothing left to do", "steps": []},
    ]
    result, asked = run({"topics": topics}, "plan", "orders", "bills")
    assert asked == [("/status", {}), ("/cutover/plan", {"topic": "orders,bills", "group": ""})]
    assert "MIRRORING -> CAUGHT_UP: ready" in result.output
    assert "group GID: MIRRORING -> CAUGHT_UP: not ready" in result.output
    assert "no next step: there is nothing left to do" in result.output


def test_advance_shows_its_checks(run):
    answer = {"topic": "orders", "state": "CAUGHT_UP", "done": True, "steps": [STEP]}
    result, asked = run(answer, "advance", "orders", "--allow", "delays", "--wait", "5", "--to", "DRAINED")
    given = {
        "topic": "orders", "group": None, "allow": ("delays",), "wait_s": 5.0, "to": "DRAINED", "confirmed": False,
        "read_only": False,
    }  # fmt: skip
    assert asked == [("/cutover/advance", given)]
    assert result.exit_code == 0
    assert "lag    yes  0 of 7 messages" in result.output
    assert result.output.endswith("orders: CAUGHT_UP\n")


FINAL = {
    "topic": "orders",
    "state": "CONSUMERS_SWITCHED",
    "done": False,
    "steps": [STEP],
    "confirm": "No way back",
}


def test_a_final_step_without_a_terminal_needs_yes(run):
    result, asked = run(FINAL, "advance", "orders", "--to", "Done")
    assert (result.exit_code, len(asked)) == (3, 1)
    assert "No way back." in result.output
    assert "Pass --yes to take it" in result.stderr
    _, asked = run({**FINAL, "confirm": ""}, "advance", "orders", "--yes")
    assert asked[0][1]["confirmed"] is True


@pytest.mark.parametrize(("answer", "code", "requests"), [("n\n", 3, 1), ("y\n", 3, 2)])
def test_a_final_step_is_asked_for_in_a_terminal(run, monkeypatch, answer, code, requests):
    monkeypatch.setattr(commands, "is_interactive", lambda: True)
    result, asked = run(FINAL, "advance", "orders", stdin=answer)
    assert "Take this step? [y/N]" in result.output
    assert (result.exit_code, len(asked)) == (code, requests)
    assert [body["confirmed"] for _, body in asked] == [False, True][:requests]


def test_refused_step_has_its_exit_code(run):
    answer = {"topic": "orders", "state": "PRODUCERS_SWITCHED", "done": False, "steps": [FAILED]}
    result, asked = run(answer, "rollback", "orders", "--all")
    assert asked[0][1]["all"] is True
    assert result.exit_code == 3
    assert "drained  NO  3 left\n        GID is slow\n" in result.output
    result, _ = run(ConsoleRefused("there is nothing to undo", 409), "rollback", "orders")
    assert result.exit_code == 1
    assert run({}, "advance")[0].exit_code == 2


def test_failed_sync_step_sets_the_exit_code(run):
    row = {
        "kind": "topic",
        "name": "orders",
        "broker": "broker-a",
        "action": "create",
        "detail": "4/4 queues",
    }
    result, asked = run({"steps": [row]}, "sync", "--dry-run", "--topics", "orders,bills")
    assert asked == [("/cutover/sync", {"dry_run": True, "topics": "orders,bills", "groups": ""})]
    assert (result.exit_code, "would create  4/4 queues" in result.output) == (0, True)
    assert result.output.startswith("Dry run: nothing is changed.\n")
    assert result.output.endswith("1 changes to make.\n")
    result, _ = run({"steps": [{**row, "action": "failed"}]}, "sync")
    assert result.exit_code == 3


def test_sync_shows_changes_and_counts_the_rest(run):
    """It printed 24 rows of what was left out around two real ones, and a dry run looked like a real one."""
    rows = [
        {"kind": "topic", "name": "orders", "broker": "broker-a", "action": "create", "detail": "4/4 queues"},
        {"kind": "topic", "name": "bills", "broker": "broker-a", "action": "same", "detail": ""},
        {
            "kind": "topic",
            "name": "SELF_TEST_TOPIC",
            "broker": "broker-a",
            "action": "left out",
            "detail": "own",
        },
    ]
    output = run({"steps": rows}, "sync")[0].output
    assert output.splitlines()[1].split() == ["topic", "orders", "broker-a", "create", "4/4", "queues"]
    assert output.splitlines()[2:] == [
        "1 changes made, 1 the same on both sides, 1 left out (--all shows them)."
    ]
    output = run({"steps": rows}, "sync", "--all")[0].output
    assert [line.split()[1] for line in output.splitlines()[1:4]] == ["orders", "bills", "SELF_TEST_TOPIC"]
    assert output.endswith("1 changes made, 1 the same on both sides, 1 left out.\n")
    assert run({"steps": rows[1:2]}, "sync")[0].output.startswith("Nothing to copy, 1 the same on both sides")


def test_sync_without_a_gateway_uses_the_clusters(run, tmp_path):
    gone = ConsoleUnreachable("nobody")
    result, _ = run(gone, "sync")
    assert (result.exit_code, "Pass -c FILE" in result.output) == (1, True)
    file = tmp_path / "shadow.toml"
    file.write_text('[primary]\nnamesrv = ["127.0.0.1:9"]\n')
    result, _ = run(gone, "-c", str(file), "sync")
    assert (result.exit_code, "target.namesrv must be set" in result.output) == (2, True)
    file.write_text('[primary]\nnamesrv = ["127.0.0.1:9"]\n[target]\nnamesrv = ["127.0.0.1:7"]\n')
    result, _ = run(gone, "-c", str(file), "sync")
    assert result.exit_code == 1
    assert "No gateway is running at 127.0.0.1:9880; copying directly between the clusters." in result.output


def test_status_shows_that_a_topic_is_read_only_at_the_primary(run):
    result, _ = run({"moves": [{**MOVE, "taken_permissions": {"a": 6}}]}, "status")
    assert "target (read-only at the primary)" in result.output


@pytest.mark.parametrize("undo", [False, True])
def test_read_only_is_taken_and_undone(run, undo):
    answer = {"topic": "orders", "read_only": not undo, "brokers": [] if undo else ["a", "b"]}
    result, asked = run(answer, "read-only", "orders", *(["--undo"] if undo else []))
    assert asked == [("/cutover/read-only", {"topic": "orders", "undo": undo})]
    expected = "orders is writable at the primary again." if undo else (
        "orders is read-only at the primary (a, b). A rollback undoes it."
    )  # fmt: skip
    assert (result.output, result.exit_code) == (f"{expected}\n", 0)


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_bypass_offers_to_make_the_topic_read_only(run, monkeypatch, answer):
    monkeypatch.setattr(commands, "is_interactive", lambda: True)
    refused = {"topic": "orders", "state": "PRODUCERS_SWITCHED", "done": False, "steps": [BYPASSED]}
    both = {**refused, "moves": [{**MOVE, "taken_permissions": {}}], "read_only": True, "brokers": ["a"]}
    result, asked = run(both, "advance", "orders", stdin=f"{answer}\n")
    assert "Make orders read-only at the primary, so that such producers get errors instead?" in result.output
    assert ("/cutover/read-only", {"topic": "orders"}) in asked or answer == "n"
    assert len(asked) == (3 if answer == "y" else 2)
    assert result.exit_code == 3


def test_a_topic_that_is_read_only_is_not_offered_again(run, monkeypatch):
    monkeypatch.setattr(commands, "is_interactive", lambda: True)
    refused = {"topic": "orders", "state": "PRODUCERS_SWITCHED", "done": False, "steps": [BYPASSED]}
    result, _ = run({**refused, "moves": [{**MOVE, "taken_permissions": {"a": 6}}]}, "advance", "orders")
    assert "Make orders" not in result.output


def test_tables_are_aligned():
    rows = [{"a": 1, "b": "long"}, {"a": 22}]
    assert render_table(("a", "b"), rows, indent=1) == " a   b\n 1   long\n 22"
    assert issubclass(ConsoleUnreachable, click.ClickException)
