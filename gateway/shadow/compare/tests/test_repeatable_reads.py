import pytest

from codec.command import Command, encode_command
from codec.message import encode_message
from gateway.shadow.compare.repeatable_reads import (
    READ_ONLY_CODES,
    KnownSubscriptions,
    NotRepeatable,
    plan_repeated_read,
)
from gateway.shadow.tests.exchanges import make_exchange
from gateway.shadow.tests.fake_queues import stored
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.declare import REQUESTS
from remoting.requests.client import HeartBeat
from remoting.requests.query import ViewMessageById

WRITES = {10, 310, 320, 324, 325, 15, 17, 18, 25, 34, 35, 36, 37, 41, 42, 46, 200, 207, 215, 222, 314, 370}
POPS = {200050, 200051, 200052, 200053, 200054, 200070, 200072, 200151}
PULL = {
    "consumerGroup": "GID",
    "topic": "orders",
    "queueId": "1",
    "queueOffset": "70",
    "maxMsgNums": "32",
    "sysFlag": "7",
    "commitOffset": "60",
    "suspendTimeoutMillis": "15000",
    "subscription": "a || b",
    "subVersion": "1",
    "expressionType": "TAG",
}


def same(broker, topic, queue_id, offset):
    return offset


def asked(code, ext, answer=None, body=b"", **more):
    request = Command(code, 7, 0, ext, body)
    return make_exchange(code, encode_command(request), encode_command(answer or Command(0, flag=1)), **more)


def of(given, *, subscriptions=None, map_offset=same):
    return plan_repeated_read(given, subscriptions or KnownSubscriptions(), map_offset)


def test_nothing_that_writes_or_takes_is_ever_repeated():
    assert not set(READ_ONLY_CODES) & (WRITES | POPS)
    assert set(READ_ONLY_CODES) <= set(REQUESTS)


@pytest.mark.parametrize("code", sorted(WRITES | POPS | {424242}))
def test_other_codes_are_refused(code):
    with pytest.raises(NotRepeatable):
        of(asked(code, {}))


def test_a_pull_commits_nothing_waits_for_nothing_and_is_nobodys():
    for code in (11, 361):
        found = of(asked(code, PULL), map_offset=lambda broker, topic, queue, offset: offset - 9)
        for command, offset in ((found.target_request, "61"), (found.primary_request, "70")):
            assert command.code == code
            ext = command.ext
            assert (ext["sysFlag"], ext["commitOffset"], ext["suspendTimeoutMillis"]) == ("4", "0", "0")
            assert (ext["consumerGroup"], ext["topic"], ext["queueId"]) == ("TOOLS_CONSUMER", "orders", "1")
            assert (ext["queueOffset"], ext["subscription"], ext["maxMsgNums"]) == (offset, "a || b", "32")


def test_pulls_that_are_not_asked_again():
    with pytest.raises(NotRepeatable, match="without messages"):
        of(asked(11, PULL, Command(19, flag=1)))
    with pytest.raises(NotRepeatable, match="not mapped"):
        of(asked(11, PULL), map_offset=lambda *place: None)
    with pytest.raises(NotRepeatable, match="class filter"):
        of(asked(11, {**PULL, "sysFlag": "12"}))
    with pytest.raises(NotRepeatable, match="subscription"):
        of(asked(11, {**PULL, "sysFlag": "3"}))


def test_subscriptions_come_from_heartbeats():
    subscription = SubscriptionData(topic="orders", sub_string="c > 1", expression_type="SQL92")
    consumer = ConsumerData(group_name="GID", subscription_data_set=[subscription])
    beat = HeartBeat(data=HeartbeatData(client_id="me", consumer_data_set=[consumer])).to_command()
    known = KnownSubscriptions()
    known.learn_heartbeat(asked(34, {}, body=beat.body))
    known.learn_heartbeat(asked(34, {}, body=b"garbage"))
    found = of(asked(11, {**PULL, "sysFlag": "3"}), subscriptions=known)
    assert (found.target_request.ext["subscription"], found.target_request.ext["expressionType"]) == (
        "c > 1",
        "SQL92",
    )


def test_credentials_of_the_client_are_left_out():
    found = of(
        asked(30, {"topic": "t", "queueId": "1", "AccessKey": "a", "Signature": "s", "SecurityToken": "x"})
    )
    assert found.target_request.ext == found.primary_request.ext == {"topic": "t", "queueId": "1"}


def test_a_message_by_its_id_is_asked_for_by_its_unique_key():
    message = encode_message(stored(5))
    given = asked(33, ViewMessageById(offset=900).to_ext(), Command(0, flag=1, body=message))
    found = of(given)
    assert found.target_request.code == 12
    assert (found.target_request.ext["key"], found.target_request.ext["_UNIQUE_KEY_QUERY"]) == (
        "U00000005",
        "true",
    )
    assert found.primary_request.ext["offset"] == "900"
    other = encode_message(stored(6))
    assert found.as_primary_answer(Command(0, flag=1, body=other + message)).body == message


def test_a_query_that_found_as_much_as_it_may_is_not_compared():
    ext = {"topic": "orders", "key": "k", "maxNum": "2", "beginTimestamp": "0", "endTimestamp": "9"}
    one = encode_message(stored(1))
    assert of(asked(12, ext, Command(0, flag=1, body=one))).target_request.ext == ext
    with pytest.raises(NotRepeatable, match="as much as it may"):
        of(asked(12, ext, Command(0, flag=1, body=one + one)))


def test_oneway_and_reverse_exchanges_are_not_repeated():
    with pytest.raises(NotRepeatable):
        of(make_exchange(30, encode_command(Command(30)), None))
    with pytest.raises(NotRepeatable):
        of(asked(30, {}, reverse=True))
