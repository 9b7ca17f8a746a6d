"""Tests of the registration body in both its forms."""

import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.bodies.queues import DataVersion
from remoting.bodies.registration import (
    RegisterBrokerBody,
    RegistrationTooLarge,
    topic_from_text,
    topic_to_text,
)
from remoting.bodies.routes import TopicQueueMappingInfo
from remoting.bodies.topics import TopicConfig, TopicConfigAndMappingSerializeWrapper
from remoting.errors import RequestError

BODY = RegisterBrokerBody(
    topic_config_serialize_wrapper=TopicConfigAndMappingSerializeWrapper(
        topic_config_table={
            "A": TopicConfig(topic_name="A", read_queue_nums=4, perm=2),
            "B": TopicConfig(topic_name="B", attributes={"+message.type": "FIFO"}),
        },
        data_version=DataVersion(counter=3, timestamp=1_700_000_000_000),
        topic_queue_mapping_info_map={"S": TopicQueueMappingInfo(topic="S", curr_id_map={0: 1})},
    ),
    filter_server_list=["127.0.0.1:1"],
)


@pytest.mark.parametrize("compressed", [False, True])
def test_both_forms_are_read_back(compressed: bool) -> None:
    assert RegisterBrokerBody.decode(BODY.encode(compressed=compressed), compressed=compressed) == BODY


def test_the_topic_line_is_the_official_one() -> None:
    topic = TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=4, perm=6, attributes={"a": "b"})
    assert topic_to_text(topic) == 'T 8 4 6 SINGLE_TAG {"a":"b"}'
    assert topic_from_text('T 8 4 6 SINGLE_TAG {"a":"b"}') == topic


def test_topics_of_4_9_have_no_attributes_and_no_mappings() -> None:
    old = part(b'{"counter":1}') + struct.pack(">i", 1) + part(b"T 8 4 6 SINGLE_TAG") + part(b"[]")
    wrapper = RegisterBrokerBody.decode(zlib.compress(old), compressed=True).topic_config_serialize_wrapper
    assert wrapper.topic_config_table == {
        "T": TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=4, perm=6)
    }
    assert wrapper.topic_queue_mapping_info_map == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not zlib",
        zlib.compress(b""),
        zlib.compress(struct.pack(">i", -1)),
        zlib.compress(struct.pack(">i", 1000) + b"{}"),
        zlib.compress(struct.pack(">i", 2) + b"{}" + struct.pack(">i", 1) + struct.pack(">i", 3) + b"T 8"),
        zlib.compress(
            struct.pack(">i", 2) + b"{}" + struct.pack(">ii", 1, 50) + b"T " + b"9" * 40 + b" 8 6 TAG"
        ),
    ],
)
def test_damage_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError, match="REGISTER_BROKER is malformed"):
        RegisterBrokerBody.decode(data, compressed=True)


def test_a_registration_that_inflates_without_end_is_refused() -> None:
    with pytest.raises(RegistrationTooLarge, match="more than 1000 bytes") as error:
        RegisterBrokerBody.decode(zlib.compress(bytes(100_000)), compressed=True, max_bytes=1000)
    assert error.value.unit == "bytes"


@pytest.mark.parametrize("compressed", [False, True])
def test_topics_and_bytes_are_limited(compressed: bool) -> None:
    data = BODY.encode(compressed=compressed)
    count = len(BODY.topic_config_serialize_wrapper.topic_config_table)
    with pytest.raises(RegistrationTooLarge, match=f"more than {count - 1} topics"):
        RegisterBrokerBody.decode(data, compressed=compressed, max_topics=count - 1)
    with pytest.raises(RegistrationTooLarge, match="more than 20 bytes"):
        RegisterBrokerBody.decode(data, compressed=compressed, max_bytes=20)
    assert RegisterBrokerBody.decode(data, compressed=compressed, max_topics=count) == BODY


