from dataclasses import replace

import pytest
import trio

from codec.batch import encode_batch
from codec.command import Command
from codec.constants import FAQ
from codec.ids import decode_message_id
from codec.message import iter_messages
from codec.properties import decode_properties
from codec.sysflag import BORN_HOST_V6, MULTI_TAGS, STORE_HOST_V6
from codec.topics import dlq_topic, retry_topic
from gateway.broker.assembly.metrics import store_metrics
from gateway.tests.broker_world import World, count_garbage_of_refusals
from gateway.tests.cluster import EPOCH_MS, Consumer, message, pull, settle, simulated
from remoting.bodies.locks import LockBatchRequestBody
from remoting.bodies.queues import MessageQueue
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.locks import LockBatchMq
from remoting.requests.send import SendBatchMessage, SendMessage
from storage.crash_files import CrashFiles
from storage.errors import StoreFull

TOO_LARGE = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 100000B, msg properties length limit 32KB."
)
NO_QUEUE = (
    "request queueId[4] is illegal, TopicConfig [topicName=orders, readQueueNums=4, writeQueueNums=4, perm=RW-, "
    "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}] Producer: 10.1.0.1:4000"
)
BAD_NAME = "The specified topic: a/b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
NO_RETRY_BATCH = "batch request does not support retry group %RETRY%G"
ILLEGAL, FULL, FORBIDDEN, NO_TOPIC, NO_GROUP, INVALID, ERROR = 13, 14, 16, 17, 26, 29, 1


@pytest.mark.parametrize("reason", ["illegal", "disk full"])
def test_a_refused_message_is_freed_without_the_garbage_collector(reason):
    """Large messages to a full disk would otherwise fill the memory until it runs."""
    world = World(max_message_size_bytes=100)
    world.topic("orders")
    world.broker.store.disk_full = reason == "disk full"
    assert (
        count_garbage_of_refusals(world, message(body=bytes(90 if world.broker.store.disk_full else 101)))
        == 0
    )


async def started(cluster, **settings):
    node = await cluster.add_broker(**settings)
    return node.broker, cluster.dial(node.address)


async def stored(client, topic="orders", queue_id=0):
    """Return every message of a queue."""
    reply = await client.ask(pull(topic, queue_id=queue_id, group="READER"))
    return list(iter_messages(reply.body)) if reply.body else []


async def refused(client, request):
    with pytest.raises(RequestError) as problem:
        await client.ask(request)
    return problem.value.code, problem.value.remark


@simulated
async def test_what_is_stored_is_what_was_sent(cluster):
    broker, client = await started(cluster, region_id="here", broker_cluster_name="c9")
    reply = await client.ask(
        message(
            body=b"\0body", tags="a", queue_id=2, flag=5, sys_flag=1, reconsume_times=3, properties={"k": "ü"}
        )
    )
    (got,) = await stored(client, queue_id=2)
    assert (got.topic, got.body, got.queue_id, got.queue_offset) == ("orders", b"\0body", 2, 0)
    assert (got.flag, got.sys_flag, got.reconsume_times) == (5, 1, 3)
    assert (got.born_timestamp, got.store_timestamp) == (EPOCH_MS, cluster.clock.now_ms())
    assert got.properties == {
        "TAGS": "a", "UNIQ_KEY": "U1", "k": "ü", "MSG_REGION": "here", "TRACE_ON": "true", "CLUSTER": "c9",
    }  # fmt: skip
    assert got.born_host == client.local
    assert got.store_host == client.remote
    assert (reply.queue_id, reply.queue_offset, reply.transaction_id) == (2, 0, "U1")
    assert reply.msg_id == got.msg_id
    assert decode_message_id(reply.msg_id) == (*client.remote, got.physical_offset)
    assert broker.stats.stored["orders"].messages == 1


def counted(broker, topic):
    """Return messages, bytes and entries of the histogram of sizes, by the type of the messages of a topic."""
    return {
        kind.value: (stored.messages, stored.bytes, stored.sizes.count)
        for kind, stored in broker.stats.stored[topic].by_type()
    }


