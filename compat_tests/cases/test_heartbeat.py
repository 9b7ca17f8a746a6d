"""Clients: heartbeats, consumer lists, and the broker's requests to its clients, with our typed client."""

import re
import threading

import pytest

from codec.ids import decode_message_id
from codec.message import decode_message
from compat_tests.clients.typed import (
    connect,
    consumer_ids,
    create_topic,
    expect_refusal,
    heartbeat_request,
    pull,
    send,
    send_heartbeat,
    send_plain,
    subscription,
)
from compat_tests.marks import case, read_only
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.bodies.heartbeat import CheckClientRequestBody
from remoting.bodies.progress import GetConsumerStatusBody
from remoting.bodies.queues import MessageQueue
from remoting.bodies.running import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from remoting.requests.client import (
    CheckClientConfig,
    ConsumeMessageDirectly,
    ConsumeMessageDirectlyReply,
    GetConsumerConnectionList,
    GetConsumerListByGroup,
    GetConsumerRunningInfo,
    GetConsumerRunningInfoReply,
    GetConsumerStatusFromClient,
    GetConsumerStatusFromClientReply,
    GetProducerConnectionList,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.offsets import InvokeBrokerToGetConsumerStatus, InvokeBrokerToResetOffset
from remoting.requests.topics import QueryTopicConsumeByWho, QueryTopicsByConsumer


@case("client", "a heartbeat adds its client to its group")
def test_heartbeat(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    assert consumer_ids(broker, group) == {"client@1"}
    send_heartbeat(broker, "client@1", group, topic)
    assert consumer_ids(broker, group) == {"client@1"}


@case("client", "a group lists the clients of all connections")
def test_two_clients(
    broker: BlockingClient, other: BlockingClient, server: ServerUnderTest, topic: str
) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    send_heartbeat(other, "client@2", group, topic)
    assert consumer_ids(broker, group) == {"client@1", "client@2"}


@read_only
@case("client", "refused: the member list of a group without members (1)")
def test_no_consumers(broker: BlockingClient, server: ServerUnderTest) -> None:
    group = server.unique_name("group")
    error = expect_refusal(broker, GetConsumerListByGroup(consumer_group=group))
    assert error.code == 1
    assert error.remark == f"no consumer for this group, {group}"


@case("client", "a first heartbeat creates the group's retry topic")
def test_retry_topic(
    broker: BlockingClient, namesrv: BlockingClient, server: ServerUnderTest, topic: str
) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    ask = GetRouteInfoByTopic(topic=f"%RETRY%{group}")
    assert eventually(lambda: send_plain(namesrv, 105, topic=ask.topic).code == 0)
    (queues,) = namesrv.ask(ask).data.queue_datas
    assert (queues.read_queue_nums, queues.write_queue_nums) == (1, 1)


@case("client", "unregister removes a client from its group")
def test_unregister(
    broker: BlockingClient, other: BlockingClient, server: ServerUnderTest, topic: str
) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    send_heartbeat(other, "client@2", group, topic)
    broker.ask(UnregisterClient(client_id="client@1", consumer_group=group))
    assert consumer_ids(other, group) == {"client@2"}


@case("client", "a closed connection removes its client from its group")
def test_closed(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    with connect(server.broker) as gone:
        send_heartbeat(gone, "client@2", group, topic)
        assert consumer_ids(broker, group) == {"client@1", "client@2"}
    eventually(lambda: consumer_ids(broker, group) == {"client@1"})


@case("client", "the other members of a group are notified when a client joins, leaves or is lost")
def test_ids_changed(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    with connect(server.broker) as second:
        send_heartbeat(second, "client@2", group, topic)
        assert broker.wait_for_request(NotifyConsumerIdsChanged).consumer_group == group
        # The server may also announce this client's own arrival, so consume one notice per change.
        second.ask(UnregisterClient(client_id="client@2", consumer_group=group))
        assert broker.wait_for_request(NotifyConsumerIdsChanged).consumer_group == group
        send_heartbeat(second, "client@2", group, topic)
        assert broker.wait_for_request(NotifyConsumerIdsChanged).consumer_group == group
    assert broker.wait_for_request(NotifyConsumerIdsChanged).consumer_group == group


@case("client", "the notification is oneway")
def test_ids_changed_oneway(
    broker: BlockingClient, other: BlockingClient, server: ServerUnderTest, topic: str
) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    seen = []
    broker.serve_request(NotifyConsumerIdsChanged, lambda request: seen.append(request))
    send_heartbeat(other, "client@2", group, topic)
    command = broker.receive_command()
    assert (command.code, command.is_oneway, command.is_response) == (40, True, False)


@case("client", "heartbeat V2: the answer shows that the broker supports it")
def test_v2(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    old = send_heartbeat(broker, "client@1", group, topic)
    assert (old.is_support_heart_beat_v2, old.is_sub_change) == (True, True)
    send_heartbeat(broker, "client@1", group, topic, heartbeat_fingerprint=12345)
    same = send_heartbeat(broker, "client@1", group, topic, heartbeat_fingerprint=12345)
    assert (same.is_support_heart_beat_v2, same.is_sub_change) == (True, False)
    assert consumer_ids(broker, group) == {"client@1"}


@case("client", "heartbeat V2: after a changed fingerprint the broker asks for the subscriptions")
def test_v2_changed(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic, heartbeat_fingerprint=1)
    reply = send_heartbeat(
        broker, "client@1", group, topic, subscriptions=[], without_sub=True, heartbeat_fingerprint=2
    )
    assert (reply.is_support_heart_beat_v2, reply.is_sub_change) == (True, True)


@case("client", "heartbeat V2: a heartbeat without subscriptions keeps a known client alive")
def test_v2_without_sub(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic, tags="A", sub_version=7, heartbeat_fingerprint=99)
    reply = send_heartbeat(
        broker, "client@1", group, topic, subscriptions=[], without_sub=True, heartbeat_fingerprint=99
    )
    assert reply.is_sub_change in (None, False)
    assert consumer_ids(broker, group) == {"client@1"}
    send(broker, topic, b"a", properties={"TAGS": "A"})
    assert eventually(lambda: pull(broker, topic, tags=None, consumer_group=group, sub_version=7).code == 0)


@case("client", "producer connections")
def test_producers(broker: BlockingClient, server: ServerUnderTest) -> None:
    group = server.unique_name("producer")
    send_heartbeat(broker, "client@7", producer=group)
    (connection,) = broker.ask(GetProducerConnectionList(producer_group=group)).data.connection_set
    assert connection.client_id == "client@7"
    # Published ports of a container, and address translation before somebody's cluster, change the client's port.
    port = r"\d+" if server.kind in ("image", "address") else str(broker.local[1])
    assert re.fullmatch(rf".+:{port}", connection.client_addr)
    broker.ask(UnregisterClient(client_id="client@7", producer_group=group))
    assert expect_refusal(broker, GetProducerConnectionList(producer_group=group)).code == 1


@case("client", "consumer connections with their subscriptions")
def test_connections(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic, tags="A || B", sub_version=42)
    data = broker.ask(GetConsumerConnectionList(consumer_group=group)).data
    assert [connection.client_id for connection in data.connection_set] == ["client@1"]
    assert (data.consume_type, data.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert data.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert set(data.subscription_table) == {topic, f"%RETRY%{group}"}
    found = data.subscription_table[topic]
    assert (found.sub_string, sorted(found.tags_set), found.sub_version) == ("A || B", ["A", "B"], 42)


@read_only
@case("client", "refused: consumer connections of a group that is not online (206)")
def test_no_connections(broker: BlockingClient, server: ServerUnderTest) -> None:
    error = expect_refusal(broker, GetConsumerConnectionList(consumer_group=server.unique_name("group")))
    assert error.code == 206


@case("client", "a changed subscription replaces the old one")
def test_resubscribe(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic, tags="A", sub_version=1)
    send_heartbeat(broker, "client@1", group, topic, tags="B", sub_version=2)
    data = broker.ask(GetConsumerConnectionList(consumer_group=group)).data
    assert data.subscription_table[topic].sub_string == "B"
    another = server.topic_name()
    create_topic(server, another, 1)
    send_heartbeat(broker, "client@1", group, topic, subscriptions=[subscription(another, "*", 3)])
    data = broker.ask(GetConsumerConnectionList(consumer_group=group)).data
    assert set(data.subscription_table) == {another}


@case("client", "groups that consume a topic, and topics that a group consumes")
def test_who(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    assert group in broker.ask(QueryTopicConsumeByWho(topic=topic)).data.group_list
    send_plain(broker, 15, consumerGroup=group, topic=topic, queueId="0", commitOffset="0")
    topics = broker.ask(QueryTopicsByConsumer(group=group)).data.topic_list
    assert topic in topics


@case("client", "running info is requested from the client, and its answer is passed on")
def test_running_info(server: ServerUnderTest, broker: BlockingClient, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    asked: list[GetConsumerRunningInfo] = []

    def answer(request: GetConsumerRunningInfo) -> GetConsumerRunningInfoReply:
        asked.append(request)
        return GetConsumerRunningInfoReply(
            data=ConsumerRunningInfo(properties={"PROP_CLIENT_VERSION": "test"})
        )

    broker.serve_request(GetConsumerRunningInfo, answer)
    serving = threading.Thread(target=lambda: broker.serve_until(lambda: bool(asked)))
    serving.start()
    with connect(server.broker) as admin:
        info = admin.ask(GetConsumerRunningInfo(consumer_group=group, client_id="client@1")).data
    serving.join()
    assert info.properties["PROP_CLIENT_VERSION"] == "test"
    assert (asked[0].consumer_group, asked[0].client_id) == (group, "client@1")


@read_only
@case("client", "refused: running info of a client that is not connected")
def test_running_info_absent(broker: BlockingClient, server: ServerUnderTest) -> None:
    request = GetConsumerRunningInfo(consumer_group=server.unique_name("group"), client_id="nobody@1")
    assert expect_refusal(broker, request).code in (1, 206)


@case("client", "consume directly: the client gets the message and its answer is passed on")
def test_consume_directly(server: ServerUnderTest, broker: BlockingClient, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    sent = send(broker, topic, b"direct")
    asked: list[ConsumeMessageDirectly] = []

    def answer(request: ConsumeMessageDirectly) -> ConsumeMessageDirectlyReply:
        asked.append(request)
        result = ConsumeMessageDirectlyResult(consume_result="CR_LATER", remark="not now", spent_time_mills=3)
        return ConsumeMessageDirectlyReply(data=result)

    broker.serve_request(ConsumeMessageDirectly, answer)
    serving = threading.Thread(target=lambda: broker.serve_until(lambda: bool(asked)))
    serving.start()
    with connect(server.broker) as admin:
        request = ConsumeMessageDirectly(
            consumer_group=group, client_id="client@1", msg_id=sent.msg_id, topic=topic
        )
        result = admin.ask(request).data
    serving.join()
    assert (result.consume_result, result.remark) == ("CR_LATER", "not now")
    message = decode_message(asked[0].body, 0)
    assert (message.body, message.physical_offset) == (b"direct", decode_message_id(sent.msg_id)[2])


@case("client", "reset: the group's next pull of a queue gets the new offset, once")
def test_reset(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    for _ in range(3):
        send(broker, topic)
    assert eventually(lambda: pull(broker, topic, 2, consumer_group=group).code == 0)
    reset = InvokeBrokerToResetOffset(topic=topic, group=group, timestamp=0, is_force=True)
    table = broker.ask(reset).data.offset_table
    assert {queue.queue_id: offset for queue, offset in table.items()} == {0: 0, 1: 0, 2: 0, 3: 0}
    moved = pull(broker, topic, 3, consumer_group=group)
    assert (moved.code, moved.next_begin_offset) == (21, 0)
    assert pull(broker, topic, 0, consumer_group=group).code == 0


@case("client", "reset to an offset of one queue")
def test_reset_queue(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    for _ in range(3):
        send(broker, topic, queue_id=1)
    assert eventually(lambda: pull(broker, topic, 2, queue_id=1, consumer_group=group).code == 0)
    broker.ask(InvokeBrokerToResetOffset(topic=topic, group=group, queue_id=1, offset=2, is_force=True))
    moved = pull(broker, topic, 0, queue_id=1, consumer_group=group)
    assert (moved.code, moved.next_begin_offset) == (21, 2)
    request = InvokeBrokerToResetOffset(topic=topic, group=group, queue_id=1, offset=100, is_force=True)
    assert expect_refusal(broker, request).code == 1


@case("client", "consumer status is requested from the clients")
def test_status(server: ServerUnderTest, broker: BlockingClient, topic: str) -> None:
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    asked: list[GetConsumerStatusFromClient] = []
    queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=0)

    def answer(request: GetConsumerStatusFromClient) -> GetConsumerStatusFromClientReply:
        asked.append(request)
        return GetConsumerStatusFromClientReply(data=GetConsumerStatusBody(message_queue_table={queue: 11}))

    broker.serve_request(GetConsumerStatusFromClient, answer)
    serving = threading.Thread(target=lambda: broker.serve_until(lambda: bool(asked)))
    serving.start()
    with connect(server.broker) as admin:
        data = admin.ask(InvokeBrokerToGetConsumerStatus(topic=topic, group=group, client_addr="")).data
    serving.join()
    assert {client: dict(table) for client, table in data.consumer_table.items()} == {"client@1": {queue: 11}}


@read_only
@case("client", "check client config accepts a tag subscription")
def test_check_tags(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    data = CheckClientRequestBody(
        client_id="client@1",
        group=server.unique_name("group"),
        subscription_data=subscription(topic, "A || B", 1),
    )
    broker.ask(CheckClientConfig(data=data))


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"clientID":7}'], ids=["nothing", "half", "list", "number"]
)
@case("client", "a heartbeat with an invalid body affects no other client")
def test_wrong_body(broker: BlockingClient, server: ServerUnderTest, topic: str, text: bytes) -> None:
    command = heartbeat_request("client@1", "g", topic).to_command()
    command.body = text
    broker.send_command(command)
    group = server.unique_name("group")
    send_heartbeat(broker, "client@1", group, topic)
    assert consumer_ids(broker, group) == {"client@1"}
