import pytest
from click.testing import CliRunner

from gateway.auth.account_table import PolicyTable, User, UserTable, UserType
from gateway.commands.cli import main
from gateway.runtime.config_file import ConfigFile
from remoting.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo
from storage.files import DiskFiles


@pytest.fixture
def directory(tmp_path):
    users = UserTable(ConfigFile(DiskFiles(), str(tmp_path / "users.json")))
    users.put(User("root", "secret", UserType.SUPER))
    users.put(User("clerk", "secret"))
    users.persist()
    policies = PolicyTable(ConfigFile(DiskFiles(), str(tmp_path / "acls.json")))
    entry = PolicyEntryInfo(
        resource="Topic:ord*", actions=["Pub"], source_ips=["10.0.0.0/8"], decision="Allow"
    )
    policies.put_entries("clerk", AclInfo(policies=[PolicyInfo(entries=[entry])]))
    policies.persist()
    return tmp_path


def explain(directory, user, resource, action="Pub", source="10.1.2.3"):
    arguments = ["--config-dir", str(directory), "--user", user, "--resource", resource]
    arguments += ["--action", action, "--source", source]
    return CliRunner().invoke(main, ["acl", "explain", *arguments])


@pytest.mark.parametrize(
    ("user", "resource", "source", "code", "text"),
    [
        ("root", "Cluster:c", "1.2.3.4", 0, "yes: root is a super user."),
        (
            "clerk",
            "Topic:orders",
            "10.1.2.3",
            0,
            "yes: the custom rule says: Allow Pub on Topic:ord* from 10.0.0.0/8",
        ),
        (
            "clerk",
            "Topic:orders",
            "1.2.3.4",
            3,
            "no: User:clerk has no permission to access Topic:orders from 1.2.3.4",
        ),
        ("clerk", "Topic:%RETRY%bill", "10.1.2.3", 3, "A rule that allows Pub on Group:bill is missing"),
        ("nobody", "Topic:orders", "10.1.2.3", 1, "User:nobody is not found. Users: clerk, root"),
    ],
)
def test_answers(directory, user, resource, source, code, text):
    result = explain(directory, user, resource, source=source)
    assert text in result.output
    assert result.exit_code == code


def test_questions_that_make_no_sense(directory, tmp_path):
    assert "expected Topic:NAME" in explain(directory, "clerk", "Topic:*").output
    assert "--action is one of" in explain(directory, "clerk", "Topic:orders", "Read").output
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "access control was never on there" in explain(empty, "clerk", "Topic:orders").output