@simulated
async def test_messages_are_counted_by_their_type_and_size(cluster):
    broker, client = await started(cluster)
    store = broker.store

    async def bytes_of(request):
        before = store.max_physical_offset
        await client.ask(request)
        return store.max_physical_offset - before

    normal = await bytes_of(message(body=b"a" * 50))
    fifo = await bytes_of(message(properties={"__SHARDINGKEY": "k"}))
    without_key = await bytes_of(message(key=None, properties={"__SHARDINGKEY": "k"}))
    entries = [(0, b"x" * 3000, b""), (0, b"y", b"")]
    batch = message(key=None, batch=True)
    batch.body = encode_batch(entries)
    batched = await bytes_of(batch)
    assert counted(broker, "orders") == {
        "normal": (3, normal + batched, 2),
        "fifo": (2, fifo + without_key, 2),
    }
    delayed = await bytes_of(message(properties={"DELAY": "1"}))
    assert counted(broker, "SCHEDULE_TOPIC_XXXX") == {"delay": (1, delayed, 1)}
    half = await bytes_of(message(sys_flag=4, properties={"TRAN_MSG": "true", "PGROUP": "p"}))
    delayed_half = await bytes_of(message(sys_flag=4, properties={"TRAN_MSG": "true", "DELAY": "1"}))
    assert counted(broker, "RMQ_SYS_TRANS_HALF_TOPIC") == {"transaction": (2, half + delayed_half, 2)}


@simulated
async def test_a_batch_has_the_type_of_its_own_properties(cluster):
    broker, client = await started(cluster)
    batch = message(key=None, batch=True, properties={"__SHARDINGKEY": "k"})
    batch.body = encode_batch([(0, b"x", b""), (0, b"y", b"")])
    await client.ask(batch)
    assert counted(broker, "orders")["fifo"][::2] == (2, 1)


@simulated
async def test_answers_name_region_and_trace_switch(cluster):
    _, client = await started(cluster, trace_on=False, region_id="r1")
    for key in ("U1", 'odd"key', None):
        answer = await client.ask_command(message(key=key).to_command(), 1)
        assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("r1", "false")
        assert answer.remark is None
        if key:
            assert answer.ext["transactionId"] == key


@simulated
async def test_changed_settings_count_from_the_next_send(cluster):
    broker, client = await started(cluster)
    broker.send_handler.reconfigure(replace(broker.config, trace_on=False, region_id="moved"))
    for key in ("U1", None):
        answer = await client.ask_command(message(key=key).to_command(), 1)
        assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("moved", "false")
    assert [each.properties["TRACE_ON"] for each in await stored(client)] == ["false", "false"]


@simulated
async def test_the_three_forms_of_the_header_store_the_same(cluster):
    _, client = await started(cluster)
    long = {
        "producer_group": "PID", "topic": "orders", "default_topic": "TBW102", "default_topic_queue_nums": 4,
        "queue_id": 0, "sys_flag": 0, "born_timestamp": EPOCH_MS, "flag": 9, "properties": "UNIQ_KEY\x01U1\x02",
    }  # fmt: skip
    first = SendMessage(**long)
    first.body = b"same"
    batch = SendBatchMessage(**{**long, "properties": ""}, batch=True)
    batch.body = encode_batch([(9, b"same", b"UNIQ_KEY\x01U1\x02")])
    for request in (first, message(body=b"same", flag=9), batch):
        await client.ask(request)
    binary = message(body=b"same", flag=9).to_command()
    binary.binary = True
    assert (await client.ask_command(binary, 1)).code == 0
    got = await stored(client)
    assert len({(each.body, each.flag, tuple(sorted(each.properties.items()))) for each in got}) == 1
    assert [each.queue_offset for each in got] == [0, 1, 2, 3]


@pytest.mark.parametrize("code", [310, 320])
@simulated
async def test_a_batch_is_stored_message_by_message(cluster, code):
    broker, client = await started(cluster)
    request = message(queue_id=1, key=None, batch=True)
    command = request.to_command()
    command.code = code
    entries = [(number, b"%d" % number, b"TAGS\x01t%d" % number) for number in range(3)]
    command.body = encode_batch(entries)
    answer = await client.ask_command(command, 1)
    got = await stored(client, queue_id=1)
    assert [(each.flag, each.body, each.tags) for each in got] == [
        (0, b"0", "t0"), (1, b"1", "t1"), (2, b"2", "t2"),
    ]  # fmt: skip
    assert answer.ext["msgId"] == ",".join(each.msg_id for each in got)
    assert (answer.ext["queueOffset"], "transactionId" in answer.ext) == ("0", False)
    assert all(each.properties["CLUSTER"] == "DefaultCluster" for each in got)
    assert broker.stats.stored["orders"].messages == 3


