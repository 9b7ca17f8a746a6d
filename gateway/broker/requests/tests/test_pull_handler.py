import pytest
import trio

from codec.constants import FAQ
from gateway.broker.requests.pull_handler import CODE_OF_STATUS, EMPTY_QUEUE
from gateway.tests.cluster import bodies, message, pull, settle, simulated
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.requests.client import HeartBeat
from remoting.requests.offsets import QueryConsumerOffset
from remoting.requests.pull import LitePullMessage, PullMessage
from storage.queue_read import ReadStatus

NOT_FOUND, RETRY, MOVED = 19, 20, 21
SYSTEM_ERROR, FORBIDDEN, NO_TOPIC = 1, 16, 17
PARSE_FAILED, NO_SUBSCRIPTION, NOT_LATEST, NO_GROUP, INVALID = 23, 24, 25, 26, 29


async def started(cluster, count=0, **settings):
    node = await cluster.add_broker(**settings)
    client = cluster.dial(node.address)
    for number in range(count):
        await client.ask(message(body=b"%d" % number, tags="ab"[number % 2]))
    return node.broker, client


async def refused(client, request):
    """Return code, remark and forbidden type of a refusal."""
    answer = await client.ask_command(request.to_command(), 1)
    return answer.code, answer.remark, answer.ext.get("forbiddenType")


async def subscribe(client, *subscriptions, group="GID", **more):
    consumer = ConsumerData(
        group_name=group, consume_type="CONSUME_PASSIVELY", consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        **{"message_model": "CLUSTERING", **more}, subscription_data_set=list(subscriptions),
    )  # fmt: skip
    await client.ask(HeartBeat(data=HeartbeatData(client_id="c", consumer_data_set=[consumer])))


def subscribed(offset=0, version=0, **more):
    """Return a pull that uses the subscription of its group's heartbeats."""
    request = pull(offset=offset, sub_version=version, subscription=None, **more)
    request.sys_flag &= ~4
    return request


@simulated
async def test_messages_come_as_they_were_stored_with_all_offsets(cluster):
    broker, client = await started(cluster, 5)
    reply = await client.ask(pull(offset=2))
    assert bodies(reply) == [b"2", b"3", b"4"]
    assert (reply.next_begin_offset, reply.min_offset, reply.max_offset) == (5, 0, 5)
    assert (reply.code, reply.remark, reply.suggest_which_broker_id) == (0, "FOUND", 0)
    assert (reply.topic_sys_flag, reply.group_sys_flag) == (0, 0)
    assert broker.stats.delivered["GID", "orders"].messages == 3


@simulated
async def test_the_number_of_messages_and_bytes_is_bounded(cluster):
    broker, client = await started(cluster, 40)
    assert len(bodies(await client.ask(pull(max_msg_nums=7)))) == 7
    assert len(bodies(await client.ask(pull(max_msg_nums=1000)))) == 32
    assert len(bodies(await client.ask(pull(max_msg_nums=0)))) == 1
    assert len(bodies(await client.ask(pull(max_msg_nums=-1)))) == 1
    size = broker.store.read("orders", 0, 0, 1).size_bytes
    assert len(bodies(await client.ask(pull(max_msg_bytes=3 * size)))) == 3
    assert len(bodies(await client.ask(pull(max_msg_bytes=1)))) == 1


@pytest.mark.parametrize(
    ("offset", "code", "next_offset", "remark"),
    [
        (5, NOT_FOUND, 5, "OFFSET_OVERFLOW_ONE"),
        (6, MOVED, 5, "OFFSET_OVERFLOW_BADLY"),
        (1 << 62, MOVED, 5, "OFFSET_OVERFLOW_BADLY"),
        (-1, MOVED, 0, "OFFSET_TOO_SMALL"),
    ],
)
@simulated
async def test_offsets_outside_of_the_queue(cluster, offset, code, next_offset, remark):
    _, client = await started(cluster, 5)
    reply = await client.ask(pull(offset=offset))
    assert (reply.code, reply.next_begin_offset, reply.remark) == (code, next_offset, remark)
    assert (reply.min_offset, reply.max_offset, reply.body) == (0, 5, b"")


@simulated
async def test_queues_nobody_wrote_to(cluster):
    _, client = await started(cluster, 1)
    for offset, code in ((0, NOT_FOUND), (7, MOVED)):
        reply = await client.ask(pull(offset=offset, queue_id=3))
        assert (reply.code, reply.next_begin_offset, reply.remark) == (code, 0, "NO_MATCHED_LOGIC_QUEUE")


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("*", b"0123"), (None, b"0123"), ("", b"0123"), ("a", b"02"), (" a || c ", b"02"), ("a||b", b"0123"),
        ("c || ", b""),
    ],
)  # fmt: skip
@simulated
async def test_tags_select(cluster, tags, wanted):
    _, client = await started(cluster, 4)
    reply = await client.ask(pull(tags=tags))
    assert b"".join(bodies(reply)) == wanted
    assert reply.next_begin_offset == 4
    assert reply.code == (0 if wanted else RETRY)


