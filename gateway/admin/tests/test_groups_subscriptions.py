"""Members of one group that subscribe to different messages."""

import pytest

from gateway.admin.groups import describe_inconsistency, find_inconsistencies
from remoting.bodies.heartbeat import SubscriptionData


def tags(topic: str, text: str, kind: str = "TAG") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=text, expression_type=kind)


@pytest.mark.parametrize(
    ("first", "second"),
    [("*", ""), ("a||b", "b || a"), ("a || a", "a"), (" * ", "*"), ("a||", "a")],
)
def test_texts_that_mean_the_same(first: str, second: str) -> None:
    assert tags("t", first).selection == tags("t", second).selection
    assert find_inconsistencies({"one": [tags("t", first)], "two": [tags("t", second)]}) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (tags("t", "a"), tags("t", "b")),
        (tags("t", "a"), tags("t", "*")),
        (tags("t", "a", "SQL92"), tags("t", "a")),
        (tags("t", "a > 1", "SQL92"), tags("t", "a > 2", "SQL92")),
    ],
)
def test_texts_that_select_other_messages(first: SubscriptionData, second: SubscriptionData) -> None:
    (found,) = find_inconsistencies({"one": [first], "two": [second]})
    assert found["topic"] == "t"
    assert [each["clients"] for each in found["subscriptions"]] == [["one"], ["two"]]


def test_retry_topics_do_not_count() -> None:
    assert find_inconsistencies({"one": [tags("%RETRY%g", "*")], "two": []}) == []


def test_a_sentence_names_clients_and_subscriptions() -> None:
    members = {
        "one": [tags("t", "a")],
        "two": [tags("t", "a")],
        "three": [tags("t", "x > 1", "SQL92")],
        "four": [],
    }
    (found,) = find_inconsistencies(members)
    assert describe_inconsistency(found) == (
        't: four: not subscribed; one and 1 more: "a"; three: "SQL92: x > 1"'
    )


def test_nobody_disagrees_alone() -> None:
    assert find_inconsistencies({}) == []
    assert find_inconsistencies({"one": [tags("t", "a"), tags("u", "b")]}) == []
