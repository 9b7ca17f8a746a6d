"""Addresses in answers become the gateway's; in ids and message bytes nothing else moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from codec.command import Command, decode_frame, encode_command
from codec.constants import MAX_HEADER_BYTES
from codec.ids import decode_message_id, encode_message_id
from codec.message import Message, encode_message, iter_messages
from gateway.shadow.proxy.address_book import AddressBook, pack_address
from gateway.shadow.proxy.address_rewrite import (
    MAX_PATCHED_MESSAGES,
    MAX_REWRITTEN_ADDRESSES,
    MAX_REWRITTEN_BYTES,
    patch_answers,
    restore_message_ids,
    rewrite_answer,
)
from remoting.bodies.routes import TopicRouteData
from remoting.requests.client import GetConsumerConnectionList
from remoting.requests.controller import ControllerGetReplicaInfo
from remoting.requests.namesrv import GetBrokerClusterInfo, GetRouteInfoByTopic, GetSystemTopicListFromNs
from remoting.requests.offsets import GetBrokerConsumeStats

BROKER, SLAVE, SIX = "10.1.0.1:10911", "10.1.0.2:10911", "[fd00::1]:10911"
PORTS = {BROKER: 20911, SLAVE: 20921, SIX: 20931}
GATEWAY_HOSTS = {("10.1.0.1", 10911): ("10.0.0.9", 20911), ("10.1.0.2", 10911): ("10.0.0.9", 20921)}
HOSTS = some.sampled_from([("10.1.0.1", 10911), ("10.1.0.2", 10911), ("10.9.9.9", 10911), ("fd00::1", 10911)])
PREFIX = pack_address(BROKER).hex().upper().encode()

ORIGIN, GATEWAY_ORIGIN = (
    encode_message_id(*host, 100) for host in (("10.1.0.1", 10911), GATEWAY_HOSTS["10.1.0.1", 10911])
)
NEEDLE = b"ORIGIN_MESSAGE_ID\1" + PREFIX


def make_view(local="10.0.0.9", opened=None):
    opened = [] if opened is None else opened

    def open_port(address):
        opened.append(address)
        return 30000 + len(opened)

    book = AddressBook("auto", open_port)
    for address, port in PORTS.items():
        book.add_listener(address, port)
    return book.view_for((local, 20911))


def answer(body=b"", ext=None, *, code=0, binary=False, flag=1):
    return encode_command(Command(code, 7, flag, ext or {}, body, binary=binary))


def patch_frames(*frames, view=None):
    data = b"".join(frames)
    stops = [sum(map(len, frames[: count + 1])) for count in range(len(frames))]
    return patch_answers(data, stops, view or make_view(), PREFIX)


def decode(frame):
    return decode_frame(bytes(frame), 4, len(frame))


@some.composite
def messages(draw):
    body = draw(some.binary(max_size=40)) + draw(
        some.sampled_from([b"", pack_address(BROKER), NEEDLE, NEEDLE + b"\2"])
    )
    return Message(
        "t" * draw(some.sampled_from([1, 200])),
        body,
        {"ORIGIN_MESSAGE_ID": ORIGIN, "DLQ_ORIGIN_MESSAGE_ID": ORIGIN, "own": ORIGIN},
        physical_offset=draw(some.integers(0, 2**40)),
        born_host=draw(HOSTS),
        store_host=draw(HOSTS),
    )


@given(some.lists(messages(), min_size=1, max_size=5), some.booleans())
def test_store_hosts_change_and_nothing_else(sent, binary):
    frame = answer(b"".join(map(encode_message, sent)), {"nextBeginOffset": "5"}, binary=binary)
    small = answer(ext={"offset": "1"})
    result = patch_frames(small, frame, small)
    assert len(result) == len(frame) + 2 * len(small)
    found = list(iter_messages(decode(result[len(small) : -len(small)]).body))
    for before, after in zip(iter_messages(decode(frame).body), found, strict=True):
        assert after.store_host == GATEWAY_HOSTS.get(before.store_host, before.store_host)
        after.store_host = before.store_host
        for name in ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID"):
            assert (before.properties.pop(name), after.properties.pop(name)) == (ORIGIN, GATEWAY_ORIGIN)
        assert after == before


@given(some.binary(max_size=200), messages())
def test_bytes_after_the_messages_stay(tail, message):
    whole = encode_message(message)
    result = patch_frames(answer(whole + tail))
    assert decode(result).body[len(whole) :] == tail or tail[4:8] == whole[4:8]


@given(some.binary(max_size=200))
def test_other_bodies_are_not_copied(body):
    frame = answer(body)
    assert patch_frames(frame) is frame or body[4:8] in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")


@pytest.mark.parametrize("binary", [True, False])
def test_message_ids_in_answers(binary):
    ids = ",".join(encode_message_id("10.1.0.1", 10911, offset) for offset in (0, 100, 2**40))
    frame = answer(ext={"msgId": ids, "queueId": "1"}, binary=binary)
    other = answer(ext={"msgId": encode_message_id("10.9.9.9", 10911, 7)}, binary=binary)
    result = bytes(patch_frames(other, frame))
    assert result[: len(other)] == other
    found = decode(result[len(other) :]).ext
    expected = [("10.0.0.9", 20911, offset) for offset in (0, 100, 2**40)]
    assert [decode_message_id(each) for each in found["msgId"].split(",")] == expected
    assert found["queueId"] == "1"


def test_message_ids_in_bodies_stay():
    frame = answer(b"{" + PREFIX)
    assert patch_frames(frame) is frame


def test_message_ids_of_another_address_family_lead_to_the_primary():
    view = make_view("fd00::9")
    frame = answer(ext={"msgId": encode_message_id("10.1.0.1", 10911, 1)})
    assert patch_frames(frame, view=view) is frame
    body = b"".join(
        encode_message(Message("t", store_host=host)) for host in [("10.1.0.1", 10911), ("fd00::1", 10911)]
    )
    hosts = [each.store_host for each in iter_messages(decode(patch_frames(answer(body), view=view)).body)]
    assert hosts == [("10.1.0.1", 10911), ("fd00::9", 20931)]


ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.1.0.1:10911","1":"10.7.0.1:10911"},"brokerName":"a:1","cluster":"c"}],'
    b'"filterServerTable":{"10.1.0.1:10911":[]},"orderTopicConf":"a:1;b:2","queueDatas":[]}'
)


READ_ONLY_ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"10.1.0.1:10911"},"brokerName":"a","cluster":"c"}],"queueDatas":['
    b'{"brokerName":"a","perm":4,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8},'
    b'{"brokerName":"b", "perm": 4,"readQueueNums":8},{"brokerName":"c","perm":12}]}'
)


def test_queues_of_a_read_only_topic_are_shown_as_writable():
    """The gateway takes the sends of its clients to the target, whatever the primary's topic allows."""
    edited = rewrite_answer(
        GetRouteInfoByTopic.code, answer(READ_ONLY_ROUTE), make_view(), frozenset({"a", "c"})
    )
    route = TopicRouteData.from_json(decode(edited).body)
    assert [(each.broker_name, each.perm) for each in route.queue_datas] == [("a", 6), ("b", 4), ("c", 14)]
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.9:20911"}
    assert route.queue_datas[0].read_queue_nums == 8


