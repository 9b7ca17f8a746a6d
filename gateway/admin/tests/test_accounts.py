"""`rmq-gateway user …` and `rmq-gateway acl …` against two brokers with access control."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.admin.tests.local_server import LocalServer, run_server
from gateway.commands import cli
from gateway.config.auth import AuthConfig

ROOT_SECRET = "secret of root"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Two brokers with users of their own; the only one at first is the super user that signs the commands."""
    with run_secured(tmp_path_factory.mktemp("server"), memory=False) as running:
        yield running


@contextmanager
def run_secured(directory: Path, *, memory: bool) -> Iterator[LocalServer]:
    """Run two brokers with access control. Those in memory share their users."""
    secret = directory / "root.secret"
    secret.write_text(ROOT_SECRET)
    auth = AuthConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        init_user=f'{{"username":"root","password":"{ROOT_SECRET}"}}',
    )
    with run_server(directory, brokers=2, memory=memory, parts={"auth": auth}) as running:
        yield replace(running, flags=["--access-key", "root", "--secret-key-file", str(secret)])


def acting_as(server: LocalServer, user: str, password: str, tmp_path: Path) -> LocalServer:
    """Return the command line of another user."""
    secret = tmp_path / f"{user}.secret"
    secret.write_text(password)
    return replace(server, flags=["--access-key", user, "--secret-key-file", str(secret)])


def create_user(server: LocalServer, name: str, *flags: str, password: str = "p") -> str:
    return server.run("user", "create", name, "--password-file", "-", *flags, stdin=f"{password}\n")


def rows(server: LocalServer, *arguments: str) -> list[tuple[Any, ...]]:
    """Return the rows of a listing as tuples without the user's name."""
    return [tuple(row.values())[1:] for row in server.read(*arguments)]


BOTH = ["broker-a", "broker-b"]


def test_a_user_from_its_creation_to_its_end(server: LocalServer, name: str) -> None:
    assert create_user(server, name) == f"Created {name} on broker-a, broker-b.\n"
    assert rows(server, "user", "list", name) == [("Normal", "enable", BOTH)]
    server.run("user", "alter", name, "--disabled", "--broker", "broker-b")
    assert rows(server, "user", "list", name) == [
        ("Normal", "disable", ["broker-b"]),
        ("Normal", "enable", ["broker-a"]),
    ]
    server.run("user", "alter", name, "--enabled", "--super")
    assert rows(server, "user", "list", name) == [("Super", "enable", BOTH)]
    assert server.run("user", "delete", name, "--yes") == f"Deleted {name} on broker-a, broker-b.\n"
    assert server.read("user", "list", name) == []
    assert "does not exist" in server.invoke("user", "delete", name, "--yes").output


def test_a_new_user_signs_and_has_the_rights_of_its_rules(
    server: LocalServer, name: str, tmp_path: Path
) -> None:
    create_user(server, name, password="first")
    server.run("topic", "create", name, "-q", "1")
    clerk = acting_as(server, name, "first", tmp_path)
    server.run("acl", "create", name, "-r", "Cluster:*", "-a", "Get")  # commands look the brokers up
    assert f"no permission to access Topic:{name}" in clerk.invoke("produce", name, "hello").output
    server.run("acl", "create", name, "-r", f"Topic:{name}", "-a", "Pub,Sub")
    clerk.run("produce", name, "hello")
    server.run("user", "alter", name, "--password-file", "-", stdin="second\n")
    assert "check signature failed" in clerk.invoke("produce", name, "hello").output
    acting_as(server, name, "second", tmp_path).run("produce", name, "again")
    server.run("topic", "delete", name, "--yes")
    server.run("user", "delete", name, "--yes")


def test_rules_are_created_changed_listed_and_deleted(server: LocalServer, name: str) -> None:
    create_user(server, name)
    created = server.run(
        "acl", "create", name, "-r", "topic:orders", "-r", "Group:bill*", "-a", "pub", "-a", "Sub",
        "--source", "10.0.0.0/8",
    )  # fmt: skip
    assert created == f"Created rules of {name} for Topic:orders, Group:bill* on broker-a, broker-b.\n"
    near = ["10.0.0.0/8"]
    assert rows(server, "acl", "list", name) == [
        ("Group:bill*", "Allow", ["Pub", "Sub"], near, "Custom", BOTH),
        ("Topic:orders", "Allow", ["Pub", "Sub"], near, "Custom", BOTH),
    ]
    server.run("acl", "alter", name, "-r", "Topic:orders", "-a", "All", "--deny", "--broker", "broker-b")
    assert rows(server, "acl", "list", name, "-r", "orders") == [
        ("Topic:orders", "Allow", ["Pub", "Sub"], near, "Custom", ["broker-a"]),
        ("Topic:orders", "Deny", ["All"], [], "Custom", ["broker-b"]),
    ]
    server.run("acl", "create", name, "-r", "*", "-a", "Get", "--policy", "default")
    described = server.read("user", "describe", name)
    assert [row["policy"] for row in described["rules"]] == ["Default", "Custom", "Custom", "Custom"]
    assert [row["broker"] for row in described["brokers"]] == BOTH
    server.run("acl", "delete", name, "-r", "Topic:orders", "--yes")
    assert [row[0] for row in rows(server, "acl", "list", name)] == ["*", "Group:bill*"]
    deleted = server.run("acl", "delete", name, "--all", "--yes")
    assert deleted == f"Deleted all rules of {name} on broker-a, broker-b.\n"
    assert server.read("acl", "list", name) == []
    server.run("user", "delete", name, "--yes")


