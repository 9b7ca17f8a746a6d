import json
import subprocess
import sys

import orjson
import pytest
import trio
from click import ClickException
from click.testing import CliRunner

from gateway.http_server.errors import ConsoleError
from gateway.http_server.settings import ConsoleSettings
from gateway.runtime.metrics import MetricRegistry
from gateway.shadow.commands.root import shadow
from gateway.shadow.report.optional_packages import import_optional
from gateway.shadow.report.service import ReportService, StateChanges
from gateway.shadow.report.settings import ReportSettings
from gateway.shadow.report.snapshot import EventLog
from gateway.shadow.report.verdict import judge_run
from gateway.shadow.tests.exchanges import make_send_exchange
from gateway.shadow.tests.sample_report import sample_report
from gateway.shadow.traffic.exchange import Hub
from toolkit.install_command import install_command


def test_a_run_from_traffic_to_files_and_commands(tmp_path):
    files = {"file": str(tmp_path / "end.html"), "json_file": str(tmp_path / "end.json")}
    console, report = ConsoleSettings(port=0, token="t0ken"), ReportSettings(title="A run", **files)

    async def main():
        hub = Hub()
        reporting = ReportService(console, report, {"console": console}, hub, MetricRegistry())
        reporting.add_section("mirror", lambda: {"streams": 0})
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(reporting.run)
            hub.publish_exchange(make_send_exchange("Orders"))
            config = tmp_path / "shadow.toml"
            config.write_text('[console]\ntoken = "t0ken"\n')
            at = ["-c", str(config), "--console", f"{host}:{port}"]
            await trio.to_thread.run_sync(commands, at, tmp_path)
            await reporting.write_files()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert "<h1>A run</h1>" in (tmp_path / "end.html").read_text()
    ended = json.loads((tmp_path / "end.json").read_text())
    assert ended["series"]["totals"]["Orders"]["sends"] == 1
    assert ended["sections"] == {"problems": [], "mirror": {"streams": 0}}
    assert "t0ken" not in (tmp_path / "end.html").read_text() + (tmp_path / "end.json").read_text()


def commands(at, tmp_path):
    def run(*given):
        return CliRunner().invoke(shadow, given)

    html = tmp_path / "now.html"
    done = run("report", *at, "-o", str(html), "--fail-if", "sends<1")
    assert (done.exit_code, done.output) == (0, "")
    assert html.read_text().startswith("<!DOCTYPE html>")
    printed = run("report", *at, "--json", "-")
    assert orjson.loads(printed.output)["title"] == "A run"
    assert run("report", *at, "--fail-if", "sends[Orders]==1").exit_code == 3
    assert 'did you mean "sends"' in run("report", *at, "--fail-if", "send==1").output
    assert run("report", *at).exit_code == 2
    watched = run("watch", *at, "--times", "2", "--every", "0.2")
    assert watched.output.count("sends_per_s") == 2


def test_a_report_from_a_file(tmp_path):
    file = tmp_path / "report.json"
    file.write_bytes(orjson.dumps(sample_report()))
    run = CliRunner().invoke
    assert run(shadow, ["report", "--from", str(file), "--fail-if", "parity.missing>1"]).exit_code == 3
    assert run(shadow, ["report", "--from", str(file), "--fail-if", "parity.extra>1"]).exit_code == 2
    parity = tmp_path / "parity.json"
    parity.write_bytes(orjson.dumps({"holds": True, "missing": 0}))
    given = ["report", "--from", str(file), "--parity", str(parity)]
    assert run(shadow, [*given, "--fail-if", "parity.missing>0"]).exit_code == 0
    file.write_text("[]")
    assert (
        "was not written by this version of the command"
        in run(shadow, ["report", "--from", str(file), "--json", "-"]).output
    )
    assert "no gateway selected" in run(shadow, ["report", "--json", "-"]).output


