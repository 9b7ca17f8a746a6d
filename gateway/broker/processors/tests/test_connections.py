import pytest

from codec.command import Command
from codec.ids import encode_message_id
from codec.message import decode_message
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from remoting.bodies.running import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.client import (
    ConsumeMessageDirectly,
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetConsumerRunningInfo,
    GetProducerConnectionList,
    HeartBeat,
)


@pytest.fixture
def world():
    return World()


def test_consumers_of_a_group(world):
    world.beat(FakeConnection(remote=("10.0.0.1", 5)), "t", client_id="c1")
    world.beat(FakeConnection(remote=("10.0.0.2", 6)), "t", client_id="c2")
    group = world.ask(GetConsumerConnectionList(consumer_group="g")).data
    assert [(each.client_id, each.client_addr) for each in group.connection_set] == [
        ("c1", "10.0.0.1:5"),
        ("c2", "10.0.0.2:6"),
    ]
    assert group.connection_set[0].version == 493
    assert group.subscription_table.keys() == {"t"}
    assert (group.consume_type, group.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    with pytest.raises(RequestError, match=r"the consumer group\[x\] not online") as refused:
        world.ask(GetConsumerConnectionList(consumer_group="x"))
    assert refused.value.code == 206


@pytest.mark.parametrize(
    ("stated", "protocol"), [("grpc", "grpc"), ("remoting", "remoting"), ("odd" * 1000, "remoting")]
)
def test_members_are_listed_with_the_protocol_that_a_front_states(world, stated, protocol):
    consumer = ConsumerData(group_name="g", consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING")
    data = HeartbeatData(
        client_id="c1", consumer_data_set=[consumer], producer_data_set=[ProducerData(group_name="p")]
    )
    command = HeartBeat(data=data).to_command(7)
    command.ext["clientProtocol"] = stated
    world.beat(FakeConnection(remote=("10.0.0.2", 6)), "t", client_id="c2")
    assert world.handlers[HeartBeat.code](FakeConnection(), command) is not None
    members = world.ask(GetConsumerConnectionList(consumer_group="g")).data.connection_set
    assert {member.client_id: member.protocol for member in members} == {"c1": protocol, "c2": "remoting"}
    (producer,) = world.ask(GetProducerConnectionList(producer_group="p")).data.connection_set
    assert producer.protocol == protocol
    table = world.ask(GetBrokerRuntimeInfo()).data.table
    grpc_count = int(protocol == "grpc")
    assert (table["grpcClients"], table["remotingClients"]) == (str(grpc_count), str(2 - grpc_count))


def test_producers_of_a_group_and_of_all(world):
    world.beat(FakeConnection(remote=("10.0.0.1", 5)), group=None, producers=["p", "q"])
    group = world.ask(GetProducerConnectionList(producer_group="p")).data
    assert [each.client_id for each in group.connection_set] == ["c1"]
    table = world.ask(GetAllProducerInfo()).data.data
    assert table.keys() == {"p", "q"}
    assert (table["p"][0].remote_ip, table["p"][0].last_update_timestamp) == ("/10.0.0.1:5", world.clock.ms)
    with pytest.raises(RequestError, match=r"the producer group\[x\] not exist") as refused:
        world.ask(GetProducerConnectionList(producer_group="x"))
    assert refused.value.code == 1


def test_a_question_is_handed_on_to_the_client_and_its_answer_back(world):
    consumer = FakeConnection()
    consumer.answer = Command(0, 99, body=ConsumerRunningInfo(jstack="stacks").to_json())
    world.beat(consumer, "t")
    request = GetConsumerRunningInfo(consumer_group="g", client_id="c1", jstack_enable=True)
    assert world.ask_async(request).data.jstack == "stacks"
    (asked,) = consumer.asked
    assert (asked.code, asked.ext["jstackEnable"], asked.ext["clientId"]) == (307, "true", "c1")


def test_a_clients_refusal_is_handed_back(world):
    consumer = FakeConnection()
    consumer.answer = Command(1, 99, remark="The Consumer Group <g> not exist in this consumer")
    world.beat(consumer, "t")
    with pytest.raises(RequestError, match="not exist in this consumer"):
        world.ask_async(GetConsumerRunningInfo(consumer_group="g", client_id="c1"))


@pytest.mark.parametrize(
    ("failure", "code", "remark"),
    [
        (RemotingTimeout("10 s"), 207, "consumer <g> <c1> Timeout: 10 s"),
        (RemotingClosed("gone"), 1, "invoke consumer <g> <c1> Exception: gone"),
    ],
)
def test_clients_that_do_not_answer(world, failure, code, remark):
    consumer = FakeConnection()
    consumer.answer = failure
    world.beat(consumer, "t")
    with pytest.raises(RequestError, match=remark) as refused:
        world.ask_async(GetConsumerRunningInfo(consumer_group="g", client_id="c1"))
    assert refused.value.code == code


def test_clients_that_cannot_be_asked(world):
    with pytest.raises(RequestError, match="The Consumer <g> <c1> not online"):
        world.ask_async(GetConsumerRunningInfo(consumer_group="g", client_id="c1"))
    world.beat(FakeConnection(), "t")
    world.broker.clients.consumer("g", "c1").version = 61
    with pytest.raises(RequestError, match="please upgrade it to V3_1_8_SNAPSHOT"):
        world.ask_async(GetConsumerRunningInfo(consumer_group="g", client_id="c1"))


def test_a_consumer_is_given_a_stored_message(world):
    consumer = FakeConnection()
    consumer.answer = Command(0, 99, body=ConsumeMessageDirectlyResult(consume_result="CR_SUCCESS").to_json())
    world.beat(consumer, "t")
    world.topic("t").topic_sys_flag = 2
    _, place = world.put("t", body=b"look")
    message_id = encode_message_id("10.0.0.9", 10911, place)
    request = ConsumeMessageDirectly(consumer_group="g", client_id="c1", msg_id=message_id, topic="t")
    assert world.ask_async(request).data.consume_result == "CR_SUCCESS"
    (asked,) = consumer.asked
    assert decode_message(asked.body).body == b"look"
    assert (asked.ext["brokerName"], asked.ext["topicSysFlag"], asked.ext["groupSysFlag"]) == ("b1", "2", "0")


@pytest.mark.parametrize("message_id", ["nonsense", encode_message_id("10.0.0.9", 10911, 12345)])
def test_a_message_that_is_not_there(world, message_id):
    world.beat(FakeConnection(), "t")
    with pytest.raises(RequestError, match=r"is illegal|can not find message by the offset, 12345"):
        world.ask_async(ConsumeMessageDirectly(consumer_group="g", client_id="c1", msg_id=message_id))