def part(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def parts_of(*topics: bytes, servers: bytes = b"[]") -> bytes:
    """A compressed registration of these topics."""
    head = part(b'{"counter":1}') + struct.pack(">i", len(topics))
    return zlib.compress(head + b"".join(map(part, topics)) + part(servers))


@pytest.mark.parametrize(
    "topic",
    [
        b"T " + b"9" * 40 + b" 4 6 SINGLE_TAG",
        b"T 8 2147483648 6 SINGLE_TAG",
        b"T 8 8 -2147483649 SINGLE_TAG",
        b"T 8 8 6.0 SINGLE_TAG",
        b"T 8_0 8 6 SINGLE_TAG",
        b"T  8 6 SINGLE_TAG",
        b'T 8 8 6 SINGLE_TAG {"a":null}',
        b"T 8 8 6 SINGLE_TAG [1]",
        b"T 8 8 6 SINGLE_TAG {",
        b'T 8 8 6 SINGLE_TAG {"a":[{"$ref":"$"}]}',
        b"\xff 8 8 6 SINGLE_TAG",
        b"",
    ],
)
def test_a_topic_that_java_would_not_read_is_refused(topic: bytes) -> None:
    with pytest.raises(RequestError, match="malformed"):
        RegisterBrokerBody.decode(parts_of(topic), compressed=True)


@pytest.mark.parametrize("count", [b"9" * 40, b"2147483648", b"1e10", b"[]", b"true1"])
def test_a_queue_count_of_a_json_topic_fits_java(count: bytes) -> None:
    data = (
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":%b}}}}'
        % count
    )
    with pytest.raises(RequestError):
        RegisterBrokerBody.decode(data, compressed=False)


def test_words_behind_the_attributes_are_ignored() -> None:
    assert topic_from_text('T 8 4 6 SINGLE_TAG {"a":"b"}' + " x" * 9).attributes == {"a": "b"}


def test_filter_servers_are_text() -> None:
    read = RegisterBrokerBody.decode(parts_of(servers=b'["a"]'), compressed=True)
    assert read.filter_server_list == ["a"]
    for servers in (b"[null]", b"{}", b"1"):
        with pytest.raises(RequestError):
            RegisterBrokerBody.decode(parts_of(servers=servers), compressed=True)


def test_values_are_limited_by_the_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes could fill all the bytes: 64 MiB of them took 6.7 s and 1 GB."""
    monkeypatch.setattr("remoting.bodies.registration.MAX_VALUES", 50)
    attributes = b"{" + b",".join(b'"%d":""' % number for number in range(40)) + b"}"
    topics = [b"T%d 8 4 6 SINGLE_TAG %b" % (number, attributes) for number in range(2)]
    assert RegisterBrokerBody.decode(parts_of(*topics), compressed=True, max_topics=2)
    many = parts_of(topics[0], topics[0].replace(b"{", b"{" + attributes[1:-1] + b","))
    with pytest.raises(RegistrationTooLarge, match="more than 90 values"):
        RegisterBrokerBody.decode(many, compressed=True, max_topics=2)
    with pytest.raises(RequestError, match="more than 90"):
        RegisterBrokerBody.decode(b"[" + b"[]," * 200 + b"0]", compressed=False, max_topics=2)


@given(st.binary(max_size=60) | st.lists(st.binary(max_size=30).map(part), max_size=5).map(b"".join))
def test_any_bytes_are_a_registration_or_refused(data: bytes) -> None:
    for given_data, compressed in ((data, False), (zlib.compress(data), True), (data, True)):
        with suppress(RequestError, RegistrationTooLarge):
            RegisterBrokerBody.decode(given_data, compressed=compressed, max_bytes=1000, max_topics=3)


@pytest.mark.parametrize("table", ["1", "true", '"text"', "[1]", "1.5"])
def test_a_table_that_is_no_object_is_refused(table: str) -> None:
    data = f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{table}}}}}'
    with pytest.raises(RequestError, match="expected a JSON object"):
        RegisterBrokerBody.decode(data.encode(), compressed=False)
