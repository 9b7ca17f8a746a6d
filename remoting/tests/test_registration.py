"""Tests of the registration body in both its forms."""

import struct
import zlib

import pytest

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
    def part(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

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
    assert error.value.what == "bytes"


@pytest.mark.parametrize("compressed", [False, True])
def test_topics_and_bytes_are_limited(compressed: bool) -> None:
    data = BODY.encode(compressed=compressed)
    count = len(BODY.topic_config_serialize_wrapper.topic_config_table)
    with pytest.raises(RegistrationTooLarge, match=f"more than {count - 1} topics"):
        RegisterBrokerBody.decode(data, compressed=compressed, max_topics=count - 1)
    with pytest.raises(RegistrationTooLarge, match="more than 20 bytes"):
        RegisterBrokerBody.decode(data, compressed=compressed, max_bytes=20)
    assert RegisterBrokerBody.decode(data, compressed=compressed, max_topics=count) == BODY


@pytest.mark.parametrize("table", ["1", "true", '"text"', "[1]", "1.5"])
def test_a_table_that_is_no_object_is_refused(table: str) -> None:
    data = f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{table}}}}}'
    with pytest.raises(RequestError, match="expected a JSON object"):
        RegisterBrokerBody.decode(data.encode(), compressed=False)
