import pytest

from codec.command import Command
from codec.constants import ResponseCode
from gateway.auth.access_control import CONSUMES_ONLY, AccessControl, parse_codes
from gateway.auth.account_table import User, UserStatus, UserType
from gateway.auth.policies import MAX_REMEMBERED, NO_POLICIES, Policies, PolicyEntry, PolicyType
from gateway.auth.request_needs import NeedContext
from gateway.auth.resources import Action, parse_resource
from remoting.acl import Credentials, sign_request
from remoting.errors import RequestError
from remoting.requests.client import HeartBeat

CONTEXT = NeedContext("DefaultCluster")
SEND = 310


class FakeAccounts:
    trusts_addresses = True

    def __init__(self):
        self.users = {
            "root": User("root", "super secret", UserType.SUPER),
            "alice": User("alice", "secret"),
            "gone": User("gone", "secret", status=UserStatus.DISABLE),
        }
        rules = [("Topic:orders", Action.PUB, True), ("Topic:ord-secret*", Action.ALL, False)]
        entries = tuple(
            PolicyEntry(parse_resource(key), frozenset({action}), (), is_allow)
            for key, action, is_allow in rules
        )
        self.by_user = {"alice": Policies({PolicyType.CUSTOM: entries})}
        self.trusted = set()

    def user(self, name):
        return self.users.get(name)

    def policies(self, name):
        return self.by_user.get(name, NO_POLICIES)

    def is_trusted_address(self, address, user):
        return (address, user) in self.trusted


class FakeConnection:
    remote = ("10.0.0.9", 4711)

    def __init__(self):
        self.state = {}


def command(code=SEND, user=None, secret="secret", **ext):
    made = Command(code, ext={"b": "orders", **ext}, body=b"body")
    if user is not None:
        sign_request(made, Credentials(user, secret))
    return made


def run(request, accounts=None, **settings):
    """Return what the handler behind access control answers."""
    settings = {"authorizes": True, **settings}
    control = AccessControl(accounts or FakeAccounts(), CONTEXT, **settings)
    handler = control.protect(request.code, lambda connection, request: b"served")
    return handler(FakeConnection(), request)


def test_what_is_allowed():
    assert run(command(user="alice")) == b"served"
    assert run(command(25, user="root", secret="super secret")) == b"served"


@pytest.mark.parametrize(
    ("request_made", "remark"),
    [
        (command(), "username cannot be null."),
        (command(AccessKey=""), "username cannot be null."),
        (command(user="nobody"), "User:nobody is not found."),
        (command(user="gone"), "User:gone is disabled."),
        (command(user="alice", secret="guess"), "check signature failed."),
        (command(AccessKey="alice"), "check signature failed."),
        (command(AccessKey="alice", Signature="€"), "check signature failed."),
        (
            command(user="alice", b="bills"),
            "User:alice has no permission to access Topic:bills from 10.0.0.9, no matched policies. "
            "A rule that allows Pub on Topic:bills is missing",
        ),
        (
            command(user="alice", b="ord-secret-1"),
            "User:alice has no permission to access Topic:ord-secret-1 from 10.0.0.9, the decision is deny. "
            "The custom rule says: Deny All on Topic:ord-secret*",
        ),
        (
            command(25, user="alice"),
            "User:alice has no permission to access Cluster:DefaultCluster from 10.0.0.9, no matched policies. "
            "A rule that allows Update on Cluster:DefaultCluster is missing",
        ),
        (command(99_999, user="alice"), "request code 99999 is for super users only."),
    ],
)
def test_what_is_denied_and_why(request_made, remark, caplog):
    caplog.set_level("INFO")
    with pytest.raises(RequestError) as denied:
        run(request_made)
    assert (denied.value.code, denied.value.remark) == (ResponseCode.NO_PERMISSION, remark)
    (line,) = [record for record in caplog.records if record.message == "request denied"]
    assert line.reason == remark
    assert line.remote == "10.0.0.9"
    assert "secret" not in f"{vars(line)}".replace("ord-secret", "")


def test_a_changed_field_or_body_breaks_the_signature():
    for change in ({"b": "ord"}, {"added": "x"}):
        request = command(user="alice")
        request.ext.update(change)
        with pytest.raises(RequestError, match="check signature failed"):
            run(request)
    request = command(user="alice")
    request.body = b"other"
    with pytest.raises(RequestError, match="check signature failed"):
        run(request)


