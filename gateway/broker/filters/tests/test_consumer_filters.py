"""The table of consumer filters: versions, dead filters, the file; and pulls filtered by it."""

import orjson
import pytest

from codec.message import Message, encode_message
from gateway.broker.filters import filter_cache
from gateway.broker.filters.consumer_filters import (
    DEAD_FILTER_RETENTION_MS,
    ENCODED_PER_SLICE,
    ConsumerFilterTable,
)
from gateway.broker.filters.filter_cache import FilterCache
from gateway.broker.filters.message_filter import EVERYTHING
from gateway.broker.processors.live_config import apply_broker_config
from gateway.broker.requests.tests.test_pull_handler import refused, started, subscribe, subscribed
from gateway.config.limits import BrokerLimits
from gateway.tests.broker_fakes import FakeClock, memory_config_file
from gateway.tests.cluster import bodies, message, pull, settle, simulated
from gateway.tests.configs import change_config
from gateway.tests.popping import pop_request
from remoting.bodies.heartbeat import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from remoting.errors import RequestError
from remoting.requests.client import CheckClientConfig, HeartBeat
from storage.files import MemoryFiles

PARSE_FAILED, NOT_EXIST, NOT_LATEST, NO_SUBSCRIPTION = 23, 27, 28, 24
UNSUPPORTED = "The broker does not support consumer to filter message by SQL92"


def sql(expression, version=1, topic="t", kind="SQL92"):
    return SubscriptionData(topic=topic, sub_string=expression, sub_version=version, expression_type=kind)


@pytest.fixture
def clock():
    return FakeClock()


def open_table(clock, files=None, **limits):
    bounds = BrokerLimits(**limits)
    return ConsumerFilterTable(memory_config_file(files=files), clock, FilterCache(bounds), bounds)


@pytest.fixture
def table(clock):
    return open_table(clock)


def filter_of(table, topic, group, version, *, retried):
    return table.message_filter(table.require_latest(topic, group, version), retried=retried)


def stored(topic="t", **properties):
    return memoryview(encode_message(Message(topic=topic, properties=properties)))


def expression(table, topic="t", group="g"):
    data = table.get(topic, group)
    return None if data is None else (data.expression, data.version, data.is_dead)


def test_tags_are_not_kept(table):
    table.register("g", [sql("A || B", kind="TAG"), sql("A", kind="", topic="t2"), sql("", topic="t3")])
    assert len(table) == 0


def test_newer_versions_replace_older_ones_and_not_the_reverse(table):
    table.register("g", [sql("a > 1", 5)])
    table.register("g", [sql("a > 2", 4)])
    assert expression(table) == ("a > 1", 5, False)
    table.register("g", [sql("a > 2", 5)])
    assert expression(table) == ("a > 1", 5, False)
    table.register("g", [sql("a > 1", 6)])
    assert expression(table) == ("a > 1", 6, False)
    table.register("g", [sql("a > 2", 7)])
    assert expression(table) == ("a > 2", 7, False)


def test_an_expression_of_an_unknown_type_removes_what_was_there(table):
    wrong = sql("a > 1", 2, kind="XPATH")
    table.register("g", [wrong])
    assert expression(table) is None
    table.register("g", [sql("a > 1", 1)])
    table.register("g", [wrong])
    assert expression(table) is None
    assert len(table) == 0


def test_a_wrong_expression_replaces_what_was_there_and_is_in_no_file(table, caplog):
    table.register("g", [sql("a > 1", 1), sql("a > 1", 1, topic="t2")])
    table.register("g", [sql("a > >", 2), sql("a > 1", 1, topic="t2")])
    for _ in range(2):
        with pytest.raises(RequestError) as refusal:
            filter_of(table, "t", "g", 2, retried=False)
        assert refusal.value.code == NOT_EXIST
        table.register("g", [sql("a > >", 2), sql("a > 1", 1, topic="t2")])
    assert list(orjson.loads(table.to_json())["filterDataByTopic"]) == ["t2"]
    assert caplog.text.count("subscription expression is invalid") == 1
    table.register("g", [sql("a > 2", 3)])
    assert filter_of(table, "t", "g", 3, retried=False).message is not None


