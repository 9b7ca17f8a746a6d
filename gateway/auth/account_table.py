"""Users with their policies, stored in users.json and acls.json, which only their owner can read.

Passwords are stored as they are: they are the keys of the clients' signatures.
Source: AuthenticationMetadataManagerImpl and AuthorizationMetadataManagerImpl, 5.4.0, with the official texts.
Deviation: the official server keeps the same records in RocksDB, under ``users`` and ``acls``.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Final

from codec.constants import ResponseCode
from gateway.auth.policies import (
    NO_POLICIES,
    InvalidPolicy,
    Policies,
    PolicyEntry,
    PolicyType,
    describe_policies,
    parse_policies,
)
from gateway.auth.resources import Resource, find_named
from gateway.runtime.config_file import ConfigFile, SettingsTable, replace_entry
from gateway.runtime.saved_tables import dump_table, load_table, parse_entries, parse_name
from remoting.bodies.auth import AclInfo, UserInfo
from remoting.errors import RequestError

log = logging.getLogger(__name__)

SUBJECT_PREFIX: Final = "User:"
USERS_FILE: Final = "users.json"
ACLS_FILE: Final = "acls.json"


class AccountError(RequestError):
    """A refused change of accounts, which becomes the answer to its request; the texts are the official ones."""

    def __init__(self, remark: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)


class UserType(Enum):
    """The kind of a user: a super user may do everything."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(Enum):
    """The state of a user; a disabled one cannot send requests."""

    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class User:
    """A user. The password is not shown in logs."""

    name: str
    password: str = field(repr=False)
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    @property
    def is_super(self) -> bool:
        return self.type is UserType.SUPER

    @property
    def is_enabled(self) -> bool:
        return self.status is UserStatus.ENABLE


def user_of_subject(subject: str | None) -> str:
    """Return the user name of a subject such as ``User:alice``. Raises AccountError."""
    kind, _, name = (subject or "").partition(":")
    if kind.lower() != "user" or not name:
        raise AccountError("The subject is null.")
    return name


class AccountTable(SettingsTable):
    """Base of the tables of accounts, whose changes are on the disk before they are answered."""

    def _write(self, data: bytes) -> None:
        self.file.save(data)
        self.file.is_behind = False


class UserTable(AccountTable):
    """The users by name."""

    def __init__(self, file: ConfigFile) -> None:
        super().__init__(file)
        self.users: dict[str, User] = file.load(parse_users) or {}

    def get(self, name: str) -> User | None:
        """Return the user of this name, if there is one."""
        return self.users.get(name)

    def adopt(self, content: bytes) -> None:
        """Take over all users of this broker's master, from its users.json. Raises ValueError."""
        users = parse_users(content)
        if users != self.users:
            self.users = users
            self.note_change()

    def create(self, info: UserInfo) -> None:
        """Add a user. Raises AccountError."""
        name = _checked_name(info)
        if not (info.password or "").strip():
            raise AccountError("password can not be blank")
        if name in self.users:
            raise AccountError("The user is existed")
        self.put(
            User(
                name,
                info.password or "",
                find_named(UserType, info.user_type) or UserType.NORMAL,
                find_named(UserStatus, info.user_status) or UserStatus.ENABLE,
            )
        )

    def update(self, info: UserInfo) -> None:
        """Change the fields of a user that ``info`` contains. Raises AccountError."""
        old = self.users.get(_checked_name(info))
        if old is None:
            raise AccountError("The user is not exist")
        password = info.password if (info.password or "").strip() else old.password
        self.put(
            replace(
                old,
                password=password or "",
                type=find_named(UserType, info.user_type) or old.type,
                status=find_named(UserStatus, info.user_status) or old.status,
            )
        )

    def put(self, user: User) -> None:
        """Add or replace a user."""
        self._set(user.name, user)

    def delete(self, name: str) -> None:
        """Remove a user, if there is one."""
        if name in self.users:
            self._set(name, None)

    def _set(self, name: str, user: User | None) -> None:
        before = self.users.get(name)
        replace_entry(self.users, name, user)
        self.note_change(partial(replace_entry, self.users, name, before))

    def encode_slices(self) -> Iterator[bytes]:
        """Yield the content of users.json."""
        yield dump_table(
            USERS_FILE, {"users": {user.name: _user_value(user) for user in self.users.values()}}
        )


