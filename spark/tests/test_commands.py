"""The command group: lazy imports, errors about missing packages, exit codes, summaries."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark.errors import EndpointError, OptionError
from spark.options import Option, integer, text
from spark.pipelines import commands
from spark.pipelines.config import load_config
from spark.pipelines.job import Job, Pipeline, Section, Summary
from spark.session.registration import register
from toolkit.install_command import install_command

TABLES = {
    "source": (Option("secretKey", text, None, "Secret.", secret=True),),
    "toy": (Option("rows", integer(1), 3, "Rows."),),
}


class FakeSession:
    stopped = 0

    def stop(self) -> None:
        FakeSession.stopped += 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Record the requested sessions, which do nothing."""
    asked: list[tuple[Any, Any]] = []

    def record(*given: Any) -> FakeSession:
        asked.append(given)
        return FakeSession()

    monkeypatch.setattr(commands, "open_session", record)
    return asked


def run(job: Job) -> Summary:
    job.print_progress(f"the key is {job.option_texts('source').get('secretKey')}")
    rows = job.config["toy"]["rows"]
    if rows == 97:
        raise EndpointError("nobody at home, with hush-hush")
    if rows == 98:
        raise OptionError("[toy]: rows must be another")
    return Summary(
        "Toy", {"rows": rows, "rate": 1234.5}, [Section("By topic", ["topic", "n"], [["t", 1]])], rows % 2
    )