def test_filters_die_with_their_subscription_or_group_and_come_back(table, clock):
    clock.pass_ms(10)
    table.register("g", [sql("a > 1", 5), sql("a > 2", 5, topic="t2")])
    table.register("g", [sql("a > 2", 5, topic="t2")])
    assert [expression(table, topic)[2] for topic in ("t", "t2")] == [True, False]
    table.unregister("g")
    assert expression(table, "t2")[2]
    table.register("g", [sql("a > 1", 5), sql("a > 2", 6, topic="t2")])
    assert [expression(table, topic)[2] for topic in ("t", "t2")] == [False, False]


def test_refusals_of_pulls_are_the_official_ones(table):
    with pytest.raises(RequestError) as refusal:
        filter_of(table, "t", "g", 0, retried=False)
    remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
    assert (refusal.value.code, refusal.value.remark) == (NOT_EXIST, remark)
    table.register("g", [sql("a > 1", 5)])
    with pytest.raises(RequestError) as refusal:
        filter_of(table, "t", "g", 6, retried=False)
    assert (refusal.value.code, refusal.value.remark) == (
        NOT_LATEST,
        "the consumer's consumer filter data not latest",
    )
    selection = filter_of(table, "t", "g", 5, retried=True)
    assert selection.tags is None
    assert [selection.message(stored(a=value)) for value in ("1", "2")] == [False, True]


def test_retried_messages_are_judged_by_the_topic_they_were_sent_to(table):
    retry = "%RETRY%g"
    table.register("g", [sql("a = 'x'", 1), sql("a = 'y'", 1, topic=retry)])
    messages = [stored(retry, RETRY_TOPIC=topic, a=value) for topic in ("t", "other") for value in "xy"]
    messages.append(stored(retry, a="z"))
    test = filter_of(table, retry, "g", 1, retried=True).message
    assert [test(each) for each in messages] == [True, False, True, True, True]
    test = filter_of(table, retry, "g", 1, retried=False).message
    assert [test(each) for each in messages] == [False, True, False, True, False]


def test_the_file_is_the_official_one(clock):
    files = MemoryFiles()
    table = open_table(clock, files)
    table.persist()
    assert files.read_small("/config/table.json") == b'{"filterDataByTopic":{}}', "a missing file is written"
    table.register("g", [sql("a > 5", 7)])
    table.persist()
    assert orjson.loads(files.read_small("/config/table.json")) == {
        "filterDataByTopic": {
            "t": {
                "groupFilterData": {
                    "g": {
                        "bloomFilterData": {"bitNum": 112, "bitPos": [22, 87, 58]},
                        "bornTime": clock.now_ms(), "clientVersion": 7, "consumerGroup": "g", "dead": False,
                        "deadTime": 0, "expression": "a > 5", "expressionType": "SQL92", "topic": "t",
                    }
                },
                "topic": "t",
            }
        }
    }  # fmt: skip


def test_saved_filters_are_dead_until_their_group_comes_back(clock):
    files = MemoryFiles()
    table = open_table(clock, files)
    table.register("g", [sql("a > 5", 7)])
    table.persist()
    clock.pass_ms(60_000)
    table = open_table(clock, files)
    assert expression(table) == ("a > 5", 7, True)
    assert table.get("t", "g").dead_ms == clock.now_ms() - 30_000
    found = filter_of(table, "t", "g", 7, retried=False)
    assert found.message is not None
    assert found.message(stored(a="6"))
    table.register("g", [sql("a > 5", 7)])
    assert expression(table) == ("a > 5", 7, False)


def test_filters_dead_for_a_day_are_forgotten(table, clock):
    clock.pass_ms(1)
    table.register("g", [sql("a > 5", 7)])
    table.unregister("g")
    clock.pass_ms(DEAD_FILTER_RETENTION_MS - 1)
    table.persist()
    assert expression(table) is not None
    clock.pass_ms(1)
    table.persist()
    assert len(table) == 0


