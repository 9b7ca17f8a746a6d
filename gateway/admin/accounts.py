"""Users and access rules (ACL 2.0) of a cluster: listing, describing, creating, changing, deleting.

Each broker has users and rules of its own. The functions ask all brokers that the caller names, and a row says which
brokers have what it shows. A user has at most one rule for a resource in each of the two policies, Custom and Default.

Brokers of one process may share their files of users (authConfigPath). A change at one of them has then happened at the
others already, so brokers are changed one after the other, and what the broker before has done is not asked for again.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, TypeVar

from codec.fastjson import MAX_TRUSTED_VALUES
from gateway.admin.errors import AdminError, NotFound
from remoting.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from remoting.declare import Header, Request
from remoting.errors import RequestError
from remoting.json_body import JsonBody, read_json_list
from remoting.requests.auth import (
    AuthCreateAcl,
    AuthCreateUser,
    AuthDeleteAcl,
    AuthDeleteUser,
    AuthListAcl,
    AuthListUser,
    AuthUpdateAcl,
    AuthUpdateUser,
)
from toolkit.suggestions import suggest_name

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

Body = TypeVar("Body", bound=JsonBody)
RuleKey = tuple[str, str]
"""The policy and the resource of a rule."""
Rules = dict[RuleKey, PolicyEntryInfo]

SUBJECT_PREFIX: Final = "User:"


def _read_list(client: "AdminClient", broker: str, request: Request[Header], kind: type[Body]) -> list[Body]:
    """Return the objects in the body of an answer; the body is empty if there are none. Raises AdminError."""
    body = client.ask_broker(broker, request).body
    try:
        return read_json_list(kind, body, MAX_TRUSTED_VALUES) if body else []
    except RequestError as error:
        raise AdminError(
            f"broker {broker}: its answer to {request.NAME} cannot be read: {error.remark}"
        ) from error


# -- users --------------------------------------------------------------------------------------------------------


def read_users(client: "AdminClient", brokers: Sequence[str]) -> dict[str, dict[str, UserInfo]]:
    """Return the users of each broker by name."""

    def read(broker: str) -> dict[str, UserInfo]:
        return {user.username or "": user for user in _read_list(client, broker, AuthListUser(), UserInfo)}

    return dict(zip(brokers, client.map_brokers(brokers, read), strict=True))


def list_users(client: "AdminClient", brokers: Sequence[str], pattern: str = "*") -> list[dict[str, Any]]:
    """Return a row for each user whose name matches; several, if the brokers' users of that name differ."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for broker, users in read_users(client, brokers).items():
        for name, user in users.items():
            if fnmatchcase(name, pattern):
                fields = {"user": name, "type": user.user_type or "", "status": user.user_status or ""}
                rows.setdefault(tuple(fields.values()), {**fields, "brokers": []})["brokers"].append(broker)
    return [rows[key] for key in sorted(rows)]


def describe_user(client: "AdminClient", brokers: Sequence[str], name: str) -> dict[str, Any]:
    """Return type and status of a user at each broker that has it, and its rules. Raises NotFound."""
    present = brokers_with_user(client, brokers, name)
    return {
        "user": name,
        "brokers": [
            {"broker": broker, "type": user.user_type, "status": user.user_status}
            for broker, user in present.items()
        ],
        "rules": [row for row in list_rules(client, list(present)) if row["user"] == name],
    }


def brokers_with_user(client: "AdminClient", brokers: Sequence[str], name: str) -> dict[str, UserInfo]:
    """Return a user by broker, for the brokers that have it. Raises NotFound, with a suggestion."""
    users = read_users(client, brokers)
    present = {broker: by_name[name] for broker, by_name in users.items() if name in by_name}
    if not present:
        names = {user for by_name in users.values() for user in by_name}
        raise NotFound(f'user "{name}" does not exist on {", ".join(brokers)}{suggest_name(name, names)}')
    return present


def create_user(client: "AdminClient", brokers: Sequence[str], name: str, user: UserInfo) -> None:
    """Create a user on some brokers. Raises AdminError if one of them has it."""
    owners = [broker for broker, users in read_users(client, brokers).items() if name in users]
    if owners:
        raise AdminError(
            f'user "{name}" exists on {", ".join(owners)}; change it with "rmq-gateway user alter", or choose '
            "other brokers with --broker."
        )
    for number, broker in enumerate(brokers):
        if number == 0 or name not in read_users(client, [broker])[broker]:
            client.ask_broker(broker, AuthCreateUser(username=name, data=user))


def alter_user(client: "AdminClient", brokers: Sequence[str], name: str, changes: UserInfo) -> list[str]:
    """Change the fields of a user that ``changes`` has; return the brokers that have the user. Raises NotFound."""
    present = list(brokers_with_user(client, brokers, name))
    request = AuthUpdateUser(username=name, data=changes)
    client.map_brokers(present, lambda broker: client.ask_broker(broker, request))
    return present


def delete_user(client: "AdminClient", brokers: Sequence[str], name: str) -> None:
    """Delete a user; each broker deletes its rules as well."""
    client.map_brokers(brokers, lambda broker: client.ask_broker(broker, AuthDeleteUser(username=name)))


# -- rules --------------------------------------------------------------------------------------------------------


