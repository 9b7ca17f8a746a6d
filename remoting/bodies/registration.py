"""The body of a broker's registration with the namesrv, plain or compressed."""

import struct
import zlib
from collections.abc import Iterator
from typing import Self

from codec import fastjson
from codec.constants import ResponseCode
from codec.fastjson import MAX_VALUES
from codec.java_numbers import I32, parse_java_integer
from remoting.bodies.queues import DataVersion
from remoting.bodies.routes import TopicQueueMappingInfo
from remoting.bodies.topics import TopicConfig, TopicConfigAndMappingSerializeWrapper
from remoting.errors import RequestError
from remoting.fields import field
from remoting.json_body import JsonBody, json_reader

MAX_INFLATED_BYTES = 64 * 1024 * 1024
"""A registration that inflates to more than this is refused: 1 MiB of zeros would otherwise become 1 GiB."""
MAX_TOPICS = 1_000_000
VALUES_PER_TOPIC = 20
"""JSON values per topic: nine are declared, the rest are attributes."""

_LENGTH = struct.Struct(">i")


class RegistrationTooLarge(ValueError):
    """A registration above a limit. ``unit`` is what is limited: bytes, topics, static topics or values.

    Values are those of JSON; their limit is a multiple of the limit of topics.
    """

    def __init__(self, unit: str, limit: int) -> None:
        super().__init__(f"the registration has more than {limit} {unit}")
        self.unit = unit


class RegisterBrokerBody(JsonBody):
    """The body of REGISTER_BROKER: the broker's topics and its filter servers.

    Compressed it is a zlib stream of parts, each with its length before it: data version, number of topics,
    each topic as text, filter servers, and from 5.0 on the number of static topics and each of them. The text
    of a topic has no order flag and no sys flag. Source: RegisterBrokerBody.encode and decode, 5.4.0.
    """

    topic_config_serialize_wrapper: TopicConfigAndMappingSerializeWrapper = field(
        factory=TopicConfigAndMappingSerializeWrapper
    )
    filter_server_list: list[str] = field(factory=list)

    @classmethod
    def decode(
        cls,
        data: bytes,
        *,
        compressed: bool,
        max_bytes: int = MAX_INFLATED_BYTES,
        max_topics: int = MAX_TOPICS,
    ) -> Self:
        """Decode either form; ``max_bytes`` limits it after decompression, ``max_topics`` before topics are read.

        Raises RegistrationTooLarge at a limit and RequestError(SYSTEM_ERROR) for anything malformed.
        """
        if not compressed:
            if len(data) > max_bytes:
                raise RegistrationTooLarge("bytes", max_bytes)
            return cls._from_json(data, max_topics)
        try:
            return cls._from_parts(
                _PartReader(_inflate(data, max_bytes), _max_values(max_topics)), max_topics
            )
        except RegistrationTooLarge:
            raise
        except (zlib.error, struct.error, ValueError, IndexError) as error:
            remark = f"the compressed body of REGISTER_BROKER is malformed: {error}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark) from error

    def encode(self, *, compressed: bool) -> bytes:
        """Encode either form."""
        if not compressed:
            return self.to_json()
        return zlib.compress(b"".join(self._parts()), zlib.Z_BEST_COMPRESSION)

    @classmethod
    def _from_json(cls, data: bytes, max_topics: int) -> Self:
        try:
            value = fastjson.loads(data, _max_values(max_topics))
        except ValueError as error:
            remark = f"the body is not JSON of a {cls.__name__}: {error}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark) from error
        wrapper = value.get("topicConfigSerializeWrapper") if isinstance(value, dict) else None
        if isinstance(wrapper, dict):
            for key, unit in (
                ("topicConfigTable", "topics"),
                ("topicQueueMappingInfoMap", "static topics"),
            ):
                table = wrapper.get(key)
                _check_count(len(table) if isinstance(table, dict) else 0, unit, max_topics)
        return cls.from_value(value)

    @classmethod
    def _from_parts(cls, parts: "_PartReader", max_topics: int) -> Self:
        wrapper = TopicConfigAndMappingSerializeWrapper(data_version=DataVersion.from_json(parts.read_part()))
        for _ in range(_check_count(parts.read_number(), "topics", max_topics)):
            topic = topic_from_text(str(parts.read_part(), "utf-8"))
            wrapper.topic_config_table[topic.topic_name] = topic
        filter_servers = cls.from_value(
            {"filterServerList": fastjson.loads(parts.read_part())}
        ).filter_server_list
        if parts.has_more:
            for _ in range(_check_count(parts.read_number(), "static topics", max_topics)):
                mapping = TopicQueueMappingInfo.from_json(parts.read_part())
                wrapper.topic_queue_mapping_info_map[mapping.topic or ""] = mapping
        return cls(
            topic_config_serialize_wrapper=wrapper,
            filter_server_list=filter_servers,
        )

    def _parts(self) -> Iterator[bytes]:
        wrapper = self.topic_config_serialize_wrapper
        yield _part(wrapper.data_version.to_json())
        yield _LENGTH.pack(len(wrapper.topic_config_table))
        for topic in wrapper.topic_config_table.values():
            yield _part(topic_to_text(topic).encode())
        yield _part(fastjson.dumps(self.filter_server_list))
        yield _LENGTH.pack(len(wrapper.topic_queue_mapping_info_map))
        for mapping in wrapper.topic_queue_mapping_info_map.values():
            yield _part(mapping.to_json())


