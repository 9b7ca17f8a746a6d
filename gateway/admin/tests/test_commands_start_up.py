"""Commands start fast: asking for help, or making a mistake, imports nothing that only the work needs."""

import json
import subprocess
import sys

import pytest

HEAVY = (
    "trio",
    "rich",
    "gateway.broker",
    "gateway.shadow",
    "storage",
    "cryptography",
    "yaml",
    "prometheus_client",
)
"""Packages that no command of this room may import before it knows that it needs them."""
MAX_MODULES = 260
"""A bare `import click` loads about 140 modules."""

SCRIPT = """
import json, sys
from gateway.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    print(json.dumps([end.code, sorted(sys.modules)]), file=sys.stderr)
"""


def modules_after(*arguments: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return code, modules


@pytest.mark.parametrize(
    "arguments",
    [("topic", "list", "--help"), ("topic", "list", "--timeout", "x"), ("--help",), ("broker", "--help")],
)
def test_no_heavy_module_is_imported(arguments: tuple[str, ...]) -> None:
    _, modules = modules_after(*arguments)
    assert [each for each in modules if each.startswith(HEAVY)] == []
    assert not any(each.startswith(("remoting", "codec.")) for each in modules)
    if arguments != ("--help",):  # which lists the commands of other packages, too
        assert len(modules) < MAX_MODULES


def test_asking_a_server_needs_no_event_loop_and_no_table() -> None:
    code, modules = modules_after("topic", "list", "--namesrv", "127.0.0.1:1")
    assert code == 1
    assert [each for each in modules if each.startswith(HEAVY)] == []
