"""Permissions of consumer groups, and the subscription that counts when members disagree, with our typed client."""

import pytest

from compat_tests.clients.typed import (
    bodies,
    create_group,
    create_topic,
    expect_refusal,
    pull,
    pull_request,
    send,
    send_heartbeat,
    send_plain,
    subscription,
)
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.requests.client import GetConsumerConnectionList, NotifyConsumerIdsChanged
from remoting.requests.groups import GetSubscriptionGroupConfig, UpdateAndGetGroupForbidden
from remoting.requests.offsets import QueryConsumerOffset

FORBIDDEN, NO_SUBSCRIPTION, NOT_LATEST = 16, 24, 25


def by_heartbeat(topic: str, group: str, **fields: object):
    """Return a pull request that uses the subscription of the group's heartbeats."""
    return pull_request(topic, tags=None, consumer_group=group, **fields)


@case("admin", "a group can be forbidden to read a topic (353): query, set, clear")
def test_forbidden(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = create_group(broker, server.unique_name("group"))
    send_heartbeat(broker, f"{group}@1", group, topic)
    send(broker, topic, b"secret")
    ask = UpdateAndGetGroupForbidden(group=group, topic=topic)
    assert broker.ask(ask).data.readable is True
    change = UpdateAndGetGroupForbidden(group=group, topic=topic, readable=False)
    assert broker.ask(change).data.readable is False
    assert broker.ask(ask).data.readable is False
    error = expect_refusal(broker, by_heartbeat(topic, group))
    assert (error.code, error.remark) == (
        FORBIDDEN,
        f"the consumer group[{group}] is forbidden for topic[{topic}]",
    )
    change = UpdateAndGetGroupForbidden(group=group, topic=topic, readable=True)
    assert broker.ask(change).data.readable is True
    assert bodies(eventually(lambda: (r := broker.ask(by_heartbeat(topic, group))).code == 0 and r)) == [
        b"secret"
    ]


@case("admin", "a group forbidden to read one topic reads others, and other groups read that one")
def test_forbidden_alone(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group, another = create_group(broker, server.unique_name("group")), server.topic_name()
    create_topic(server, another, 1)
    data = [subscription(topic, "*", 1), subscription(another, "*", 1)]
    send_heartbeat(broker, f"{group}@1", group, topic, subscriptions=data)
    send(broker, topic, b"a")
    send(broker, another, b"b")
    broker.ask(UpdateAndGetGroupForbidden(group=group, topic=topic, readable=False))
    assert expect_refusal(broker, by_heartbeat(topic, group)).code == FORBIDDEN
    request = by_heartbeat(another, group)
    assert bodies(eventually(lambda: (r := broker.ask(request)).code == 0 and r)) == [b"b"]
    assert bodies(eventually(lambda: (r := pull(broker, topic)).code == 0 and r)) == [b"a"]


@case("pull", "a pull with its own subscription may read a topic forbidden to its group")
def test_forbidden_own_subscription(broker: BlockingClient, group: str, topic: str) -> None:
    send(broker, topic, b"a")
    broker.ask(UpdateAndGetGroupForbidden(group=group, topic=topic, readable=False))
    found = eventually(lambda: (r := pull(broker, topic, consumer_group=group)).code == 0 and r)
    assert bodies(found) == [b"a"]


@case("pull", "a refusal names what is forbidden: group (2), topic (3), broadcasting (4), subscription (5)")
@pytest.mark.parametrize("kind", [2, 3, 4, 5])
def test_forbidden_type(broker: BlockingClient, server: ServerUnderTest, topic: str, kind: int) -> None:
    group = server.unique_name("group")
    create_group(broker, group, consume_enable=kind != 2, consume_broadcast_enable=kind != 4)
    if kind == 3:
        topic = server.topic_name()
        create_topic(server, topic, 1, perm=2)
    if kind == 5:
        broker.ask(UpdateAndGetGroupForbidden(group=group, topic=topic, readable=False))
    model = "BROADCASTING" if kind == 4 else "CLUSTERING"
    send_heartbeat(broker, f"{group}@1", group, topic, message_model=model)
    ext = by_heartbeat(topic, group).to_ext()
    answer = send_plain(broker, 11, **ext)
    assert (answer.code, answer.ext["forbiddenType"]) == (FORBIDDEN, str(kind))


@case("client", "notifyConsumerIdsChangedEnable=false: members are not notified of each other")
def test_quiet_group(
    broker: BlockingClient, other: BlockingClient, server: ServerUnderTest, group: str, topic: str
) -> None:
    quiet = create_group(broker, server.unique_name("group"), notify_consumer_ids_changed_enable=False)
    told: list[str] = []
    broker.serve_request(NotifyConsumerIdsChanged, lambda request: told.append(request.consumer_group))
    for name in (quiet, group):
        send_heartbeat(broker, f"{name}@1", name, topic)
    for name in (quiet, group):  # A notice for the first would arrive before that for the second.
        send_heartbeat(other, f"{name}@2", name, topic)
    broker.serve_until(lambda: group in told, timeout_s=20)
    assert quiet not in told


@case("offsets", "consumeFromMinEnable does not change the start offset of a new group")
def test_consume_from_min(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    send(broker, topic)
    for wanted in (True, False):
        group = create_group(broker, server.unique_name("group"), consume_from_min_enable=wanted)
        config = broker.ask(GetSubscriptionGroupConfig(group=group)).data
        assert config.consume_from_min_enable is wanted
        ask = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=0)
        assert broker.ask(ask).offset == 0


@case("client", "members that disagree about tags: the newest subscription applies to all")
def test_other_tags(
    broker: BlockingClient, other: BlockingClient, server: ServerUnderTest, group: str, topic: str
) -> None:
    for tag in ("A", "B"):
        send(broker, topic, tag.encode(), properties={"TAGS": tag})
    eventually(lambda: pull(broker, topic).max_offset == 2)
    send_heartbeat(broker, f"{group}@1", group, topic, tags="A", sub_version=1000)
    send_heartbeat(other, f"{group}@2", group, topic, tags="B", sub_version=2000)
    assert bodies(broker.ask(by_heartbeat(topic, group, sub_version=1000))) == [b"B"]
    assert bodies(other.ask(by_heartbeat(topic, group, sub_version=2000))) == [b"B"]
    # A repeated older heartbeat changes nothing.
    send_heartbeat(broker, f"{group}@1", group, topic, tags="A", sub_version=1000)
    assert bodies(broker.ask(by_heartbeat(topic, group, sub_version=1000))) == [b"B"]


@case("client", "members that disagree about topics: the last heartbeat applies to all")
def test_other_topics(
    broker: BlockingClient, other: BlockingClient, server: ServerUnderTest, group: str, topic: str
) -> None:
    another = server.topic_name()
    create_topic(server, another, 1)
    send_heartbeat(broker, f"{group}@1", group, topic, sub_version=1)
    send_heartbeat(other, f"{group}@2", group, another, sub_version=2)
    assert expect_refusal(broker, by_heartbeat(topic, group)).code == NO_SUBSCRIPTION
    assert other.ask(by_heartbeat(another, group)).max_offset == 0
    send_heartbeat(broker, f"{group}@1", group, topic, sub_version=1)
    assert broker.ask(by_heartbeat(topic, group)).max_offset == 0
    assert expect_refusal(other, by_heartbeat(another, group)).code == NO_SUBSCRIPTION


@case("client", "members that disagree about broadcasting: the last heartbeat applies to all")
def test_other_model(
    broker: BlockingClient, other: BlockingClient, server: ServerUnderTest, topic: str
) -> None:
    group = create_group(broker, server.unique_name("group"))
    send_heartbeat(broker, f"{group}@1", group, topic)
    send_heartbeat(other, f"{group}@2", group, topic, message_model="BROADCASTING")
    ask = GetConsumerConnectionList(consumer_group=group)
    assert broker.ask(ask).data.message_model == "BROADCASTING"
    send_heartbeat(broker, f"{group}@1", group, topic)
    assert broker.ask(ask).data.message_model == "CLUSTERING"
