"""Requests about users and policies (codes 3001 to 3010), as the admin tool sends them: what they do, and refusals.

What passwords look like in answers, and who may change whom, is in `test_access_control.py`.
"""

from typing import Any

import pytest

from acceptance.secured import Server, denial, dial
from remoting.blocking import BlockingClient
from remoting.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from remoting.errors import RequestError
from remoting.json_body import read_json_list
from remoting.requests.auth import (
    AuthCreateAcl,
    AuthCreateUser,
    AuthDeleteAcl,
    AuthDeleteUser,
    AuthGetAcl,
    AuthGetUser,
    AuthListAcl,
    AuthListUser,
    AuthUpdateAcl,
    AuthUpdateUser,
)

pytestmark = pytest.mark.both_servers

NAME, SUBJECT = "request-user", "User:request-user"
BLANK = 29


def acl(*entries: PolicyEntryInfo, subject: str | None = SUBJECT) -> AclInfo:
    return AclInfo(subject=subject, policies=[PolicyInfo(policy_type="Custom", entries=list(entries))])


def entry(
    resource: str = "Topic:t", actions: str = "Pub", decision: str | None = "Allow", *source_ips: str
) -> PolicyEntryInfo:
    return PolicyEntryInfo(
        resource=resource, actions=actions.split(","), source_ips=list(source_ips), decision=decision
    )


def user(root: BlockingClient) -> tuple[str | None, ...] | None:
    """Return name, type and status of the user; None if there is none."""
    found = root.ask(AuthGetUser(username=NAME)).data
    return None if found is None else (found.username, found.user_type, found.user_status)


def policies(found: AclInfo | None) -> dict[str | None, tuple[Any, ...]]:
    """Return actions, source addresses and decision by resource."""
    return {
        each.resource: (each.actions, each.source_ips or [], each.decision)
        for policy in (found.policies if found else [])
        for each in policy.entries
    }


def test_users(either: Server) -> None:
    with dial(either.broker) as root:
        assert user(root) is None
        root.ask(AuthCreateUser(username=NAME, data=UserInfo(password="p", user_type="King")))
        assert user(root) == (NAME, "Normal", "enable")
        root.ask(AuthUpdateUser(username=NAME, data=UserInfo(user_status="disable")))
        root.ask(AuthUpdateUser(username=NAME, data=UserInfo(user_status="asleep")))
        assert user(root) == (NAME, "Normal", "disable")
        listed = read_json_list(UserInfo, root.ask(AuthListUser(filter="request-")).body)
        assert [each.username for each in listed] == [NAME]
        assert len(read_json_list(UserInfo, root.ask(AuthListUser()).body)) > 1
        assert root.ask(AuthListUser(filter="nobody at all")).body == b""
        root.ask(AuthDeleteUser(username=NAME))
        root.ask(AuthDeleteUser(username=NAME))
        assert user(root) is None


@pytest.mark.parametrize(
    ("refused", "remark"),
    [
        (AuthCreateUser(username=" ", data=UserInfo(password="p")), "username can not be blank"),
        (AuthCreateUser(username="new", data=UserInfo()), "password can not be blank"),
        (AuthUpdateUser(username="nobody", data=UserInfo(password="p")), "The user is not exist"),
        (AuthDeleteUser(), "username can not be blank"),
        (AuthDeleteUser(username=" "), "username can not be blank"),
    ],
)
def test_refused_changes_of_users(either: Server, refused: Any, remark: str) -> None:
    with dial(either.broker) as root:
        assert denial(root, refused) == remark


@pytest.mark.parametrize(
    "refused",
    [
        AuthCreateUser(data=UserInfo(username="new", password="p")),
        AuthUpdateUser(data=UserInfo(username="new", password="p")),
        AuthGetUser(),
        AuthGetUser(username=" "),
    ],
)
def test_requests_that_name_no_user(either: Server, refused: Any) -> None:
    with dial(either.broker) as root, pytest.raises(RequestError, match="The username is blank") as found:
        root.ask(refused)
    assert found.value.code == BLANK


