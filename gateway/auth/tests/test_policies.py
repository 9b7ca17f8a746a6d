"""The decision, by examples and against a plain model of the documented rules."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.policies import (
    InvalidPolicy,
    Policies,
    PolicyEntry,
    PolicyType,
    describe_policies,
    is_in_range,
    parse_policies,
)
from gateway.auth.resources import Action, Resource, ResourcePattern, ResourceType, parse_resource
from remoting.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo

CUSTOM, DEFAULT = PolicyType.CUSTOM, PolicyType.DEFAULT


def entry(key, actions="Pub", decision="Allow", *source_ips):
    resource = parse_resource(key)
    assert resource is not None
    found = frozenset(Action(name) for name in actions.split(","))
    return PolicyEntry(resource, found, source_ips, decision == "Allow")


def decide(policies, key, action=Action.PUB, address="10.0.0.1"):
    return policies.decide(parse_resource(key), [action], address).is_allowed


def test_nothing_is_allowed_without_an_entry():
    assert not decide(Policies({}), "Topic:orders")
    assert not decide(Policies({CUSTOM: (entry("Topic:other"),)}), "Topic:orders")
    assert not decide(Policies({CUSTOM: (entry("Topic:orders", "Sub"),)}), "Topic:orders")
    assert not decide(Policies({CUSTOM: (entry("Group:orders"),)}), "Topic:orders")


def test_the_most_specific_entry_decides():
    policies = Policies(
        {
            CUSTOM: (
                entry("*", "All", "Deny"),
                entry("Topic:*", "Pub"),
                entry("Topic:ord*", "Pub", "Deny"),
                entry("Topic:orders-eu*", "Pub"),
                entry("Topic:orders-eu-secret", "Pub", "Deny"),
            )
        }
    )
    assert decide(policies, "Topic:bills")
    assert not decide(policies, "Topic:orders")
    assert decide(policies, "Topic:orders-eu-1")
    assert not decide(policies, "Topic:orders-eu-secret")
    assert not decide(policies, "Group:bills")


def test_a_custom_entry_hides_the_default_policy():
    policies = Policies(
        {DEFAULT: (entry("Topic:orders", "All", "Deny"),), CUSTOM: (entry("Topic:*", "Pub"),)}
    )
    assert decide(policies, "Topic:orders")
    assert not decide(policies, "Topic:orders", Action.SUB)


def test_source_addresses():
    policies = Policies({CUSTOM: (entry("Topic:orders", "Pub", "Allow", "10.0.0.0/8", "::1"),)})
    for address, is_allowed in (("10.255.0.1", True), ("11.0.0.1", False), ("::1", True), ("::2", False)):
        assert decide(policies, "Topic:orders", address=address) == is_allowed
    assert not is_in_range("not an address", "10.0.0.0/8")


def test_of_equal_entries_the_one_that_denies_wins():
    for entries in (
        (entry("Topic:a"), entry("Topic:a", "Pub", "Deny")),
        (entry("*"), entry("*", "All", "Deny")),
    ):
        for order in (entries, entries[::-1]):
            assert not decide(Policies({CUSTOM: order}), "Topic:a")


def test_some_topic_or_group():
    policies = Policies({CUSTOM: (entry("Topic:orders", "Pub"), entry("Cluster:*", "Sub"))})
    assert policies.allows_somewhere([Action.PUB], "10.0.0.1")
    assert not policies.allows_somewhere([Action.SUB], "10.0.0.1")


def test_entries_are_replaced_by_resource():
    policies = Policies({}).with_entries(CUSTOM, [entry("Topic:a"), entry("Topic:b")])
    changed = policies.with_entries(CUSTOM, [entry("Topic:a", "Sub")])
    assert not decide(changed, "Topic:a")
    assert decide(changed, "Topic:a", Action.SUB)
    assert decide(changed, "Topic:b")
    left = changed.without_entry(CUSTOM, parse_resource("Topic:a")).without_entry(
        CUSTOM, parse_resource("Topic:b")
    )
    assert left.entries == {}


def info(resource="Topic:a", actions=("Pub",), source_ips=(), decision="Allow"):
    found = PolicyEntryInfo(
        resource=resource, actions=list(actions), source_ips=list(source_ips), decision=decision
    )
    return AclInfo(subject="User:a", policies=[PolicyInfo(policy_type=None, entries=[found])])


@pytest.mark.parametrize(
    ("given_info", "text"),
    [
        (AclInfo(), "The policies is empty."),
        (AclInfo(policies=[PolicyInfo()]), "The policies is empty."),
        (info(resource=None), "The resource is null."),
        (info(resource="orders"), "The resource is null."),
        (info(actions=()), "The actions is empty."),
        (info(actions=("Read",)), "The actions is empty."),
        (info(actions=("Any",)), "The actions can not be Any."),
        (info(source_ips=(" ",)), "The source ip is empty."),
        (info(source_ips=("10.0.0.300",)), "The source ip is invalid."),
        (info(decision=None), "The decision is null or illegal."),
        (info(decision="maybe"), "The decision is null or illegal."),
    ],
)
def test_invalid_policies_with_the_official_text(given_info, text):
    with pytest.raises(InvalidPolicy) as refused:
        parse_policies(given_info)
    assert str(refused.value) == text


def test_policies_are_shown_as_they_were_given():
    ((kind, entries),) = parse_policies(info("Topic:a*", ("sub", "PUB"), ("10.0.0.0/8",), "deny"))
    shown = describe_policies("User:a", Policies({kind: tuple(entries)}))
    assert shown.to_value() == {
        "subject": "User:a",
        "policies": [
            {
                "policyType": "Custom",
                "entries": [
                    {
                        "resource": "Topic:a*",
                        "actions": ["Pub", "Sub"],
                        "sourceIps": ["10.0.0.0/8"],
                        "decision": "Deny",
                    }
                ],
            }
        ],
    }


names = st.text("ab", max_size=3)
kinds = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER])
resources = st.one_of(
    st.just(Resource(ResourceType.ANY, "", ResourcePattern.ANY)),
    st.builds(Resource, kinds, st.just(""), st.just(ResourcePattern.ANY)),
    st.builds(Resource, kinds, names, st.sampled_from([ResourcePattern.LITERAL, ResourcePattern.PREFIXED])),
)
actions = st.frozensets(st.sampled_from([Action.ALL, Action.PUB, Action.SUB, Action.GET]), min_size=1)
ranges = st.lists(st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "192.168.0.1", "::/0"]), max_size=2).map(
    tuple
)
entries = st.lists(st.builds(PolicyEntry, resources, actions, ranges, st.booleans()), max_size=6).map(tuple)


def covers(rule, resource):
    kind, name, pattern = rule.type, rule.name, rule.pattern
    if kind is ResourceType.ANY:
        return True
    if kind is not resource.type:
        return False
    if pattern is ResourcePattern.LITERAL:
        return name == resource.name
    return resource.name.startswith(name)


def rank(rule):
    """Return a key that is smallest for the most specific resource."""
    if rule.type is ResourceType.ANY:
        return 3, 0
    if rule.pattern is ResourcePattern.ANY:
        return 2, 0
    return (1, -len(rule.name)) if rule.pattern is ResourcePattern.PREFIXED else (0, 0)


def decide_plainly(policies, resource, wanted, address):
    """Decide by the documented rules, one after the other, without any index."""
    for kind in (CUSTOM, DEFAULT):
        found = [
            each
            for each in policies.get(kind, ())
            if covers(each.resource, resource)
            and (Action.ALL in each.actions or each.actions & set(wanted))
            and (
                not each.source_ips
                or any(
                    ipaddress.ip_address(address) in ipaddress.ip_network(network)
                    for network in each.source_ips
                    if ipaddress.ip_network(network).version == ipaddress.ip_address(address).version
                )
            )
        ]
        if found:
            best = min(rank(each.resource) for each in found)
            return all(each.is_allow for each in found if rank(each.resource) == best)
    return False


@given(
    st.fixed_dictionaries({}, optional={CUSTOM: entries, DEFAULT: entries}),
    st.builds(Resource, kinds, names),
    st.lists(st.sampled_from([Action.PUB, Action.SUB, Action.GET, Action.DELETE]), min_size=1, max_size=2),
    st.sampled_from(["10.0.0.1", "10.1.0.1", "192.168.0.1", "172.16.0.1", "::1"]),
)
def test_decisions_equal_a_plain_model(policies, resource, wanted, address):
    decision = Policies(policies).decide(resource, wanted, address)
    assert decision.is_allowed == decide_plainly(policies, resource, wanted, address)
