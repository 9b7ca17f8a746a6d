import pytest

from gateway.auth.plain_acl import (
    PlainAccounts,
    PlainAclError,
    load_plain_acl,
    matches_address,
    migrated_policies,
    served_policies,
)
from gateway.auth.resources import Action, parse_resource

FILE = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms: [topicA=DENY, topicB=PUB|SUB, topicC=SUB]
    groupPerms: [groupA=DENY, groupB=PUB|SUB]
  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    admin: true
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    return path


def allows(policies, key, action):
    return policies.decide(parse_resource(key), [action], "1.2.3.4").is_allowed


def test_the_official_example(file):
    acl = load_plain_acl(file)
    policies = migrated_policies(acl.accounts["RocketMQ"])
    for key, action, expected in (
        ("Topic:topicA", Action.PUB, False),
        ("Topic:topicB", Action.PUB, True),
        ("Topic:topicC", Action.SUB, True),
        ("Topic:topicC", Action.PUB, False),
        ("Topic:other", Action.SUB, False),
        ("Group:groupA", Action.SUB, False),
        ("Group:groupB", Action.SUB, True),
        ("Group:other", Action.SUB, True),
        ("Cluster:DefaultCluster", Action.GET, False),
    ):
        assert allows(policies, key, action) == expected, key


def test_reading_comes_along_while_the_file_is_served(file):
    policies = served_policies(load_plain_acl(file).accounts["RocketMQ"])
    assert allows(policies, "Topic:topicC", Action.GET)
    assert not allows(policies, "Topic:topicA", Action.GET)
    assert allows(policies, "Cluster:DefaultCluster", Action.GET)
    assert not allows(policies, "Cluster:DefaultCluster", Action.UPDATE)


def test_accounts_and_addresses(file):
    accounts = PlainAccounts(file)
    assert accounts.user("rocketmq2").is_super
    assert not accounts.user("RocketMQ").is_super
    assert accounts.user("nobody") is None
    assert accounts.is_trusted_address("10.10.103.7", None)
    assert not accounts.is_trusted_address("192.168.1.7", None)
    assert accounts.is_trusted_address("192.168.1.7", "rocketmq2")
    assert not accounts.is_trusted_address("192.168.1.7", "RocketMQ")


def test_a_changed_file_is_loaded_and_a_broken_one_is_not(file, caplog):
    accounts = PlainAccounts(file)
    file.write_text("accounts: [{accessKey: newcomer, secretKey: 12345678}]\n")
    accounts.reload_if_changed()
    assert accounts.user("newcomer") is not None
    assert accounts.user("RocketMQ") is None
    file.write_text("accounts: nonsense\n")
    accounts.reload_if_changed()
    accounts.reload_if_changed()
    assert accounts.user("newcomer") is not None
    assert caplog.text.count("changed plain ACL not loaded") == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("accounts: {}", "a list is expected"),
        ("- nonsense", "expected accounts or"),
        ("accounts: [nonsense]", "each account is a map"),
        ("accounts: [{accessKey: short, secretKey: 12345678}]", "more than 6 characters"),
        (
            "accounts: [{accessKey: longenough, secretKey: 12345678, topicPerms: [a]}]",
            "a is not NAME=PERMISSION",
        ),
        (
            "accounts: [{accessKey: longenough, secretKey: 12345678, topicPerms: [a=ALL]}]",
            "invalid permission ALL",
        ),
        ("accounts: [{", "plain_acl.yml"),
        ("a: &a [*a, *a]\naccounts: *a", "each account is a map"),
    ],
)
def test_files_that_cannot_be_used(file, content, reason):
    file.write_text(content)
    with pytest.raises(PlainAclError, match=reason) as refused:
        load_plain_acl(file)
    assert "12345678" not in str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "address", "expected"),
    [
        ("", "1.2.3.4", False),
        ("*", "1.2.3.4", True),
        ("1.2.3.4", "1.2.3.4", True),
        ("1.2.3.4", "1.2.3.40", False),
        ("1.2.3.4,5.6.7.8", "5.6.7.8", True),
        ("1.2.3.*", "1.2.3.99", True),
        ("1.2.3.*", "1.2.4.99", False),
        ("1.2.3.1-20", "1.2.3.20", True),
        ("1.2.3.1-20", "1.2.3.21", False),
        ("1.2.{3,5}.4", "1.2.5.4", True),
        ("1.2.{3,5}.4", "1.2.4.4", False),
        ("1.2.{3-5,9}.4", "1.2.4.4", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("fe80::/16", "fe80::1", True),
        ("1.2.3", "1.2.3.4", False),
    ],
)
def test_address_patterns(pattern, address, expected):
    assert matches_address(pattern, address) == expected


@pytest.mark.parametrize(
    "text",
    [
        "accounts:\n  - {accessKey: clerk-of-orders, secretKey: tell-nobody, topicPerms: [a=PUB}\n",
        'accounts:\n  - secretKey: "tell-nobody\n',
        "accounts:\n  - secretKey: *tell-nobody\n",
        "accounts:\n  - secretKey: @tell-nobody\n",
    ],
)
def test_a_broken_file_is_not_quoted(tmp_path, text):
    file = tmp_path / "plain_acl.yml"
    file.write_text(text)
    with pytest.raises(PlainAclError, match=r"line \d+, column \d+: not valid YAML") as refused:
        load_plain_acl(file)
    assert "tell-nobody" not in str(refused.value)