def test_brokers_that_share_their_users(tmp_path: Path, name: str) -> None:
    with run_secured(tmp_path, memory=True) as server:
        create_user(server, name)
        rule = ("acl", "create", name, "-r", "Topic:orders", "-a", "Pub")
        server.run(*rule)
        assert rows(server, "acl", "list") == [("Topic:orders", "Allow", ["Pub"], [], "Custom", BOTH)]
        server.run("acl", "delete", name, "-r", "Topic:orders", "--yes")
        server.run(*rule)
        server.run("acl", "delete", name, "--all", "--yes")
        server.run("user", "delete", name, "--yes")
        assert [row["user"] for row in server.read("user", "list")] == ["root"]


def test_rules_end_with_their_user(server: LocalServer, name: str) -> None:
    create_user(server, name)
    server.run("acl", "create", name, "-r", "Topic:orders", "-a", "Pub")
    server.run("user", "delete", name, "--yes")
    create_user(server, name)
    assert server.read("acl", "list", name) == []
    server.run("user", "delete", name, "--yes")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("user", "create", "root", "--password-file", "-"), 1, 'user "root" exists on broker-a, broker-b'),
        (("user", "create", " ", "--password-file", "-"), 2, "USER is blank"),
        (("user", "create", "new"), 2, "pass --password-file FILE, or - for standard input"),
        (("user", "create", "new", "--password-file", "/no/such/file"), 2, "/no/such/file"),
        (("user", "alter", "root"), 2, "Nothing to change"),
        (("user", "alter", "rot", "--super"), 1, 'did you mean "root"?'),
        (("user", "describe", "rot"), 1, 'did you mean "root"?'),
        (("user", "delete", "root"), 2, "pass --yes"),
        (("acl", "create", "rot", "-r", "Topic:t", "-a", "Pub"), 1, 'did you mean "root"?'),
        (("acl", "create", "root", "-r", "Topics:t", "-a", "Pub"), 2, "expected Topic:NAME"),
        (("acl", "create", "root", "-r", "Topic:", "-a", "Pub"), 2, "expected Topic:NAME"),
        (("acl", "create", "root", "-r", "Topic:t", "-a", "Publ"), 2, 'did you mean "Pub"?'),
        (
            ("acl", "create", "root", "-r", "Topic:t", "-a", "Pub", "--source", "here"),
            2,
            "such as 10.0.0.0/8",
        ),
        (("acl", "alter", "root", "-r", "Topic:t", "-a", "Pub"), 1, 'root has no Custom rule for "Topic:t"'),
        (("acl", "delete", "root", "--yes"), 2, "Pass either --resource or --all"),
        (("acl", "delete", "root", "--all", "--yes"), 1, "root has no rules"),
        (("acl", "list", "--broker", "broker-x"), 1, '"broker-x" is not known'),
    ],
)
def test_mistakes(server: LocalServer, arguments: tuple[str, ...], code: int, text: str) -> None:
    result = server.invoke(*arguments, stdin="p\n" if "-" in arguments else None)
    assert (result.exit_code, text in result.output) == (code, True), result.output


def test_a_rule_that_exists_is_not_replaced_by_a_creation(server: LocalServer, name: str) -> None:
    create_user(server, name)
    rule = ("acl", "create", name, "-r", "Topic:orders", "-a")
    server.run(*rule, "Pub", "--broker", "broker-b")
    assert f'{name} has a rule for "Topic:orders" on broker-b' in server.invoke(*rule, "Sub").output
    assert rows(server, "acl", "list", name) == [
        ("Topic:orders", "Allow", ["Pub"], [], "Custom", ["broker-b"])
    ]
    server.run("user", "delete", name, "--yes")


def test_no_password_is_printed_or_can_be_an_argument(server: LocalServer, name: str) -> None:
    create_user(server, name, password="hush-hush")
    for output in (server.run("user", "list", "--json"), server.run("user", "describe", name)):
        assert "hush" not in output
        assert ROOT_SECRET not in output
    server.run("user", "delete", name, "--yes")
    help_text = CliRunner().invoke(cli.main, ["user", "create", "--help"]).output
    assert "--password-file FILE" in help_text
    assert "--password " not in help_text


def test_a_broker_without_access_control_says_what_to_set(tmp_path: Path) -> None:
    with run_server(tmp_path) as server:
        assert (
            "this broker has no users: set authenticationEnabled=true" in server.invoke("user", "list").output
        )


def test_a_password_is_asked_for_twice_on_a_terminal(
    server: LocalServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.admin.commands.user.is_terminal", lambda: True)
    result = server.invoke("user", "create", name, stdin="one\none\n")
    assert result.exit_code == 0, result.output
    assert f"Password of {name}" in result.output
    server.run("user", "delete", name, "--yes")