def test_policies(either: Server) -> None:
    with dial(either.broker) as root:
        root.ask(AuthCreateUser(username=NAME, data=UserInfo(password="p")))
        assert root.ask(AuthGetAcl(subject=SUBJECT)).data is None
        entries = [entry("Topic:t"), entry("Group:g*", "Sub", "Deny", "10.0.0.1")]
        root.ask(AuthCreateAcl(subject=SUBJECT, data=acl(*entries)))
        near = (["Sub"], ["10.0.0.1"], "Deny")
        expected = {"Topic:t": (["Pub"], [], "Allow"), "Group:g*": near}
        assert policies(root.ask(AuthGetAcl(subject=SUBJECT)).data) == expected
        root.ask(AuthUpdateAcl(subject=SUBJECT, data=acl(entry("Topic:t", "Pub,Sub", "Deny"))))
        expected = {"Topic:t": (["Pub", "Sub"], [], "Deny"), "Group:g*": near}
        assert policies(root.ask(AuthGetAcl(subject=SUBJECT)).data) == expected
        (listed,) = read_json_list(AclInfo, root.ask(AuthListAcl(subject_filter="request-")).body)
        assert policies(listed) == expected
        wanted = AuthListAcl(subject_filter="request-", resource_filter="g*")
        (listed,) = read_json_list(AclInfo, root.ask(wanted).body)
        assert policies(listed) == {"Group:g*": near}
        assert root.ask(AuthListAcl(subject_filter="nobody at all")).body == b""
        root.ask(AuthDeleteAcl(subject=SUBJECT, resource="Topic:t"))
        root.ask(AuthDeleteAcl(subject=SUBJECT, resource="Topic:never"))
        assert policies(root.ask(AuthGetAcl(subject=SUBJECT)).data) == {"Group:g*": near}
        root.ask(AuthDeleteAcl(subject=SUBJECT))
        assert root.ask(AuthGetAcl(subject=SUBJECT)).data is None
        root.ask(AuthDeleteUser(username=NAME))


@pytest.mark.parametrize("kind", [AuthCreateAcl, AuthUpdateAcl])
@pytest.mark.parametrize(
    ("wrong", "remark"),
    [
        (acl(entry("Planet:t")), "The resource is null."),
        (acl(entry(actions="Eat")), "The actions is empty."),
        (acl(entry(decision="Maybe")), "The decision is null or illegal."),
        (acl(entry(decision=None)), "The decision is null or illegal."),
        (acl(entry("Topic:t", "Pub", "Allow", "300.1.1.1")), "The source ip is invalid."),
        (acl(), "The policies is empty."),
    ],
)
def test_refused_policies(either: Server, kind: type, wrong: AclInfo, remark: str) -> None:
    with dial(either.broker) as root:
        root.ask(AuthCreateUser(username=NAME, data=UserInfo(password="p")))
        assert denial(root, kind(subject=SUBJECT, data=wrong)) == remark
        root.ask(AuthDeleteUser(username=NAME))


@pytest.mark.parametrize("kind", [AuthCreateAcl, AuthUpdateAcl])
def test_policies_of_an_unknown_user(either: Server, kind: type) -> None:
    with dial(either.broker) as root:
        request = kind(subject="User:nobody", data=acl(entry(), subject="User:nobody"))
        assert denial(root, request) == "The subject of User:nobody is not exist."


@pytest.mark.parametrize("kind", [AuthGetAcl, AuthDeleteAcl])
def test_requests_about_policies_of_nobody(either: Server, kind: type) -> None:
    with dial(either.broker) as root:
        assert denial(root, kind(subject="User:nobody")) == "The subject is not exist."
        assert denial(root, kind(subject="nobody")) == "The subject is null."
        assert denial(root, kind()) == "The subject is null."


def test_a_policy_without_entries_beside_another_is_left_out(either: Server) -> None:
    with dial(either.broker) as root:
        root.ask(AuthCreateUser(username=NAME, data=UserInfo(password="p")))
        given = acl(entry())
        given.policies.append(PolicyInfo(policy_type="Default"))
        root.ask(AuthCreateAcl(subject=SUBJECT, data=given))
        assert policies(root.ask(AuthGetAcl(subject=SUBJECT)).data) == {"Topic:t": (["Pub"], [], "Allow")}
        root.ask(AuthDeleteUser(username=NAME))
