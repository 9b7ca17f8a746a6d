"""The RPCs on a simulated cluster: routes, sends, receives, transactions, settings, access."""

import hashlib
import hmac

import pytest
import trio

from codec.batch import encode_batch
from codec.constants import ResponseCode
from codec.message import iter_messages
from codec.properties import encode_properties
from codec.recall_handle import RecallHandle
from gateway.auth.access_control import AccessControl
from gateway.auth.account_table import User, UserType
from gateway.auth.policies import NO_POLICIES, Policies, PolicyEntry, PolicyType
from gateway.auth.request_needs import NeedContext
from gateway.auth.resources import Action, parse_resource
from gateway.grpc_front import clients
from gateway.grpc_front import messages as m
from gateway.grpc_front.broker_link import LocalLink
from gateway.grpc_front.framing import GrpcStatus, frame_message
from gateway.grpc_front.renewals import HeldMessage
from gateway.grpc_front.served_brokers import LocalCluster
from gateway.grpc_front.statuses import StatusError
from gateway.grpc_front.tests import world
from gateway.grpc_front.tests.world import (
    consumer_settings,
    message,
    open_front,
    producer_settings,
    receive_request,
    received,
    send_request,
)
from gateway.tests.cluster import EPOCH_MS, pull, settle, simulated
from remoting.errors import RequestError
from remoting.handler_table import Guard
from remoting.requests.pop import AckMessage
from remoting.requests.send import SendBatchMessage
from remoting.requests.transaction import EndTransaction

LOCAL_ONLY = {"test_a_wrong_signature_is_refused_before_a_link_opens"}
"""Tests of links to brokers of the same process."""


@pytest.fixture(params=["local", "remote"], autouse=True)
def place_of_brokers(request, monkeypatch):
    """Run each test in front of brokers of this process, and in front of others."""
    if request.param == "remote" and request.node.originalname in LOCAL_ONLY:
        pytest.skip("about links to brokers of this process")
    monkeypatch.setattr(world, "IS_REMOTE", request.param == "remote")


def resource(name="orders"):
    return m.Resource(name=name)


def stored(front, topic="orders"):
    """Return all messages of a topic as the store has them."""
    found = []
    for queue_id in range(16):
        for chunk in front.broker.store.read(topic, queue_id, 0, 32).chunks:
            found += iter_messages(chunk)
    return found


async def send(client, *sent):
    return await client.call("SendMessage", send_request(*sent))


# -- routes ---------------------------------------------------------------------------------------------------


@simulated
async def test_a_route_names_the_queues_and_the_endpoints_that_the_client_uses(cluster):
    front = await open_front(cluster)
    front.create_topic(queues=3, kind="FIFO")
    await settle()
    told = m.Endpoints(scheme=m.DOMAIN_NAME, addresses=[m.Address(host="mq.example.org", port=443)])
    answer = await front.client().call("QueryRoute", m.QueryRouteRequest(topic=resource(), endpoints=told))
    assert answer.status.code == m.OK
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2]
    for queue in answer.message_queues:
        assert queue.broker.name == "broker-a"
        assert queue.broker.endpoints == told
        assert queue.permission == m.READ_WRITE
        assert list(queue.accept_message_types) == [m.FIFO]


@simulated
async def test_without_endpoints_the_route_names_the_address_that_was_dialled(cluster):
    front = await open_front(cluster)
    front.create_topic()
    await settle()
    answer = await front.client().call("QueryRoute", m.QueryRouteRequest(topic=resource()))
    (address,) = answer.message_queues[0].broker.endpoints.addresses
    assert (address.host, address.port) == ("10.0.1.1", 8081)


@simulated
async def test_topics_that_do_not_exist_or_are_the_brokers_own_have_no_route(cluster):
    front = await open_front(cluster)
    client = front.client()
    codes = {
        "nothing": m.TOPIC_NOT_FOUND,
        "RMQ_SYS_TRANS_HALF_TOPIC": m.ILLEGAL_TOPIC,
        "a b": m.ILLEGAL_TOPIC,
    }
    for topic, code in codes.items():
        answer = await client.call("QueryRoute", m.QueryRouteRequest(topic=resource(topic)))
        assert answer.status.code == code, topic


@simulated
async def test_an_assignment_is_any_queue_or_each_queue_in_order(cluster):
    front = await open_front(cluster)
    front.create_topic(queues=3)
    client = front.client()
    request = m.QueryAssignmentRequest(topic=resource(), group=resource("GID"))
    await settle()
    answer = await client.call("QueryAssignment", request)
    assert [each.message_queue.id for each in answer.assignments] == [-1]
    front.broker.groups.find_or_create("GID").consume_message_orderly = True
    await world.until_read_again(client)
    answer = await client.call("QueryAssignment", request)
    assert [each.message_queue.id for each in answer.assignments] == [0, 1, 2]


@simulated
async def test_an_rpc_must_name_its_client(cluster):
    front = await open_front(cluster)
    answer = await front.client(client_id="").call("QueryRoute", m.QueryRouteRequest(topic=resource()))
    assert answer.status.code == m.CLIENT_ID_REQUIRED


# -- sends ----------------------------------------------------------------------------------------------------


@simulated
async def test_a_message_is_stored_with_its_properties(cluster):
    front = await open_front(cluster)
    front.create_topic()
    sent = message(tag="t", keys=["k1", "k2"], born_host="laptop", trace_context="trace")
    sent.user_properties["colour"] = "red"
    sent.system_properties.born_timestamp.FromMilliseconds(EPOCH_MS - 5)
    answer = await send(front.client(), sent)
    (entry,) = answer.entries
    assert (answer.status.code, entry.message_id, entry.offset) == (m.OK, "0168656C6C6F", 0)
    (found,) = stored(front)
    assert (found.body, found.born_timestamp, found.born_host) == (
        b"hello",
        EPOCH_MS - 5,
        # Brokers elsewhere see the connection of the front.
        ("10.1.0.2", 40_002) if world.IS_REMOTE else ("10.1.0.7", 40_007),
    )
    expected = {
        "TAGS": "t", "KEYS": "k1 k2", "UNIQ_KEY": "0168656C6C6F", "colour": "red", "PGROUP": "orders",
        "__BORNHOST": "laptop", "TRACE_CONTEXT": "trace", "RECONSUME_TIME": "0",
    }  # fmt: skip
    assert expected.items() <= found.properties.items()