@pytest.mark.parametrize(
    ("fields", "body", "code", "remark"),
    [
        ({"topic": "%RETRY%G"}, encode_batch([(0, b"x", b"")]), ILLEGAL, NO_RETRY_BATCH),
        ({"topic": "%DLQ%" + "x" * 130}, encode_batch([(0, b"x", b"")]), ILLEGAL, "message topic length too long 135"),
        ({}, encode_batch([(0, b"x", b"")])[:-1], ILLEGAL, "the message is illegal"),
        ({}, b"", ILLEGAL, "the message is illegal"),
        ({}, b"\xff" * 30, ILLEGAL, "the message is illegal"),
        ({"properties": {"DELAY": "3"}}, encode_batch([(0, b"x", b"")]), ILLEGAL, "the message is illegal"),
        ({"properties": {"TIMER_DELAY_MS": "9000"}}, encode_batch([(0, b"x", b"")]), ILLEGAL, "the message is illegal"),
        ({"properties": {"TIMER_DELAY_SEC": "9"}}, encode_batch([(0, b"x", b"")]), ILLEGAL, "the message is illegal"),
        ({"properties": {"TIMER_DELIVER_MS": "9"}}, encode_batch([(0, b"x", b"")]), ILLEGAL, "the message is illegal"),
        ({"sys_flag": 4}, encode_batch([(0, b"x", b"")]), ILLEGAL, "the message is illegal"),
    ],
)  # fmt: skip
@simulated
async def test_batches_that_are_refused(cluster, fields, body, code, remark):
    broker, client = await started(cluster)
    got = await refused(client, message(body=body, key=None, batch=True, **fields))
    assert (got[0], got[1][: len(remark)]) == (code, remark)
    assert broker.store.max_physical_offset == 0
    assert (await client.ask(message())).queue_offset == 0


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": " "}, INVALID, "The specified topic is blank."),
        ({"topic": "a/b"}, INVALID, BAD_NAME),
        ({"topic": "x" * 128}, INVALID, f"The specified topic: {'x' * 128}, is longer than topic max length: 127"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, FORBIDDEN, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."),
        ({"default_topic": "none"}, NO_TOPIC, f"topic[orders] not exist, apply first please!{FAQ}"),
        ({"queue_id": 4}, INVALID, NO_QUEUE),
        ({"body": b""}, ILLEGAL, TOO_LARGE),
        ({"body": bytes(100_001)}, ILLEGAL, TOO_LARGE),
        ({"properties": {"k": "x" * 32_767}}, ILLEGAL, "the message is illegal, maybe msg body"),
    ],
)  # fmt: skip
@simulated
async def test_refusals_have_the_official_code_and_remark(cluster, fields, code, remark):
    broker, client = await started(cluster)
    got = await refused(client, message(**fields))
    assert (got[0], got[1][: len(remark)]) == (code, remark)
    assert broker.store.max_physical_offset == 0


@simulated
async def test_topics_are_created_as_the_first_send_asks_and_the_default_allows(cluster):
    broker, client = await started(cluster, default_topic_queue_nums=6)
    await client.ask(message("few", default_topic_queue_nums=2))
    await client.ask(message("many", default_topic_queue_nums=50, unit_mode=True))
    topics = broker.topics.table
    assert (topics["few"].write_queue_nums, topics["few"].perm, topics["few"].topic_sys_flag) == (2, 6, 0)
    assert (topics["many"].read_queue_nums, topics["many"].topic_sys_flag) == (6, 1)
    await client.ask(message("%RETRY%NEW", default_topic="none", unit_mode=True))
    assert (topics["%RETRY%NEW"].write_queue_nums, topics["%RETRY%NEW"].topic_sys_flag) == (1, 2)


