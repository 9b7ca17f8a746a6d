"""Addresses in answers become ours, in ids and message bytes without moving anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from codec.command import Command, decode_frame, encode_command
from codec.ids import decode_message_id, encode_message_id
from codec.message import Message, encode_message, iter_messages
from gateway.shadow.proxy.addresses import AddressBook, packed
from gateway.shadow.proxy.rewrite import edit_answer, edit_request, patch_answers
from remoting.requests.client import GetConsumerConnectionList
from remoting.requests.controller import ControllerGetReplicaInfo
from remoting.requests.namesrv import GetBrokerClusterInfo, GetRouteInfoByTopic, GetSystemTopicListFromNs
from remoting.requests.offsets import GetBrokerConsumeStats

BROKER, SLAVE, SIX = "10.1.0.1:10911", "10.1.0.2:10911", "[fd00::1]:10911"
PORTS = {BROKER: 20911, SLAVE: 20921, SIX: 20931}
OURS = {("10.1.0.1", 10911): ("10.0.0.9", 20911), ("10.1.0.2", 10911): ("10.0.0.9", 20921)}
HOSTS = some.sampled_from([("10.1.0.1", 10911), ("10.1.0.2", 10911), ("10.9.9.9", 10911), ("fd00::1", 10911)])
PREFIX = packed(BROKER).hex().upper().encode()

ORIGIN, ORIGIN_OURS = (
    encode_message_id(*host, 100) for host in (("10.1.0.1", 10911), OURS["10.1.0.1", 10911])
)
NEEDLE = b"ORIGIN_MESSAGE_ID\1" + PREFIX


def view_of(local="10.0.0.9", opened=None):
    opened = [] if opened is None else opened

    def open_port(address):
        opened.append(address)
        return 30000 + len(opened)

    book = AddressBook("auto", open_port)
    for address, port in PORTS.items():
        book.add(address, port)
    return book.view_for((local, 20911))


def answer(body=b"", ext=None, *, code=0, binary=False, flag=1):
    return encode_command(Command(code, 7, flag, ext or {}, body, binary=binary))


def patched(*frames, view=None):
    data = b"".join(frames)
    stops = [sum(map(len, frames[: count + 1])) for count in range(len(frames))]
    return patch_answers(data, stops, view or view_of(), PREFIX)


def decoded(frame):
    return decode_frame(bytes(frame), 4, len(frame))


@some.composite
def messages(draw):
    body = draw(some.binary(max_size=40)) + draw(
        some.sampled_from([b"", packed(BROKER), NEEDLE, NEEDLE + b"\2"])
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
    result = patched(small, frame, small)
    assert len(result) == len(frame) + 2 * len(small)
    found = list(iter_messages(decoded(result[len(small) : -len(small)]).body))
    for before, after in zip(iter_messages(decoded(frame).body), found, strict=True):
        assert after.store_host == OURS.get(before.store_host, before.store_host)
        after.store_host = before.store_host
        for name in ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID"):
            assert (before.properties.pop(name), after.properties.pop(name)) == (ORIGIN, ORIGIN_OURS)
        assert after == before


@given(some.binary(max_size=200), messages())
def test_what_follows_the_messages_stays(tail, message):
    whole = encode_message(message)
    result = patched(answer(whole + tail))
    assert decoded(result).body[len(whole) :] == tail or tail[4:8] == whole[4:8]


@given(some.binary(max_size=200))
def test_other_bodies_are_not_even_copied(body):
    frame = answer(body)
    assert patched(frame) is frame or body[4:8] in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")


@pytest.mark.parametrize("binary", [True, False])
def test_ids_of_answers(binary):
    ids = ",".join(encode_message_id("10.1.0.1", 10911, offset) for offset in (0, 100, 2**40))
    frame = answer(ext={"msgId": ids, "queueId": "1"}, binary=binary)
    other = answer(ext={"msgId": encode_message_id("10.9.9.9", 10911, 7)}, binary=binary)
    result = bytes(patched(other, frame))
    assert result[: len(other)] == other
    found = decoded(result[len(other) :]).ext
    expected = [("10.0.0.9", 20911, offset) for offset in (0, 100, 2**40)]
    assert [decode_message_id(each) for each in found["msgId"].split(",")] == expected
    assert found["queueId"] == "1"


def test_ids_in_bodies_are_not_touched():
    frame = answer(b"{" + PREFIX)
    assert patched(frame) is frame


def test_ids_of_another_address_family_lead_to_the_primary():
    view = view_of("fd00::9")
    frame = answer(ext={"msgId": encode_message_id("10.1.0.1", 10911, 1)})
    assert patched(frame, view=view) is frame
    body = b"".join(
        encode_message(Message("t", store_host=host)) for host in [("10.1.0.1", 10911), ("fd00::1", 10911)]
    )
    hosts = [each.store_host for each in iter_messages(decoded(patched(answer(body), view=view)).body)]
    assert hosts == [("10.1.0.1", 10911), ("fd00::9", 20931)]


ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.1.0.1:10911","1":"10.7.0.1:10911"},"brokerName":"a:1","cluster":"c"}],'
    b'"filterServerTable":{"10.1.0.1:10911":[]},"orderTopicConf":"a:1;b:2","queueDatas":[]}'
)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("code", [GetRouteInfoByTopic.code, GetBrokerClusterInfo.code])
def test_routes(binary, code):
    opened = []
    edited = edit_answer(code, answer(ROUTE, binary=binary), view_of(opened=opened))
    expected = ROUTE.replace(b"10.1.0.1:10911", b"10.0.0.9:20911").replace(
        b"10.7.0.1:10911", b"10.0.0.9:30001"
    )
    assert decoded(edited).body == expected
    assert opened == ["10.7.0.1:10911"]


def test_a_route_that_is_none_stays():
    frame = encode_command(Command(17, 7, 1, remark='No topic route info for "10.1.0.1:10911"'))
    assert edit_answer(GetRouteInfoByTopic.code, frame, view_of()) is frame


def test_routes_by_an_ipv6_address():
    edited = edit_answer(GetRouteInfoByTopic.code, answer(ROUTE), view_of("fd00::9"))
    assert b'0:"[fd00::9]:20911"' in decoded(edited).body


def test_our_address_may_be_one_of_the_primary():
    """As when both stand on one machine: nothing is replaced twice."""
    book = AddressBook("10.1.0.2", PORTS.get)
    book.add(BROKER, 10911)
    book.add(SLAVE, 20921)
    body = b'{"brokerAddrs":{0:"10.1.0.1:10911",1:"10.1.0.2:10911"}}'
    edited = edit_answer(GetRouteInfoByTopic.code, answer(body), book.view_for(("10.0.0.9", 1)))
    assert decoded(edited).body == b'{"brokerAddrs":{0:"10.1.0.2:10911",1:"10.1.0.2:20921"}}'


@pytest.mark.parametrize("code", [GetBrokerConsumeStats.code, GetSystemTopicListFromNs.code])
def test_a_broker_that_is_named(code):
    body = b'{"brokerAddr":"10.1.0.1:10911","topicList":["10.3.3.3:1"]}'
    assert decoded(edit_answer(code, answer(body), view_of())).body == body.replace(
        b"10.1.0.1:10911", b"10.0.0.9:20911"
    )


def test_a_broker_that_is_named_in_the_header():
    frame = answer(b"{}", {"masterAddress": BROKER, "masterEpoch": "1"})
    edited = decoded(edit_answer(ControllerGetReplicaInfo.code, frame, view_of()))
    assert (edited.ext["masterAddress"], edited.body) == ("10.0.0.9:20911", b"{}")


@pytest.mark.parametrize("binary", [True, False])
def test_ids_on_their_way_back(binary):
    ours, theirs = (encode_message_id(*OURS["10.1.0.2", 10911], 5), encode_message_id("10.1.0.2", 10911, 5))
    ext = {"originMsgId": ours, "group": "g"}
    edited = edit_request(encode_command(Command(36, ext=ext, body=b"b", binary=binary)), view_of())
    assert decoded(edited).ext == {**ext, "originMsgId": theirs}
    signed = encode_command(Command(36, ext={**ext, "Signature": "s"}, binary=binary))
    assert edit_request(signed, view_of()) is signed
    other = encode_command(Command(36, ext={"originMsgId": theirs}, binary=binary))
    assert edit_request(other, view_of()) is other


def test_clients_are_shown_where_they_are():
    view = view_of()
    view.clients["10.0.0.9:40001"] = "192.168.0.7:50001"
    body = b'{"connectionSet":[{"clientAddr":"10.0.0.9:40001"},{"clientAddr":"10.0.0.8:40001"}]}'
    edited = edit_answer(GetConsumerConnectionList.code, answer(body), view)
    assert decoded(edited).body == body.replace(b"10.0.0.9:40001", b"192.168.0.7:50001")
