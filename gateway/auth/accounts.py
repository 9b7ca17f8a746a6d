"""Opens the accounts that the configuration names, and builds the access control of a server from them."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import orjson
import trio

from codec.java_numbers import quoted
from gateway.auth.access_control import AccessControl, Accounts, parse_codes
from gateway.auth.account_table import (
    ACLS_FILE,
    USERS_FILE,
    AccountError,
    PolicyTable,
    User,
    UserTable,
    UserType,
    user_of_subject,
)
from gateway.auth.plain_acl import (
    PlainAccounts,
    accounts_to_migrate,
    load_plain_acl,
    migrated_policies,
    user_of,
)
from gateway.auth.policies import Policies
from gateway.auth.request_needs import NeedContext
from gateway.config.auth import AuthConfig
from gateway.runtime.config_file import ConfigFile
from remoting.acl import Credentials
from remoting.bodies.auth import AclInfo
from remoting.errors import RequestError
from remoting.file_watch import FileWatch
from toolkit.settings import SettingsError

log = logging.getLogger(__name__)

OpenTable = Callable[[str], ConfigFile]
"""Returns the file of a table by its name."""


class AuthConfigError(SettingsError):
    """Settings of access control that cannot be used; the text names the key."""


class StoredAccounts:
    """Users and policies of ACL 2.0, which requests change."""

    trusts_addresses = False

    def __init__(self, users: UserTable, policies: PolicyTable) -> None:
        self.users = users
        self.policy_table = policies
        # A user is deleted in two writes. Policies added between them would be those of the next user of that name.
        self._changing_policies = trio.Lock()

    def user(self, name: str) -> User | None:
        """Return the user of this name, if there is one."""
        return self.users.get(name)

    def policies(self, name: str) -> Policies:
        """Return the policies of a user, who may have none."""
        return self.policy_table.get(name)

    def is_trusted_address(self, address: str, user: str | None) -> bool:
        """Return False: ACL 2.0 has no addresses that need no signature."""
        return False

    async def save(self) -> None:
        """Write what could not be written before. A failure is logged."""
        for table in (self.users, self.policy_table):
            await table.save_changes()

    async def delete_user(self, name: str) -> None:
        """Delete a user with its policies, durably. Raises RequestError if that cannot be written."""
        async with self._changing_policies:
            policies = self.policy_table.policies.get(name)
            # The policies first: a user without policies may do nothing, while policies without their user would be
            # those of the next user of that name.
            async with self.policy_table.stored_change():
                self.policy_table.delete(name)
            try:
                async with self.users.stored_change():
                    self.users.delete(name)
            except RequestError:
                if policies is not None:
                    # In effect even while the disk refuses this file as well; a later save writes it.
                    self.policy_table.restore(name, policies)
                    await self.policy_table.save_changes()
                raise

    async def put_entries(self, subject: str, info: AclInfo) -> None:
        """Add entries to a user's policies, or replace those for the same resource, durably.

        Raises RequestError, for instance if there is no such user.
        """
        user = user_of_subject(subject)
        async with self._changing_policies:
            if self.users.get(user) is None:
                raise AccountError(f"The subject of {quoted(subject)} is not exist.")
            async with self.policy_table.stored_change():
                self.policy_table.put_entries(user, info)

    def persist(self) -> None:
        """Write changes and wait for the disk; blocks."""
        self.users.persist()
        self.policy_table.persist()


class FollowedAccounts:
    """Users and policies of files that another process or an administrator changes; read again after a change."""

    trusts_addresses = False

    def __init__(self, load: Callable[[], StoredAccounts], files: Iterable[str]) -> None:
        self._load = load
        self._watch = FileWatch(files)
        self._accounts = load()

    def user(self, name: str) -> User | None:
        """Return the user of this name, if there is one."""
        return self._accounts.user(name)

    def policies(self, name: str) -> Policies:
        """Return the policies of a user, who may have none."""
        return self._accounts.policies(name)

    def is_trusted_address(self, address: str, user: str | None) -> bool:
        """Return False, as `StoredAccounts` does."""
        return False

    def reload_if_changed(self) -> None:
        """Read the files again if one has changed. Files that cannot be read are logged, and the accounts stay."""
        if not self._watch.has_changed():
            return
        try:
            self._accounts = self._load()
        except (OSError, ValueError) as problem:
            log.error("changed users not loaded, the present ones stay", extra={"reason": str(problem)})
        else:
            log.info("users loaded again", extra={"users": len(self._accounts.users.users)})


def check_config(config: AuthConfig) -> None:
    """Raise AuthConfigError for settings that contradict each other, or that would lock out all users."""
    if config.authorization_enabled and not config.authentication_enabled:
        raise AuthConfigError(
            "authorizationEnabled=true needs authenticationEnabled=true: policies are about users, who sign requests"
        )
    if config.acl_enable and config.authentication_enabled:
        raise AuthConfigError(
            "aclEnable (ACL 1.0) and authenticationEnabled (ACL 2.0) are both set. Choose one; "
            "migrateAuthFromV1Enabled=true turns the accounts of plainAclFile into users of ACL 2.0"
        )
    if (config.acl_enable or config.migrate_from_v1) and not config.plain_acl_file:
        raise AuthConfigError("plainAclFile is not set: name the plain_acl.yml with the accounts")


def open_accounts(config: AuthConfig, open_table: OpenTable) -> Accounts | None:
    """Return the accounts of this process, which it may change; None if access control is off.

    Raises AuthConfigError, PlainAclError, ValueError.
    """
    check_config(config)
    if config.acl_enable:
        return PlainAccounts(Path(config.plain_acl_file))
    if not config.authentication_enabled:
        return None
    accounts = _load_accounts(config, open_table)
    accounts.persist()
    return accounts


def follow_accounts(config: AuthConfig, open_table: OpenTable) -> Accounts | None:
    """Return accounts that another process owns, following its changes; None if access control is off.

    Raises what `open_accounts` raises.
    """
    check_config(config)
    if config.acl_enable or not config.authentication_enabled:
        return open_accounts(config, open_table)
    files = [open_table(name).path for name in (USERS_FILE, ACLS_FILE)]
    return FollowedAccounts(lambda: _load_accounts(config, open_table), files)


def _load_accounts(config: AuthConfig, open_table: OpenTable) -> StoredAccounts:
    accounts = StoredAccounts(UserTable(open_table(USERS_FILE)), PolicyTable(open_table(ACLS_FILE)))
    _add_first_users(config, accounts)
    if config.migrate_from_v1:
        _migrate(config, accounts)
    if not accounts.users.users:
        raise AuthConfigError(
            'authenticationEnabled=true without any user. Set initAuthenticationUser={"username":"…","password":"…"}'
        )
    return accounts


def _add_first_users(config: AuthConfig, accounts: StoredAccounts) -> None:
    first = _read_pair(config.init_user, "initAuthenticationUser", "username", "password")
    inner = inner_credentials(config)
    pairs = [first, (inner.access_key, inner.secret_key) if inner is not None else None]
    for pair in filter(None, pairs):
        if accounts.users.get(pair[0]) is None:
            accounts.users.put(User(*pair, UserType.SUPER))


def inner_credentials(config: AuthConfig) -> Credentials | None:
    """Return the credentials of the broker's own requests; None if these are not signed. Raises AuthConfigError."""
    key = "innerClientAuthenticationCredentials"
    pair = _read_pair(config.inner_credentials, key, "accessKey", "secretKey")
    return None if pair is None else Credentials(*pair)