@pytest.mark.parametrize(
    "body", [b"", b'{"queueDatas":[{"brokerName":"a"}]}', b'{"queueDatas":[{"perm":4}]}']
)
def test_routes_without_a_permission_stay(body):
    frame = answer(body)
    assert rewrite_answer(GetRouteInfoByTopic.code, frame, make_view(), frozenset({"a"})) is frame


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("code", [GetRouteInfoByTopic.code, GetBrokerClusterInfo.code])
def test_addresses_in_routes(binary, code):
    opened = []
    edited = rewrite_answer(code, answer(ROUTE, binary=binary), make_view(opened=opened))
    expected = ROUTE.replace(b"10.1.0.1:10911", b"10.0.0.9:20911").replace(
        b"10.7.0.1:10911", b"10.0.0.9:30001"
    )
    assert decode(edited).body == expected
    assert opened == ["10.7.0.1:10911"]


def test_a_refusal_stays():
    frame = encode_command(Command(17, 7, 1, remark='No topic route info for "10.1.0.1:10911"'))
    assert rewrite_answer(GetRouteInfoByTopic.code, frame, make_view()) is frame


def test_routes_for_a_client_that_uses_ipv6():
    edited = rewrite_answer(GetRouteInfoByTopic.code, answer(ROUTE), make_view("fd00::9"))
    assert b'0:"[fd00::9]:20911"' in decode(edited).body