def test_authentication_alone():
    assert run(command(user="alice", b="bills"), authorizes=False) == b"served"
    with pytest.raises(RequestError, match="username"):
        run(command(), authorizes=False)


def test_white_lists():
    assert run(command(), unauthenticated_codes=frozenset({SEND})) == b"served"
    assert run(command(user="alice", b="bills"), unauthorized_codes=frozenset({SEND})) == b"served"
    with pytest.raises(RequestError, match="username"):
        run(command(), unauthorized_codes=frozenset({SEND}))


def test_trusted_addresses():
    accounts = FakeAccounts()
    accounts.trusted = {("10.0.0.9", None)}
    assert run(command(25), accounts) == b"served"
    accounts.trusted = {("10.0.0.9", "alice")}
    assert run(command(user="alice", secret="guess"), accounts) == b"served"
    with pytest.raises(RequestError, match="no matched policies"):
        run(command(user="alice", secret="guess", b="bills"), accounts)
    with pytest.raises(RequestError, match="username"):
        run(command(25), accounts)


def test_a_change_of_accounts_counts_at_once():
    accounts = FakeAccounts()
    control = AccessControl(accounts, CONTEXT, authorizes=True)
    handler = control.protect(SEND, lambda connection, request: b"served")
    assert handler(FakeConnection(), command(user="alice")) == b"served"
    accounts.users["alice"] = User("alice", "changed")
    with pytest.raises(RequestError, match="check signature failed"):
        handler(FakeConnection(), command(user="alice"))


def test_allowed_requests_are_remembered_until_the_policies_change():
    accounts = FakeAccounts()
    control = AccessControl(accounts, CONTEXT, authorizes=True)
    handler = control.protect(SEND, lambda connection, request: b"served")
    for _ in range(2):
        assert handler(FakeConnection(), command(user="alice")) == b"served"
    other = FakeConnection()
    other.remote = ("10.0.0.10", 1)
    assert handler(other, command(user="alice")) == b"served"
    assert len(accounts.by_user["alice"].allowed) == 2
    accounts.by_user["alice"] = NO_POLICIES
    with pytest.raises(RequestError, match="no matched policies"):
        handler(FakeConnection(), command(user="alice"))
    assert not NO_POLICIES.allowed


@pytest.mark.parametrize("topic", ["%RETRY%bill", "x" * 600])
def test_retry_topics_and_long_names_are_not_remembered(topic):
    accounts = FakeAccounts()
    everything = PolicyEntry(parse_resource("*"), frozenset({Action.ALL}), (), is_allow=True)
    accounts.by_user["alice"] = Policies({PolicyType.CUSTOM: (everything,)})
    assert run(command(user="alice", b=topic), accounts) == b"served"
    assert not accounts.by_user["alice"].allowed


def test_remembered_requests_are_bounded():
    accounts = FakeAccounts()
    everything = PolicyEntry(parse_resource("*"), frozenset({Action.ALL}), (), is_allow=True)
    policies = accounts.by_user["alice"] = Policies({PolicyType.CUSTOM: (everything,)})
    for number in range(MAX_REMEMBERED + 10):
        run(command(user="alice", b=f"topic{number}"), accounts)
    assert 0 < len(policies.allowed) <= MAX_REMEMBERED


def test_lists_of_codes():
    assert parse_codes("10, 310,", "x") == {10, 310}
    with pytest.raises(ValueError, match="authorizationWhitelist: SEND is not a request code"):
        parse_codes("SEND", "authorizationWhitelist")


@pytest.mark.parametrize(("rights", "consumes_only"), [("Sub", True), ("Pub", False)])
def test_the_connection_of_a_consumer_is_marked(rights, consumes_only):
    accounts = FakeAccounts()
    entry = PolicyEntry(parse_resource("Topic:orders"), frozenset({Action(rights)}), (), True)
    accounts.by_user["alice"] = Policies({PolicyType.CUSTOM: (entry,)})
    request = Command(HeartBeat.code, body=b'{"clientID":"c","producerDataSet":[{"groupName":"p"}]}')
    sign_request(request, Credentials("alice", "secret"))
    connection = FakeConnection()
    control = AccessControl(accounts, CONTEXT, authorizes=True)
    control.protect(HeartBeat.code, lambda connection, request: b"")(connection, request)
    assert connection.state[CONSUMES_ONLY] is consumes_only