@simulated
async def test_messages_of_a_group_go_to_one_queue_and_others_to_all(cluster):
    front = await open_front(cluster)
    front.create_topic()
    front.create_topic("ordered", "FIFO")
    client = front.client()
    for number in range(8):
        await send(client, message(body=b"%d" % number))
        sent = message("ordered", b"%d" % number, message_type=m.FIFO, message_group="one")
        assert (await send(client, sent)).status.code == m.OK
    assert {each.queue_id for each in stored(front)} == {0, 1, 2, 3}
    assert len({each.queue_id for each in stored(front, "ordered")}) == 1


@simulated
async def test_several_messages_are_stored_as_a_batch_with_a_result_each(cluster):
    front = await open_front(cluster)
    front.create_topic()
    answer = await send(front.client(), message(body=b"a"), message(body=b"b", tag="t"))
    assert [(each.message_id, each.offset) for each in answer.entries] == [("0161", 0), ("0162", 1)]
    assert [(each.body, each.tags) for each in stored(front)] == [(b"a", None), (b"b", "t")]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ([], m.MESSAGE_CORRUPTED),
        ([message("nothing")], m.TOPIC_NOT_FOUND),
        ([message("a b")], m.ILLEGAL_TOPIC),
        ([message(), message("other")], m.MESSAGE_CORRUPTED),
        ([message(body=b"")], m.MESSAGE_BODY_EMPTY),
        ([message(body=b"x" * 100_001)], m.MESSAGE_BODY_TOO_LARGE),
        ([message(message_id=" ")], m.ILLEGAL_MESSAGE_ID),
        ([message(tag="a|b")], m.ILLEGAL_MESSAGE_TAG),
        ([message(tag=" ")], m.ILLEGAL_MESSAGE_TAG),
        ([message(keys=["a\1"])], m.ILLEGAL_MESSAGE_KEY),
        ([message(message_id="a\1b")], m.BAD_REQUEST),
        ([message(message_group="g")], m.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ([message(message_group="g" * 64)], m.ILLEGAL_MESSAGE_GROUP),
        ([message(message_type=m.TRANSACTION)], m.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ([message(), message(body_encoding=m.GZIP)], m.BAD_REQUEST),
    ],
)
@simulated
async def test_messages_that_are_refused(cluster, sent, code):
    front = await open_front(cluster)
    front.create_topic()
    assert (await send(front.client(), *sent)).status.code == code
    assert stored(front) == []


@simulated
async def test_a_batch_of_one_message_group_goes_to_the_queue_of_the_group(cluster):
    front = await open_front(cluster)
    front.create_topic(kind="FIFO")
    client = front.client()
    ordered = {"message_type": m.FIFO, "message_group": "one"}
    await send(client, message(body=b"1", **ordered))
    for first in (2, 4, 6):
        batch = [message(body=b"%d" % number, **ordered) for number in (first, first + 1)]
        assert (await send(client, *batch)).status.code == m.OK
    assert len({each.queue_id for each in stored(front)}) == 1
    assert len(stored(front)) == 7
    mixed = [message(**ordered), message(message_type=m.FIFO, message_group="two")]
    assert (await send(client, *mixed)).status.code == m.BAD_REQUEST


@pytest.mark.parametrize("kind", ["delayed", "transactional", "ordered", "encoded"])
@simulated
async def test_each_message_of_a_batch_decides(cluster, kind):
    front = await open_front(cluster)
    front.create_topic(kind="MIXED")
    second = message(body=b"2", body_encoding=m.GZIP) if kind == "encoded" else message(body=b"2")
    system = second.system_properties
    if kind == "delayed":
        system.message_type = m.DELAY
        system.delivery_timestamp.seconds = EPOCH_MS // 1000 + 60
    elif kind == "transactional":
        system.message_type = m.TRANSACTION
    elif kind == "ordered":
        system.message_type, system.message_group = m.FIFO, "one"
    assert (await send(front.client(), message(), second)).status.code == m.BAD_REQUEST
    assert stored(front) == []


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"UNIQ_KEY": "x"}, m.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"a\2": "x"}, m.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"a": "x\n"}, m.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({str(number): "x" for number in range(129)}, m.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"a": "x" * 16_384}, m.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)
@simulated
async def test_user_properties_that_are_refused(cluster, properties, code):
    front = await open_front(cluster)
    front.create_topic()
    sent = message()
    sent.user_properties.update(properties)
    assert (await send(front.client(), sent)).status.code == code


@simulated
async def test_a_delayed_message_comes_when_it_is_due_unless_it_is_recalled(cluster):
    front = await open_front(cluster, recall_message_enable=True)
    front.create_topic(kind="DELAY")
    client = front.client()
    await client.receive(poll_s=5)
    recall = None
    for body in (b"wanted", b"recalled"):
        sent = message(body=body, message_type=m.DELAY)
        sent.system_properties.delivery_timestamp.FromMilliseconds(cluster.clock.now_ms() + 7000)
        answer = await send(client, sent)
        assert answer.status.code == m.OK
        recall = answer.entries[0].recall_handle
    request = m.RecallMessageRequest(topic=resource(), recall_handle=recall)
    assert (await client.call("RecallMessage", request)).status.code == m.OK
    request.recall_handle = "rubbish"
    assert (await client.call("RecallMessage", request)).status.code == m.INTERNAL_SERVER_ERROR
    assert (await client.receive(poll_s=5)).code == m.MESSAGE_NOT_FOUND
    got = await client.receive(poll_s=20)
    assert got.bodies == [b"wanted"]
    assert got.messages[0].system_properties.message_type == m.DELAY
    assert (await client.receive(poll_s=10)).bodies == []