def test_the_gateway_may_have_an_address_of_the_primary():
    """If both run on one machine, nothing is replaced twice."""
    book = AddressBook("10.1.0.2", PORTS.get)
    book.add_listener(BROKER, 10911)
    book.add_listener(SLAVE, 20921)
    body = b'{"brokerAddrs":{0:"10.1.0.1:10911",1:"10.1.0.2:10911"}}'
    edited = rewrite_answer(GetRouteInfoByTopic.code, answer(body), book.view_for(("10.0.0.9", 1)))
    assert decode(edited).body == b'{"brokerAddrs":{0:"10.1.0.2:10911",1:"10.1.0.2:20921"}}'


@pytest.mark.parametrize("code", [GetBrokerConsumeStats.code, GetSystemTopicListFromNs.code])
def test_a_broker_address_in_the_body(code):
    body = b'{"brokerAddr":"10.1.0.1:10911","topicList":["10.3.3.3:1"]}'
    assert decode(rewrite_answer(code, answer(body), make_view())).body == body.replace(
        b"10.1.0.1:10911", b"10.0.0.9:20911"
    )


def test_a_broker_address_in_the_header():
    frame = answer(b"{}", {"masterAddress": BROKER, "masterEpoch": "1"})
    edited = decode(rewrite_answer(ControllerGetReplicaInfo.code, frame, make_view()))
    assert (edited.ext["masterAddress"], edited.body) == ("10.0.0.9:20911", b"{}")


@pytest.mark.parametrize("binary", [True, False])
def test_message_ids_are_restored_in_requests(binary):
    ours, theirs = (
        encode_message_id(*GATEWAY_HOSTS["10.1.0.2", 10911], 5),
        encode_message_id("10.1.0.2", 10911, 5),
    )
    ext = {"originMsgId": ours, "group": "g"}
    edited = restore_message_ids(encode_command(Command(36, ext=ext, body=b"b", binary=binary)), make_view())
    assert decode(edited).ext == {**ext, "originMsgId": theirs}
    signed = encode_command(Command(36, ext={**ext, "Signature": "s"}, binary=binary))
    assert restore_message_ids(signed, make_view()) is signed
    other = encode_command(Command(36, ext={"originMsgId": theirs}, binary=binary))
    assert restore_message_ids(other, make_view()) is other


def test_client_addresses_are_those_of_the_clients():
    view = make_view()
    view.client_addresses["10.0.0.9:40001"] = "192.168.0.7:50001"
    body = b'{"connectionSet":[{"clientAddr":"10.0.0.9:40001"},{"clientAddr":"10.0.0.8:40001"}]}'
    edited = rewrite_answer(GetConsumerConnectionList.code, answer(body), view)
    assert decode(edited).body == body.replace(b"10.0.0.9:40001", b"192.168.0.7:50001")


def test_an_answer_too_large_to_rewrite_passes_as_it_is():
    frame = answer(b'{"brokerAddrs":{0:"%b"}}' % BROKER.encode() + b" " * MAX_REWRITTEN_BYTES)
    for code in (GetRouteInfoByTopic.code, GetConsumerConnectionList.code, GetBrokerConsumeStats.code):
        assert rewrite_answer(code, frame, make_view()) is frame


def test_a_route_of_made_up_brokers_announces_a_bounded_number_of_addresses():
    opened = []
    addresses = b",".join(
        b'%d:"11.%d.%d.1:10911"' % (number, number >> 8, number & 255) for number in range(50_000)
    )
    frame = answer(b'{"brokerDatas":[{"brokerAddrs":{%b}}]}' % addresses)
    rewrite_answer(GetRouteInfoByTopic.code, frame, make_view(opened=opened))
    assert len(opened) == MAX_REWRITTEN_ADDRESSES


def test_tiny_messages_are_patched_up_to_a_bound():
    one = encode_message(Message("t", b"", store_host=("10.1.0.1", 10911)))
    patched = patch_frames(answer(one * (MAX_PATCHED_MESSAGES + 5)))
    hosts = [each.store_host for each in iter_messages(decode(patched).body)]
    assert hosts.count(("10.0.0.9", 20911)) == MAX_PATCHED_MESSAGES


def test_an_endless_header_of_ids_is_left_alone():
    frame = answer(ext={"msgId": (PREFIX * 80_000).decode()})
    assert len(frame) > MAX_HEADER_BYTES
    assert patch_frames(frame) is frame or bytes(patch_frames(frame)) == frame