@simulated
async def test_a_subscription_without_a_tag_is_refused(cluster):
    _, client = await started(cluster, 1)
    assert (await refused(client, pull(tags=" || ")))[:2] == (
        PARSE_FAILED, "parse the consumer's subscription failed",
    )  # fmt: skip


@simulated
async def test_expressions_other_than_tags_are_refused(cluster):
    _, client = await started(cluster, 1, enable_property_filter=False)
    code, remark, _ = await refused(client, pull(tags="a > 1", expression_type="SQL92"))
    assert (code, remark) == (SYSTEM_ERROR, "The broker does not support consumer to filter message by SQL92")


@simulated
async def test_a_subscription_of_a_heartbeat_without_a_tag_is_refused(cluster):
    _, client = await started(cluster, 1)
    await subscribe(client, SubscriptionData(topic="orders", sub_string="||", sub_version=10))
    refusal = await refused(client, subscribed())
    assert refusal[:2] == (PARSE_FAILED, "parse the consumer's subscription failed")


@simulated
async def test_pulls_go_by_the_subscription_of_heartbeats(cluster):
    _, client = await started(cluster, 4)
    code, remark, _ = await refused(client, subscribed())
    assert (code, remark[:37]) == (NO_SUBSCRIPTION, "the consumer's group info not exist\nS")
    await subscribe(client, SubscriptionData(topic="other", sub_version=5))
    code, remark, _ = await refused(client, subscribed())
    assert (code, remark) == (NO_SUBSCRIPTION, f"the consumer's subscription not exist{FAQ}")
    await subscribe(client, SubscriptionData(topic="orders", sub_string="b", sub_version=5))
    assert bodies(await client.ask(subscribed(version=5))) == [b"1", b"3"]
    assert bodies(await client.ask(subscribed(version=4))) == [b"1", b"3"]
    code, remark, _ = await refused(client, subscribed(version=6))
    assert (code, remark) == (NOT_LATEST, "the consumer's subscription not latest")


@simulated
async def test_forbidden_pulls_say_what_is_forbidden(cluster):
    broker, client = await started(cluster, 1)
    await subscribe(client, SubscriptionData(topic="orders"), message_model="BROADCASTING")
    group = broker.groups.find_or_create("GID")
    group.consume_broadcast_enable = False
    assert await refused(client, subscribed()) == (
        FORBIDDEN, "the consumer group[GID] can not consume by broadcast way", "4",
    )  # fmt: skip
    group.consume_enable = False
    assert await refused(client, pull()) == (FORBIDDEN, "subscription group no permission, GID", "2")
    group.consume_enable = True
    broker.topics.table["orders"] = TopicConfig(topic_name="orders", perm=2)
    assert await refused(client, pull()) == (FORBIDDEN, "the topic[orders] pulling message is forbidden", "3")


@simulated
async def test_a_broker_without_read_permission(cluster):
    _, client = await started(cluster, broker_permission=2)
    remark = "the broker[10.0.1.0] pulling message is forbidden"
    assert await refused(client, pull()) == (FORBIDDEN, remark, "1")


@simulated
async def test_lite_pulls_are_served_unless_switched_off(cluster):
    broker, client = await started(cluster, 2)
    lite = LitePullMessage.from_ext(pull().to_ext())
    assert bodies(await client.ask(lite)) == [b"0", b"1"]
    broker, client = await started(cluster, 0, name="broker-b", lite_pull_message_enable=False)
    code, remark, kind = await refused(client, lite)
    assert (code, kind) == (FORBIDDEN, "1")
    assert remark.endswith("for lite pull consumer is forbidden")


@simulated
async def test_unknown_topics_queues_and_groups(cluster):
    broker, client = await started(cluster, 1, auto_create_subscription_group=False)
    code, remark, _ = await refused(client, pull())
    assert (code, remark) == (NO_GROUP, f"subscription group [GID] does not exist, {FAQ}")
    broker.groups.update([SubscriptionGroupConfig(group_name="GID")])
    code, remark, _ = await refused(client, pull("nothing"))
    assert (code, remark) == (NO_TOPIC, f"topic[nothing] not exist, apply first please! {FAQ}")
    for queue_id in (-1, 4):
        code, remark, _ = await refused(client, pull(queue_id=queue_id))
        assert (code, remark) == (
            INVALID,
            f"queueId[{queue_id}] is illegal, topic:[orders] topicConfig.readQueueNums:[4] "
            f"consumer:[/{client.local[0]}:{client.local[1]}]",
        )


@simulated
async def test_pull_consumers_are_refused_where_they_are_not_wanted(cluster):
    broker, client = await started(cluster, 1, reject_pull_consumer_enable=True)
    code, remark, _ = await refused(client, pull())
    assert (code, remark) == (
        NO_SUBSCRIPTION,
        f"the consumer's group info not exist, or the pull consumer is rejected by server.{FAQ}",
    )
    for group in ("TOOLS_CONSUMER", "CID_RMQ_SYS_X"):
        assert bodies(await client.ask(pull(group=group))) == [b"0"]
    await subscribe(client, SubscriptionData(topic="orders"))
    assert bodies(await cluster.dial(client.remote).ask(pull())) == [b"0"], "a group that is pushed to"


