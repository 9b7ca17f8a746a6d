import os
import stat

import pytest

from gateway.auth.account_table import (
    AccountError,
    PolicyTable,
    UserStatus,
    UserTable,
    UserType,
    user_of_subject,
)
from gateway.auth.policies import PolicyType
from gateway.auth.resources import Action, parse_resource
from gateway.runtime.config_file import ConfigFile
from remoting.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from storage.files import DiskFiles, MemoryFiles


def open_users(files):
    return UserTable(ConfigFile(files, "users.json"))


def open_policies(files):
    return PolicyTable(ConfigFile(files, "acls.json"))


def acl(resource="Topic:orders"):
    entry = PolicyEntryInfo(resource=resource, actions=["Pub"], decision="Allow")
    return AclInfo(policies=[PolicyInfo(policy_type="Custom", entries=[entry])])


def test_users_survive_a_restart():
    files = MemoryFiles()
    users = open_users(files)
    users.create(UserInfo(username="alice", password="secret", user_type="super"))
    users.create(UserInfo(username="bob", password="other"))
    users.update(UserInfo(username="bob", user_status="DISABLE"))
    users.persist()
    again = open_users(files)
    assert again.users == users.users
    assert again.get("alice").type is UserType.SUPER
    assert again.get("bob").status is UserStatus.DISABLE
    assert again.get("bob").password == "other"
    again.delete("alice")
    again.persist()
    assert list(open_users(files).users) == ["bob"]


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (UserInfo(username=" ", password="x"), "username can not be blank"),
        (UserInfo(username="a"), "password can not be blank"),
        (UserInfo(username="known", password="x"), "The user is existed"),
    ],
)
def test_users_that_are_refused(info, text):
    users = open_users(MemoryFiles())
    users.create(UserInfo(username="known", password="x"))
    with pytest.raises(AccountError, match=text):
        users.create(info)
    with pytest.raises(AccountError, match="The user is not exist"):
        users.update(UserInfo(username="stranger"))


def test_an_entry_that_cannot_be_read_gives_nobody_rights(caplog):
    files = MemoryFiles()
    files.write_small(
        "users.json",
        b'{"users":{"a":{"username":"a","password":"p","userType":"King","userStatus":"Maybe"},"b":{"username":"b"}}}',
    )
    files.write_small("acls.json", b'{"acls":{"a":{"policies":[{"entries":[{"resource":"Nonsense"}]}]}}}')
    users = open_users(files)
    assert list(users.users) == ["a"]
    assert not users.get("a").is_super
    assert not users.get("a").is_enabled
    assert open_policies(files).policies == {}
    assert caplog.text.count("left out") == 2


def test_policies_survive_a_restart():
    files = MemoryFiles()
    policies = open_policies(files)
    policies.put_entries("alice", acl())
    policies.put_entries("alice", acl("Topic:bill*"))
    policies.persist()
    again = open_policies(files)
    for name, is_allowed in (("orders", True), ("bills", True), ("other", False)):
        decision = again.get("alice").decide(parse_resource(f"Topic:{name}"), [Action.PUB], "10.0.0.1")
        assert decision.is_allowed == is_allowed
    again.delete_entry("alice", PolicyType.CUSTOM, parse_resource("Topic:orders"))
    again.delete_entry("alice", PolicyType.CUSTOM, parse_resource("Topic:bill*"))
    assert again.policies == {}
    with pytest.raises(AccountError, match="The acl is not exist"):
        again.delete_entry("alice", PolicyType.CUSTOM, None)


def test_subjects():
    assert user_of_subject("user:alice") == "alice"
    for subject in (None, "alice", "Robot:a", "User:"):
        with pytest.raises(AccountError):
            user_of_subject(subject)


def test_only_the_owner_reads_the_files(tmp_path):
    before = os.umask(0)
    try:
        file = ConfigFile(DiskFiles(small_file_mode=0o600), str(tmp_path / "auth" / "users.json"))
        users = UserTable(file)
        for number in range(3):
            users.create(UserInfo(username=f"user{number}", password="secret"))
            users.persist()
            assert stat.S_IMODE((tmp_path / "auth").stat().st_mode) == 0o700
            for path in (tmp_path / "auth").iterdir():
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_passwords_are_not_in_reprs():
    users = open_users(MemoryFiles())
    users.create(UserInfo(username="alice", password="open sesame"))
    assert "sesame" not in repr(users.get("alice"))