class PolicyTable(AccountTable):
    """The policies by user name."""

    def __init__(self, file: ConfigFile) -> None:
        super().__init__(file)
        self.policies: dict[str, Policies] = file.load(_parse_acls) or {}

    def adopt(self, content: bytes) -> None:
        """Take over all policies of this broker's master, from its acls.json. Raises ValueError."""
        parsed = _parse_acls(content)
        entries = {name: policies.entries for name, policies in parsed.items()}
        if entries != {name: policies.entries for name, policies in self.policies.items()}:
            self.policies = parsed
            self.note_change()

    def get(self, user: str) -> Policies:
        """Return the policies of a user, who may have none."""
        return self.policies.get(user, NO_POLICIES)

    def put_entries(self, user: str, info: AclInfo) -> None:
        """Add entries, or replace those for the same resource. Raises AccountError."""
        try:
            changes = parse_policies(info)
        except InvalidPolicy as problem:
            raise AccountError(str(problem)) from problem
        changed = self.get(user)
        for kind, entries in changes:
            changed = changed.with_entries(kind, entries)
        self.put(user, changed)

    def put(self, user: str, policies: Policies) -> None:
        """Set the policies of a user."""
        self._set(user, policies)

    def restore(self, user: str, policies: Policies) -> None:
        """Give a user its policies back. They stay even if they cannot be written at once."""
        replace_entry(self.policies, user, policies)
        self.note_change()

    def delete(self, user: str) -> None:
        """Remove all policies of a user."""
        if user in self.policies:
            self._set(user, None)

    def _set(self, user: str, policies: Policies | None) -> None:
        before = self.policies.get(user)
        replace_entry(self.policies, user, policies)
        self.note_change(partial(replace_entry, self.policies, user, before))

    def delete_entry(self, user: str, kind: PolicyType, resource: Resource | None) -> None:
        """Remove the entry for a resource; without one, all policies of the user. Raises AccountError."""
        if user not in self.policies:
            raise AccountError("The acl is not exist.")
        remaining = NO_POLICIES if resource is None else self.policies[user].without_entry(kind, resource)
        if remaining.entries:
            self.put(user, remaining)
        else:
            self.delete(user)

    def encode_slices(self) -> Iterator[bytes]:
        """Yield the content of acls.json."""
        acls = {
            user: describe_policies(SUBJECT_PREFIX + user, policies).to_value()
            for user, policies in self.policies.items()
        }
        yield dump_table(ACLS_FILE, {"acls": acls})


def _checked_name(info: UserInfo) -> str:
    if not (info.username or "").strip():
        raise AccountError("username can not be blank")
    return info.username or ""


def _user_value(user: User) -> dict[str, str]:
    return {
        "username": user.name,
        "password": user.password,
        "userType": user.type.value,
        "userStatus": user.status.value,
    }


def parse_users(content: bytes) -> dict[str, User]:
    """Return the users in the content of users.json, by name. Raises ValueError."""
    return parse_entries(USERS_FILE, load_table(content).get("users"), _parse_user)


def _parse_user(key: object, value: object) -> tuple[str, User]:
    info = UserInfo.from_value(value)
    if not info.password:
        raise ValueError("it has no password")
    kind, status = find_named(UserType, info.user_type), find_named(UserStatus, info.user_status)
    # An unreadable status must not enable a user, nor an unreadable type raise one.
    user = User(parse_name(key), info.password, kind or UserType.NORMAL, status or UserStatus.DISABLE)
    return user.name, user


def _parse_acls(content: bytes) -> dict[str, Policies]:
    return parse_entries(ACLS_FILE, load_table(content).get("acls"), _parse_acl)


def _parse_acl(key: object, value: object) -> tuple[str, Policies]:
    entries: dict[PolicyType, tuple[PolicyEntry, ...]] = {}
    for kind, kind_entries in parse_policies(AclInfo.from_value(value)):
        entries[kind] = (*entries.get(kind, ()), *kind_entries)
    return parse_name(key), Policies(entries)
