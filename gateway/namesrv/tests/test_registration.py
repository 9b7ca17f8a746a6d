"""Registrations are accepted or refused as a whole."""

import zlib
from typing import Any

import pytest

from codec.fastjson import dumps
from gateway.config.limits import NamesrvLimits
from gateway.namesrv.registration import MAX_TIMEOUT_MS, Registration, check_address, read_registration
from remoting.bodies.registration import RegisterBrokerBody
from remoting.bodies.topics import TopicConfigAndMappingSerializeWrapper
from remoting.errors import RequestError
from remoting.requests.namesrv import RegisterBroker

HUGE = (
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":'
    b'{"T":{"topicName":"T","writeQueueNums":QUEUES,"perm":PERM}}}}'
)
TOPIC = {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 8, "perm": 6}


def body(topics: Any, **more: Any) -> dict[str, Any]:
    wrapper = {"topicConfigTable": topics, "dataVersion": {"counter": 1}, **more}
    return {"topicConfigSerializeWrapper": wrapper, "filterServerList": []}


def read(content: Any = None, *, limits: NamesrvLimits | None = None, **fields: Any) -> Registration:
    given: dict[str, Any] = {
        "broker_name": "broker-a",
        "broker_addr": "10.0.0.1:10911",
        "cluster_name": "C",
        "ha_server_addr": "10.0.0.1:10912",
        "broker_id": 0,
    }
    request = RegisterBroker(**(given | fields))
    if content is not None:
        request.body = content if isinstance(content, bytes) else dumps(content)
    return read_registration(request, None, limits or NamesrvLimits())


def refusal(*arguments: Any, **fields: Any) -> str:
    with pytest.raises(RequestError) as error:
        read(*arguments, **fields)
    assert error.value.code == 1
    assert len(str(error.value.remark)) < 1000
    return str(error.value.remark)


def test_a_registration_with_everything() -> None:
    mapping = {"topic": "S", "bname": "broker-a", "totalQueues": 2, "currIdMap": {"0": 1}}
    content = body({"T": TOPIC}, topicQueueMappingInfoMap={"S": mapping})
    content["filterServerList"] = ["f:1"]
    given = read(content, heartbeat_timeout_millis=5_000, enable_acting_master=True)
    assert (given.cluster, given.broker_name, given.broker_id, given.address) == (
        "C", "broker-a", 0, "10.0.0.1:10911",
    )  # fmt: skip
    queues = given.queues["T"]
    assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (
        "broker-a", 4, 8, 6,
    )  # fmt: skip
    assert given.mappings["S"].curr_id_map == {0: 1}
    assert (given.filter_servers, given.timeout_ms, given.acting_master) == (["f:1"], 5_000, True)
    assert given.data_version.counter == 1


@pytest.mark.parametrize(
    "content",
    [
        None,
        {},
        {"topicConfigSerializeWrapper": None, "filterServerList": None},
        body(None),
        body({}, dataVersion=None, topicQueueMappingInfoMap=None),
    ],
)
def test_a_registration_without_topics(content: Any) -> None:
    given = read(content)
    assert (dict(given.queues), dict(given.mappings)) == ({}, {})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (body({"T": None}), "expected a JSON object for TopicConfig"),
        (body({"T": {**TOPIC, "topicName": None}}), "null"),
        (body({"T": {**TOPIC, "topicName": ""}}), "the topic name is blank"),
        (body({"T": {**TOPIC, "topicName": "a\nb"}}), "cannot be printed"),
        (body({"T": {**TOPIC, "topicName": "x" * 301}}), "longer than 300 characters"),
        (body({"T": {**TOPIC, "readQueueNums": -1}}), "-1 read queues"),
        (body({"T": {**TOPIC, "writeQueueNums": 65_537}}), "65537 write queues"),
        (HUGE.replace(b"PERM", b"6").replace(b"QUEUES", b"9" * 40), ""),
        (body({"T": {**TOPIC, "perm": 16}}), "permission 16"),
        (body({"T": {**TOPIC, "perm": -1}}), "permission -1"),
        (HUGE.replace(b"PERM", b"9" * 40).replace(b"QUEUES", b"4"), ""),
        (body({"T": 7}), ""),
        (body([]), ""),
        (body({}, topicQueueMappingInfoMap={"S": None}), "expected a JSON object for TopicQueueMappingInfo"),
        (body({}, topicQueueMappingInfoMap={"": {}}), "the topic name is blank"),
        (body({}, topicQueueMappingInfoMap={"S": {"bname": "\x00"}}), "the broker name"),
        (body({}, topicQueueMappingInfoMap={"S": {"scope": "s" * 301}}), "the scope"),
        (body({}, topicQueueMappingInfoMap={"S": {"topic": "s" * 301}}), "the topic name"),
        (
            body({}, topicQueueMappingInfoMap={"S": {"currIdMap": {str(n): 0 for n in range(65_537)}}}),
            "more than 65536 queues",
        ),
        ({**body({}), "filterServerList": [None]}, "<filterServerList>"),
        ({**body({}), "filterServerList": [""]}, "the filter server is blank"),
        ({**body({}), "filterServerList": ["f:1"] * 17}, "17 filter servers; at most 16"),
    ],
)
def test_a_registration_that_no_broker_sends_is_refused(content: Any, words: str) -> None:
    assert words in refusal(content)


