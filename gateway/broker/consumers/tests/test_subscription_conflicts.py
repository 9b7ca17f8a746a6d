"""Members of one group that subscribe to different messages: noticed, logged once, over when they agree."""

import logging

import pytest

from gateway.broker.consumers.client_registry import ClientRegistry, GroupMember
from gateway.broker.consumers.subscription_conflicts import MAX_WATCHED_TOPICS
from gateway.tests.broker_fakes import FakeClock, FakeConnection
from remoting.bodies.heartbeat import ConsumerData, SubscriptionData

TEXT = "members of a group subscribe to different messages, so messages are skipped"


class Group:
    """A registry with one group, and the members that send heartbeats to it."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        caplog.set_level(logging.WARNING)
        self.clock = FakeClock()
        self.registry = ClientRegistry(self.clock)
        self._connections: dict[str, FakeConnection] = {}

    def beat(self, client_id: str, **expressions: str) -> None:
        """Send a heartbeat with subscriptions by topic."""
        connection = self._connections.setdefault(client_id, FakeConnection())
        subscriptions = [
            SubscriptionData(topic=topic.replace("RETRY_", "%RETRY%"), sub_string=text, sub_version=1)
            for topic, text in expressions.items()
        ]
        data = ConsumerData(group_name="g", message_model="CLUSTERING", subscription_data_set=subscriptions)
        self.registry.register_consumer(GroupMember(connection, client_id, "JAVA", 400), data)

    def leave(self, client_id: str) -> None:
        self.registry.unregister_consumer("g", self._connections.pop(client_id))

    def vanish(self, client_id: str) -> None:
        self.registry.drop_connection(self._connections.pop(client_id))

    @property
    def is_inconsistent(self) -> bool:
        return self.registry.inconsistent_groups == {"g"}

    @property
    def logged(self) -> list[tuple[str, str, str, str, str]]:
        names = ("topic", "client", "subscription", "other_client", "other_subscription")
        return [
            tuple(getattr(record, name) for name in names)
            for record in self._caplog.records
            if record.getMessage() == TEXT
        ]


@pytest.fixture
def group(caplog: pytest.LogCaptureFixture) -> Group:
    return Group(caplog)


def test_both_clients_and_both_subscriptions_are_named_once(group: Group) -> None:
    for _ in range(3):
        group.beat("one", t="a")
        group.beat("two", t="b")
    assert group.logged == [("t", "one", "a", "two", "b")]
    assert group.is_inconsistent


def test_texts_that_mean_the_same_are_no_conflict(group: Group) -> None:
    group.beat("one", t="a || b")
    group.beat("two", t="b||a")
    group.beat("one", t="a || b")
    assert group.logged == []
    assert not group.is_inconsistent


def test_a_topic_that_only_one_member_names(group: Group) -> None:
    group.beat("one", t="*")
    group.beat("two", t="*", u="*")
    assert group.logged == [("u", "one", "not subscribed", "two", "*")]
    group.beat("one", t="*")
    group.beat("two", t="*", u="*")
    assert len(group.logged) == 1


def test_a_member_that_leaves_a_topic_out(group: Group) -> None:
    group.beat("one", t="*", u="*")
    group.beat("two", t="*")
    assert group.logged == [("u", "one", "*", "two", "not subscribed")]


def test_retry_topics_do_not_count(group: Group) -> None:
    group.beat("one", t="*", RETRY_g="*")
    group.beat("two", t="*")
    assert not group.is_inconsistent


@pytest.mark.parametrize("end", ["leave", "vanish"])
def test_it_is_over_when_one_of_them_is_gone(group: Group, end: str) -> None:
    group.beat("one", t="a")
    group.beat("two", t="b")
    getattr(group, end)("one")
    assert not group.is_inconsistent
    group.beat("two", t="b")
    assert not group.is_inconsistent
    group.beat("three", t="a")
    assert group.logged[1:] == [("t", "two", "b", "three", "a")]


def test_it_is_over_when_they_agree(group: Group) -> None:
    group.beat("one", t="a")
    group.beat("two", t="b")
    group.beat("one", t="b")
    assert not group.is_inconsistent
    group.beat("two", t="b")
    assert not group.is_inconsistent
    group.beat("two", t="c")
    group.beat("one", t="b")
    assert group.logged[1:] == [("t", "two", "c", "one", "b")]


def test_a_third_member_that_disagrees_as_well(group: Group) -> None:
    group.beat("one", t="a")
    group.beat("two", t="b")
    group.beat("three", t="c")
    assert len(group.logged) == 1
    group.leave("two")
    group.beat("one", t="a")
    assert group.logged[1:] == [("t", "three", "c", "one", "a")]


def test_a_member_alone_may_change_its_mind(group: Group) -> None:
    group.beat("one", t="a")
    group.beat("one", t="b", u="*")
    group.beat("one", u="*")
    assert group.logged == []
    assert not group.is_inconsistent


def test_an_empty_group_leaves_nothing_behind(group: Group) -> None:
    group.beat("one", t="a")
    group.beat("two", t="b")
    group.leave("one")
    group.leave("two")
    assert group.registry.inconsistent_groups == set()


def test_watched_topics_are_bounded(group: Group) -> None:
    for number in range(5):
        topics = {f"t{number}_{each}": "*" for each in range(50)}
        group.beat(f"client{number}", **topics)
    members = group.registry.consumer_group("g")
    assert members is not None
    assert len(members.conflicts._latest) <= MAX_WATCHED_TOPICS
    assert len(members.conflicts.present) <= MAX_WATCHED_TOPICS


def test_the_log_is_bounded_when_a_client_keeps_changing(group: Group) -> None:
    group.beat("one", t="a")
    for number in range(500):
        group.beat("two", t=f"x{number}")
        group.beat("two", t="a")
    assert len(group.logged) <= 100
