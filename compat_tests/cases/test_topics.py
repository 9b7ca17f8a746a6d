"""Topics and consumer groups as admin tools change them, with our typed client."""

import pytest

from codec.fastjson import loads
from compat_tests.clients.typed import (
    READ,
    create_group,
    create_topic,
    expect_refusal,
    has_route,
    pull,
    send,
    send_plain,
    send_request,
    topic_request,
)
from compat_tests.marks import case, read_only
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.errors import RequestError
from remoting.requests.groups import (
    DeleteSubscriptionGroup,
    GetSubscriptionGroupConfig,
    UpdateAndCreateSubscriptionGroup,
)
from remoting.requests.namesrv import GetAllTopicListFromNameserver, GetRouteInfoByTopic
from remoting.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from remoting.requests.topics import DeleteTopicInBroker, GetAllTopicConfig, GetTopicConfig


@case("admin", "a created topic has a route with its queues and permission")
def test_route(namesrv: BlockingClient, server: ServerUnderTest) -> None:
    name = server.topic_name()
    create_topic(server, name, 3, perm=READ)
    route = namesrv.ask(GetRouteInfoByTopic(topic=name)).data
    (queues,) = route.queue_datas
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (3, 3, READ)
    (broker,) = route.broker_datas
    assert broker.broker_name == queues.broker_name
    assert list(broker.broker_addrs) == [0]


@case("admin", "a topic's settings can be read")
def test_config(broker: BlockingClient, topic: str) -> None:
    config = broker.ask(GetTopicConfig(topic=topic)).data
    assert (config.topic_name, config.read_queue_nums, config.write_queue_nums, config.perm) == (
        topic,
        4,
        4,
        6,
    )
    assert config.topic_filter_type == "SINGLE_TAG"


@case("admin", "a topic can be changed: more queues, another permission")
def test_change(broker: BlockingClient, namesrv: BlockingClient, topic: str) -> None:
    broker.ask(topic_request(topic, 8, perm=READ))
    config = broker.ask(GetTopicConfig(topic=topic)).data
    assert (config.write_queue_nums, config.perm) == (8, READ)
    ask = GetRouteInfoByTopic(topic=topic)
    assert eventually(lambda: namesrv.ask(ask).data.queue_datas[0].write_queue_nums == 8)
    assert send(broker, topic, queue_id=7).queue_offset == 0


@read_only
@case("admin", "refused: settings of an unknown topic (17)")
def test_no_config(broker: BlockingClient, server: ServerUnderTest) -> None:
    assert expect_refusal(broker, GetTopicConfig(topic=server.unique_name("missing"))).code == 17


@case("admin", "the list of all topics, in the old form, contains a new one and the system topics")
def test_all(broker: BlockingClient, namesrv: BlockingClient, topic: str) -> None:
    answer = send_plain(broker, 21)
    assert answer.code == 0
    table = loads(answer.body)["topicConfigTable"]
    assert table[topic]["writeQueueNums"] == 4
    assert "TBW102" in table
    assert topic in namesrv.ask(GetAllTopicListFromNameserver()).data.topic_list


@case("admin", "the list of all topics in pages, while nothing changes")
def test_pages(broker: BlockingClient, topic: str) -> None:
    def pages() -> set[str]:
        found: set[str] = set()
        version = None
        while True:
            ask = GetAllTopicConfig(topic_seq=len(found), max_topic_num=100, data_version=version)
            reply = broker.ask(ask)
            found |= set(reply.data.topic_config_table)
            version = reply.data.data_version.to_json().decode()
            # If other cases create topics meanwhile, the broker starts over and this ends early.
            if len(found) >= (reply.total_topic_num or 0) or not reply.data.topic_config_table:
                return found

    assert eventually(lambda: topic in pages())


@case("admin", "a deleted topic is gone: no settings, no messages")
def test_delete(broker: BlockingClient, topic: str) -> None:
    send(broker, topic)
    broker.ask(DeleteTopicInBroker(topic=topic))
    assert expect_refusal(broker, GetTopicConfig(topic=topic)).code == 17
    with pytest.raises(RequestError) as error:
        pull(broker, topic)
    assert error.value.code == 17


@case("admin", "a topic created again after its deletion starts at 0")
def test_again(broker: BlockingClient, topic: str) -> None:
    for _ in range(3):
        send(broker, topic)
    broker.ask(DeleteTopicInBroker(topic=topic))
    broker.ask(topic_request(topic, 4))
    assert send(broker, topic, b"first").queue_offset == 0
    reply = eventually(lambda: (r := pull(broker, topic)).code == 0 and r)
    assert (reply.next_begin_offset, reply.max_offset) == (1, 1)


@pytest.mark.parametrize("name", ["bad name", "", "x" * 128, "a/b"], ids=["space", "empty", "long", "slash"])
@case("admin", "refused: creating a topic with an illegal name")
def test_illegal(broker: BlockingClient, name: str) -> None:
    assert expect_refusal(broker, topic_request(name)).code in (1, 29)


@case("admin", "refused: creating a system topic")
def test_system(broker: BlockingClient) -> None:
    assert expect_refusal(broker, topic_request("SCHEDULE_TOPIC_XXXX")).code in (1, 16, 29)
    assert expect_refusal(broker, DeleteTopicInBroker(topic="SCHEDULE_TOPIC_XXXX")).code in (1, 16, 29)


@case("admin", "a topic of one queue takes messages for that queue only")
def test_one_queue(broker: BlockingClient, server: ServerUnderTest) -> None:
    name = server.topic_name()
    create_topic(server, name, 1)
    assert send(broker, name).queue_id == 0
    assert expect_refusal(broker, send_request(name, queue_id=1)).code == 29


@case("admin", "create, read and change a consumer group")
def test_group(broker: BlockingClient, server: ServerUnderTest) -> None:
    group = create_group(broker, server.unique_name("group"), retry_max_times=3, retry_queue_nums=2)
    config = broker.ask(GetSubscriptionGroupConfig(group=group)).data
    assert (config.group_name, config.retry_max_times, config.retry_queue_nums) == (group, 3, 2)
    assert (config.consume_enable, config.consume_broadcast_enable) == (True, True)
    changed = SubscriptionGroupConfig(group_name=group, retry_max_times=9)
    broker.ask(UpdateAndCreateSubscriptionGroup(data=changed))
    assert broker.ask(GetSubscriptionGroupConfig(group=group)).data.retry_max_times == 9


@case("admin", "the list of all groups, in the old form, contains a new one")
def test_groups(broker: BlockingClient, group: str) -> None:
    answer = send_plain(broker, 201)
    assert answer.code == 0
    assert loads(answer.body)["subscriptionGroupTable"][group]["retryMaxTimes"] == 16


@case("admin", "delete a group with its offsets")
def test_delete_group(broker: BlockingClient, group: str, topic: str) -> None:
    send(broker, topic)
    eventually(lambda: pull(broker, topic).code == 0)
    broker.ask(UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=0, commit_offset=1))
    broker.ask(DeleteSubscriptionGroup(group_name=group, clean_offset=True))
    query = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=0)
    assert broker.ask(query).offset == 0
    update = UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=0, commit_offset=1)
    assert expect_refusal(broker, update).code == 26


@case("admin", "a topic created by a first send is known to the namesrv at once")
def test_autocreated_route(broker: BlockingClient, namesrv: BlockingClient, server: ServerUnderTest) -> None:
    name = server.topic_name()
    assert not has_route(namesrv, name)
    send(broker, name)
    assert eventually(lambda: has_route(namesrv, name), 5)