def _read_pair(text: str, key: str, name_field: str, secret_field: str) -> tuple[str, str] | None:
    if not text.strip():
        return None
    try:
        value = orjson.loads(text)
        pair = value[name_field], value[secret_field]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        pair = ("", "")
    if not all(isinstance(part, str) and part.strip() for part in pair):
        # The text holds a secret, so it is not shown.
        raise AuthConfigError(f'{key} is not {{"{name_field}":"…","{secret_field}":"…"}}')
    return pair


def _migrate(config: AuthConfig, accounts: StoredAccounts) -> None:
    """Turn accounts of ACL 1.0 into users, as the official server does at its start. Source: AuthMigrator, 5.4.0."""
    acl = load_plain_acl(Path(config.plain_acl_file))
    for account in accounts_to_migrate(acl, accounts.users.users):
        accounts.users.put(user_of(account))
        policies = migrated_policies(account)
        if policies.entries:
            accounts.policy_table.put(account.access_key, policies)
        log.info("account of ACL 1.0 migrated", extra={"user": account.access_key})


def build_access_control(config: AuthConfig, accounts: Accounts, context: NeedContext) -> AccessControl:
    """Return the access control of one server. Raises ValueError for an invalid white list."""
    return AccessControl(
        accounts,
        context,
        authorizes=config.authorization_enabled or config.acl_enable,
        unauthenticated_codes=parse_codes(config.authentication_whitelist, "authenticationWhitelist"),
        unauthorized_codes=parse_codes(config.authorization_whitelist, "authorizationWhitelist"),
    )
