"""Checks requests before their handlers run: is it signed by a user, and do the user's policies allow it?

A denial has the code NO_PERMISSION and a remark that names the user, the resource, the action, the address, and the
rule that decided or is missing. The log gets the same text.
Source: AuthenticationPipeline, AuthorizationPipeline and their providers, 5.4.0, with the official texts.
"""

import logging
from typing import Final, Protocol

from codec.command import Command
from codec.constants import ResponseCode
from codec.java_numbers import parse_integer_or, quoted
from gateway.auth.account_table import User, UserStatus, UserType
from gateway.auth.policies import Policies, RequestKey
from gateway.auth.request_needs import FREQUENT_FIELDS, Need, NeedContext, find_needs
from gateway.auth.resources import Action
from remoting.acl import ACCESS_KEY
from remoting.connection import Connection, Handler
from remoting.connection_state import StateSlot
from remoting.declare import REQUESTS
from remoting.errors import RequestError
from remoting.local_command import proves_secret
from remoting.requests.client import HeartBeat
from toolkit.settings import SettingsError

log = logging.getLogger(__name__)


MAX_REMEMBERED_CHARS: Final = 512


CONSUMES_ONLY: Final = StateSlot[bool]("user without a right to publish")
"""True on a connection whose last heartbeat was signed by a user without Pub on any topic.

Stock consumers list producer groups in their heartbeats. They are let through, but a user who may not publish is not
registered as a producer: producers are asked about half messages, and so read them.
"""


class AccessDenied(RequestError):
    """A request whose sender is not known, or is not allowed to send it."""

    def __init__(self, remark: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)


class Accounts(Protocol):
    """The users and their policies, from any source: ACL 2.0, ACL 1.0, or files of another process."""

    trusts_addresses: bool
    """True if there may be addresses that need no signature."""

    def user(self, name: str) -> User | None:
        """Return the user of this name, if there is one."""

    def policies(self, name: str) -> Policies:
        """Return the policies of a user, who may have none."""

    def is_trusted_address(self, address: str, user: str | None) -> bool:
        """Return True if requests from an address need no signature: all, or those of one ``user``."""


class AccessControl:
    """Wraps the handlers of a server so that they receive only allowed requests.

    ``unauthenticated_codes`` need no signature, and so no policy: their sender is unknown. ``unauthorized_codes`` need
    no policy.
    """

    def __init__(
        self,
        accounts: Accounts,
        context: NeedContext,
        *,
        authorizes: bool,
        unauthenticated_codes: frozenset[int] = frozenset(),
        unauthorized_codes: frozenset[int] = frozenset(),
    ) -> None:
        self._accounts = accounts
        self._context = context
        self._authorizes = authorizes
        self._unauthenticated_codes = unauthenticated_codes
        self._unauthorized_codes = unauthorized_codes

    def protect(self, code: int, handler: Handler) -> Handler:
        """Return a handler that checks a request before it passes it on."""
        if code in self._unauthenticated_codes:
            return handler
        authorizes = self._authorizes and code not in self._unauthorized_codes
        topic_field, group_field = FREQUENT_FIELDS.get(code, ("", ""))
        is_heartbeat = code == HeartBeat.code

        def handle(connection: Connection, command: Command) -> bytes | None:
            # This is on the path of every message: a request that was allowed before takes no further calls.
            address = connection.remote[0]
            user = self.authenticate(command, address)
            if authorizes and user is not None and user.type is not UserType.SUPER:
                ext = command.ext
                policies = self._accounts.policies(user.name)
                key = code, ext.get(topic_field, ""), ext.get(group_field, ""), address
                if key not in policies.allowed:
                    self.authorize(user, command, address)
                    if topic_field and _is_memorable(key):
                        policies.remember(key)
            if is_heartbeat:
                connection.state[CONSUMES_ONLY] = authorizes and not self._may_publish(user, address)
            return handler(connection, command)

        return handle

    def _may_publish(self, user: User | None, address: str) -> bool:
        if user is None or user.is_super:
            return True
        return self._accounts.policies(user.name).allows_somewhere((Action.PUB,), address)

    def authenticate(self, command: Command, address: str) -> User | None:
        """Return the user who signed a request; None for an address that needs no user.

        Raises AccessDenied for a request without a valid signature.
        """
        name = command.ext.get(ACCESS_KEY)
        accounts = self._accounts
        if accounts.trusts_addresses and accounts.is_trusted_address(address, None):
            return None
        if not name:
            raise _denied("username cannot be null.", command, address)
        user = accounts.user(name)
        if user is None:
            raise _denied(f"User:{quoted(name)} is not found.", command, address)
        if user.status is not UserStatus.ENABLE:
            raise _denied(f"User:{quoted(name)} is disabled.", command, address)
        if accounts.trusts_addresses and accounts.is_trusted_address(address, name):
            return user
        if not proves_secret(command, user.password):
            raise _denied("check signature failed.", command, address)
        return user

    def find_signer(self, command: Command) -> str | None:
        """Return the user whose signature a request carries; None if there is none or it is wrong."""
        user = self._accounts.user(command.ext.get(ACCESS_KEY, ""))
        if user is None or user.status is not UserStatus.ENABLE or not proves_secret(command, user.password):
            return None
        return user.name

    def authorize(self, user: User, command: Command, address: str) -> None:
        """Raise RequestError unless the user may send a request."""
        if user.is_super:
            return
        needs = find_needs(command, self._context)
        if needs is None:
            raise _denied(f"request code {command.code} is for super users only.", command, address, user)
        policies = self._accounts.policies(user.name)
        for need in needs:
            reason = explain_denial(policies, need, address)
            if reason is not None:
                raise _denied(describe_denial(user.name, need, address, reason), command, address, user)