@simulated
async def test_topics_are_not_created_where_that_is_switched_off(cluster):
    broker, client = await started(cluster, auto_create_topic_enable=False)
    assert (await refused(client, message()))[0] == NO_TOPIC
    assert "orders" not in broker.topics


@simulated
async def test_a_broker_without_write_permission_refuses_ordered_topics_only(cluster):
    broker, client = await started(cluster, broker_permission=4)
    broker.topics.table["ordered"] = TopicConfig(topic_name="ordered", order=True)
    assert await refused(client, message("ordered")) == (
        FORBIDDEN,
        "the broker[10.0.1.0] sending message is forbidden",
    )
    assert (await client.ask(message())).queue_offset == 0


@simulated
async def test_sends_are_refused_until_the_configured_time(cluster):
    _, client = await started(cluster, start_accept_send_timestamp_ms=EPOCH_MS + 60_000)
    code, remark = await refused(client, message())
    assert (code, remark[:31]) == (ERROR, "broker unable to service, until")
    assert remark.endswith(",000")
    await trio.sleep(61)
    assert (await client.ask(message())).queue_offset == 0


@simulated
async def test_a_negative_queue_takes_any(cluster):
    broker, client = await started(cluster)
    queues = {(await client.ask(message(queue_id=-1))).queue_id for _ in range(60)}
    assert queues == {0, 1, 2, 3}
    broker.topics.table["uneven"] = TopicConfig(topic_name="uneven", read_queue_nums=4, write_queue_nums=2)
    assert (await client.ask(message("uneven", queue_id=3))).queue_id == 3
    assert (await refused(client, message("uneven", queue_id=4)))[0] == INVALID
    broker.topics.table["closed"] = TopicConfig(topic_name="closed", read_queue_nums=4, write_queue_nums=0)
    code, remark = await refused(client, message("closed", queue_id=-1))
    assert (code, "request queueId[-1] is illegal" in remark) == (INVALID, True)


@pytest.mark.parametrize("field", ["producer_group", "topic", "queue_id", "born_timestamp"])
@pytest.mark.parametrize("code", [10, 310, 320])
@simulated
async def test_a_missing_field_is_named_as_the_client_calls_it(cluster, code, field):
    _, client = await started(cluster)
    kind = {10: SendMessage}.get(code, SendBatchMessage)
    known = {item.name: item.wire for item in kind.FIELDS}
    full = message().to_ext()
    letters = {item.name: item.wire for item in SendBatchMessage.FIELDS}
    ext = {known[name]: full[letters[name]] for name in known if letters[name] in full and name != field}
    answer = await client.ask_command(Command(code, ext=ext, body=b"x"), 1)
    assert (answer.code, answer.remark) == (ERROR, f"the custom field <{known[field]}> is null")


@pytest.mark.parametrize(
    ("letter", "text"),
    [("e", "x"), ("f", "99999999999"), ("g", str(1 << 64)), ("h", "-3000000000"), ("j", "y")],
)
@simulated
async def test_numbers_that_are_none_for_java_are_refused_and_nothing_is_stored(cluster, letter, text):
    broker, client = await started(cluster)
    command = message().to_command()
    command.ext[letter] = text
    answer = await client.ask_command(command, 1)
    assert answer.code == ERROR
    assert f'For input string: "{text}"' in answer.remark
    assert broker.store.max_offset("orders", 0) == 0
    assert (await client.ask(message(body=b"next"))).queue_offset == 0
    assert [each.body for each in await stored(client)] == [b"next"]


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ("UNIQ_KEY\x01ABC\x02TAGS\x01a\x02", "ABC"),
        ("TAGS\x01a\x02UNIQ_KEY\x01ABC", "ABC"),
        ("TAGS\x01a\x02UNIQ_KEY\x01ABC\x02", "ABC"),
        ("MY_UNIQ_KEY\x01no\x02TAGS\x01a\x02UNIQ_KEY\x01ABC\x02", "ABC"),
        ("TAGS\x01a\x02", None),
        ("TAGS\x01a", None),
        ("UNIQ_KEY\x01\x02TAGS\x01a", None),
        ("MY_UNIQ_KEY\x01no\x02TAGS\x01a\x02", None),
        ("", None),
    ],
)
@simulated
async def test_unique_keys_are_kept_or_given(cluster, properties, key):
    _, client = await started(cluster)
    command = message().to_command()
    command.ext["i"] = properties
    answer = await client.ask_command(command, 1)
    (got,) = await stored(client)
    assert got.unique_key == answer.ext["transactionId"]
    assert got.unique_key == key if key else len(got.unique_key) == 32
    assert got.tags == decode_properties(properties).get("TAGS")


