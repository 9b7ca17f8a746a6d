"""The recipes for tests of users' programs, each built and run as its README says."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from acceptance.containers import ROOT
from compat_tests.endpoints.ours import process_environment
from compat_tests.jars import Unavailable, find_program, tool_environment
from compat_tests.plugin import skip_or_fail

RECIPES = ROOT / "recipes"
TIMEOUT_S = 900


def find_tool(program: str) -> str:
    try:
        return find_program(program, "run a recipe")
    except Unavailable as missing:
        skip_or_fail(str(missing))


def copy_recipe(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(RECIPES / name, folder / name))


def run(folder: Path, *command: str, **more: str) -> str:
    """Run a command of a recipe and return its output; more environment variables may be given."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**tool_environment(), **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"$ {' '.join(command)}\n{done.stdout[-8000:]}"
    return done.stdout


def engine_settings() -> Mapping[str, str]:
    """Return variables for Testcontainers: no helper container, whose image is not everywhere.

    A machine that looks like a container itself is told that its engine publishes ports on loopback.
    """
    host = {"TESTCONTAINERS_HOST_OVERRIDE": "localhost"} if Path("/.dockerenv").exists() else {}
    return {"TESTCONTAINERS_RYUK_DISABLED": "true", **host, **_given("TESTCONTAINERS_HOST_OVERRIDE")}


def _given(name: str) -> dict[str, str]:
    return {name: os.environ[name]} if name in os.environ else {}


def test_java(image: str, tmp_path: Path) -> None:
    maven = find_tool("mvn")
    folder = copy_recipe("java", tmp_path)
    output = run(folder, maven, "-B", "test", f"-Drocketmq.image={image}", **engine_settings())
    assert "Tests run: 3, Failures: 0, Errors: 0, Skipped: 0" in output


def test_go(image: str, tmp_path: Path) -> None:
    go = find_tool("go")
    folder = copy_recipe("go", tmp_path)
    output = run(folder, go, "test", "-v", "./...", ROCKETMQ_IMAGE=image, **engine_settings())
    assert "--- PASS: TestFailedOrderIsTriedAgain" in output


def test_node(tmp_path: Path) -> None:
    find_tool("node")
    npm = find_tool("npm")
    folder = copy_recipe("node", tmp_path)
    run(folder, npm, "install", "--no-audit", "--no-fund", "--silent")
    server = json.dumps([sys.executable, "-m", "gateway.commands.cli"])
    output = run(folder, npm, "test", ROCKETMQ_SERVER=server, **process_environment())
    assert "# pass 2" in output
    assert "# fail 0" in output
