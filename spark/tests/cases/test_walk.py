"""The blocks of docs/tutorials/spark.md run unchanged in an environment that has the package as a wheel."""

import json
import os
import re
from pathlib import Path

import pytest

from compat_tests.server import ServerUnderTest
from spark.pipelines.options_doc import ROOT
from spark.tests.cases.clusters import Shipped, finished

pytestmark = pytest.mark.ours_only

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DONE_BY_FIXTURES = "pip install -e '.[spark]'\nrmq-gateway serve --memory\n"

RUNNER = """
import json, subprocess, sys

names = {"__name__": "__main__"}
for kind, text in json.load(open(sys.argv[1])):
    if kind == "python":
        exec(compile(text, "docs/tutorials/spark.md", "exec"), names)
    elif kind == "toml":
        open(text.split()[1], "w").write(text)
    else:
        subprocess.run(text, shell=True, check=True)
"""


def blocks(namesrv: str) -> list[tuple[str, str]]:
    """The document's blocks in order, without what the fixtures do, for this server."""
    text = (ROOT / "docs" / "tutorials" / "spark.md").read_text(encoding="utf-8")
    found = [(kind, body.replace("127.0.0.1:9876", namesrv)) for kind, body in BLOCK.findall(text)]
    assert ("sh", DONE_BY_FIXTURES) in found
    assert {kind for kind, _ in found} == {"sh", "python", "toml"}
    return [block for block in found if block[1] != DONE_BY_FIXTURES]


def test_the_walk_ends_with_a_plot(server: ServerUnderTest, shipped: Shipped, tmp_path: Path) -> None:
    (tmp_path / "blocks.json").write_text(json.dumps(blocks(server.namesrv)))
    (tmp_path / "runner.py").write_text(RUNNER)
    path = os.pathsep.join([str(shipped.installed.parent), os.environ["PATH"]])
    command = [str(shipped.installed), "runner.py", "blocks.json"]
    done = finished(command, tmp_path, {"PATH": path})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    assert (tmp_path / "orders.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"rows +│ +5,000", done.stdout), done.stdout
    # seven shops, in the stream's totals as well
    assert re.search(r"shop-6\|\s*714\|", done.stdout), done.stdout
