"""The order of a benchmark run, with fake loads and endpoints."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from compat_tests.endpoints import Endpoint, Unavailable
from tools.bench import cli
from tools.bench.loads import Load, LoadDurations, LoadFailed


class Fake:
    def __init__(self, name: str, journal: list[str], settings: Mapping[str, str]) -> None:
        self.name, self._journal = name, journal
        journal.append(f"{name} {settings.get('flushDiskType', 'default flush')}")

    def pids(self) -> list[int]:
        return []

    def start(self) -> None:
        self._journal.append(f"{self.name} start again with {len(os.environ['BENCH_PADDING'])}")

    def stop(self) -> None:
        self._journal.append(f"{self.name} stop")

    def close(self) -> None:
        self._journal.append(f"{self.name} close")


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []

    def load(name: str, *, is_durable: bool = False) -> Load:
        def run(endpoint: Endpoint, durations: LoadDurations) -> dict[str, float]:
            lines.append(f"{endpoint.name} {name}")
            if name == "latency" and endpoint.name == "bad":
                raise LoadFailed("nothing came")
            return {"rate": 1.0}

        return Load(name, run, reads_backlog=name == "catch-up", is_durable=is_durable)

    def start_up(make: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
        endpoint = make()
        lines.append(f"{endpoint.name} start")
        return endpoint, {"start_ms": 1.0}

    monkeypatch.setattr(cli, "LOADS", (load("catch-up"), load("latency")))
    monkeypatch.setattr(cli, "OPT_IN_LOADS", (load("sync-1t-128B", is_durable=True), load("timer")))
    monkeypatch.setattr(cli, "warm_up", load("warm").run)
    monkeypatch.setattr(cli, "measure_start_up", start_up)
    monkeypatch.setattr(cli, "choose_endpoint", lambda text, settings: Fake(text, lines, settings))
    monkeypatch.setattr(
        cli, "fill_backlog", lambda endpoint, durations: lines.append(f"{endpoint.name} fill")
    )
    monkeypatch.setattr(
        cli, "measure_at_rest", lambda endpoints, durations: [{"anon_mib": 1.0} for _ in endpoints]
    )
    monkeypatch.setattr(cli, "exit_on_sigterm", lambda: None)
    return lines


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.main, arguments)


def test_sides_take_turns(journal: list[str]) -> None:
    assert run("--subject", "a", "--baseline", "b", "--rounds", "2", "--only", "latency").exit_code == 0
    assert [line for line in journal if "latency" in line] == [
        "a latency",
        "b latency",
        "b latency",
        "a latency",
    ]


def test_scraping_needs_an_http_port_of_our_server_only(
    journal: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Mapping[str, str]] = {}

    def choose(text: str, settings: Mapping[str, str]) -> Fake:
        given[text] = settings
        return Fake(text, journal, settings)

    monkeypatch.setattr(cli, "choose_endpoint", choose)
    assert run("--subject", "ours", "--baseline", "b", "--only", "latency", "--scrape").exit_code == 0
    assert given == {"ours": {"httpPort": "0"}, "b": {}}


def test_durable_loads_run_on_servers_with_that_setting(journal: list[str]) -> None:
    assert run("--subject", "a", "--baseline", "b", "--rounds", "1", "--only", "durable").exit_code == 0
    assert {"a SYNC_FLUSH", "b SYNC_FLUSH", "a sync-1t-128B", "b sync-1t-128B"} <= set(journal)
    assert not [line for line in journal if "latency" in line or "default" in line]
    journal.clear()
    assert run("--subject", "a", "--baseline", "b", "--rounds", "1").exit_code == 0
    assert "a default flush" in journal
    assert not [line for line in journal if "ync" in line]


def test_groups_and_names_are_selected_together(journal: list[str]) -> None:
    assert (
        run("--subject", "a", "--baseline", "b", "--rounds", "1", "--only", "others, latency,sync").exit_code
        == 0
    )
    loads = [
        line
        for line in journal
        if line.startswith("a ") and line.split()[1] in {"catch-up", "latency", "timer"}
    ]
    assert loads == ["a catch-up", "a latency", "a timer"]
    assert journal.index("a close") < journal.index("a SYNC_FLUSH") < journal.index("a sync-1t-128B")
    assert "a start" in journal, "one start each, which is not a load here"


def test_a_server_that_is_warm_at_once_is_restarted_each_round(journal: list[str]) -> None:
    arguments = ("--subject", "a", "--baseline", "b", "--rounds", "3", "--only", "latency")
    assert run(*arguments).exit_code == 0
    again = [line for line in journal if "start again" in line]
    assert [line.split()[0] for line in again] == ["a", "b"] * 2
    assert len(set(again)) > 1, "with another length of the environment each time"
    assert "BENCH_PADDING" not in os.environ


def test_each_round_starts_afresh_and_all_is_closed(journal: list[str]) -> None:
    assert run("--subject", "a", "--baseline", "b", "--rounds", "2").exit_code == 0
    for name in ("a", "b"):
        assert journal.count(f"{name} start") == 2
        assert journal.count(f"{name} close") >= 2
        assert (
            journal.index(f"{name} warm") < journal.index(f"{name} fill") < journal.index(f"{name} catch-up")
        )


def test_a_failed_load_is_told_and_the_rest_still_runs(journal: list[str]) -> None:
    result = run("--subject", "bad", "--baseline", "b", "--rounds", "1")
    assert result.exit_code == 1
    assert "FAILED: latency: nothing came" in result.output
    assert "b latency" in journal


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("I server native sends brokers=broker-a state=on", "on"),
        (
            'I server native sends brokers="a, b" state="off, not built; Python serves them"',
            "off, not built; Python serves them",
        ),
        ("I server ready", "unknown"),
    ],
)
def test_a_report_says_whether_sends_were_native(line: str, state: str) -> None:
    assert cli.native_state(f"something else\n{line}\nmore") == state


def test_results_go_to_files(journal: list[str], tmp_path: Path) -> None:
    out, table = tmp_path / "o.json", tmp_path / "t.md"
    assert (
        run(
            "--subject", "a", "--baseline", "b", "--quick", "--out", str(out), "--markdown", str(table)
        ).exit_code
        == 0
    )
    assert {sample["load"] for sample in json.loads(out.read_text())["samples"]} >= {"start-up", "latency"}
    assert table.read_text().startswith("| load |")


def test_a_machine_without_java_is_told_in_one_line(
    journal: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(text: str, settings: Mapping[str, str]) -> Fake:
        raise Unavailable("java is not on PATH")

    monkeypatch.setattr(cli, "choose_endpoint", choose)
    result = run()
    assert result.exit_code == 1
    assert result.output.strip() == "Error: cannot compare on this machine: java is not on PATH"