def test_a_saved_expression_that_cannot_be_read_lets_everything_pass(clock):
    files = MemoryFiles()
    table = open_table(clock, files)
    table.register("g", [sql("a > 5", 7)])
    files.write_small("/config/table.json", table.to_json().replace(b"a > 5", b"a > >"))
    table = open_table(clock, files)
    assert filter_of(table, "t", "g", 7, retried=False) is EVERYTHING


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"filterDataByTopic":1}'])
def test_a_file_of_something_else_is_refused(clock, content):
    files = MemoryFiles()
    files.write_small("/config/table.json", content)
    with pytest.raises(ValueError, match=r"table\.json cannot be read"):
        open_table(clock, files)


def test_saved_times_in_the_future_keep_no_dead_filter(clock):
    files = MemoryFiles()
    filters = {
        str(number): {
            "clientVersion": 1, "bornTime": 1 << 62, "deadTime": dead, "consumerGroup": f"g{number}",
            "expression": "a > 5",
        }
        for number, dead in enumerate((1 << 62, 0, 5))
    }  # fmt: skip
    content = {"filterDataByTopic": {"t": {"groupFilterData": filters}}}
    files.write_small("/config/table.json", orjson.dumps(content))
    table = open_table(clock, files)
    assert len(table) == len(table._dead) == 3
    clock.pass_ms(DEAD_FILTER_RETENTION_MS)
    table.persist()
    assert len(table) == 0


# -- bounds -----------------------------------------------------------------------------------------------


def test_heartbeats_compile_nothing_however_often_they_change(clock, monkeypatch):
    monkeypatch.setattr(filter_cache, "compile_sql", lambda text: pytest.fail("compiled"))
    table = open_table(clock)
    for version in range(200):
        many = [
            sql(f"a > {version} OR a IN ({quoted_texts(50)})", version, f"t{topic}") for topic in range(20)
        ]
        table.register("g", many)
    assert len(table) == 20


def quoted_texts(count):
    return ", ".join(f"'{number}'" for number in range(count))


