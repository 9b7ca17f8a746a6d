"""Requests about users and access policies (ACL 2.0).

Source: the user and ACL methods of AdminBrokerProcessor, 5.4.0, with the official texts. Deviations: passwords are not
shown, and a change is on the disk before it is answered, or it is undone and refused.
"""

from typing import Final

import orjson

from codec.constants import ResponseCode
from codec.java_numbers import quoted
from gateway.auth.account_table import SUBJECT_PREFIX, AccountError, User, user_of_subject
from gateway.auth.accounts import StoredAccounts
from gateway.auth.policies import describe_policies, parse_policy_type
from gateway.auth.resources import parse_resource
from gateway.broker.broker import Broker
from remoting.acl import ACCESS_KEY
from remoting.bodies.auth import UserInfo
from remoting.declare import Header
from remoting.errors import RequestError
from remoting.handler_table import Call, HandlerTable
from remoting.requests.auth import (
    AuthCreateAcl,
    AuthCreateUser,
    AuthDeleteAcl,
    AuthDeleteUser,
    AuthGetAcl,
    AuthGetAclReply,
    AuthGetUser,
    AuthGetUserReply,
    AuthListAcl,
    AuthListUser,
    AuthUpdateAcl,
    AuthUpdateUser,
)

handlers: HandlerTable[Broker] = HandlerTable()

MASKED_PASSWORD: Final = "******"
"""Stands for a password in answers. It is refused as a password, because `copyUser` of the admin tool would send it."""


def _accounts(broker: Broker) -> StoredAccounts:
    if not isinstance(broker.accounts, StoredAccounts):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            "this broker has no users: set authenticationEnabled=true and initAuthenticationUser, and restart it",
        )
    return broker.accounts


def _sender(accounts: StoredAccounts, call: Call) -> User | None:
    return accounts.users.get(call.command.ext.get(ACCESS_KEY, ""))


def _checked_user(data: UserInfo, username: str | None) -> UserInfo:
    if not username:
        raise RequestError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    if data.password == MASKED_PASSWORD:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"{MASKED_PASSWORD} stands for a password that is not shown. Give the password of {quoted(username)}",
        )
    data.username = username
    return data


def _is_super(info: UserInfo) -> bool:
    return (info.user_type or "").lower() == "super"


@AuthCreateUser.on(handlers)
async def create_user(broker: Broker, request: AuthCreateUser, call: Call) -> None:
    accounts, info = _accounts(broker), _checked_user(request.data, request.username)
    sender = _sender(accounts, call)
    if _is_super(info) and not (sender is not None and sender.is_super):
        remark = "The super user can only be create by super user"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    async with accounts.users.stored_change():
        accounts.users.create(info)


@AuthUpdateUser.on(handlers)
async def update_user(broker: Broker, request: AuthUpdateUser, call: Call) -> None:
    accounts, info = _accounts(broker), _checked_user(request.data, request.username)
    sender, old = _sender(accounts, call), accounts.users.get(info.username or "")
    is_by_super = sender is not None and sender.is_super
    if _is_super(info) and not is_by_super:
        remark = "The super user can only be update by super user"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    if old is not None and old.is_super and not is_by_super:
        raise AccountError("The super user can only be update by super user")
    async with accounts.users.stored_change():
        accounts.users.update(info)


@AuthDeleteUser.on(handlers)
async def delete_user(broker: Broker, request: AuthDeleteUser, call: Call) -> None:
    """Delete a user with its policies, if it exists."""
    accounts, name = _accounts(broker), request.username or ""
    if not name.strip():
        raise AccountError("username can not be blank")
    sender, old = _sender(accounts, call), accounts.users.get(name)
    if old is None:
        # Another request may have deleted the user in memory and wait for the write, which may fail and restore it.
        async with accounts.users.stored_change():
            return
    if old.is_super and not (sender is not None and sender.is_super):
        raise AccountError("The super user can only be update by super user")
    await accounts.delete_user(name)


def _describe_user(user: User) -> UserInfo:
    return UserInfo(
        username=user.name,
        password=MASKED_PASSWORD,
        user_type=user.type.value,
        user_status=user.status.value,
    )


@AuthGetUser.on(handlers)
def get_user(broker: Broker, request: AuthGetUser) -> AuthGetUserReply:
    accounts = _accounts(broker)
    if not (request.username or "").strip():
        raise RequestError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    user = accounts.users.get(request.username or "")
    return AuthGetUserReply(data=None if user is None else _describe_user(user))


@AuthListUser.on(handlers)
def list_users(broker: Broker, request: AuthListUser) -> Header:
    """List users whose name contains the filter; no body if there are none."""
    name_part = (request.filter or "").strip()
    users = [user for name, user in _accounts(broker).users.users.items() if name_part in name]
    reply = Header()
    if users:
        reply.body = orjson.dumps([_describe_user(user).to_value() for user in users])
    return reply


@AuthCreateAcl.on(handlers)
async def create_acl(broker: Broker, request: AuthCreateAcl) -> None:
    await _put_acl(broker, request)


@AuthUpdateAcl.on(handlers)
async def update_acl(broker: Broker, request: AuthUpdateAcl) -> None:
    """Add entries, or replace those for the same resource, as a creation does."""
    await _put_acl(broker, request)


async def _put_acl(broker: Broker, request: AuthCreateAcl | AuthUpdateAcl) -> None:
    accounts = _accounts(broker)
    if not request.data.policies:
        raise AccountError("The body of acl is null")
    subject = request.data.subject or request.subject
    await accounts.put_entries(subject or "", request.data)


@AuthDeleteAcl.on(handlers)
async def delete_acl(broker: Broker, request: AuthDeleteAcl) -> None:
    """Delete the entry for a resource of a policy (by default the custom one), or all policies of a user."""
    accounts = _accounts(broker)
    user = user_of_subject(request.subject)
    if accounts.users.get(user) is None:
        raise AccountError("The subject is not exist.")
    resource = parse_resource(request.resource)
    if resource is None and (request.resource or "").strip():
        # In the official broker an invalid resource deletes everything.
        raise AccountError(
            f"{quoted(request.resource or '')} is not a resource such as Topic:NAME or Group:PREFIX*"
        )
    async with accounts.policy_table.stored_change():
        accounts.policy_table.delete_entry(user, parse_policy_type(request.policy_type), resource)


@AuthGetAcl.on(handlers)
def get_acl(broker: Broker, request: AuthGetAcl) -> AuthGetAclReply:
    accounts = _accounts(broker)
    user = user_of_subject(request.subject)
    if accounts.users.get(user) is None:
        raise AccountError("The subject is not exist.")
    if user not in accounts.policy_table.policies:
        return AuthGetAclReply()
    return AuthGetAclReply(data=describe_policies(SUBJECT_PREFIX + user, accounts.policy_table.get(user)))


@AuthListAcl.on(handlers)
def list_acls(broker: Broker, request: AuthListAcl) -> Header:
    """List policies of subjects that contain one filter, with the entries for resources that contain the other."""
    subject_filter = (request.subject_filter or "").strip()
    resource_filter = (request.resource_filter or "").strip()
    entries = []
    for user, policies in _accounts(broker).policy_table.policies.items():
        subject = SUBJECT_PREFIX + user
        if subject_filter in subject:
            shown = describe_policies(
                subject, policies, "" if resource_filter in subject else resource_filter
            )
            if shown.policies:
                entries.append(shown.to_value())
    reply = Header()
    if entries:
        reply.body = orjson.dumps(entries)
    return reply
