"""Shipped sources carry their package between processes that do not have it."""

import base64
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

from spark import ship
from spark.session import shipping

PLANNER = """
import base64, pickle, sys
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
def without(name):
    try:
        __import__(name)
    except ModuleNotFoundError:
        return True
assert without("codec") and without("spark")
kind = pickle.loads(base64.b64decode(sys.stdin.read()))
source = kind(options=CaseInsensitiveDict({"nameServer": "a:1", "subscribe": "t", "includeBody": "false"}))
assert kind.name() == "rocketmq" and "queueOffset" in source.schema(), source.schema()
class Schema:  # what a reader asks of it
    def fieldNames(self):
        from spark.source.options import read_spec, source_options
        return [column.name for column in read_spec(source_options(source.options)).selected_columns()]
again = pickle.loads(cloudpickle.dumps(source))
reader = again.streamReader(Schema())
print(base64.b64encode(cloudpickle.dumps(lambda partition: reader.read(partition))).decode())
"""

WORKER = """
import base64, pickle, sys
read = pickle.loads(base64.b64decode(sys.stdin.read()))
reader = read.__globals__["reader"]
import spark, spark.pull.range_reader
print(type(reader).__name__, spark.__spec__.origin, type(spark.__loader__).__name__)
try:
    import spark.no_such_module
except ModuleNotFoundError as missing:
    print(missing)
"""


def without_package(program: str, given: str, tmp_path: Path) -> str:
    """Return what a program prints in an isolated Python that has everything but this package."""
    start = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + program],
        input=given,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def shipped() -> list[bytes]:
    """Return the pickles of the registered sources."""
    pickles: list[bytes] = []
    session: Any = SimpleNamespace(
        dataSource=SimpleNamespace(register=lambda kind: pickles.append(cloudpickle.dumps(kind)))
    )
    ship(session)
    return pickles


def test_from_driver_to_planner_to_worker(tmp_path: Path) -> None:
    rocketmq, _capture = map(base64.b64encode, shipped())
    reader = without_package(PLANNER, rocketmq.decode(), tmp_path)
    output = without_package(WORKER, reader, tmp_path)
    assert output.splitlines() == [
        "RocketmqStreamReader spark/__init__.py MemoryImporter",
        "No module named 'spark.no_such_module'",
    ]


def test_pickles_are_small() -> None:
    assert all(len(each) < 400_000 for each in shipped())


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ImportError, match="workers need no_such_thing, which cannot be shipped"):
        shipping.install_package(b"", ("numpy", "no_such_thing"))


def test_no_tests_travel() -> None:
    places = shipping.package_sources()
    assert "spark/pull/range_reader.py" in places
    assert "pyspark_rocketmq.py" in places
    assert "toolkit/plots.py" in places
    assert not [place for place in places if "/tests/" in place]