# -- receives -------------------------------------------------------------------------------------------------


@simulated
async def test_a_waiting_receive_is_answered_by_a_send(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    stream = await client.start_receive(poll_s=20)
    await trio.sleep(2)
    before = trio.current_time()
    await send(client, message(tag="t", keys=["k"]))
    await stream.ended.wait()
    assert trio.current_time() - before < 0.1
    got = received(stream)
    system = got.messages[0].system_properties
    assert (got.code, got.bodies, system.tag, list(system.keys)) == (m.OK, [b"hello"], "t", ["k"])
    assert (system.delivery_attempt, system.message_type) == (1, m.NORMAL)
    assert system.body_digest.checksum == hashlib.md5(b"hello").hexdigest().upper()
    assert system.receipt_handle.endswith(f" {stored(front)[0].physical_offset}")


@simulated
async def test_a_message_comes_again_until_it_is_acknowledged(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await client.receive()
    await send(client, message())
    attempts = []
    for _ in range(3):
        got = await client.receive(invisible_s=12, poll_s=20)
        attempts.append(got.messages[0].system_properties.delivery_attempt)
    assert attempts == [1, 2, 3]
    ack = m.AckMessageRequest(topic=resource(), group=resource("GID"))
    for handle in (got.handles[0], "1 2 3"):
        ack.entries.add(message_id="x", receipt_handle=handle)
    answer = await client.call("AckMessage", ack)
    assert answer.status.code == m.MULTIPLE_RESULTS
    assert [each.status.code for each in answer.entries] == [m.OK, m.INVALID_RECEIPT_HANDLE]
    assert (await client.receive(poll_s=20)).bodies == []


@simulated
async def test_another_invisible_time_counts_from_then_on(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await client.receive()
    await send(client, message())
    got = await client.receive(invisible_s=60)
    change = m.ChangeInvisibleDurationRequest(
        topic=resource(), group=resource("GID"), receipt_handle=got.handles[0]
    )
    change.invisible_duration.seconds = 3
    answer = await client.call("ChangeInvisibleDuration", change)
    assert answer.status.code == m.OK
    before = trio.current_time()
    again = await client.receive(poll_s=20)
    assert again.bodies == [b"hello"]
    assert 2.9 < trio.current_time() - before < 4


@simulated
async def test_messages_of_a_receive_that_was_given_up_come_again_soon(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client, other = front.client(), front.client("client-2")
    await client.receive()
    await send(client, message())
    stream = await client.start_receive(poll_s=20)
    number = next(number for number, each in client.streams.items() if each is stream)
    client.h2.reset_stream(number)
    await client.flush()
    got = await other.receive(poll_s=20)
    assert got.bodies == [b"hello"]


@simulated
async def test_a_waiting_receive_whose_client_is_gone_takes_no_message(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client, other = front.client(), front.client("client-2")
    await client.start_receive(poll_s=20)
    await trio.sleep(1)
    await client.transport.aclose()
    await trio.sleep(1)
    await send(other, message())
    got = await other.receive(poll_s=5)
    assert got.bodies == [b"hello"]
    assert got.messages[0].system_properties.delivery_attempt == 1


@simulated
async def test_tags_and_dead_letters(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await client.receive(expression="a||b")
    for tag in "abc":
        await send(client, message(body=tag.encode(), tag=tag))
    got = await client.receive(expression="a||b")
    while len(got.bodies) < 2:
        more = await client.receive(expression="a||b")
        got.bodies += more.bodies
        got.messages += more.messages
    assert sorted(got.bodies) == [b"a", b"b"]
    first = got.messages[0].system_properties
    forward = m.ForwardMessageToDeadLetterQueueRequest(
        topic=resource(),
        group=resource("GID"),
        receipt_handle=first.receipt_handle,
        message_id=first.message_id,
    )
    answer = await client.call("ForwardMessageToDeadLetterQueue", forward)
    assert answer.status.code == m.OK
    assert [each.body for each in stored(front, "%DLQ%GID")] == [got.bodies[0]]


@simulated
async def test_a_message_goes_to_the_dead_letters_after_the_last_attempt(cluster):
    front = await open_front(cluster)
    front.create_topic()
    front.broker.groups.find_or_create("GID").retry_max_times = 1
    client = front.client()
    await client.receive()
    await send(client, message())
    for _ in range(2):
        assert (await client.receive(invisible_s=10, poll_s=20)).bodies == [b"hello"]
    assert (await client.receive(invisible_s=10, poll_s=20)).text == "no match message"
    assert [each.body for each in stored(front, "%DLQ%GID")] == [b"hello"]


@simulated
async def test_messages_of_push_consumers_stay_invisible_while_they_work(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await client.tell_settings(consumer_settings())
    await client.receive(auto_renew=True)
    await send(client, message())
    got = await client.receive(auto_renew=True)
    for _ in range(20):
        await trio.sleep(20)
        await client.call("Heartbeat", m.HeartbeatRequest(group=resource("GID"), client_type=m.PUSH_CONSUMER))
    assert (await front.client("client-2").receive(poll_s=5)).bodies == []
    ack = m.AckMessageRequest(topic=resource(), group=resource("GID"))
    ack.entries.add(receipt_handle=got.handles[0])
    assert (await client.call("AckMessage", ack)).status.code == m.OK
    await trio.sleep(300)
    assert (await front.client("client-2").receive(poll_s=5)).bodies == []


@pytest.mark.parametrize("failure", ["deadline", "busy"])
@simulated
async def test_an_ack_that_failed_for_now_may_be_repeated_with_the_first_handle(cluster, failure):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await client.tell_settings(consumer_settings())
    await client.receive(auto_renew=True)
    await send(client, message())
    got = await client.receive(auto_renew=True)
    await trio.sleep(90)  # The first handle has expired, and a renewed one counts.
    handlers = front.broker_handlers
    handler = handlers[AckMessage.code]

    def fail(connection, command):
        if failure == "busy":
            raise RequestError(ResponseCode.SYSTEM_BUSY, "busy")

    handlers[AckMessage.code] = fail
    ack = m.AckMessageRequest(topic=resource(), group=resource("GID"))
    ack.entries.add(receipt_handle=got.handles[0])
    stream = await client.start("AckMessage", ack, m.AckMessageResponse, grpc_timeout="1S")
    await stream.ended.wait()
    assert stream.status == (4 if failure == "deadline" else 0)
    handlers[AckMessage.code] = handler
    await trio.sleep(60)
    assert (await client.call("AckMessage", ack)).status.code == m.OK
    await trio.sleep(300)
    assert (await front.client("client-2").receive(poll_s=5)).bodies == []


@simulated
async def test_a_message_whose_ack_was_refused_for_good_is_renewed_no_longer(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    await client.tell_settings(consumer_settings())
    await client.receive(auto_renew=True)
    await send(client, message())
    got = await client.receive(auto_renew=True)

    def refuse(connection, command):
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "no")

    front.broker_handlers[AckMessage.code] = refuse
    ack = m.AckMessageRequest(topic=resource(), group=resource("GID"))
    ack.entries.add(receipt_handle=got.handles[0])
    assert (await client.call("AckMessage", ack)).status.code == m.INTERNAL_SERVER_ERROR
    assert (await front.client("client-2").receive(poll_s=20)).bodies == []
    await trio.sleep(45)
    assert (await front.client("client-2").receive(poll_s=20)).bodies == [b"hello"]


def forged_handles():
    """Return texts that are like the handle of a popped message, but that no broker makes."""
    return [f"0 {EPOCH_MS} 5000 0 9 broker-a 0 0", f"0 {EPOCH_MS} 5000 0 0 broker-a 0 99", "none", ""]


@simulated
async def test_handles_that_a_sender_wrote_into_its_messages_are_ignored(cluster):
    """A broker takes them away from single messages only, as the official one does, but not from those of a batch."""
    front = await open_front(cluster)
    front.create_topic(queues=1)
    client = front.client()
    await client.tell_settings(consumer_settings())
    await client.receive(auto_renew=True)
    batch = SendBatchMessage(
        producer_group="PID", topic="orders", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=EPOCH_MS, flag=0, properties="", reconsume_times=0, batch=True,
    )  # fmt: skip
    batch.body = encode_batch(
        (0, str(number).encode(), encode_properties({"UNIQ_KEY": f"U{number}", "POP_CK": handle}))
        for number, handle in enumerate(forged_handles())
    )
    async with cluster.client(*front.address) as connection:
        await connection.ask(batch, 3)
    got = await client.receive(auto_renew=True)
    assert got.bodies == [b"0", b"1", b"2", b"3"]
    assert [handle.split(" ")[4:8] for handle in got.handles] == [
        ["0", "broker-a", "0", str(offset)] for offset in range(4)
    ]
    for _ in range(10):
        await trio.sleep(20)
        await client.call("Heartbeat", m.HeartbeatRequest(group=resource("GID"), client_type=m.PUSH_CONSUMER))
    assert (await front.client("client-2").receive(poll_s=5)).bodies == []
    ack = m.AckMessageRequest(topic=resource(), group=resource("GID"))
    for handle in got.handles:
        ack.entries.add(receipt_handle=handle)
    assert (await client.call("AckMessage", ack)).status.code == m.OK


@simulated
async def test_a_message_that_cannot_be_renewed_does_not_end_the_others(cluster, monkeypatch, caplog):
    front = await open_front(cluster)
    front.create_topic(queues=1)
    client = front.client()
    await client.tell_settings(consumer_settings())
    await client.receive(auto_renew=True)
    await send(client, message())
    await send(client, message(body=b"second"))
    change, failures = HeldMessage.change, []

    def fail_for_first(held, invisible_ms):
        if held.receipt.offset == 0:
            failures.append(held)
            raise StatusError(m.INVALID_RECEIPT_HANDLE, "odd")
        return change(held, invisible_ms)

    monkeypatch.setattr(HeldMessage, "change", fail_for_first)
    assert len((await client.receive(auto_renew=True)).bodies) == 2
    for _ in range(5):
        await trio.sleep(20)
        await client.call("Heartbeat", m.HeartbeatRequest(group=resource("GID"), client_type=m.PUSH_CONSUMER))
    assert (await front.client("client-2").receive(poll_s=5)).bodies == [b"hello"]
    assert len(failures) == 1
    assert "message not renewed any more" in caplog.messages


@simulated
async def test_messages_of_a_push_consumer_that_is_gone_come_again_soon(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client, other = front.client(), front.client("client-2")
    await client.tell_settings(consumer_settings())
    await client.receive(auto_renew=True)
    await send(client, message())
    assert (await client.receive(auto_renew=True)).bodies == [b"hello"]
    await client.transport.aclose()
    assert (await other.receive(poll_s=20)).bodies == [b"hello"]


@simulated
async def test_messages_come_in_order_when_the_group_wants_it(cluster):
    front = await open_front(cluster)
    front.create_topic(kind="FIFO")
    front.broker.groups.find_or_create("GID").consume_message_orderly = True
    client = front.client()
    await client.receive()
    for number in range(3):
        await send(client, message(body=b"%d" % number, message_type=m.FIFO, message_group="g"))
    got = await client.receive(batch=1)
    assert got.bodies == [b"0"]
    assert (await client.receive(batch=1, poll_s=5)).bodies == []
    ack = m.AckMessageRequest(topic=resource(), group=resource("GID"))
    ack.entries.add(receipt_handle=got.handles[0])
    assert (await client.call("AckMessage", ack)).status.code == m.OK
    assert (await client.receive(batch=1)).bodies == [b"1"]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"topic": "nothing"}, m.TOPIC_NOT_FOUND),
        ({"group": "CID_RMQ_SYS_x"}, m.ILLEGAL_CONSUMER_GROUP),
        ({"invisible_s": 9}, m.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_s": 13 * 3600}, m.ILLEGAL_INVISIBLE_TIME),
        ({"expression": "||"}, m.ILLEGAL_FILTER_EXPRESSION),
    ],
)
@simulated
async def test_receives_that_are_refused(cluster, more, code):
    front = await open_front(cluster)
    front.create_topic()
    assert (await front.client().receive(**more)).code == code


# -- clients --------------------------------------------------------------------------------------------------


@simulated
async def test_settings_are_answered_and_register_the_client(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    stream = await client.tell_settings(consumer_settings())
    told = stream.answers[0].settings
    assert told.subscription.receive_batch_size == 32
    assert told.backoff_policy.max_attempts == 17
    assert len(told.backoff_policy.customized_backoff.next) == 18
    group = front.broker.clients.consumer_group("GID")
    assert group.client_ids() == ["client-1"]
    assert set(group.subscriptions) == {"orders"}
    assert group.find_member("client-1").protocol == "grpc"
    producer = front.client("client-2")
    stream = await producer.tell_settings(producer_settings("orders"))
    assert stream.answers[0].settings.publishing.max_body_size == 100_000
    assert front.broker.clients.next_producer("orders").client_id == "client-2"
    assert front.broker.clients.count_clients() == {"grpc": 2}
    await client.call("NotifyClientTermination", m.NotifyClientTerminationRequest(group=resource("GID")))
    assert front.broker.clients.consumer_group("GID") is None
    await producer.transport.aclose()
    await settle()
    assert front.broker.clients.next_producer("orders") is None


@simulated
async def test_heartbeats_need_settings_and_keep_a_client_alive(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    beat = m.HeartbeatRequest(group=resource("GID"), client_type=m.PUSH_CONSUMER)
    assert (await client.call("Heartbeat", beat)).status.code == m.UNRECOGNIZED_CLIENT_TYPE
    await client.tell_settings(consumer_settings())
    for _ in range(10):
        await trio.sleep(60)
        assert (await client.call("Heartbeat", beat)).status.code == m.OK
    assert front.broker.clients.consumer_group("GID").client_ids() == ["client-1"]
    await trio.sleep(200)
    assert front.broker.clients.consumer_group("GID") is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (m.Settings(), "no publishing or subscription"),
        (producer_settings("a b"), "illegal characters"),
        (consumer_settings(group="CID_RMQ_SYS_x"), "system consumer group"),
        (consumer_settings(kind=m.LITE_PUSH_CONSUMER), "LITE_PUSH_CONSUMER"),
    ],
)
@simulated
async def test_settings_that_are_refused_end_the_stream(cluster, settings, text):
    front = await open_front(cluster)
    stream = await front.client().tell_settings(settings)
    await stream.ended.wait()
    assert stream.status == 3
    assert text in stream.headers["grpc-message"]


@simulated
async def test_a_connection_has_a_limited_number_of_clients(cluster, monkeypatch):
    monkeypatch.setattr(clients, "MAX_CLIENTS_PER_CONNECTION", 3)
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    streams = []
    for number in range(5):
        client.metadata["x-mq-client-id"] = f"client-{number}"
        begun = await client.begin("Telemetry", m.TelemetryCommand)
        settings = m.TelemetryCommand(settings=consumer_settings())
        await client.send(begun, frame_message(settings.SerializeToString()))
        streams.append(client.streams[begun])
    await settle()
    assert [bool(stream.answers) for stream in streams] == [True] * 3 + [False] * 2
    assert {stream.status for stream in streams[3:]} == {GrpcStatus.RESOURCE_EXHAUSTED}
    assert all("3 clients of one connection" in stream.headers["grpc-message"] for stream in streams[3:])
    names = front.broker.clients.consumer_group("GID").client_ids()
    assert sorted(names) == ["client-0", "client-1", "client-2"]
    # Settings of its clients may change, and one that leaves makes room; so does one that is refused.
    client.metadata["x-mq-client-id"] = "client-2"
    assert (await client.tell_settings(consumer_settings())).answers[0].status.code == m.OK
    leave = m.NotifyClientTerminationRequest(group=resource("GID"))
    assert (await client.call("NotifyClientTermination", leave)).status.code == m.OK
    client.metadata["x-mq-client-id"] = "client-3"
    stream = await client.tell_settings(consumer_settings("nowhere", "GID"))
    assert stream.ended.is_set() or stream.answers
    leave = await client.call("NotifyClientTermination", leave)
    client.metadata["x-mq-client-id"] = "client-4"
    assert (await client.tell_settings(consumer_settings())).answers[0].status.code == m.OK
    assert len(front.broker.clients.consumer_group("GID").client_ids()) == 3


@simulated
async def test_a_receive_without_a_polling_time_leaves_half_of_the_request_timeout(cluster):
    """Official: 6.5 of 8 s, with a request timeout of 3 s."""
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    settings = consumer_settings(kind=m.SIMPLE_CONSUMER)
    settings.request_timeout.seconds = 3
    await client.tell_settings(settings)
    request = receive_request()
    request.ClearField("long_polling_timeout")
    began = trio.current_time()
    stream = await client.start("ReceiveMessage", request, m.ReceiveMessageResponse, grpc_timeout="8S")
    await stream.ended.wait()
    assert received(stream).code == m.MESSAGE_NOT_FOUND
    assert 6 < trio.current_time() - began < 7.5


# -- transactions ---------------------------------------------------------------------------------------------


@simulated
async def test_a_transaction_is_committed_once(cluster):
    front = await open_front(cluster)
    front.create_topic(kind="TRANSACTION")
    client = front.client()
    answer = await send(client, message(message_type=m.TRANSACTION))
    end = m.EndTransactionRequest(
        topic=resource(), transaction_id=answer.entries[0].transaction_id, resolution=m.COMMIT
    )
    assert stored(front) == []
    assert (await client.call("EndTransaction", end)).status.code == m.OK
    assert [each.body for each in stored(front)] == [b"hello"]
    assert (await client.call("EndTransaction", end)).status.code == m.INTERNAL_SERVER_ERROR
    assert len(stored(front)) == 1
    end.transaction_id = " "
    assert (await client.call("EndTransaction", end)).status.code == m.INVALID_TRANSACTION_ID


@simulated
async def test_an_open_transaction_is_asked_about_and_ended(cluster):
    front = await open_front(cluster, transaction_timeout_ms=5000, transaction_check_interval_ms=5000)
    front.create_topic(kind="TRANSACTION")
    client = front.client()
    stream = await client.tell_settings(producer_settings("orders"))
    stream.answers.clear()
    await send(client, message(message_type=m.TRANSACTION, tag="t"))
    with trio.fail_after(60):
        command = (await stream.next()).recover_orphaned_transaction_command
    assert (command.message.body, command.message.system_properties.tag) == (b"hello", "t")
    assert command.message.topic.name == "orders"
    end = m.EndTransactionRequest(
        topic=resource(),
        transaction_id=command.transaction_id,
        resolution=m.ROLLBACK,
        source=m.SOURCE_SERVER_CHECK,
    )
    assert (await client.call("EndTransaction", end)).status.code == m.OK
    await trio.sleep(30)
    assert stream.answers == []
    assert stored(front) == []


@simulated
async def test_a_decision_that_the_broker_refused_for_now_may_be_repeated(cluster):
    """Flow control refused it, and the client learned at its second try that there was no such transaction."""
    front = await open_front(cluster)
    front.create_topic(kind="TRANSACTION")
    client = front.client()
    half = await send(client, message(message_type=m.TRANSACTION))
    end = m.EndTransactionRequest(
        topic=resource(), transaction_id=half.entries[0].transaction_id, resolution=m.COMMIT
    )
    handlers = front.broker_handlers
    handler = handlers[EndTransaction.code]

    def refuse(connection, command):
        raise RequestError(ResponseCode.SYSTEM_BUSY, "busy")

    handlers[EndTransaction.code] = refuse
    assert (await client.call("EndTransaction", end)).status.code == m.TOO_MANY_REQUESTS
    handlers[EndTransaction.code] = handler
    assert (await client.call("EndTransaction", end)).status.code == m.OK
    assert len(stored(front)) == 1
    assert (await client.call("EndTransaction", end)).status.code == m.INTERNAL_SERVER_ERROR


@simulated
async def test_a_decision_whose_client_gave_up_may_be_repeated(cluster):
    front = await open_front(cluster)
    front.create_topic(kind="TRANSACTION")
    client = front.client()
    half = await send(client, message(message_type=m.TRANSACTION))
    end = m.EndTransactionRequest(
        topic=resource(), transaction_id=half.entries[0].transaction_id, resolution=m.COMMIT
    )
    handlers = front.broker_handlers
    handler = handlers[EndTransaction.code]
    handlers[EndTransaction.code] = lambda connection, command: None
    stream = await client.start("EndTransaction", end, m.EndTransactionResponse, grpc_timeout="1S")
    await stream.ended.wait()
    assert stream.status == 4
    handlers[EndTransaction.code] = handler
    assert (await client.call("EndTransaction", end)).status.code == m.OK
    assert len(stored(front)) == 1
    assert (await client.call("EndTransaction", end)).status.code == m.INTERNAL_SERVER_ERROR


@simulated
async def test_decisions_about_one_transaction_wait_for_each_other(cluster):
    """The first one, perhaps of a stranger, is not carried out."""
    front = await open_front(cluster)
    front.create_topic(kind="TRANSACTION")
    client, other = front.client(), front.client("client-2")
    half = await send(client, message(message_type=m.TRANSACTION))
    end = m.EndTransactionRequest(
        topic=resource(), transaction_id=half.entries[0].transaction_id, resolution=m.ROLLBACK
    )
    handlers = front.broker_handlers
    handler = handlers[EndTransaction.code]
    handlers[EndTransaction.code] = lambda connection, command: None
    first = await other.start("EndTransaction", end, m.EndTransactionResponse, grpc_timeout="1S")
    await settle()
    handlers[EndTransaction.code] = handler
    end.resolution = m.COMMIT
    seconds = [
        await client.start("EndTransaction", end, m.EndTransactionResponse, grpc_timeout="3S")
        for _ in range(2)
    ]
    for stream in (first, *seconds):
        await stream.ended.wait()
    assert first.status == 4
    codes = [stream.answers[0].status.code for stream in seconds]
    assert codes == [m.OK, m.INTERNAL_SERVER_ERROR], "the second one finds no transaction any more"
    assert len(stored(front)) == 1


# -- access control -------------------------------------------------------------------------------------------


class FakeAccounts:
    trusts_addresses = False

    def __init__(self):
        self.users = {
            "root": User("root", "super secret", UserType.SUPER),
            "alice": User("alice", "secret"),
            "bob": User("bob", "bob's"),
        }
        rule = PolicyEntry(parse_resource("Topic:orders"), frozenset({Action.PUB}), (), True)
        self.by_user = {"alice": Policies({PolicyType.CUSTOM: (rule,)})}

    def user(self, name):
        return self.users.get(name)

    def policies(self, name):
        return self.by_user.get(name, NO_POLICIES)

    def is_trusted_address(self, address, user):
        return False


def signed(user, secret, date="20261125T170000Z"):
    signature = hmac.digest(secret.encode(), date.encode(), "sha1").hex().upper()
    text = (
        f"MQv2-HMAC-SHA1 Credential={user}/eu/rocketmq, SignedHeaders=x-mq-date-time, Signature={signature}"
    )
    return {"authorization": text, "x-mq-date-time": date}


async def guarded(cluster):
    accounts = FakeAccounts()
    control = AccessControl(accounts, NeedContext("DefaultCluster"), authorizes=True)
    front = await open_front(cluster, accounts=accounts, guard=Guard(control.protect))
    front.create_topic()
    return front


@simulated
async def test_signatures_and_policies_decide_about_rpcs(cluster):
    front = await guarded(cluster)
    for user, secret, text in (
        ("alice", "wrong", "check signature failed."),
        ("nobody", "secret", "User:nobody is not found."),
    ):
        client = front.client(**signed(user, secret))
        answer = await send(client, message())
        assert answer.status.code == m.UNAUTHORIZED
        assert answer.status.message == text
    answer = await send(front.client(), message())
    assert (answer.status.code, answer.status.message) == (m.UNAUTHORIZED, "username cannot be null.")
    assert (await send(front.client(**signed("alice", "secret")), message())).status.code == m.OK
    got = await front.client(**signed("alice", "secret")).receive()
    assert got.code == m.UNAUTHORIZED
    assert "alice has no permission to access Group:GID" in got.text
    assert (await front.client(**signed("root", "super secret")).receive()).bodies == [b"hello"]


@simulated
async def test_settings_of_a_consumer_need_its_permissions(cluster):
    front = await guarded(cluster)
    stream = await front.client(**signed("alice", "secret")).tell_settings(consumer_settings())
    await stream.ended.wait()
    assert stream.answers[0].status.code == m.UNAUTHORIZED
    assert front.broker.clients.consumer_group("GID") is None


@pytest.mark.parametrize("attacker", [{}, signed("alice", "secret"), signed("root", "wrong")])
@simulated
async def test_a_refused_rpc_with_the_id_of_another_client_changes_nothing(cluster, attacker):
    front = await guarded(cluster)
    front.create_topic("tx", "TRANSACTION")
    owner = front.client(**signed("root", "super secret"))
    victim = await owner.tell_settings(consumer_settings())
    producing = front.client("client-2", **signed("root", "super secret"))
    checked = await producing.tell_settings(producer_settings("tx"))
    half = await send(producing, message("tx", message_type=m.TRANSACTION))
    for name in ("client-1", "client-2"):
        stranger = front.client(name, **attacker)
        for settings in (consumer_settings(), consumer_settings(group="mine"), producer_settings("tx")):
            stream = await stranger.tell_settings(settings)
            await stream.ended.wait()
            assert stream.answers[0].status.code == m.UNAUTHORIZED
        for method, request in (
            ("Heartbeat", m.HeartbeatRequest(group=resource("GID"))),
            ("NotifyClientTermination", m.NotifyClientTerminationRequest(group=resource("GID"))),
        ):
            assert (await stranger.call(method, request)).status.code == m.UNAUTHORIZED
        end = m.EndTransactionRequest(
            topic=resource("tx"), transaction_id=half.entries[0].transaction_id, resolution=m.ROLLBACK
        )
        assert (await stranger.call("EndTransaction", end)).status.code == m.UNAUTHORIZED
    assert front.broker.clients.consumer_group("GID").client_ids() == ["client-1"]
    assert front.broker.clients.next_producer("tx").client_id == "client-2"
    assert not victim.ended.is_set()
    assert not checked.ended.is_set()
    end.resolution = m.COMMIT
    assert (await producing.call("EndTransaction", end)).status.code == m.OK
    # The connection of the stranger does not keep a member that is gone.
    await owner.transport.aclose()
    await settle()
    assert front.broker.clients.consumer_group("GID") is None


@simulated
async def test_a_wrong_signature_is_refused_before_a_link_opens(cluster, monkeypatch):
    front = await guarded(cluster)
    links = []
    open_link = LocalCluster.open_link

    def open_counted(*arguments):
        links.append(open_link(*arguments))
        return links[-1]

    monkeypatch.setattr(LocalCluster, "open_link", open_counted)
    stream = await front.client(**signed("root", "wrong")).tell_settings(consumer_settings())
    await stream.ended.wait()
    assert (stream.answers[0].status.code, stream.answers[0].status.message) == (
        m.UNAUTHORIZED,
        "check signature failed.",
    )
    assert links == []
    await front.client(**signed("root", "super secret")).tell_settings(consumer_settings())
    assert len(links) == 1
    # The link of the owner is not opened again for somebody who only claims to be the owner.
    links[0].close("lost")
    for method, request in (
        ("Heartbeat", m.HeartbeatRequest(group=resource("GID"))),
        ("NotifyClientTermination", m.NotifyClientTerminationRequest(group=resource("GID"))),
    ):
        answer = await front.client(**signed("root", "wrong")).call(method, request)
        assert (answer.status.code, answer.status.message) == (m.UNAUTHORIZED, "check signature failed.")
    assert len(links) == 1


def every_unary_rpc(handle="0 1 1 0 0 broker-a 0 0 0"):
    """Return one request of each RPC but Telemetry, about things that exist."""
    entry = m.AckMessageEntry(receipt_handle=handle)
    change = m.ChangeInvisibleDurationRequest(topic=resource(), group=resource("GID"), receipt_handle=handle)
    change.invisible_duration.seconds = 30
    recall = RecallHandle("orders", "broker-a", str(EPOCH_MS + 60_000), "U1").encode()
    return {
        "QueryRoute": m.QueryRouteRequest(topic=resource()),
        "QueryAssignment": m.QueryAssignmentRequest(topic=resource(), group=resource("GID")),
        "SendMessage": send_request(message()),
        "RecallMessage": m.RecallMessageRequest(topic=resource("delayed"), recall_handle=recall),
        "EndTransaction": m.EndTransactionRequest(
            topic=resource(), transaction_id="T1", resolution=m.ROLLBACK
        ),
        "ReceiveMessage": receive_request(),
        "AckMessage": m.AckMessageRequest(topic=resource(), group=resource("GID"), entries=[entry]),
        "ChangeInvisibleDuration": change,
        "ForwardMessageToDeadLetterQueue": m.ForwardMessageToDeadLetterQueueRequest(
            topic=resource(), group=resource("GID"), receipt_handle=handle
        ),
        "Heartbeat": m.HeartbeatRequest(group=resource("GID")),
        "NotifyClientTermination": m.NotifyClientTerminationRequest(group=resource("GID")),
    }


async def statuses_of(client, requests):
    """Return the status of each RPC, and of the entries of an acknowledgement."""
    statuses = {}
    for method, request in requests.items():
        stream = await client.start(method, request, getattr(m, f"{method}Response"))
        await stream.ended.wait()
        first = stream.answers[0]
        statuses[method] = (
            first.entries[0].status if method == "AckMessage" and first.entries else first.status
        )
    return statuses


@simulated
async def test_every_rpc_verifies_a_signature_before_anything_else(cluster, monkeypatch):
    front = await guarded(cluster)
    front.create_topic("delayed", "DELAY")
    assert sorted(every_unary_rpc()) == sorted(set(front.service._methods) - {"Telemetry"})
    links, create = [], LocalLink.__init__

    def create_noted(link, *arguments):
        links.append(link)
        create(link, *arguments)

    monkeypatch.setattr(LocalLink, "__init__", create_noted)
    stranger = front.client(**signed("root", "wrong"))
    unknown = m.QueryRouteRequest(topic=resource("nowhere"))
    for requests in (every_unary_rpc(), {"QueryRoute": unknown}):
        for method, status in (await statuses_of(stranger, requests)).items():
            found = status.code, status.message
            assert found == (m.UNAUTHORIZED, "check signature failed."), method
    assert links == []
    # Whoever signs rightly gets further, even if only to another refusal.
    for method, status in (
        await statuses_of(front.client(**signed("root", "super secret")), every_unary_rpc())
    ).items():
        assert status.code != m.UNAUTHORIZED, method


@pytest.mark.parametrize("stranger", [{}, signed("bob", "bob's"), signed("root", "wrong")])
@simulated
async def test_refused_rpcs_of_strangers_change_nothing(cluster, stranger):
    """Of bob everybody knows the password, but he has no rights."""
    front = await guarded(cluster)
    front.create_topic("delayed", "DELAY")
    owner = front.client(**signed("root", "super secret"))
    await owner.tell_settings(consumer_settings())
    await send(owner, message())
    got = await owner.receive(auto_renew=True)
    broker, before = front.broker, stored_state(front)
    statuses = await statuses_of(front.client(**stranger), every_unary_rpc(got.handles[0]))
    # The namesrv of this cluster is open to everybody, and there is no open transaction that could be refused.
    open_to_all = {"QueryRoute", "QueryAssignment", "EndTransaction"}
    assert {statuses[method].code for method in set(statuses) - open_to_all} == {m.UNAUTHORIZED}
    assert stored_state(front) == before
    assert broker.clients.consumer_group("GID").client_ids() == ["client-1"]
    await trio.sleep(90)
    assert (await owner.receive()).bodies == [], "it is still renewed"


def stored_state(front):
    """Return what RPCs could have changed: messages, offsets, groups, topics."""
    store = front.broker.store
    return (
        store.max_physical_offset,
        dict(front.broker.groups.table),
        sorted(front.broker.topics.table),
        front.broker.offsets.query_offset("GID", "orders", 0),
    )


@simulated
async def test_a_refused_ack_does_not_end_the_renewal(cluster):
    front = await guarded(cluster)
    owner = front.client(**signed("root", "super secret"))
    await send(owner, message())
    got = await owner.receive(auto_renew=True)
    entry = m.AckMessageEntry(receipt_handle=got.handles[0])
    ack = m.AckMessageRequest(topic=resource(), group=resource("GID"), entries=[entry])
    assert (
        await front.client(**signed("alice", "secret")).call("AckMessage", ack)
    ).status.code == m.UNAUTHORIZED
    await trio.sleep(90)
    assert (await owner.receive()).bodies == []
    assert (await owner.call("AckMessage", ack)).status.code == m.OK


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "MQv2-HMAC-SHA1"},
        {"authorization": "MQv2-HMAC-SHA1 Credential=alice, Signature=00"},
        {"authorization": "x y", "x-mq-date-time": "now"},
        {"authorization": "MQv2-HMAC-SHA1 Credential, Signature", "x-mq-date-time": "now"},
    ],
)
@simulated
async def test_headers_that_are_no_signature_are_denied(cluster, headers):
    front = await guarded(cluster)
    assert (await send(front.client(**headers), message())).status.code == m.UNAUTHORIZED


@simulated
async def test_remoting_clients_read_what_grpc_clients_send(cluster):
    front = await open_front(cluster)
    front.create_topic()
    await send(front.client(), message())
    address = next(address for address in cluster.nodes if address[1] == 10911)
    found = []
    for queue_id in range(4):
        reply = await cluster.dial(address).ask(pull(queue_id=queue_id))
        found += iter_messages(reply.body)
    assert [each.body for each in found] == [b"hello"]