def read_rules(client: "AdminClient", brokers: Sequence[str]) -> dict[str, dict[str, Rules]]:
    """Return the rules of each broker by user."""

    def read(broker: str) -> dict[str, Rules]:
        return {
            (acl.subject or "").removeprefix(SUBJECT_PREFIX): {
                (policy.policy_type or "", entry.resource or ""): entry
                for policy in acl.policies
                for entry in policy.entries
            }
            for acl in _read_list(client, broker, AuthListAcl(), AclInfo)
        }

    return dict(zip(brokers, client.map_brokers(brokers, read), strict=True))


def list_rules(
    client: "AdminClient", brokers: Sequence[str], pattern: str = "*", resource_part: str = ""
) -> list[dict[str, Any]]:
    """Return a row for each rule of users whose name matches; several, if the brokers' rules differ.

    Only rules whose resource contains ``resource_part`` are listed.
    """
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for broker, rules_of_user in read_rules(client, brokers).items():
        for user, rules in rules_of_user.items():
            if not fnmatchcase(user, pattern):
                continue
            for (policy, resource), entry in rules.items():
                if resource_part in resource:
                    fields = {
                        "user": user,
                        "resource": resource,
                        "decision": entry.decision,
                        "actions": list(entry.actions or ()),
                        "sources": list(entry.source_ips or ()),
                        "policy": policy,
                    }
                    key = tuple(map(str, fields.values()))
                    rows.setdefault(key, {**fields, "brokers": []})["brokers"].append(broker)
    return [rows[key] for key in sorted(rows)]


def create_rules(
    client: "AdminClient", brokers: Sequence[str], user: str, policy: str, entries: Sequence[PolicyEntryInfo]
) -> list[str]:
    """Give a user rules; return the brokers that have the user. Raises NotFound, and AdminError if a rule exists."""
    present = list(brokers_with_user(client, brokers, user))
    for broker, rules_of_user in read_rules(client, present).items():
        for entry in entries:
            if (policy, entry.resource) in rules_of_user.get(user, {}):
                raise AdminError(
                    f'{user} has a rule for "{entry.resource}" on {broker}; change it with "rmq-gateway acl alter".'
                )
    _put_rules(client, present, AuthCreateAcl, user, policy, entries)
    return present


def replace_rules(
    client: "AdminClient", brokers: Sequence[str], user: str, policy: str, entries: Sequence[PolicyEntryInfo]
) -> list[str]:
    """Replace the rules of a user for the entries' resources; return the changed brokers.

    Raises NotFound if there is no such user, or no rule for one of the resources.
    """
    owners = _brokers_with_rules(client, brokers, user, policy, [entry.resource or "" for entry in entries])
    for broker, resources in owners.items():
        changed = [entry for entry in entries if entry.resource in resources]
        _put_rules(client, [broker], AuthUpdateAcl, user, policy, changed)
    return list(owners)


def _put_rules(
    client: "AdminClient",
    brokers: Sequence[str],
    kind: type[AuthCreateAcl] | type[AuthUpdateAcl],
    user: str,
    policy: str,
    entries: Sequence[PolicyEntryInfo],
) -> None:
    policies = [PolicyInfo(policy_type=policy, entries=list(entries))]
    acl = AclInfo(subject=SUBJECT_PREFIX + user, policies=policies)
    request = kind(subject=acl.subject, data=acl)
    client.map_brokers(brokers, lambda broker: client.ask_broker(broker, request))


def _brokers_with_rules(
    client: "AdminClient", brokers: Sequence[str], user: str, policy: str, resources: Iterable[str]
) -> dict[str, list[str]]:
    """Return for each broker for which of the resources the user has a rule there, brokers without one left out.

    Raises NotFound if there is no such user, or no rule for one of the resources.
    """
    present = list(brokers_with_user(client, brokers, user))
    rules = {broker: by_user.get(user, {}) for broker, by_user in read_rules(client, present).items()}
    owners: dict[str, list[str]] = {}
    for resource in resources:
        having = [broker for broker in present if (policy, resource) in rules[broker]]
        if not having:
            names = {name for of_user in rules.values() for kind, name in of_user if kind == policy}
            raise NotFound(f'{user} has no {policy} rule for "{resource}"{suggest_name(resource, names)}')
        for broker in having:
            owners.setdefault(broker, []).append(resource)
    return owners


def delete_rules(
    client: "AdminClient", brokers: Sequence[str], user: str, policy: str, resources: Iterable[str]
) -> list[str]:
    """Delete the rules of a user for some resources; return the changed brokers. Raises NotFound as `replace_rules`."""
    owners = _brokers_with_rules(client, brokers, user, policy, resources)
    subject = SUBJECT_PREFIX + user
    for broker, owned in owners.items():
        present = read_rules(client, [broker])[broker].get(user, {})
        for resource in owned:
            if (policy, resource) in present:
                request = AuthDeleteAcl(subject=subject, policy_type=policy, resource=resource)
                client.ask_broker(broker, request)
    return list(owners)


def delete_all_rules(client: "AdminClient", brokers: Sequence[str], user: str) -> list[str]:
    """Delete all rules of a user, of both policies; return the changed brokers. Raises NotFound without any."""
    present = list(brokers_with_user(client, brokers, user))
    owners = [broker for broker, by_user in read_rules(client, present).items() if by_user.get(user)]
    if not owners:
        raise NotFound(f"{user} has no rules")
    for broker in owners:
        if read_rules(client, [broker])[broker].get(user):
            client.ask_broker(broker, AuthDeleteAcl(subject=SUBJECT_PREFIX + user))
    return owners
