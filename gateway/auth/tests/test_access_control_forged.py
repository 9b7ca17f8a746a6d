"""Signed requests of all codes, changed at random: those that are served are exactly those that may be.

A signature is computed here once more, from the documentation, and rights by the plain model of `test_policies.py`.
The same attack must find holes that are planted in the real code.
"""

import base64
import hmac
import json
import random
from collections import Counter

import pytest

from codec.command import Command
from gateway.auth import access_control
from gateway.auth.access_control import AccessControl
from gateway.auth.account_table import User, UserStatus, UserType
from gateway.auth.policies import Policies, PolicyType
from gateway.auth.request_needs import FREQUENT_FIELDS, NEEDS, NeedContext, find_needs
from gateway.auth.resources import ResourceType
from gateway.auth.tests.test_access_control import FakeAccounts
from gateway.auth.tests.test_policies import decide_plainly, entry
from gateway.tests.extreme_values import usual_body, usual_header
from remoting import acl, local_command
from remoting.acl import ACCESS_KEY, SIGNATURE, Credentials, sign_request
from remoting.declare import REQUESTS
from remoting.errors import RequestError

REQUESTS_SENT = 100_000
UNKNOWN_CODE = 99_999
CODES = (*sorted(NEEDS), UNKNOWN_CODE)
USERS = {
    "root": User("root", "super secret", UserType.SUPER),
    "alice": User("alice", "secret"),
    "gone": User("gone", "secret", status=UserStatus.DISABLE),
}
RULES = {
    PolicyType.CUSTOM: (
        entry("Topic:orders", "All"),
        entry("Topic:ord*", "Pub,Get", "Deny"),
        entry("Topic:*", "Get", "Allow", "10.0.0.0/8"),
        entry("Group:GID", "All", "Allow", "10.0.0.0/8"),
        entry("Group:bill*", "Sub", "Deny"),
    ),
    PolicyType.DEFAULT: (entry("*", "Sub"), entry("Cluster:*", "Get,List", "Allow", "192.168.0.1")),
}
ADDRESSES = ["10.0.0.9", "10.0.0.10", "192.168.0.1", "::1"]
NAMES = ["topic", "consumerGroup", "group", "b", "a", "queueId", "offset", "AccessKeys", "signature", "zz"]
JUDGED = ["topic", "consumerGroup", "group", "b"]
"""Header fields on which rights depend."""
VALUES = ["orders", "ord-2", "GID", "1", "", "bill", "%RETRY%bill", "x" * 50, "€", "\udc80", "root", "alice"]


class Sender:
    """A connection from an address."""

    def __init__(self, address):
        self.remote = (address, 4711)
        self.state = {}


def change(command, chance):
    """Change one thing of a request."""
    kind = chance.randrange(7)
    name = chance.choice([*command.ext, *NAMES])
    if kind == 0:
        command.ext[name] = chance.choice(VALUES)
    elif kind == 1:
        command.ext.pop(name, None)
    elif kind == 2:
        command.body = command.body + b" " if chance.random() < 0.5 else command.body[:-1]
    elif kind == 3:
        command.ext[SIGNATURE] = chance.choice(["", "AAAA", command.ext.get(SIGNATURE, "")[:-1], "€"])
    elif kind == 4:
        command.ext[ACCESS_KEY] = chance.choice([*USERS, "nobody", ""])
    elif kind == 5:
        value = command.ext.get(name, "")
        command.ext[name] = value[:-1] if value else "y"
    else:
        command.version = chance.randrange(600)


def signature_of(command, secret):
    """Return the signature that a request must have: HmacSHA1 of the values by name, and the body, in base 64."""
    names = sorted(name for name in command.ext if name != SIGNATURE)
    if command.version <= 401:  # V4_9_3
        names = [name for name in names if name != "_UNIQUE_KEY_QUERY"]
    text = "".join(command.ext[name] for name in names).encode("utf-8", "replace") + command.body
    return base64.b64encode(hmac.new(secret.encode(), text, "sha1").digest()).decode()


def is_allowed_plainly(command, address):
    """Decide from the documentation whether a request may be served; its needs are those of the declaration."""
    user = USERS.get(command.ext.get(ACCESS_KEY))
    if user is None or user.status is not UserStatus.ENABLE:
        return False
    if command.ext.get(SIGNATURE) != signature_of(command, user.password):
        return False
    if user.is_super:
        return True
    if command.code not in NEEDS:
        return False
    try:
        needs = find_needs(command, CONTEXT)
    except RequestError:  # It cannot be parsed.
        return False
    return all(is_granted(need, address) for need in needs)