@simulated
async def test_properties_the_client_may_not_set_are_replaced(cluster):
    _, client = await started(cluster, region_id="ours")
    await client.ask(message(properties={"POP_CK": "x", "MSG_REGION": "theirs", "CLUSTER": "theirs"}))
    (got,) = await stored(client)
    assert "POP_CK" not in got.properties
    assert (got.properties["MSG_REGION"], got.properties["CLUSTER"]) == ("ours", "DefaultCluster")


@simulated
async def test_topics_of_several_tags_mark_their_messages(cluster):
    broker, client = await started(cluster)
    broker.topics.table["orders"] = TopicConfig(topic_name="orders", topic_filter_type="MULTI_TAG")
    await client.ask(message(tags="a||b"))
    (got,) = await stored(client)
    assert got.sys_flag & MULTI_TAGS


@simulated
async def test_peers_with_ipv6_addresses(cluster):
    node = await cluster.add_broker(host="2001:db8::5")
    client = cluster.dial(node.address, host="fe80::1%eth0")
    replies = [await client.ask(message()), await client.ask(message(key=None))]
    batch = message(body=encode_batch([(0, b"x", b"")]), key=None, batch=True)
    replies.append(await client.ask(batch))
    got = await stored(client)
    for each, reply in zip(got, replies, strict=True):
        assert each.sys_flag == BORN_HOST_V6 | STORE_HOST_V6
        assert (each.born_host[0], each.store_host) == ("fe80::1", ("2001:db8::5", 10911))
        assert len(reply.msg_id) == 56
        assert decode_message_id(reply.msg_id) == ("2001:db8::5", 10911, each.physical_offset)


@simulated
async def test_oneway_sends_are_stored_and_not_answered(cluster):
    broker, client = await started(cluster)
    client.send_oneway(message(body=b"1"))
    client.send_oneway(message(body=b"2", key=None))
    client.send_oneway(message("a/b"))
    await settle()
    assert [each.body for each in await stored(client)] == [b"1", b"2"]
    assert not client.closed


@simulated
async def test_a_full_disk_refuses_every_kind_of_send_until_there_is_room(cluster, caplog):
    files = CrashFiles()
    node = await cluster.add_broker(files=files)
    broker, client = node.broker, cluster.dial(node.address)
    await client.ask(message(body=b"before"))
    batch = message(body=encode_batch([(0, b"x", b"")]), key=None, batch=True)
    broker.store.disk_full = True
    for request in (message(), message(key=None), message(properties={"DELAY": "1"}), batch):
        code, remark = await refused(client, request)
        assert code == FULL
        assert remark.startswith(
            "service not available now. It may be caused by one of the following reasons: the broker's disk is full ["
        )
    broker.store.disk_full = False
    files.capacity_bytes = 0
    with pytest.raises(StoreFull):
        files.reserve("/x", 1)
    codes = set()
    for _ in range(400):
        try:
            await client.ask(message(body=bytes(90_000)))
        except RequestError as error:
            codes.add(error.code)
            break
    assert codes == {FULL}
    count = broker.store.max_offset("orders", 0)
    # Log, metric, runtime information and readiness agree, although the disk is not over its limit.
    assert not broker.store.disk_full
    assert caplog.text.count("no room for a message, refusing those of its size until there is") == 1
    metrics = {metric.name: metric.value for metric in store_metrics("broker-a", broker.store)}
    assert metrics == {"store_writable": 0, "store_flush_failed": 0, "store_disk_full": 1}
    info = (await client.ask(GetBrokerRuntimeInfo())).data.table
    assert info["storeTrouble"] == broker.store.trouble
    await trio.sleep(2)
    assert "disk space" in [health.name for health in node.service.tasks.failing]
    files.capacity_bytes = 1 << 40
    assert (await client.ask(message(body=b"after"))).queue_offset == count
    await trio.sleep(12)
    assert broker.store.trouble is None
    assert "disk space" not in [health.name for health in node.service.tasks.failing]
    assert "storeTrouble" not in (await client.ask(GetBrokerRuntimeInfo())).data.table