def topic_to_text(topic: TopicConfig) -> str:
    """Encode a topic as one line of words. Source: TopicConfig.encode, 5.4.0."""
    numbers = f"{topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
    attributes = fastjson.dumps(topic.attributes).decode()
    return f"{topic.topic_name} {numbers} {topic.topic_filter_type} {attributes}"


def topic_from_text(text: str) -> TopicConfig:
    """Decode a topic from a line of words; attributes came with 5.0. Raises ValueError.

    Source: TopicConfig.decode, 5.4.0.
    """
    words = text.split(" ", 6)
    if len(words) < 5:
        raise ValueError(f"a topic has five words or six, not {len(words)}")
    topic = TopicConfig(
        topic_name=words[0],
        read_queue_nums=parse_java_integer(words[1], I32),
        write_queue_nums=parse_java_integer(words[2], I32),
        perm=parse_java_integer(words[3], I32),
        topic_filter_type=words[4],
    )
    if len(words) > 5 and words[5]:
        topic.attributes = _read_attributes(fastjson.loads(words[5]))
    return topic


_read_attributes = json_reader(dict[str, str])


def _part(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _max_values(max_topics: int) -> int:
    """Return the limit on JSON values of a registration: text of 64 MiB could hold 30 million, which need 1 GB."""
    return MAX_VALUES + VALUES_PER_TOPIC * max_topics


def _check_count(count: int, unit: str, limit: int) -> int:
    if count > limit:
        raise RegistrationTooLarge(unit, limit)
    return count


def _inflate(data: bytes, max_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    inflated = stream.decompress(data, max_bytes)
    if stream.unconsumed_tail:
        raise RegistrationTooLarge("bytes", max_bytes)
    return inflated


class _PartReader:
    """Reads numbers and length-prefixed parts in sequence; all parts together hold at most ``max_values`` values."""

    def __init__(self, data: bytes, max_values: int) -> None:
        self._data = data
        self._position = 0
        self._max_values = max_values
        self._values = 0

    @property
    def has_more(self) -> bool:
        return self._position < len(self._data)

    def read_number(self) -> int:
        (value,) = _LENGTH.unpack_from(self._data, self._position)
        self._position += _LENGTH.size
        return int(value)

    def read_part(self) -> bytes:
        end = self.read_number() + self._position
        if not self._position <= end <= len(self._data):
            raise ValueError("a part is longer than the rest")
        part = self._data[self._position : end]
        self._position = end
        self._values += part.count(b",")
        _check_count(self._values, "values", self._max_values)
        return part
