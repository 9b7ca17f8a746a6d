import pytest

from codec.command import Command
from codec.ids import encode_message_id
from gateway.auth.request_needs import NEEDS, NeedContext, find_needs
from gateway.auth.resources import Action
from gateway.broker.assembly.role_control import ROLE_REQUESTS
from gateway.broker.assembly.role_control import handlers as role_handlers
from gateway.broker.processors import all_handlers
from gateway.controller.processors import handlers as controller_handlers
from gateway.namesrv.processors import handlers as namesrv_handlers
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from remoting.bodies.locks import LockBatchRequestBody
from remoting.bodies.pop import BatchAck, BatchAckMessageRequestBody
from remoting.bodies.queues import MessageQueue
from remoting.errors import RequestError
from remoting.requests.client import HeartBeat
from remoting.requests.locks import LockBatchMq
from remoting.requests.offsets import GetConsumeStats
from remoting.requests.pop import AckMessage, BatchAckMessage
from remoting.requests.pull import PullMessage
from remoting.requests.query import ViewMessageById
from remoting.requests.send import ConsumerSendMsgBack, SendMessageV2
from remoting.requests.staging import PublishStaged, StagePieces, StagesBody
from remoting.requests.transaction import EndTransaction

ID_OF_SECRET = encode_message_id("10.0.0.1", 10911, 100)
CONTEXT = NeedContext("DefaultCluster", {100: "secret", 200: "%RETRY%bill"}.get, {"bill_orders"}.__contains__)


def needs_of(request, **ext):
    command = request.to_command() if not isinstance(request, int) else Command(request)
    command.ext.update(ext)
    found = find_needs(command, CONTEXT)
    return {
        (
            "any" if need.resource is None else str(need.resource),
            "|".join(each.value for each in need.actions),
        )
        for need in found
    }


def test_whoever_publishes_a_batch_needs_the_right_on_the_topics_of_its_parts():
    staged = {("w", 7): {"orders", "bills"}}
    context = NeedContext(
        "DefaultCluster", staged_topics=lambda writer, batch: staged.get((writer, batch), set())
    )
    body = StagesBody(stages=[StagePieces(name="s", pieces=1)])

    def needs(batch):
        command = PublishStaged(writer="w", batch=batch, stream=False, data=body).to_command()
        return {(str(need.resource), *need.actions) for need in find_needs(command, context)}

    assert needs(7) == {("Topic:orders", Action.PUB), ("Topic:bills", Action.PUB)}
    assert needs(8) == {("None", Action.PUB, Action.SUB)}, "nothing is known of it, or nothing is there"


def test_every_code_that_is_served_has_needs():
    served = all_handlers().request_codes() | namesrv_handlers.request_codes() | ROLE_REQUESTS
    served |= role_handlers.request_codes()
    served |= controller_handlers.request_codes()
    assert served == NEEDS.keys()
    assert find_needs(Command(9999), CONTEXT) is None


@pytest.mark.parametrize("code", sorted(NEEDS))
def test_a_request_without_fields_needs_something_or_is_refused(code):
    """Officially requests without header fields need nothing."""
    try:
        assert find_needs(Command(code), CONTEXT)
    except RequestError:
        return


@pytest.mark.parametrize(
    ("code", "ext", "expected"),
    [
        (310, {"b": "orders", "a": "p"}, {("Topic:orders", "Pub")}),
        # Messages named by an id: their own topic counts, whatever the request says.
        (
            309,
            {"consumerGroup": "bill", "topic": "orders", "msgId": ID_OF_SECRET},
            {("Group:bill", "Sub"), ("Topic:secret", "Sub")},
        ),
        (
            309,
            {"consumerGroup": "bill", "msgId": ID_OF_SECRET},
            {("Group:bill", "Sub"), ("Topic:secret", "Sub")},
        ),
        (
            309,
            {"consumerGroup": "bill", "topic": "orders", "msgId": "x"},
            {("Group:bill", "Sub"), ("Topic:orders", "Sub")},
        ),
        (323, {"topic": "orders", "msgId": ID_OF_SECRET}, {("Topic:secret", "Update")}),
        (323, {"topic": "orders", "msgId": ""}, {("Topic:orders", "Update")}),
        (310, {"b": "%RETRY%bill", "a": "mine"}, {("Group:bill", "Sub")}),
        (10, {"topic": "orders"}, {("Topic:orders", "Pub")}),
        (11, {"topic": "orders", "consumerGroup": "bill"}, {("Topic:orders", "Sub"), ("Group:bill", "Sub")}),
        (361, {"topic": "%RETRY%bill", "consumerGroup": "bill"}, {("Group:bill", "Sub")}),
        (
            11,
            {"topic": "%RETRY%other", "consumerGroup": "bill"},
            {("Group:bill", "Sub"), ("Group:other", "Sub")},
        ),
        (105, {"topic": "orders"}, {("Topic:orders", "Pub|Sub|Get")}),
        (105, {"topic": "DefaultCluster_REPLY_TOPIC"}, {("any", "Pub|Sub|Get")}),
        (105, {"topic": "TBW102"}, {("any", "Pub|Sub|Get")}),
        (105, {"topic": "other_REPLY_TOPIC"}, {("Topic:other_REPLY_TOPIC", "Pub|Sub|Get")}),
        (30, {"topic": "orders"}, {("Topic:orders", "Sub|Get")}),
        (25, {}, {("Cluster:DefaultCluster", "Update")}),
        (103, {"clusterName": "other"}, {("Cluster:DefaultCluster", "Update")}),
        (17, {"topic": "orders"}, {("Topic:orders", "Create")}),
        (215, {"topic": "orders"}, {("Topic:orders", "Delete")}),
        (35, {"consumerGroup": "bill"}, {("Group:bill", "Sub")}),
        (35, {"producerGroup": "p"}, {("any", "Pub|Sub")}),
        (38, {"consumerGroup": "%RETRY%bill"}, {("Group:bill", "Sub|Get")}),
    ],
)
def test_header_fields(code, ext, expected):
    assert needs_of(code, **ext) == expected


