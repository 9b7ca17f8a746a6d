"""ACL 1.0: the accounts of plain_acl.yml, as users with policies.

Accounts are read from the file and again when it changes; a file that cannot be used is reported, and the accounts in
use stay. Source: PlainPermissionManager and RemoteAddressStrategyFactory, 4.9.8, and AuthMigrator, 5.4.0.
Deviations: 4.9.8 checks only sends, pulls, heartbeats, offsets and a list of admin requests; here all other requests
need a matching grant, too. To keep clients working, a grant to publish or consume includes reading information about
the topic or group, and every account may read information about the cluster.
"""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.auth.account_table import User, UserType
from gateway.auth.policies import NO_POLICIES, Policies, PolicyEntry, PolicyType, is_in_range
from gateway.auth.resources import (
    Action,
    Resource,
    ResourcePattern,
    ResourceType,
    group_resource,
    topic_resource,
)
from remoting.file_watch import FileWatch
from toolkit.settings import SettingsError

log = logging.getLogger(__name__)

RELOAD_INTERVAL_S: Final = 1.0
"""Time between two checks of the file; the official server checks every 0.5 s."""
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
MIN_SECRET_CHARS: Final = 6
"""Source: PlainPermissionManager.buildPlainAccessResource, 4.9.8: access keys and secrets are longer than this."""
_PARTS = re.compile(r"\{[^{}]*\}|[^.]+")


class PlainAclError(SettingsError):
    """A file that cannot be used; the text names the file and the account."""


@dataclass(frozen=True, slots=True)
class PlainAccount:
    """An account: permissions are DENY, PUB, SUB or PUB|SUB by name, and in general."""

    access_key: str
    secret_key: str = field(repr=False)
    white_remote_address: str = ""
    is_admin: bool = False
    default_topic_perm: str = ""
    default_group_perm: str = ""
    topic_perms: tuple[tuple[str, str], ...] = ()
    group_perms: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PlainAcl:
    """The content of one file."""

    accounts: dict[str, PlainAccount] = field(default_factory=dict)
    white_addresses: tuple[str, ...] = ()


class PlainAccounts:
    """The accounts of a file as `access_control.Accounts`. Raises PlainAclError for a file that cannot be used."""

    trusts_addresses = True

    def __init__(self, file: Path) -> None:
        self._file = file
        self._watch = FileWatch([file])
        self._set(load_plain_acl(file))

    def _set(self, acl: PlainAcl) -> None:
        self._acl = acl
        self._users = {name: user_of(account) for name, account in acl.accounts.items()}
        self._policies = {
            name: served_policies(account) for name, account in acl.accounts.items() if not account.is_admin
        }

    def user(self, name: str) -> User | None:
        """Return the account of this access key as a user."""
        return self._users.get(name)

    def policies(self, name: str) -> Policies:
        """Return the policies of an account."""
        return self._policies.get(name, NO_POLICIES)

    def is_trusted_address(self, address: str, user: str | None) -> bool:
        """Return True if the white addresses of the file, or those of the account ``user``, contain an address."""
        if user is None:
            return any(matches_address(pattern, address) for pattern in self._acl.white_addresses)
        account = self._acl.accounts.get(user)
        return account is not None and matches_address(account.white_remote_address, address)

    def reload_if_changed(self) -> None:
        """Read the file again if it has changed. A file that cannot be used is logged, and the accounts stay."""
        if not self._watch.has_changed():
            return
        try:
            self._set(load_plain_acl(self._file))
        except PlainAclError as problem:
            log.error(
                "changed plain ACL not loaded, the present accounts stay", extra={"reason": str(problem)}
            )
        else:
            log.info("plain ACL loaded again", extra={"file": str(self._file), "accounts": len(self._users)})