def invoke(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    toy = Pipeline("toy", "A toy.\n\nIt does nothing.", TABLES, run)
    monkeypatch.setattr(commands, "find_pipeline", lambda name: toy)
    return CliRunner().invoke(commands.spark, ["peek", *arguments], catch_exceptions=False)


def test_a_run_with_flags(opened: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--master", "local[7]", "--conf", "spark.x=1=2", "--set", "spark.y=3"]
    result = invoke(monkeypatch, "--set", "toy.rows=4", *flags)
    assert result.exit_code == 0, result.output
    assert "1,234.500" in result.stdout
    assert "By topic" in result.stdout
    ((own, conf),) = opened
    assert own == {"appName": "rmq-gateway toy", "master": "local[7]"}
    assert conf == {**commands.DEFAULT_CONF, "spark.x": "1=2", "spark.y": "3"}


def test_the_summary_as_json_and_its_exit_code(
    opened: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = invoke(monkeypatch, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "title": "Toy",
        "exitCode": 1,
        "rows": 3,
        "rate": 1234.5,
        "By topic": [{"topic": "t", "n": 1}],
    }


def test_mistakes_and_failures_have_exit_codes_and_tell_no_secret(
    opened: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = FakeSession.stopped
    secret = ["--set", "source.secretKey=hush-hush"]
    failed = invoke(monkeypatch, *secret, "--set", "toy.rows=97")
    assert failed.exit_code == 1
    assert "nobody at home" in failed.output
    wrong = invoke(monkeypatch, *secret, "--set", "toy.rows=98")
    assert wrong.exit_code == 2
    unknown = invoke(monkeypatch, *secret, "--set", "toy.rwos=98")
    assert unknown.exit_code == 2
    assert 'did you mean "rows"?' in unknown.output
    assert "hush-hush" not in failed.output + wrong.output + unknown.output
    assert FakeSession.stopped == before + 2


def test_under_spark_submit_its_master_is_the_one() -> None:
    config = load_config({}, None, ["spark.master=local[2]", "spark.a.b=c"])
    assert commands.session_conf("x", config, {}, True) == ({"appName": "rmq-gateway x"}, {"spark.a.b": "c"})
    own, _ = commands.session_conf("x", config, {"master": "spark://h:7077"}, True)
    assert own["master"] == "spark://h:7077"
    own, _ = commands.session_conf("x", config, {"remote": "sc://h:1"}, False)
    assert own == {"appName": "rmq-gateway x", "remote": "sc://h:1"}


def test_words_of_a_failure_in_a_worker() -> None:
    said = "[STREAM_FAILED] Query\n  File x\nspark.errors.DataLossError: topic t: gone\n\tat org.apache.Spark"
    assert commands.error_text(Exception(said)) == "DataLossError: topic t: gone"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> Any:
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")

    monkeypatch.setattr(importlib, "import_module", missing)
    result = CliRunner().invoke(commands.spark, ["peek"], catch_exceptions=False)
    assert result.exit_code == 2
    assert f"pyarrow is not installed: {install_command('spark')}" in result.output


HEAVY = ("pyspark", "pyarrow", "numpy", "rich", "matplotlib", "pandas")


@pytest.mark.parametrize("arguments", [["--help"], ["peek", "--help"], ["script"]])
def test_the_command_line_starts_without_spark(arguments: list[str]) -> None:
    program = (
        "import sys; from spark.pipelines.commands import spark\n"
        f"try: spark({arguments!r})\n"
        "except SystemExit as end: assert not end.code\n"
        f"assert not [name for name in {HEAVY!r} if name in sys.modules]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_submit_as_a_script_leaves_the_standard_library_alone(tmp_path: Path) -> None:
    """The script's directory has a `profile` module, and so does Python."""
    script = Path(commands.__file__).with_name("submit.py")
    root = script.parents[2]
    done = subprocess.run(
        [sys.executable, str(script), "--help"],
        env={"PYTHONPATH": str(root)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "submit.py" in done.stdout


@pytest.mark.parametrize(
    ("pipeline", "sets", "message"),
    [
        ("peek", ["source.subscribe=orders"], "rocketmq: option nameServer is required"),
        ("peek", ["source.nameServer=127.0.0.1:9876"], "one of the options subscribe"),
        (
            "peek",
            ["source.nameServer=h:1", "source.subscribe=a", "source.startingOffsets=latest"],
            "reads nothing",
        ),
        ("ingest", ["source.nameServer=h:1", "source.subscribe=a"], "[table]: path is required"),
        ("ingest", ["table.path=lake", "source.subscribe=a"], "option nameServer is required"),
        (
            "ingest",
            ["table.path=x", "source.nameServer=h:1", "source.subscribe=a", "source.columns=topic"],
            "columns",
        ),
        ("compact", ["source.nameServer=h:1", "source.subscribe=a"], "[table]: path is required"),
        ("profile", [], "no input: configure [source], [table] or [capture]"),
        ("profile", ["source.subscribe=a"], "option nameServer is required"),
        ("reconcile", ["primary.nameServer=h:1"], "option nameServer is required"),
        (
            "reconcile",
            ["primary.kind=table", "target.nameServer=h:1"],
            "[primary]: kind table requires a path",
        ),
    ],
)
def test_options_are_checked_before_spark_starts(
    opened: list[tuple[Any, Any]], pipeline: str, sets: list[str], message: str
) -> None:
    """`spark peek` took 49 s to say that an option is missing."""
    words = [word for each in sets for word in ("--set", each)]
    done = CliRunner().invoke(commands.spark, [pipeline, *words], catch_exceptions=False)
    assert (done.exit_code, message in done.output) == (2, True), done.output
    assert opened == []


def test_a_master_and_a_remote_contradict_each_other(opened: list[tuple[Any, Any]]) -> None:
    flags = ["--master", "local[1]", "--remote", "sc://h:1"]
    done = CliRunner().invoke(commands.spark, ["peek", *flags], catch_exceptions=False)
    assert (done.exit_code, "contradict each other" in done.output, opened) == (2, True, [])


class FakeSources:
    """The part of a session that registers data sources, and knows those that Spark found."""

    def __init__(self, *found: str) -> None:
        self.found, self.registered = found, []
        self.dataSource = self._jsparkSession = self

    def sessionState(self) -> "FakeSources":
        return self

    dataSourceManager = sessionState

    def dataSourceExists(self, name: str) -> bool:
        return name in self.found

    def register(self, source: Any) -> None:
        self.registered.append(source.name())


def test_sources_that_spark_found_are_not_registered_again() -> None:
    """Spark warned up to ten times in a run that each "replaced a statically registered data source"."""
    for found, registered in (
        ((), ["rocketmq", "rocketmq-capture"]),
        (("rocketmq",), ["rocketmq-capture"]),
        (("rocketmq", "rocketmq-capture"), []),
    ):
        session = FakeSources(*found)
        register(session)
        assert session.registered == registered
    unknown: Any = FakeSources()
    unknown._jsparkSession = None
    register(unknown)
    assert len(unknown.registered) == 2


def test_tables_in_a_pipe_are_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Message ids were cut at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    key = "7F0000010000" * 20
    commands._print_summary(
        Summary("Found", {"rows": 1}, [Section("Ids", ["id", "again"], [[key, key]])]), False
    )
    assert capsys.readouterr().out.count(key) == 2