@simulated
async def test_retries_go_to_the_dead_letters_after_too_many_attempts(cluster):
    broker, client = await started(cluster)
    topic = retry_topic("GID")
    await client.ask(pull(topic="TBW102"))
    reply = await client.ask(message(topic, queue_id=0, reconsume_times=3, max_reconsume_times=3))
    assert len(await stored(client, topic)) == 1
    reply = await client.ask(message(topic, b"dead", reconsume_times=4, max_reconsume_times=3))
    (dead,) = await stored(client, dlq_topic("GID"))
    assert (dead.body, dead.properties["DELAY"], reply.queue_id) == (b"dead", "-1", 0)
    await client.ask(message(topic, b"by the group's limit", reconsume_times=17))
    assert len(await stored(client, dlq_topic("GID"))) == 2


@simulated
async def test_retries_of_a_group_in_order_are_dead_letters_at_once(cluster):
    broker, client = await started(cluster)
    await client.ask(message("orders"))
    queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)
    body = LockBatchRequestBody(consumer_group="GID", client_id="c", mq_set=[queue])
    await client.ask(LockBatchMq(data=body))
    await client.ask(message(retry_topic("GID"), reconsume_times=1))
    assert len(await stored(client, dlq_topic("GID"))) == 1


@simulated
async def test_retries_of_a_group_that_may_not_be_created_are_refused(cluster):
    broker, client = await started(cluster, auto_create_subscription_group=False)
    code, remark = await refused(client, message(retry_topic("GID")))
    assert (code, remark) == (NO_GROUP, f"subscription group not exist, GID {FAQ}")


@simulated
async def test_a_group_can_consume_its_retry_topic_made_by_a_send(cluster):
    await cluster.namesrv()
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message())
    await client.ask(message(retry_topic("GID"), b"again"))
    consumer = await Consumer(cluster, "GID", "orders", "c1", lambda each: True).start()
    await settle()
    assert {body for _, body, _ in consumer.got} == {b"hello", b"again"}


@pytest.mark.parametrize("field", ["d", "e", "f", "g", "h", "j", "l"])
@pytest.mark.parametrize("text", ["1_0", " 1", "1 ", "", "x", "9" * 400, "-" + "9" * 20])
@simulated
async def test_a_number_that_java_would_not_read_is_refused_in_every_field(cluster, field, text):
    broker, client = await started(cluster)
    command = message().to_command()
    command.ext[field] = text
    answer = await client.ask_command(command, 1)
    assert answer.code == ERROR
    assert answer.remark.startswith('java.lang.NumberFormatException: For input string: "')
    assert answer.remark.endswith(f", the custom field <{field}>")
    assert broker.store.max_physical_offset == 0


@pytest.mark.parametrize("digits", [20, 400, 5000])
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("DELAY", ERROR),
        ("TIMER_DELAY_SEC", ILLEGAL),
        ("TIMER_DELAY_MS", ILLEGAL),
        ("TIMER_DELIVER_MS", ILLEGAL),
    ],
)
@simulated
async def test_a_delay_of_thousands_of_digits_is_refused(cluster, name, code, digits, caplog):
    broker, client = await started(cluster, timer_wheel_enable=True)
    request = message(properties={name: "9" * digits})
    assert (await refused(client, request))[0] == code
    half = message(properties={name: "9" * digits, "TRAN_MSG": "true", "PGROUP": "P"})
    if name == "DELAY":
        assert (await refused(client, half))[0] == code
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert broker.store.topics() == set()


@simulated
async def test_properties_of_waiting_messages_set_by_a_producer_have_no_effect(cluster, caplog):
    _, client = await started(cluster, timer_wheel_enable=True)
    set_by_producer = {"TIMER_OUT_MS": "9" * 5000, "REAL_TOPIC": "rmq_sys_wheel_timer", "REAL_QID": "9" * 400}
    reply = await client.ask(message(properties={**set_by_producer, "TIMER_DELAY_MS": "5"}))
    assert reply.recall_handle is None
    assert [each.body for each in await stored(client)] == [b"hello"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
