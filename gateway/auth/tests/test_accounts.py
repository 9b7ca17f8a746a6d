import json

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.auth.account_table import ACLS_FILE, USERS_FILE, PolicyTable, User, UserTable
from gateway.auth.accounts import AuthConfigError, StoredAccounts, open_accounts
from gateway.auth.plain_acl import PlainAccounts
from gateway.auth.resources import Action, parse_resource
from gateway.config.auth import AuthConfig
from gateway.config.process import BrokerConfig, ProcessConfig, ServeConfig
from gateway.config.sources import load_config
from gateway.process.access import ProcessAccess
from gateway.runtime.config_file import ConfigFile
from remoting.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo
from remoting.errors import RequestError
from storage.errors import StoreFull
from storage.files import MemoryFiles

ROOT = json.dumps({"username": "root", "password": "open sesame"})
INNER = json.dumps({"accessKey": "inner", "secretKey": "inner secret"})


def opened(files=None, **settings):
    files = files or MemoryFiles()
    return open_accounts(AuthConfig(**settings), lambda name: ConfigFile(files, name))


def test_access_control_is_off_by_default():
    assert opened() is None


def test_first_users_are_super_users_and_stay_as_they_are_changed():
    files = MemoryFiles()
    accounts = opened(files, authentication_enabled=True, init_user=ROOT, inner_credentials=INNER)
    assert isinstance(accounts, StoredAccounts)
    assert accounts.user("root").is_super
    assert accounts.user("inner").password == "inner secret"
    other = json.dumps({"username": "root", "password": "changed in the file only"})
    again = opened(files, authentication_enabled=True, init_user=other)
    assert again.user("root").password == "open sesame"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"authorization_enabled": True}, "authorizationEnabled=true needs authenticationEnabled=true"),
        ({"authentication_enabled": True}, "without any user. Set initAuthenticationUser"),
        ({"authentication_enabled": True, "init_user": "root:secret"}, "initAuthenticationUser is not"),
        (
            {"authentication_enabled": True, "init_user": '{"username":"root"}'},
            "initAuthenticationUser is not",
        ),
        ({"authentication_enabled": True, "acl_enable": True}, "Choose one"),
        ({"acl_enable": True}, "plainAclFile is not set"),
    ],
)
def test_settings_that_contradict_each_other(settings, reason):
    with pytest.raises(AuthConfigError, match=reason) as refused:
        opened(**settings)
    assert "secret" not in str(refused.value)


@pytest.fixture
def plain_file(tmp_path):
    path = tmp_path / "plain_acl.yml"
    path.write_text(
        "accounts:\n"
        "  - {accessKey: consumer, secretKey: 12345678, groupPerms: [bill=SUB], topicPerms: [orders=SUB]}\n"
        "  - {accessKey: operator, secretKey: 12345678, admin: true}\n"
    )
    return str(path)


def test_accounts_of_acl_1(plain_file):
    accounts = opened(acl_enable=True, plain_acl_file=plain_file)
    assert isinstance(accounts, PlainAccounts)
    assert accounts.user("operator").is_super


def test_accounts_of_acl_1_are_migrated_once(plain_file):
    files, settings = MemoryFiles(), {"authentication_enabled": True, "migrate_from_v1": True}
    accounts = opened(files, plain_acl_file=plain_file, **settings)
    assert accounts.user("operator").is_super
    orders = parse_resource("Topic:orders")
    assert accounts.policies("consumer").decide(orders, [Action.SUB], "1.2.3.4").is_allowed
    accounts.policy_table.delete("consumer")
    accounts.persist()
    again = opened(files, plain_acl_file=plain_file, **settings)
    assert not again.policies("consumer").entries


def test_brokers_of_one_directory_share_their_accounts(tmp_path):
    auth = AuthConfig(authentication_enabled=True, init_user=ROOT, config_path=str(tmp_path / "auth"))
    config = ServeConfig(auth=auth, brokers=(BrokerConfig(), BrokerConfig(broker_name="broker-b")))
    access = ProcessAccess(config, run_blocking=None)
    first, second = map(access.accounts_of_broker, config.brokers)
    assert first is second is access.accounts_of_namesrv()
    assert (tmp_path / "auth" / "users.json").exists()