def load_plain_acl(file: Path) -> PlainAcl:
    """Read plain_acl.yml. Raises PlainAclError."""
    import yaml  # slow to import, and few servers need it

    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise PlainAclError(f"{file}: larger than {MAX_FILE_BYTES} bytes")
        content = yaml.safe_load(file.read_text())
    except OSError as problem:
        raise PlainAclError(f"{file}: {problem.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as problem:
        # The exception's own text quotes the file, which holds secrets.
        mark = getattr(problem, "problem_mark", None)
        position = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise PlainAclError(f"{file}{position}: not valid YAML") from None
    if not isinstance(content, dict):
        raise PlainAclError(f"{file}: expected accounts or globalWhiteRemoteAddresses")
    accounts: dict[str, PlainAccount] = {}
    for entry in _list(content.get("accounts"), f"{file}: accounts"):
        account = _parse_account(entry, f"{file}: accounts")
        accounts.setdefault(account.access_key, account)
    addresses = _list(content.get("globalWhiteRemoteAddresses"), f"{file}: globalWhiteRemoteAddresses")
    return PlainAcl(accounts, tuple(str(white_address) for white_address in addresses if white_address))


def _list(value: Any, location: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise PlainAclError(f"{location}: a list is expected")
    return value


def _parse_account(value: Any, location: str) -> PlainAccount:
    if not isinstance(value, dict):
        raise PlainAclError(f"{location}: each account is a map")
    access_key, secret_key = (str(value.get(name) or "") for name in ("accessKey", "secretKey"))
    if len(access_key) <= MIN_SECRET_CHARS or len(secret_key) <= MIN_SECRET_CHARS:
        raise PlainAclError(
            f"{location}: accessKey={access_key} and its secretKey must have more than {MIN_SECRET_CHARS} characters"
        )
    location = f"{location}: {access_key}"
    return PlainAccount(
        access_key,
        secret_key,
        str(value.get("whiteRemoteAddress") or ""),
        value.get("admin") is True,
        _checked_permission(value.get("defaultTopicPerm"), location),
        _checked_permission(value.get("defaultGroupPerm"), location),
        _parse_permissions(value.get("topicPerms"), location),
        _parse_permissions(value.get("groupPerms"), location),
    )


def _checked_permission(value: Any, location: str) -> str:
    text = "" if value is None else str(value).replace(" ", "")
    if text and text not in ("DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB"):
        raise PlainAclError(f"{location}: invalid permission {text} (expected DENY, PUB, SUB or PUB|SUB)")
    return text


def _parse_permissions(value: Any, location: str) -> tuple[tuple[str, str], ...]:
    permissions = []
    for entry in _list(value, location):
        name, separator, permission = str(entry).partition("=")
        if not separator or not name.strip():
            raise PlainAclError(f"{location}: {entry} is not NAME=PERMISSION")
        permissions.append((name.strip(), _checked_permission(permission, location)))
    return tuple(permissions)


# -- translation ----------------------------------------------------------------------------------------------------


def user_of(account: PlainAccount) -> User:
    """Return the user that stands for an account."""
    return User(
        account.access_key, account.secret_key, UserType.SUPER if account.is_admin else UserType.NORMAL
    )


def migrated_policies(account: PlainAccount) -> Policies:
    """Return the policies that the official migration gives to an account. Source: AuthMigrator.createAcl, 5.4.0."""
    custom = [_entry(topic_resource(name), permission) for name, permission in account.topic_perms]
    custom += [_entry(group_resource(name), permission) for name, permission in account.group_perms]
    general = []
    for kind, permission in (
        (ResourceType.TOPIC, account.default_topic_perm),
        (ResourceType.GROUP, account.default_group_perm),
    ):
        if permission:
            general.append(_entry(Resource(kind, "", ResourcePattern.ANY), permission))
    return Policies({PolicyType.CUSTOM: tuple(custom), PolicyType.DEFAULT: tuple(general)})


def _entry(resource: Resource, permission: str) -> PolicyEntry:
    if permission in ("", "DENY"):
        return PolicyEntry(resource, frozenset({Action.ALL}), (), is_allow=permission != "DENY")
    actions = frozenset(Action[name] for name in permission.split("|"))
    return PolicyEntry(resource, actions, (), is_allow=True)


def served_policies(account: PlainAccount) -> Policies:
    """Return the policies of an account while the file itself is in use: the migrated ones and rights to read."""
    migrated = migrated_policies(account)
    cluster = Resource(ResourceType.CLUSTER, "", ResourcePattern.ANY)
    may_look = PolicyEntry(cluster, frozenset({Action.GET, Action.LIST}), (), is_allow=True)
    custom = (*map(_with_reading, migrated.entries.get(PolicyType.CUSTOM, ())), may_look)
    general = tuple(map(_with_reading, migrated.entries.get(PolicyType.DEFAULT, ())))
    return Policies({PolicyType.CUSTOM: custom, PolicyType.DEFAULT: general})


def _with_reading(entry: PolicyEntry) -> PolicyEntry:
    if not entry.is_allow:
        return entry
    more = {Action.GET, Action.LIST} | ({Action.UPDATE} if Action.SUB in entry.actions else set())
    return PolicyEntry(entry.resource, entry.actions | more, entry.source_ips, is_allow=True)


# -- addresses ------------------------------------------------------------------------------------------------------


def matches_address(pattern: str, address: str) -> bool:
    """Return True if an address matches a pattern of the file.

    Patterns are single addresses, several with commas between them, ``*``, CIDR ranges, and IPv4 addresses whose parts
    may be ``*``, ``1-20`` or ``{1,2,3}``. Source: RemoteAddressStrategyFactory, 4.9.8, which has no CIDR ranges.
    """
    pattern = pattern.strip()
    if not pattern:
        return False
    if pattern in ("*", "*.*.*.*"):
        return True
    if "{" not in pattern and "," in pattern:
        return any(matches_address(single_pattern, address) for single_pattern in pattern.split(","))
    if is_in_range(address, pattern):
        return True
    pattern_parts, address_parts = _PARTS.findall(pattern), address.split(".")
    return len(pattern_parts) == len(address_parts) == 4 and all(
        map(_matches_part, pattern_parts, address_parts)
    )


def _matches_part(pattern: str, part: str) -> bool:
    if pattern == "*":
        return True
    if pattern.startswith("{") and pattern.endswith("}"):
        return any(_matches_part(choice.strip(), part) for choice in pattern[1:-1].split(","))
    low, dash, high = pattern.partition("-")
    if dash and low.isdecimal() and high.isdecimal() and part.isdecimal():
        return _number(low) <= _number(part) <= _number(high)
    return pattern == part


def _number(digits: str) -> tuple[int, str]:
    """Return a key by which texts of digits sort as numbers, however long they are."""
    digits = digits.lstrip("0")
    return len(digits), digits


def accounts_to_migrate(acl: PlainAcl, user_names: Iterable[str]) -> list[PlainAccount]:
    """Return the accounts whose access keys are not users yet."""
    users = set(user_names)
    return [account for name, account in acl.accounts.items() if name not in users]
