"""Commands start fast: asking for help, or making a mistake, imports nothing that only the work needs."""

import json
import os
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
    "numpy",
    "opentelemetry",
    "pandas",
    "pyspark",
)
"""Packages that no command of this room may import before it knows that it needs them."""
MAX_MODULES = 260
"""A bare `import click` loads about 140 modules."""

SCRIPT = """
import json, sys
from gateway.commands.cli import main
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
    [
        ("topic", "list", "--help"),
        ("user", "create", "--help"),
        ("acl", "create", "--help"),
        ("topic", "list", "--timeout", "x"),
        ("--help",),
        ("broker", "--help"),
    ],
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


COMMANDS = (
    "topic", "group", "cluster", "produce", "consume", "message", "dlq", "broker", "namesrv", "debug", "completion",
    "user", "acl",
)  # fmt: skip
MAX_STARTS_OF_CLICK = 4.0
"""Processor time of a command's start, in units of a bare `import click`. It is about 1.5; pandas alone adds 10."""


def processor_time_s(*arguments: str) -> float:
    """Return the least processor time of three runs of Python, which other load on the machine hardly changes."""
    times = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, *arguments], check=True, timeout=120, stdout=subprocess.DEVNULL)
        after = os.times()
        times.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
    return min(times)


def test_every_command_starts_within_a_few_imports_of_click() -> None:
    click_s = processor_time_s("-c", "import click")
    slow = {
        name: ratio
        for name in COMMANDS
        if (ratio := processor_time_s("-m", "gateway.commands.cli", name, "--help") / click_s)
        > MAX_STARTS_OF_CLICK
    }
    assert slow == {}