def test_a_report_that_cannot_be_written_ends_nothing(tmp_path, caplog):
    settings = ReportSettings(json_file=str(tmp_path / "no" / "such" / "folder.json"))
    reporting = ReportService(ConsoleSettings(enabled=False), settings, {}, Hub(), MetricRegistry())
    trio.run(reporting.write_files)
    assert "could not be written" in caplog.text


def test_without_series_nobody_looks_at_traffic():
    hub = Hub()
    ReportService(ConsoleSettings(enabled=False), ReportSettings(series=False), {}, hub, MetricRegistry())
    assert not hub.is_observed(310)


def test_each_changed_state_is_an_event():
    events, states = EventLog(), {"mode of A": "async"}
    changes = StateChanges(lambda: states, "usual", events)
    changes.check()
    changes.check()
    assert events.to_json() == []
    states |= {"mode of A": "off", "mode of B": "usual"}
    changes.check()
    states.clear()
    changes.check()
    assert [each["text"] for each in events.to_json()] == ["mode of A: off", "mode of A: usual"]


def test_a_flapping_problem_is_one_event():
    now_ms, states = 1_700_000_000_000, {}
    events = EventLog(lambda: now_ms)
    changes = StateChanges(lambda: states, "solved", events, flapping=True)
    changes.check()
    for _ in range(10):
        for state in ({"problem: no target": "appeared"}, {}):
            states.clear()
            states.update(state)
            changes.check()
            now_ms += 20_000
    states["problem: other"] = "appeared"
    changes.check()
    assert [event["text"] for event in events.to_json()] == [
        "problem: no target: solved (changed 20 times since 2023-11-14 22:13:20)",
        "problem: other: appeared",
    ]
    assert events.to_json()[0]["at_ms"] == 1_700_000_000_000
    now_ms += 61_000
    states["problem: no target"] = "appeared"
    changes.check()
    assert events.to_json()[-1] == {"at_ms": now_ms, "text": "problem: no target: appeared"}


def result_of_parity(at_ms, **more):
    return {"holds": True, "empty": False, "queues": [], "missing": 0, "at_ms": at_ms, **more}


def test_the_newest_parity_check_is_shown_and_those_of_moves_count_where_there_is_no_other():
    reporting = ReportService(ConsoleSettings(port=0), ReportSettings(), {}, Hub(), MetricRegistry())
    compared, moved = {}, {}
    reporting.show_parity(lambda: compared)
    reporting.show_parity(lambda: moved)

    shown = reporting.snapshot._sections["parity"]

    assert shown() == {}
    moved.update(result_of_parity(900, checked_by_moves_of=["t"]))
    assert shown() == moved
    compared.update(result_of_parity(500))
    assert shown() == compared
    take = reporting.console._routes["POST", "/parity/result"]
    assert take(result_of_parity(1, missing=3)) == {"taken": True}
    assert shown()["missing"] == 3
    assert judge_run(
        {"sections": {"parity": shown()}, "metrics": [], "configuration": {"target": {"namesrv": ["a:1"]}}}
    ).reasons == ("parity: 3 missing",)
    for value in (
        {},
        {"holds": 1, "queues": []},
        {"holds": True, "queues": [1]},
        {"holds": True, "queues": [{"findings": [1]}]},
    ):
        with pytest.raises(ConsoleError):
            take(value)


def test_servers_need_none_of_the_libraries():
    code = (
        "import sys\n"
        "for name in ('h11', 'prometheus_client', 'rich', 'matplotlib'): sys.modules[name] = None\n"
        "from gateway.commands.cli import main\n"
        "main(['serve', '--help'], standalone_mode=False)\n"
        "assert 'gateway.shadow' not in sys.modules\n"
        "import gateway.process.server\n"
        "assert 'gateway.shadow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_a_gateway_without_the_extra_says_so():
    code = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from gateway.commands.cli import main\n"
        "main(['shadow', '--set', 'primary.namesrv=[\"127.0.0.1:1\"]', '--set', 'report.file=report.html'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"the extra `shadow`: {install_command('shadow')}" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_library_names_its_extra():
    with pytest.raises(ClickException, match=r"\[shadow\]"):
        import_optional("no_such_library_of_ours")