def is_granted(need, address):
    if need.resource is not None:
        return decide_plainly(RULES, need.resource, need.actions, address)
    rules = [rule for rules in RULES.values() for rule in rules]
    return any(
        rule.is_allow
        and rule.resource.type is not ResourceType.CLUSTER
        and rule.matches(need.actions, address)
        for rule in rules
    )


CONTEXT = NeedContext("c", {100: "orders", 200: "%RETRY%bill"}.get)
BODIES = {
    code: json.dumps(usual_body(REQUESTS[code].BODY)).encode() if REQUESTS[code].BODY else b"body"
    for code in NEEDS
}
HEADERS = {code: usual_header(REQUESTS[code], {}) for code in NEEDS}


def attack(seed, requests):
    """Send requests of all codes, some of them changed; return how many of each code were served, and refused."""
    chance = random.Random(seed)
    accounts = FakeAccounts()
    accounts.users, accounts.by_user = USERS, {"alice": Policies(RULES)}
    control = AccessControl(accounts, CONTEXT, authorizes=True)
    handlers = {code: control.protect(code, lambda connection, request: b"served") for code in CODES}
    served, refused = Counter(), Counter()
    for number in range(requests):
        code = CODES[number % len(CODES)]
        command = Command(code, ext=dict(HEADERS.get(code, {})), body=BODIES.get(code, b""))
        user = USERS[chance.choice(["root", "alice", "alice", "gone"])]
        if chance.random() < 0.5:  # Before it is signed: a request that its user means so.
            judged = [name for name in JUDGED if name in command.ext] or NAMES
            command.ext[chance.choice([*judged, chance.choice(NAMES)])] = chance.choice(VALUES)
        sign_request(command, Credentials(user.name, user.password))
        for _ in range(chance.choice([0, 0, 1, 2, 3])):
            change(command, chance)
        address = chance.choice(ADDRESSES)
        try:
            is_served = handlers[code](Sender(address), command) == b"served"
        except RequestError:
            is_served = False
        assert is_served == is_allowed_plainly(command, address), (command.code, command.ext, address)
        (served if is_served else refused)[code] += 1
    return served, refused


@pytest.mark.parametrize("seed", [1, 2])
def test_no_forged_request_is_served(seed, monkeypatch):
    monkeypatch.setattr(access_control.log, "info", lambda *args, **data: None)
    served, refused = attack(seed, REQUESTS_SENT // 2)
    assert served.keys() == refused.keys() == set(CODES)
    assert min(served.values()) > 20


def forget_body(monkeypatch):
    whole = acl._signed_text
    monkeypatch.setattr(acl, "_signed_text", lambda command: whole(Command(0, ext=command.ext)))


def accept_empty_signatures(monkeypatch):
    check = local_command.proves_secret
    monkeypatch.setattr(
        access_control,
        "proves_secret",
        lambda command, key: not command.ext.get(SIGNATURE) or check(command, key),
    )


def need_nothing_for_unknown_codes(monkeypatch):
    monkeypatch.setattr(access_control, "find_needs", lambda *args: find_needs(*args) or [])


def need_nothing_for_one_code(monkeypatch):
    code = sorted(NEEDS)[len(NEEDS) // 2]
    monkeypatch.setattr(
        access_control,
        "find_needs",
        lambda command, *args: [] if command.code == code else find_needs(command, *args),
    )


def remember_rights_of_any_group(monkeypatch):
    fields = {code: (topic, "") for code, (topic, _) in FREQUENT_FIELDS.items()}
    monkeypatch.setattr(access_control, "FREQUENT_FIELDS", fields)


@pytest.mark.parametrize(
    "plant",
    [
        forget_body,
        accept_empty_signatures,
        need_nothing_for_unknown_codes,
        need_nothing_for_one_code,
        remember_rights_of_any_group,
    ],
)
def test_the_attack_finds_planted_holes(plant, monkeypatch):
    monkeypatch.setattr(access_control.log, "info", lambda *args, **data: None)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        attack(1, REQUESTS_SENT)
