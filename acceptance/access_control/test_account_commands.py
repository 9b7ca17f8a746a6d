"""`rmq-gateway user` and `rmq-gateway acl` typed against our server and the official one."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from acceptance.secured import ROOT, SECRET, Server, create_topics, denial, dial, write_private
from compat_tests.clients.programs import run_command
from compat_tests.clients.typed import send, send_request
from tools.processes import environment

pytestmark = pytest.mark.both_servers

USER, TOPIC = "typed-clerk", "typed-orders"


def test_a_user_and_its_rules(either: Server, tmp_path: Path) -> None:
    secret = write_private(tmp_path / "root.secret", SECRET)
    password = write_private(tmp_path / "clerk.secret", "first")
    variables = {"RMQ_GATEWAY_CLIENT_ACCESS_KEY": ROOT, "RMQ_GATEWAY_CLIENT_SECRET_KEY_FILE": str(secret)}

    def run(*arguments: str) -> str:
        line = [sys.executable, "-m", "gateway.commands.cli", *arguments, "--namesrv", either.namesrv]
        return run_command(line, 60, environment(tmp_path, variables))

    def rules() -> list[tuple[Any, ...]]:
        rows = json.loads(run("acl", "list", USER, "--json"))
        return [(row["resource"], row["decision"], row["actions"], row["sources"]) for row in rows]

    create_topics(either, TOPIC)
    run("user", "create", USER, "--password-file", str(password))
    described = run("user", "list", "--json")
    assert {row["user"]: row["type"] for row in json.loads(described)}[USER] == "Normal"
    assert SECRET not in described
    with dial(either.broker, USER, "first") as clerk:
        assert "no matched policies" in denial(clerk, send_request(TOPIC))
        run("acl", "create", USER, "-r", f"Topic:{TOPIC}", "-r", "Group:g*", "-a", "Pub,Sub")
        send(clerk, TOPIC)
        assert sorted(rules()) == [
            ("Group:g*", "Allow", ["Pub", "Sub"], []),
            (f"Topic:{TOPIC}", "Allow", ["Pub", "Sub"], []),
        ]
        run("acl", "alter", USER, "-r", f"Topic:{TOPIC}", "-a", "Pub", "--deny", "--source", "127.0.0.0/8")
        assert (f"Topic:{TOPIC}", "Deny", ["Pub"], ["127.0.0.0/8"]) in rules()
        assert denial(clerk, send_request(TOPIC))
        run("acl", "delete", USER, "-r", f"Topic:{TOPIC}", "--yes")
        assert [rule[0] for rule in rules()] == ["Group:g*"]
    write_private(password, "second")
    run("user", "alter", USER, "--password-file", str(password))
    run("acl", "create", USER, "-r", f"Topic:{TOPIC}", "-a", "Pub")
    with dial(either.broker, USER, "second") as clerk:
        send(clerk, TOPIC)
        run("user", "alter", USER, "--disabled")
        assert denial(clerk, send_request(TOPIC))
    run("user", "delete", USER, "--yes")
    assert rules() == []
    assert USER not in run("user", "list", "--json")