@pytest.mark.parametrize(
    "topic",
    [
        {"topicName": "%RETRY%" + "g" * 248},
        {"topicName": "ip-10-0-0-1.eu.internal"},
        {"topicName": "rmq_sys_SYNC_BROKER_MEMBER_" + "b" * 255},
        {"topicName": "主题"},
        {**TOPIC, "readQueueNums": 0, "writeQueueNums": 0},
        {**TOPIC, "perm": 0},
        {**TOPIC, "perm": 7},
        {**TOPIC, "readQueueNums": 65_536},
        {**TOPIC, "topicSysFlag": -5},
        {**TOPIC, "attributes": None, "order": None, "topicFilterType": None},
    ],
)
def test_odd_values_without_harm_are_accepted(topic: dict[str, Any]) -> None:
    assert len(read(body({"key": topic})).queues) == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"broker_name": ""}, "the broker name is blank"),
        ({"broker_name": " "}, "the broker name is blank"),
        ({"broker_name": "b" * 1_000_000}, "longer than 300"),
        ({"broker_name": "b\ud800"}, "cannot be printed"),
        ({"broker_name": "b\u202e"}, "cannot be printed"),
        ({"cluster_name": "c\x00"}, "the cluster name"),
        ({"cluster_name": ""}, "the cluster name is blank"),
        ({"ha_server_addr": "h" * 301}, "the HA address"),
        ({"broker_id": -1}, "the broker id -1 is negative"),
        ({"broker_addr": ""}, "the broker address is blank"),
        ({"broker_addr": "1.2.3.4"}, "is not host:port"),
        ({"broker_addr": "1.2.3.4:"}, "is not host:port"),
        ({"broker_addr": ":10911"}, "is not host:port"),
        ({"broker_addr": "h:65536"}, "is not host:port"),
        ({"broker_addr": "h:-1"}, "is not host:port"),
        ({"broker_addr": "h:" + "1" * 40}, "is not host:port"),
        ({"broker_addr": "h:1_0"}, "is not host:port"),
        ({"broker_addr": "a b:1"}, "is not host:port"),
        ({"broker_addr": "a:1;b:2"}, "is not host:port"),
        ({"broker_addr": "<b>:1"}, "is not host:port"),
        ({"broker_addr": "a\n:1"}, "cannot be printed"),
        ({"broker_addr": "h" * 300 + ":1"}, "longer than 300"),
    ],
)
def test_names_and_addresses_are_checked(fields: dict[str, Any], words: str) -> None:
    assert words in refusal(**fields)


@pytest.mark.parametrize(
    "address", ["h:0", "10.0.0.1:65535", "[fe80::1%eth0]:10911", "fe80::1:10911", "my_host:1"]
)
def test_addresses_that_clients_can_dial(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize("given", [(1 << 63) - 1, MAX_TIMEOUT_MS + 1])
def test_no_registration_lives_for_ever(given: int) -> None:
    assert read(heartbeat_timeout_millis=given).timeout_ms == MAX_TIMEOUT_MS


def test_topics_and_bytes_of_a_registration_are_limited() -> None:
    topics = {name: {**TOPIC, "topicName": name} for name in "TUV"}
    two = NamesrvLimits(max_topics_per_broker=2)
    reason = "the registration has more than 2 topics: raise maxTopicsPerBroker"
    assert reason in refusal(body(topics), limits=two)
    assert reason in refusal(compressed(topics), compressed=True, limits=two)
    assert "2 static topics: raise maxTopicsPerBroker" in refusal(
        body({}, topicQueueMappingInfoMap=topics), limits=two
    )
    assert len(read(body(topics), limits=NamesrvLimits(max_topics_per_broker=3)).queues) == 3
    assert "more than 100 bytes: raise maxRegistrationBytes" in refusal(
        body(topics), limits=NamesrvLimits(max_registration_bytes=100)
    )


def compressed(topics: dict[str, Any]) -> bytes:
    wrapper = TopicConfigAndMappingSerializeWrapper.from_value({"topicConfigTable": topics})
    return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper).encode(compressed=True)


def test_a_compressed_registration_is_limited_when_it_is_inflated() -> None:
    bomb = zlib.compress(bytes(1 << 20))
    assert len(bomb) < 2_000
    assert "more than 65536 bytes: raise maxRegistrationBytes" in refusal(
        bomb, compressed=True, limits=NamesrvLimits(max_registration_bytes=65_536)
    )