@simulated
async def test_the_commit_flag_commits_whatever_is_found(cluster):
    _, client = await started(cluster, 3)
    committed = QueryConsumerOffset(consumer_group="GID", topic="orders", queue_id=0)
    await client.ask(pull(offset=0, commit=None, commit_offset=3))
    assert (await client.ask(committed)).offset == 0, "nothing is committed without the flag"
    await client.ask(pull(offset=0, commit=1))
    assert (await client.ask(committed)).offset == 1
    await client.ask(pull(offset=3, commit=2))
    assert (await client.ask(committed)).offset == 2
    client.send_oneway(pull(offset=3, commit=3, wait_ms=1000))
    await settle()
    assert (await client.ask(committed)).offset == 3, "at once, not after the wait"


@simulated
async def test_a_reset_is_told_once(cluster):
    broker, client = await started(cluster, 3)
    await client.ask(pull())
    broker.offsets.assign_reset("GID", "orders", 0, 1)
    reply = await client.ask(pull(offset=3))
    assert (reply.code, reply.next_begin_offset, reply.remark) == (MOVED, 1, "OFFSET_RESET")
    assert (reply.min_offset, reply.max_offset) == (0, 3)
    assert bodies(await client.ask(pull(offset=1))) == [b"1", b"2"]


@simulated
async def test_fields_with_a_default_may_be_left_out_and_others_not(cluster):
    _, client = await started(cluster, 2)
    for optional in ("commitOffset", "suspendTimeoutMillis", "subVersion", "maxMsgBytes", "expressionType"):
        command = pull().to_command()
        command.ext.pop(optional, None)
        assert (await client.ask_command(command, 1)).code == 0, optional
    for needed in ("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag"):
        command = pull().to_command()
        del command.ext[needed]
        answer = await client.ask_command(command, 1)
        assert (answer.code, answer.remark) == (SYSTEM_ERROR, f"the custom field <{needed}> is null")


@pytest.mark.parametrize("field", ["queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset"])
@simulated
async def test_numbers_that_are_none_are_refused(cluster, field):
    _, client = await started(cluster, 1)
    command = pull(commit=1).to_command()
    command.ext[field] = "x"
    answer = await client.ask_command(command, 1)
    assert answer.code == SYSTEM_ERROR
    assert not client.closed
    with pytest.raises(RequestError):
        PullMessage.from_command(command)


@simulated
async def test_a_group_that_prefers_a_replica_is_sent_to_the_master_all_the_same(cluster):
    broker, client = await started(cluster, 1)
    await client.ask(pull())
    broker.groups.find_or_create("GID").broker_id = 3
    assert (await client.ask(pull())).suggest_which_broker_id == 0


@simulated
async def test_messages_of_several_files_come_in_one_answer(cluster):
    broker, client = await started(cluster, mapped_file_size_commit_log_bytes=64 * 1024)
    for number in range(6):
        await client.ask(message(body=b"%d" % number * 30_000))
    assert broker.store.max_physical_offset > 2 * 64 * 1024
    assert [body[:1] for body in bodies(await client.ask(pull()))] == [b"%d" % n for n in range(6)]


def test_every_status_has_a_code():
    assert set(ReadStatus) == set(CODE_OF_STATUS) | set(EMPTY_QUEUE)


@simulated
async def test_an_offset_that_is_no_long_is_not_committed(cluster):
    broker, client = await started(cluster, 1)
    command = pull(offset=0).to_command()
    command.ext |= {"commitOffset": str(1 << 63), "sysFlag": str(int(command.ext["sysFlag"]) | 1)}
    answer = await client.ask_command(command, 1)
    assert answer.code == SYSTEM_ERROR
    assert "commitOffset" in answer.remark
    assert broker.offsets.table == {}


NUMBERS = [
    "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion",
    "maxMsgBytes", "requestSource",
]  # fmt: skip


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("text", ["1_0", " 1", "", "9" * 400, "-" + "9" * 20])
@simulated
async def test_a_number_that_java_would_not_read_is_refused_in_every_field(cluster, field, text):
    broker, client = await started(cluster, 1)
    command = pull(offset=1, wait_ms=1000).to_command()
    command.ext[field] = text
    answer = await client.ask_command(command, 1)
    assert answer.code == SYSTEM_ERROR
    assert answer.remark.endswith(f", the custom field <{field}>")
    assert len(broker.long_polls) == 0


@pytest.mark.parametrize("asked_ms", [60_000, 2**63 - 1])
@simulated
async def test_no_pull_waits_longer_than_the_broker_allows(cluster, asked_ms):
    _, client = await started(cluster, 1, max_suspend_ms=2_000)
    before_s = trio.current_time()
    reply = await client.ask(pull(offset=1, wait_ms=asked_ms), timeout_s=100)
    assert (reply.code, 2.0 <= trio.current_time() - before_s < 2.1) == (NOT_FOUND, True)
