"""Signed requests of all codes, changed at random: none is accepted that its user has not signed."""

import random

import pytest

from codec.command import Command
from gateway.auth.access_control import AccessControl
from gateway.auth.needs import NeedContext
from gateway.auth.request_needs import NEEDS
from gateway.auth.tests.test_access_control import FakeAccounts
from remoting.acl import ACCESS_KEY, SIGNATURE, Credentials, sign_request
from remoting.errors import RequestError

REQUESTS = 100_000
NAMES = ["topic", "consumerGroup", "b", "a", "queueId", "offset", "AccessKeys", "signature", "zz"]
VALUES = ["orders", "1", "", "bill", "x" * 50, "€", "\udc80", "root", "alice"]


def change(command, chance):
    """Change one thing of a request."""
    kind = chance.randrange(7)
    name = chance.choice([*command.ext, *NAMES])
    if kind == 0:
        command.ext[name] = chance.choice(VALUES)
    elif kind == 1:
        command.ext.pop(name, None)
    elif kind == 2:
        command.body = command.body + b"x" if chance.random() < 0.5 else command.body[:-1]
    elif kind == 3:
        command.ext[SIGNATURE] = chance.choice(["", "AAAA", command.ext.get(SIGNATURE, "")[:-1], "€"])
    elif kind == 4:
        command.ext[ACCESS_KEY] = chance.choice(["root", "alice", "gone", "nobody", ""])
    elif kind == 5:
        value = command.ext.get(name, "")
        command.ext[name] = value[:-1] if value else "y"
    else:
        command.version = chance.randrange(600)


def signed_text(command):
    """Return what a signature covers, computed on its own: the values by name, and the body."""
    names = sorted(name for name in command.ext if name != SIGNATURE)
    if command.version <= 401:  # V4_9_3
        names = [name for name in names if name != "_UNIQUE_KEY_QUERY"]
    return "".join(command.ext[name] for name in names).encode("utf-8", "replace") + command.body


@pytest.mark.parametrize("seed", [1, 2])
def test_no_forged_request_is_accepted(seed):
    chance = random.Random(seed)
    control = AccessControl(FakeAccounts(), NeedContext("c"), authorizes=True)
    codes = sorted(NEEDS)
    accepted = 0
    for number in range(REQUESTS // 2):
        user = chance.choice(["root", "alice"])
        secret = "super secret" if user == "root" else "secret"
        ext = {chance.choice(NAMES): chance.choice(VALUES) for _ in range(chance.randrange(6))}
        command = Command(codes[number % len(codes)], ext=ext, body=b"body" * chance.randrange(3))
        sign_request(command, Credentials(user, secret))
        before = user, signed_text(command), command.ext[SIGNATURE]
        for _ in range(chance.randrange(1, 4)):
            change(command, chance)
        try:
            control.authenticate(command, "10.0.0.9")
        except RequestError:
            continue
        accepted += 1
        assert before == (command.ext[ACCESS_KEY], signed_text(command), command.ext[SIGNATURE])
    assert accepted > 100  # changes that a signature does not cover, such as the version