def test_the_table_has_a_limit_and_those_that_work_go_on_working(clock, caplog):
    table = open_table(clock, max_consumer_filter_bytes=64 * 1024)
    table.register("own", [sql("a > 5", 1)])
    for number in range(200):
        table.register(f"stranger{number}", [sql(f"a = {number}", 1)])
        clock.pass_ms(1)
    assert table.size_bytes <= 64 * 1024
    assert filter_of(table, "t", "own", 1, retried=False).message is not None
    with pytest.raises(RequestError, match=r"full \(maxConsumerFilterBytes=65536\): raise it") as refusal:
        filter_of(table, "t", "stranger199", 1, retried=False)
    assert refusal.value.code == NOT_EXIST
    (logged,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "maxConsumerFilterBytes" in logged.reason
    table.limits = BrokerLimits(max_consumer_filter_bytes=128 * 1024)
    table.register("stranger199", [sql("a = 199", 1)])
    assert filter_of(table, "t", "stranger199", 1, retried=False).message is not None


def test_filters_of_groups_that_left_make_room_those_first_that_left_first(clock):
    table = open_table(clock, max_consumer_filter_bytes=64 * 1024)
    for number in range(1000):
        table.register(f"g{number}", [sql("a > 5", 1)])
        clock.pass_ms(1)
        table.unregister(f"g{number}")
    assert 20 < len(table) < 64
    assert [expression(table, group=f"g{number}") is None for number in (0, 900, 990, 999)] == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_million_groups_that_come_and_go_leave_no_more_than_the_limit(clock):
    table = open_table(clock, max_consumer_filter_bytes=64 * 1024)
    for number in range(5000):
        table.register(f"g{number}", [sql("a > 5", 1, f"t{number}")])
        table.unregister(f"g{number}")
        clock.pass_ms(1)
    assert table.size_bytes <= 64 * 1024
    assert len(table) == len(table._by_group) == len(table._dead) < 64
    clock.pass_ms(DEAD_FILTER_RETENTION_MS)
    table.persist()
    assert (len(table), table.size_bytes, table._by_topic, table._by_group, table._dead) == (
        0, 0, {}, {}, {},
    )  # fmt: skip


def test_the_file_is_encoded_in_slices_while_the_table_changes(clock):
    table = open_table(clock)
    for number in range(3 * ENCODED_PER_SLICE):
        table.register(f"g{number}", [sql("a > 5", 1), sql("a > 5", 1, f"t{number}")])
    slices = []
    for number, part in enumerate(table.encode_slices()):
        slices.append(part)
        table.register(f"g{number}", [])
        table.register(f"new{number}", [sql("a > 5", 1)])
        table._remove_filter(f"t{100 + number}", f"g{100 + number}")
    assert len(slices) > 6
    assert all(part.count(b"bornTime") <= ENCODED_PER_SLICE for part in slices)
    saved = orjson.loads(b"".join(slices))["filterDataByTopic"]
    assert len(saved["t"]["groupFilterData"]) == 3 * ENCODED_PER_SLICE
    assert saved["t"]["groupFilterData"]["g150"]["expression"] == "a > 5"


def test_names_are_escaped_in_the_file(clock):
    files = MemoryFiles()
    table = open_table(clock, files)
    table.register('g"\\', [sql("a = '\"'", 1, 't"\n')])
    table.persist()
    assert expression(open_table(clock, files), 't"\n', 'g"\\') == ("a = '\"'", 1, True)


# -- pulls ------------------------------------------------------------------------------------------------


async def filled(cluster, **settings):
    broker, client = await started(cluster, enable_property_filter=True, **settings)
    for number in range(6):
        await client.ask(message(body=b"%d" % number, properties={"a": str(number)}))
    return broker, client


@simulated
async def test_a_pull_brings_its_expression(cluster):
    _, client = await filled(cluster)
    reply = await client.ask(pull(tags="a BETWEEN 2 AND 3", expression_type="SQL92"))
    assert (bodies(reply), reply.next_begin_offset) == ([b"2", b"3"], 6)
    reply = await client.ask(pull(tags="a > 9", expression_type="SQL92"))
    assert (reply.code, reply.next_begin_offset) == (20, 6)
    failed = "parse the consumer's subscription failed"
    for wrong, kind, why in (
        ("a > >", "SQL92", ": "),
        ("", "SQL92", ""),
        ("a > 1", "XPATH", ": The broker does not support consumer to filter message by XPATH"),
    ):
        code, remark, _ = await refused(client, pull(tags=wrong, expression_type=kind))
        assert (code, remark.startswith(failed + why)) == (PARSE_FAILED, True)
        assert len(remark) > len(failed + why) or kind == "XPATH" or not wrong


@simulated
async def test_a_pull_goes_by_what_heartbeats_announced(cluster):
    _, client = await filled(cluster)
    await subscribe(client, sql("a > 3", 5, "orders"))
    assert bodies(await client.ask(subscribed(version=5))) == [b"4", b"5"]
    await subscribe(client, sql("a = 0", 6, "orders"))
    assert bodies(await client.ask(subscribed(version=6))) == [b"0"]
    await subscribe(client, sql("a > >", 7, "orders"))
    assert (await refused(client, subscribed(version=7)))[0] == NOT_EXIST


@simulated
async def test_a_waiting_pull_is_woken_by_what_it_wants_only(cluster):
    _, client = await filled(cluster)
    answers = []
    request = pull(offset=6, tags="a > 7", expression_type="SQL92", wait_ms=10_000)

    async def wait():
        answers.append(await client.ask(request, timeout_s=20))

    cluster.nursery.start_soon(wait)
    await settle()
    for value in ("1", "x", "7"):
        await client.ask(message(properties={"a": value}))
        await settle()
    assert answers == []
    await client.ask(message(body=b"wanted", properties={"a": "8"}))
    await settle()
    assert [bodies(answer) for answer in answers] == [[b"wanted"]]
    assert answers[0].next_begin_offset == 10


@simulated
async def test_filters_other_than_tags_can_be_switched_off(cluster):
    _, client = await started(cluster, 1, enable_property_filter=False)
    assert await refused(client, pull(tags="a > 1", expression_type="SQL92")) == (1, UNSUPPORTED, None)
    await subscribe(client, sql("a > 3", 5, "orders"))
    assert await refused(client, subscribed(version=5)) == (1, UNSUPPORTED, None)


@simulated
async def test_without_property_filters_nothing_is_compiled(cluster, monkeypatch):
    monkeypatch.setattr(filter_cache, "compile_sql", lambda text: pytest.fail("compiled"))
    broker, client = await started(cluster, 1, enable_property_filter=False)
    await subscribe(client, sql("a > 3", 5, "orders"), sql("a > >", 5, "t2"))
    assert await refused(client, subscribed(version=5)) == (1, UNSUPPORTED, None)
    assert len(broker.consumer_filters) == 2


@simulated
async def test_too_long_expressions_are_refused_wherever_they_come(cluster):
    broker, client = await started(cluster, 1, enable_property_filter=True, max_expression_bytes=100)
    for kind in ("SQL92", "TAG"):
        long = "a IS NULL OR " * 10 + "a"
        code, remark, _ = await refused(client, pull(tags=long, expression_type=kind))
        assert code == PARSE_FAILED
        assert remark.startswith("parse the consumer's subscription failed: the expression has 131 bytes")
        code, remark, _ = await refused(client, pop_request(exp=long, exp_type=kind))
        assert code == PARSE_FAILED
        assert "maxFilterExpressionBytes (100)" in remark
        subscription = sql(long, 5, "orders", kind)
        consumer = ConsumerData(
            group_name="G2", subscription_data_set=[sql("b", 1, "t", "TAG"), subscription]
        )
        beat = HeartBeat(data=HeartbeatData(client_id="c", consumer_data_set=[consumer]))
        body = CheckClientRequestBody(client_id="c", group="g", subscription_data=subscription)
        for request in (beat, CheckClientConfig(data=body)):
            code, remark, _ = await refused(client, request)
            assert code == PARSE_FAILED
            assert remark.startswith("the subscription to orders is refused: the expression has 131 bytes")
    assert broker.clients.consumer_group("G2") is None
    assert broker.topics.get("%RETRY%G2") is None
    await subscribe(client, sql("a IS NULL", 5, "orders"))
    assert len(bodies(await client.ask(subscribed(version=5)))) == 1


@simulated
async def test_a_lower_limit_takes_effect_at_once(cluster):
    broker, client = await filled(cluster)
    await subscribe(client, sql("a > 3 OR a > 3", 5, "orders"))
    apply_broker_config(broker, change_config(broker.config, max_expression_bytes=10))
    code, remark, _ = await refused(client, subscribed(version=5))
    assert (code, "maxFilterExpressionBytes (10)" in remark) == (PARSE_FAILED, True)
    apply_broker_config(broker, change_config(broker.config, max_expression_bytes=100))
    assert bodies(await client.ask(subscribed(version=5))) == [b"4", b"5"]


@simulated
async def test_the_filter_of_a_group_whose_last_member_left_is_dead(cluster):
    broker, client = await filled(cluster)
    await subscribe(client, sql("a > 3", 5, "orders"))
    broker.clock.trio.jump(1)
    client.close("gone")
    await settle()
    assert broker.consumer_filters.get("orders", "GID").is_dead


@pytest.mark.parametrize(
    ("expression", "kind", "code", "remark"),
    [
        ("a > 1", "SQL92", 0, None),
        ("A || B", "TAG", 0, None),
        ("a > 'x'", "SQL92", PARSE_FAILED, "java.lang.RuntimeException: Value ''x'' cannot be compared."),
        ("a > 1", "XPATH", PARSE_FAILED, "The broker does not support consumer to filter message by XPATH"),
    ],
)
@simulated
async def test_a_client_may_ask_whether_an_expression_is_right(cluster, expression, kind, code, remark):
    _, client = await started(cluster, enable_property_filter=True)
    body = CheckClientRequestBody(client_id="c", group="g", subscription_data=sql(expression, 1, "t", kind))
    assert (await refused(client, CheckClientConfig(data=body)))[:2] == (code, remark)