def test_retry_topics_of_pops():
    """``%RETRY%group_topic`` is the group's, unless there is a group of that name."""
    ack = {"consumerGroup": "bill", "topic": "%RETRY%bill_bills"}
    assert needs_of(AckMessage.code, **ack) == {("Group:bill", "Sub")}
    taken = {"consumerGroup": "bill", "topic": "%RETRY%bill_orders"}
    assert needs_of(AckMessage.code, **taken) == {("Group:bill", "Sub"), ("Group:bill_orders", "Sub")}
    assert needs_of(AckMessage.code, consumerGroup="", topic="%RETRY%_x") == {
        ("Group:", "Sub"),
        ("Group:_x", "Sub"),
    }
    assert needs_of(PullMessage.code, consumerGroup="bill", topic="%RETRY%bill+orders") == {
        ("Group:bill", "Sub")
    }


def test_a_message_named_by_its_offset_is_judged_by_its_own_topic():
    assert needs_of(ViewMessageById.code, offset="100", topic="mine") == {("Topic:secret", "Get")}
    assert needs_of(ViewMessageById.code, offset="7", topic="mine") == {("Topic:mine", "Get")}
    assert needs_of(EndTransaction.code, commitLogOffset="100", topic="mine") == {("Topic:secret", "Pub")}
    assert needs_of(EndTransaction.code, commitLogOffset="9" * 400) == {("Topic:", "Pub")}
    back = needs_of(ConsumerSendMsgBack.code, offset="100", group="mine", originTopic="mine")
    assert back == {("Group:mine", "Sub"), ("Topic:secret", "Sub")}
    assert needs_of(ConsumerSendMsgBack.code, offset="200", group="bill") == {("Group:bill", "Sub")}


def test_bodies():
    heartbeat = HeartBeat(
        data=HeartbeatData(
            client_id="c",
            producer_data_set=[ProducerData(group_name="p")],
            consumer_data_set=[
                ConsumerData(
                    group_name="bill",
                    subscription_data_set=[
                        SubscriptionData(topic="orders"),
                        SubscriptionData(topic="%RETRY%bill"),
                    ],
                )
            ],
        )
    )
    assert needs_of(heartbeat) == {("any", "Pub|Sub"), ("Group:bill", "Sub"), ("Topic:orders", "Sub")}
    locks = LockBatchMq(
        data=LockBatchRequestBody(
            consumer_group="bill",
            client_id="c",
            mq_set=[MessageQueue(topic="orders", broker_name="b", queue_id=number) for number in range(2)],
        )
    )
    assert needs_of(locks) == {("Group:bill", "Sub"), ("Topic:orders", "Sub")}
    acks = [BatchAck(consumer_group="bill", topic="orders"), BatchAck(consumer_group="mine", topic="x")]
    batch = BatchAckMessage(data=BatchAckMessageRequestBody(acks=acks))
    assert {resource for resource, _ in needs_of(batch)} == {
        "any",
        "Group:bill",
        "Topic:orders",
        "Group:mine",
        "Topic:x",
    }


def test_malformed_heartbeats_need_what_nobody_has():
    command = Command(HeartBeat.code, body=b'{"clientID":"c","consumerDataSet":[null,{"groupName":7}]}')
    assert [str(need.resource) for need in find_needs(command, CONTEXT)] == ["Group:", "Group:"]


def test_bodies_have_the_limit_of_the_connection():
    body = LockBatchRequestBody(
        consumer_group="bill",
        client_id="c",
        mq_set=[MessageQueue(topic="orders", broker_name="b", queue_id=number) for number in range(10)],
    )
    heartbeat = Command(HeartBeat.code, body=b'{"clientID":"c","consumerDataSet":[1,2,3,4,5,6,7,8,9]}')
    for command in (LockBatchMq(data=body).to_command(), heartbeat):
        assert find_needs(command, CONTEXT)
        with pytest.raises(RequestError, match="values"):
            find_needs(command, NeedContext("c", max_json_values=5))


def test_lists_in_header_fields():
    ext = {"consumerGroup": "bill", "topicList": "a;b"}
    assert needs_of(GetConsumeStats.code, **ext) == {
        ("Group:bill", "Get"),
        ("Topic:a", "Get"),
        ("Topic:b", "Get"),
    }
    assert SendMessageV2.code in NEEDS
