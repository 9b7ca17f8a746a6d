"""The parts of the pipeline `ingest` that need no Spark: configuration, names, summary."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from spark.endpoint import ClusterEndpoint
from spark.errors import OptionError
from spark.pipelines.body_schemas import BodySchema, schema_from_options
from spark.pipelines.config import load_config
from spark.pipelines.ingest import PIPELINE, Ingest, build_summary, prepare_ingest
from spark.pipelines.job import Job, QueryTotals
from spark.pull.read_spec import ReadSpec
from spark.tables import AppendResult

GIVEN = {"json": "id int", "avro": None, "skipBytes": 0, "table": None, "keepBody": True}


class Session:
    """A session without Delta."""

    conf = SimpleNamespace(get=lambda _key, default=None: default)


def job(tmp_path: Path, toml: str) -> Job:
    file = tmp_path / "ingest.toml"
    file.write_text(toml)
    session: Any = Session()
    return Job(session, load_config(PIPELINE.tables, str(file)), Console(file=io.StringIO()))


def test_an_ingest_is_what_its_file_says(tmp_path: Path) -> None:
    schema = tmp_path / "payment.avsc"
    schema.write_text('"long"')
    toml = f"""
    [source]
    nameServer = "127.0.0.1:9876"
    subscribe = "orders"
    [table]
    path = "{tmp_path}/lake/"
    format = "directory"
    [bodies.orders]
    json = "id bigint"
    [bodies."%RETRY%payments"]
    avro = "{schema}"
    skipBytes = 5
    keepBody = false
    table = "payments"
    """
    found = prepare_ingest(job(tmp_path, toml))
    assert found.checkpoint == f"{tmp_path}/lake/_checkpoint"
    assert found.bodies == {
        "orders": BodySchema("orders", "orders", json="id bigint"),
        "%RETRY%payments": BodySchema(
            "%RETRY%payments", "payments", avro='"long"', skip_bytes=5, keep_body=False
        ),
    }


@pytest.mark.parametrize(
    ("topic", "change", "message"),
    [
        ("a", {"json": None}, "one of json and avro"),
        ("a", {"avro": '"int"'}, "one of json and avro"),
        ("a", {"json": None, "avro": "missing.avsc"}, "missing.avsc: No such file"),
        ("a", {"table": "_checkpoint"}, "not a valid table name"),
        ("a", {"table": "../a"}, "not a valid table name"),
        ("%RETRY%a", {}, "not a valid table name"),
    ],
)
def test_schemas_that_make_no_sense_are_refused(topic: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        schema_from_options(topic, {**GIVEN, **change})


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("", "path is required"),
        ('[table]\npath = "x"\n[bodies.quarantine]\njson = "id int"', "is named quarantine"),
        (
            '[table]\npath = "x"\n[bodies.a]\njson = "id int"\n[bodies.b]\njson = "id int"\ntable = "a"',
            "is named a",
        ),
    ],
)
def test_files_that_make_no_sense_are_refused(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        prepare_ingest(job(tmp_path, toml))


def test_the_summary_counts_by_topic_and_table(tmp_path: Path) -> None:
    ingest = Ingest(str(tmp_path), "directory", "", {}, ReadSpec(ClusterEndpoint(())))
    ingest.tally.add_result("messages", 0, AppendResult({"a": 3, "b": 4}, 2, 1_500_000))
    ingest.tally.add_result("messages", 0, AppendResult({"a": 1}, 1, 500_000))
    ingest.tally.add_result("messages", 0, AppendResult(already_present=True))
    ingest.tally.add_result("quarantine", 0, AppendResult({"b": 2}, 1, 0))
    session: Any = Session()
    told = build_summary(ingest, QueryTotals(), session, True)
    assert told.exit_code == 3
    assert build_summary(ingest, QueryTotals(), session, False).exit_code == 0
    figures = dict(told.figures)
    assert (figures["rows"], figures["quarantined"], figures["already in the table"]) == (10, 2, 1)
    assert (figures["files"], figures["MB"]) == (4, 2.0)
    assert told.sections[0].rows == [("a", 4, 0), ("b", 6, 2)]
    assert [row[:2] for row in told.sections[1].rows] == [("messages", 8), ("quarantine", 2)]