def _is_memorable(key: RequestKey) -> bool:
    """Return True if a decision depends only on the policies and this key, and the key is short.

    The decision about a retry topic also depends on the groups that exist, because they decide who owns it.
    """
    _, topic, group, _ = key
    is_plain = not (topic.startswith("%") or group.startswith("%"))
    return is_plain and len(topic) + len(group) <= MAX_REMEMBERED_CHARS


def explain_denial(policies: Policies, need: Need, address: str) -> str | None:
    """Return why policies do not allow a need; None if they do."""
    if need.resource is None:
        if policies.allows_somewhere(need.actions, address):
            return None
        return f"no matched policies. A rule that allows {_names(need)} on a topic or group is missing"
    decision = policies.decide(need.resource, need.actions, address)
    if decision.is_allowed:
        return None
    if decision.entry is None or decision.policy_type is None:
        return f"no matched policies. A rule that allows {_names(need)} on {need.resource} is missing"
    return f"the decision is deny. The {decision.policy_type.value.lower()} rule says: {decision.entry}"


def describe_denial(user: str, need: Need, address: str, reason: str) -> str:
    """Return the remark of a denial, which begins like the official one."""
    resource = "any topic or group" if need.resource is None else quoted(str(need.resource))
    return f"User:{user} has no permission to access {resource} from {address}, {reason}"


def _names(need: Need) -> str:
    return " or ".join(action.value for action in need.actions)


def _denied(remark: str, command: Command, address: str, user: User | None = None) -> AccessDenied:
    declared = REQUESTS.get(command.code)
    extra = {
        "user": user.name if user is not None else quoted(command.ext.get(ACCESS_KEY, "")),
        "request": declared.NAME if declared is not None else command.code,
        "remote": address,
        "reason": remark,
    }
    log.warning("request denied", extra=extra)
    return AccessDenied(remark)


def parse_codes(text: str, key: str) -> frozenset[int]:
    """Return request codes separated by commas. Raises SettingsError, which names the key."""
    codes = []
    for part in filter(None, map(str.strip, text.split(","))):
        code = parse_integer_or(part, -1)
        if code < 0:
            raise SettingsError(f"{key}: {quoted(part)} is not a request code")
        codes.append(code)
    return frozenset(codes)
