import pytest

from gateway.auth.resources import (
    Action,
    Resource,
    ResourcePattern,
    ResourceType,
    find_named,
    parse_resource,
    topic_resource,
)


@pytest.mark.parametrize(
    ("key", "resource"),
    [
        ("Topic:orders", Resource(ResourceType.TOPIC, "orders")),
        ("topic:orders", Resource(ResourceType.TOPIC, "orders")),
        ("Topic:ord*", Resource(ResourceType.TOPIC, "ord", ResourcePattern.PREFIXED)),
        ("Group:*", Resource(ResourceType.GROUP, "", ResourcePattern.ANY)),
        ("Cluster:Default", Resource(ResourceType.CLUSTER, "Default")),
        ("*", Resource(ResourceType.ANY, "", ResourcePattern.ANY)),
    ],
)
def test_keys_of_resources(key, resource):
    assert parse_resource(key) == resource
    assert parse_resource(str(resource)) == resource


@pytest.mark.parametrize("key", [None, "", " ", "orders", "Queue:x"])
def test_texts_that_are_no_keys(key):
    assert parse_resource(key) is None


def test_actions_without_case():
    assert find_named(Action, "pUB") == find_named(Action, "Pub")
    assert find_named(Action, "Any") is None


@pytest.mark.parametrize(
    ("topic", "key"),
    [
        ("orders", "Topic:orders"),
        ("%RETRY%bill", "Group:bill"),
        ("%DLQ%bill", "Group:bill"),
        ("%RETRY%bill+orders", "Group:bill"),
        ("%RETRY%bill_orders", "Group:bill_orders"),
    ],
)
def test_retry_topics_belong_to_their_group(topic, key):
    assert str(topic_resource(topic)) == key