def test_the_keys_are_read_from_official_files(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text(
        f"authenticationEnabled=true\ninitAuthenticationUser={ROOT}\nauthorizationWhitelist=10,310\n"
    )
    file.chmod(0o600)
    config = load_config("serve", [str(file)])
    assert config.auth.authentication_enabled
    assert json.loads(config.auth.init_user)["username"] == "root"
    assert "sesame" not in repr(config)
    assert config.notices == ()


def test_users_in_memory_need_one_process():
    auth = AuthConfig(authentication_enabled=True, init_user=ROOT)
    config = ServeConfig(auth=auth, process=ProcessConfig(memory=True, processes=True))
    with pytest.raises(AuthConfigError, match="cannot be combined with --memory and --processes"):
        ProcessAccess(config, run_blocking=None)


class FullFiles(MemoryFiles):
    """Files of which those with a name in ``full`` cannot be written."""

    full: tuple[str, ...] = ()

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        if path in self.full:
            raise StoreFull(f"no room for {path}", "no room on disk")
        super().write_small(path, data, backup)


async def run_now(work, *arguments):
    return work(*arguments)


def open_accounts_on(files, run_blocking=run_now):
    return StoredAccounts(
        UserTable(ConfigFile(files, USERS_FILE, run_blocking)),
        PolicyTable(ConfigFile(files, ACLS_FILE, run_blocking)),
    )


def policies_on(topic):
    entry = PolicyEntryInfo(resource=f"Topic:{topic}", actions=["Pub"], decision="Allow")
    return AclInfo(policies=[PolicyInfo(policy_type="Custom", entries=[entry])])


def accounts_of_alice(files, run_blocking=run_now):
    accounts = open_accounts_on(files, run_blocking)
    accounts.users.put(User("alice", "secret"))
    accounts.policy_table.put_entries("alice", policies_on("t"))
    accounts.persist()
    return accounts


def test_policies_come_back_even_if_the_disk_then_refuses_their_file_too():
    files = FullFiles()

    async def fill_after_the_policies(work, *arguments):
        work(*arguments)
        files.full = (USERS_FILE, ACLS_FILE)

    accounts = accounts_of_alice(files, fill_after_the_policies)
    with pytest.raises(RequestError, match="the change was not stored and is undone"):
        trio.run(accounts.delete_user, "alice")
    assert "alice" in accounts.users.users
    assert "alice" in accounts.policy_table.policies
    files.full = ()
    accounts.persist()
    assert "alice" in open_accounts_on(files).policy_table.policies


def test_no_policy_is_added_to_a_user_who_is_being_deleted():
    async def main():
        accounts = accounts_of_alice(MemoryFiles(), run_later)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accounts.delete_user, "alice")
            await wait_all_tasks_blocked()
            assert "alice" in accounts.users.users
            with pytest.raises(RequestError, match="is not exist"):
                await accounts.put_entries("User:alice", policies_on("other"))
        assert not accounts.policy_table.policies

    async def run_later(work, *arguments):
        await trio.sleep(1)
        work(*arguments)

    trio.run(main, clock=MockClock(autojump_threshold=0.01))


@pytest.mark.parametrize("full", [(USERS_FILE,), (ACLS_FILE,), (USERS_FILE, ACLS_FILE)])
def test_a_user_whose_deletion_cannot_be_stored_stays(full):
    files = FullFiles()
    accounts = accounts_of_alice(files)
    files.full = full
    with pytest.raises(RequestError, match="the change was not stored and is undone"):
        trio.run(accounts.delete_user, "alice")
    for present in (accounts, open_accounts_on(files)):
        assert "alice" in present.users.users
        assert "alice" in present.policy_table.policies
    files.full = ()
    trio.run(accounts.delete_user, "alice")
    for present in (accounts, open_accounts_on(files)):
        assert not present.users.users
        assert not present.policy_table.policies
