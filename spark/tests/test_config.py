"""TOML files of pipelines: values as texts, table names, errors, secrets, examples."""

import tomllib
from pathlib import Path

import pytest

from spark.endpoint import OPTIONS
from spark.errors import OptionError
from spark.options import REDACTED, Option, boolean, integer, names, text
from spark.pipelines.config import Config, example_file, load_config, spark_settings

TABLES = {
    "source": (*OPTIONS, Option("subscribe", names, (), "Topics."), Option("assign", text, None, "Queues.")),
    "ingest": (
        Option("every", integer(1), 60, "Seconds."),
        Option("compact", boolean, True, "Compact."),
    ),
    "bodies.*": (Option("format", text, "json", "Of bodies."),),
}


def load(tmp_path: Path, content: str, *sets: str) -> Config:
    file = tmp_path / "job.toml"
    file.write_text(content)
    return load_config(TABLES, str(file), sets)


def test_values_of_every_kind_become_options(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [source]
        nameServer = ["a:1", "b:2"]
        subscribe = ["x", "y"]
        tls.enable = true
        assign = { topic = { broker-a = [0, 1] } }
        [ingest]
        every = 5
        [bodies.orders]
        format = "avro"
        [bodies.clicks]
        [spark]
        master = "local[1]"
        executor.memory = "1g"
        "spark.ui.enabled" = false
        """,
    )
    assert config.values["source"]["nameServer"] == (("a", 1), ("b", 2))
    assert config.values["source"]["subscribe"] == ("x", "y")
    assert config.values["source"]["tls.enable"] is True
    assert config.texts["source"] == {
        "nameServer": "a:1,b:2",
        "subscribe": "x,y",
        "tls.enable": "true",
        "assign": '{"topic": {"broker-a": [0, 1]}}',
    }
    assert config.values["ingest"] == {"every": 5, "compact": True}
    assert config.tables_below("bodies") == {"orders": {"format": "avro"}, "clicks": {"format": "json"}}
    own, conf = spark_settings(config)
    assert own == {"master": "local[1]"}
    assert conf == {"spark.executor.memory": "1g", "spark.ui.enabled": "false"}


def test_sets_win_and_make_tables(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "[ingest]\nevery = 5\n",
        "ingest.EVERY=7",
        "bodies.orders.format=avro",
        "source.tls.enable=true",
        "spark.master=local[3]",
    )
    assert config.values["ingest"]["every"] == 7
    assert config.values["bodies.orders"] == {"format": "avro"}
    assert config.values["source"]["tls.enable"] is True
    assert spark_settings(config)[0] == {"master": "local[3]"}


def test_without_a_file_there_are_defaults() -> None:
    assert load_config(TABLES, None).values["ingest"] == {"every": 60, "compact": True}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[sorce]\nx = 1", "there is no table [sorce]; did you mean [source]?"),
        (
            "[zzzzzz]\nx = 1",
            "there is no table [zzzzzz]; tables: [source], [ingest], [bodies.<name>], [spark]",
        ),
        ("[ingest]\nevry = 1", '[ingest]: unknown option "evry"; did you mean "every"?'),
        (
            "[ingest]\nevery = 0",
            '[ingest]: option every: invalid value "0" (expected a whole number, at least 1)',
        ),
        ("every = 1", "every is outside of any table"),
        ("[bodies]\nformat = 'json'", "format is in [bodies], but belongs in a table [bodies.<name>]"),
        ("[ingest\n", "job.toml: "),
        ("[source]\nsecretKey = '${SURELY_NOT_SET_7}'", "environment variable SURELY_NOT_SET_7 is not set"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        load(tmp_path, content)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ingest.every", "expected table.key=value"),
        ("every=1", "expected table.key=value"),
        ("ingst.every=1", "did you mean [ingest]?"),
    ],
)
def test_wrong_sets(given: str, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        load_config(TABLES, None, [given])
    assert message in str(refused.value)


def test_a_missing_file() -> None:
    with pytest.raises(OptionError, match=r"nowhere\.toml: No such file"):
        load_config(TABLES, "nowhere.toml")


def test_secrets_come_from_the_environment_and_are_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "hush-hush")
    config = load(tmp_path, "[source]\naccessKey = 'me'\nsecretKey = '${A_SECRET}'")
    assert config.texts["source"]["secretKey"] == "hush-hush"
    assert config.redacted_texts()["source"]["secretKey"] == REDACTED
    assert config.redact_secrets("refused: me, hush-hush!") == f"refused: me, {REDACTED}!"
    assert "hush" not in f"{config.redacted_texts()}"
    assert "hush" not in repr(config).replace(repr(config.values), "")


def test_the_example_is_a_file_that_changes_nothing(tmp_path: Path) -> None:
    example = example_file(TABLES, "Does things.")
    assert tomllib.loads(example) == {"source": {}, "ingest": {}, "bodies": {"name": {}}, "spark": {}}
    lines = [line.removeprefix("# ") for line in example.splitlines()]
    stated = "\n".join(line for line in lines if line.startswith("[") or " = " in line)
    given = tomllib.loads(stated)
    assert given["ingest"] == {"every": 60, "compact": True}
    assert given["source"]["requestTimeoutMs"] == 10_000
    assert given["source"]["tls"]["enable"] is False
