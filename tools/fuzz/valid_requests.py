"""Builds valid requests of every declared code, with names and places that exist, so that mutations reach deep code.

The header fields and bodies come from `remoting.requests`; the values from tables by the names of the fields. Requests
whose fields belong together (sends, pops with their receipts, registrations) have functions of their own.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import remoting.requests
import remoting.requests.processes  # noqa: F401 - both declare requests
from codec.batch import encode_batch
from codec.message import Message, encode_message
from codec.properties import encode_properties
from remoting.bodies.registration import RegisterBrokerBody
from remoting.bodies.topics import TopicConfig
from remoting.declare import REQUESTS, Request
from remoting.fields import MISSING
from remoting.json_body import JsonBody
from tools.fuzz.field_values import CLAIMED_BROKERS, FIELD_SOURCES
from tools.fuzz.json_mutations import RawJson
from tools.fuzz.values import (
    INTERNAL_GROUPS,
    INTERNAL_TOPICS,
    Chance,
    valid_properties,
)
from tools.fuzz.world import (
    BROKER_NAME,
    CLIENT_IDS,
    GROUPS,
    KEPT_FACTS,
    KEPT_TOPIC,
    PRODUCER_GROUPS,
    QUEUES,
    TOPICS,
    FuzzWorld,
)

NEW_NAMES: Final = 150
"""Number of names that no run starts with; walks create and delete topics and groups under them."""
SETTING_LINES: Final = (
    "brokerName=x",
    "transactionTimeOut=6000",
    "popPollingSize=1024",
    "traceOn=true",
    "defaultTopicQueueNums=8",
    "noSuchKey=1",
    "serverWorkerThreads=8",
)
"""Lines of UPDATE_BROKER_CONFIG. Settings that rightly disturb other clients are left out."""
HARMLESS_KEYS: Final = (
    "traceOn",
    "transactionCheckMax",
    "popFromRetryProbability",
    "noSuchKey",
    "brokerId",
    "a.b",
    "",
)
"""Keys for which any value may be accepted without disturbing other clients."""

# Codes that are sent most: they store or wait for something, or carry structure.
FREQUENT_CODES: Final = (
    10,
    310,
    320,
    11,
    361,
    34,
    35,
    36,
    37,
    200050,
    200051,
    200053,
    200054,
    200151,
    41,
    42,
    12,
    15,
)
FREQUENT_CODES_2: Final = (
    14,
    17,
    200,
    215,
    207,
    46,
    33,
    370,
    400,
    401,
    222,
    314,
    770_001,
    770_003,
    770_004,
    324,
    325,
)
NAMESRV_CODES: Final = (
    *(
        100,
        101,
        102,
        103,
        104,
        105,
        106,
        205,
        206,
        216,
        217,
        219,
        224,
        304,
        311,
        312,
        313,
        318,
        319,
        322,
        327,
        901,
    ),
    904,
)


@dataclass(slots=True)
class FuzzRequest:
    """One request before it is encoded. ``json_body`` is the value that ``body`` is written from, if it is JSON."""

    code: int
    ext: dict[str, Any]
    body: bytes = b""
    json_body: Any = None
    has_json_body: bool = False
    flag: int = 0
    opaque: Any = 0
    language: Any = "JAVA"
    version: Any = 505
    binary: bool = False
    repeated: list[tuple[str, Any]] = field(default_factory=list)
    """Header fields that are written a second time."""


class RequestSource:
    """Draws valid requests from one generator and the world."""

    def __init__(self, chance: Chance, world: FuzzWorld) -> None:
        self.chance: Chance = chance
        self.world: FuzzWorld = world

    # -- values that fit together -------------------------------------------------------------------------------

    def topic(self) -> str:
        chance = self.chance
        kind = chance.random()
        if kind < 0.75:
            return chance.pick(TOPICS)
        if kind < 0.93:
            return self.new_topic()
        return chance.pick(INTERNAL_TOPICS)

    def group(self) -> str:
        chance = self.chance
        kind = chance.random()
        if kind < 0.8:
            return chance.pick(GROUPS)
        if kind < 0.95:
            return self.new_group()
        return chance.pick(INTERNAL_GROUPS)

    def new_topic(self) -> str:
        """Return a topic that walks may change and delete."""
        return f"fuzz_new_{self.chance.below(NEW_NAMES)}"

    def new_group(self) -> str:
        """Return a group that walks may change and delete."""
        return f"fuzz_group_{self.chance.below(NEW_NAMES)}"

    def place(self) -> int:
        """Return the index of one of the world's facts, the newest more often."""
        return -1 - int(self.chance.random() ** 2 * KEPT_FACTS)

    def request(self, code: int) -> FuzzRequest:
        """Return a valid request of a declared code."""
        built = _BUILDERS.get(code)
        if built is not None:
            return built(self, code)
        return self.declared(code)

    def declared(self, code: int, **given: str) -> FuzzRequest:
        """Return a request with each declared field; ``given`` are values by Python name."""
        request_type = REQUESTS[code]
        request = FuzzRequest(code, self._ext(request_type, given))
        if request_type.BODY is not None:
            request.has_json_body = True
            request.json_body = self.body_value(request_type.BODY)
        return request

    def _ext(self, request_type: type[Request[Any]], values: Mapping[str, str]) -> dict[str, Any]:
        chance = self.chance
        ext = {}
        for item in request_type.WIRE_FIELDS:
            value = values.get(item.name)
            if value is None:
                if item.default is not MISSING and chance.happens(0.5):
                    continue
                value = self.value_of(item.name, item.type)
            ext[item.wire] = value
        return ext

    def value_of(self, name: str, kind: Any) -> str:
        """Return a valid value of a header field, as text."""
        source = FIELD_SOURCES.get(name)
        if source is not None:
            return source(self)
        kind = _plain_type(kind)
        if kind is bool:
            return self.chance.pick(("true", "false"))
        if kind is str:
            return self.chance.pick(("a", "fuzz", "1", "x y"))
        return self.chance.pick(("0", "1", "2", "10", "1000"))

    def body_value(self, kind: type[JsonBody]) -> dict[str, Any]:
        """Return a valid JSON object of a declared body."""
        value: dict[str, Any] = {}
        for item in kind.FIELDS:
            if item.default is MISSING or self.chance.happens(0.85):
                value[item.wire] = self._json_value(item.name, item.type, 0)
        return value

    def _json_value(self, name: str, kind: Any, depth: int) -> Any:
        kind = _plain_type(kind)
        origin, arguments = get_origin(kind) or kind, get_args(kind)
        if origin in (list, set):
            count = self.chance.below(4) if depth < 3 else 0
            return [self._json_value(name, arguments[0], depth + 1) for _ in range(count)]
        if origin is dict:
            count = self.chance.below(4) if depth < 3 else 0
            return {
                self._json_key(arguments[0]): self._json_value(name, arguments[1], depth + 1)
                for _ in range(count)
            }
        if isinstance(origin, type) and issubclass(origin, JsonBody):
            return self.body_value(origin)
        if origin is bool:
            return self.chance.happens(0.5)
        text = self.value_of(name, kind)
        if origin is int:
            return int(text)
        return float(text) if origin is float else text

    def _json_key(self, kind: Any) -> Any:
        kind = _plain_type(kind)
        if kind is int:
            return self.chance.below(QUEUES)
        if isinstance(kind, type) and issubclass(kind, JsonBody):
            queue = self.chance.below(QUEUES)
            return RawJson(
                f'{{"brokerName":"{BROKER_NAME}","queueId":{queue},"topic":"{self.chance.pick(TOPICS)}"}}'
            )
        return self.chance.pick((self.topic(), self.group(), f"{self.topic()}@{self.group()}"))


def _plain_type(kind: Any) -> Any:
    """Return a type without Optional and Java's ranges; texts of a fixed set are str."""
    while True:
        origin = get_origin(kind)
        if origin is Annotated:
            return int
        if origin is Literal:
            return str
        if origin is not Union and type(kind).__name__ != "UnionType":
            return kind
        kind = next(member for member in get_args(kind) if member is not type(None))


# -- requests with fields that belong together ------------------------------------------------------------------------


def _body(chance: Chance) -> bytes:
    size = chance.pick((0, 1, 10, 10, 100, 100, 1000))
    return b"x" * size if not chance.happens(0.002) else bytes(300_000)


def _send(source: RequestSource, code: int) -> FuzzRequest:
    """Return a send; one in eight is a half message."""
    half = source.chance.happens(0.12)
    fields = {"batch": "false", "sys_flag": source.chance.pick(("0", "0", "1", "257", "769"))}
    properties = valid_properties(source.chance)
    if half:
        fields |= {"sys_flag": "4", "topic": "fuzz_transaction"}
        properties += f"TRAN_MSG\x01true\x02PGROUP\x01{PRODUCER_GROUPS[0]}\x02"
    request = source.declared(code, properties=properties, **fields)
    request.body = _body(source.chance)
    if source.chance.happens(0.1):
        request.body = zlib.compress(request.body)
    return request


def _batch(source: RequestSource, code: int) -> FuzzRequest:
    request = source.declared(code, batch="true", sys_flag="0")
    entries = [
        (0, _body(source.chance), encode_properties({"TAGS": "a", "KEYS": f"k{number}"}))
        for number in range(1 + source.chance.below(5))
    ]
    request.body = encode_batch(entries)
    return request


def _ack(source: RequestSource, code: int) -> FuzzRequest:
    receipt = source.world.receipts[source.place()]
    return source.declared(
        code,
        topic=receipt.topic,
        consumer_group=receipt.group,
        queue_id=receipt.queue_id,
        offset=receipt.offset,
        extra_info=receipt.extra_info,
    )


def _batch_ack(source: RequestSource, code: int) -> FuzzRequest:
    request = source.declared(code)
    acks = []
    for _ in range(1 + source.chance.below(3)):
        receipt = source.world.receipts[source.place()]
        parts = receipt.extra_info.split(" ")
        ack: dict[str, Any] = {"c": receipt.group, "t": receipt.topic, "r": parts[4], "b": "Aw=="}
        ack |= {"so": int(parts[0]), "q": int(receipt.queue_id), "rq": int(parts[3]), "pt": int(parts[1])}
        acks.append({**ack, "it": int(parts[2])})
    request.json_body = {"brokerName": BROKER_NAME, "acks": acks}
    return request


def _end_transaction(source: RequestSource, code: int) -> FuzzRequest:
    half = source.world.halves[source.place()]
    return source.declared(
        code,
        topic=half.topic,
        producer_group=PRODUCER_GROUPS[0],
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.physical_offset,
        commit_or_rollback=source.chance.pick(("8", "12", "0")),
        msg_id=half.message_id,
    )


def _at_stored_place(source: RequestSource, code: int) -> FuzzRequest:
    """Return a request about the physical offset of a stored message."""
    stored = source.world.places[source.place()]
    return source.declared(
        code, offset=stored.physical_offset, topic=stored.topic, origin_msg_id=stored.message_id
    )


def _put_at_offsets(source: RequestSource, code: int) -> FuzzRequest:
    """Return messages of a queue under the offsets that they have there, or that their queue expects next."""
    first = source.chance.below(20)
    request = source.declared(code, topic=KEPT_TOPIC, queue_id="0", first_offset=str(first), reset="false")
    request.body = encode_kept_messages(0, first, 1 + source.chance.below(3))
    return request


def encode_kept_messages(queue_id: int, first: int, count: int) -> bytes:
    """Return stored messages of `KEPT_TOPIC` with queue offsets from ``first`` on."""
    host = ("127.0.0.1", 10911)
    return b"".join(
        encode_message(
            Message(
                topic=KEPT_TOPIC,
                body=b"kept",
                properties={"TAGS": "a"},
                queue_id=queue_id,
                queue_offset=offset,
                born_timestamp=1_700_000_000_000,
                born_host=host,
                store_timestamp=1_700_000_000_000,
                store_host=host,
            )
        )
        for offset in range(first, first + count)
    )


def _pull(source: RequestSource, code: int) -> FuzzRequest:
    """Return a pull, mostly with its subscription in the request."""
    return source.declared(code, sys_flag=source.chance.pick(("4", "4", "4", "6", "5", "2", "0")))


def _change_topic(source: RequestSource, code: int) -> FuzzRequest:
    return source.declared(code, topic=source.new_topic())


def _change_group(source: RequestSource, code: int) -> FuzzRequest:
    request = source.declared(code, group_name=source.new_group())
    if request.has_json_body and code == 200:
        request.json_body["groupName"] = source.new_group()
    return request


def _recall(source: RequestSource, code: int) -> FuzzRequest:
    return source.declared(
        code, topic="fuzz_delay", recall_handle=source.world.recall_handles[source.place()]
    )


def _reply_message(source: RequestSource, code: int) -> FuzzRequest:
    """Return a reply message to one of the world's clients."""
    properties = f"REPLY_TO_CLIENT\x01{source.chance.pick(CLIENT_IDS)}\x02CORRELATION_ID\x01c-1\x02"
    request = source.declared(code, properties=properties, batch="false", sys_flag="0")
    request.body = _body(source.chance)
    return request


def _stage(source: RequestSource, code: int) -> FuzzRequest:
    request = source.declared(code, sys_flag="0")
    keys = (f"S{source.chance.below(100)}" for _ in range(1 + source.chance.below(3)))
    request.body = encode_batch([(0, b"staged", encode_properties({"UNIQ_KEY": key})) for key in keys])
    return request


def _register_broker(source: RequestSource, code: int) -> FuzzRequest:
    """Return the registration of a broker, real or not, with the world's topics or new ones."""
    chance = source.chance
    compressed = chance.happens(0.4)
    request = source.declared(
        code, broker_name=chance.pick(CLAIMED_BROKERS), compressed=str(compressed).lower()
    )
    body = RegisterBrokerBody()
    for _ in range(chance.below(5)):
        topic = TopicConfig(topic_name=source.topic())
        body.topic_config_serialize_wrapper.topic_config_table[topic.topic_name] = topic
    body.topic_config_serialize_wrapper.data_version.counter = chance.below(4)
    if compressed:
        request.body = body.encode(compressed=True)
        request.ext["bodyCrc32"] = str(zlib.crc32(request.body) & 0x7FFFFFFF)
    else:
        request.has_json_body, request.json_body = True, body.to_value()
        request.ext["bodyCrc32"] = "0"
    return request


def _registration_of_claimed(source: RequestSource, code: int) -> FuzzRequest:
    """Return a request that ends or changes the registration of a broker, mostly of one that does not exist."""
    return source.declared(code, broker_name=source.chance.pick(CLAIMED_BROKERS))


def _update_settings(source: RequestSource, code: int) -> FuzzRequest:
    lines = [source.chance.pick(SETTING_LINES) for _ in range(1 + source.chance.below(2))]
    return FuzzRequest(code, {}, "\n".join(lines).encode())


def _lock(source: RequestSource, code: int) -> FuzzRequest:
    request = source.declared(code)
    queues = [
        {"topic": source.topic(), "brokerName": BROKER_NAME, "queueId": source.chance.below(QUEUES)}
        for _ in range(1 + source.chance.below(4))
    ]
    request.json_body["mqSet"] = queues
    return request


_BUILDERS: Final[dict[int, Callable[[RequestSource, int], FuzzRequest]]] = {
    **dict.fromkeys((10, 310), _send),
    **dict.fromkeys((324, 325), _reply_message),
    **dict.fromkeys((11, 361), _pull),
    **dict.fromkeys((17, 215), _change_topic),
    **dict.fromkeys((200, 207), _change_group),
    370: _recall,
    320: _batch,
    **dict.fromkeys((200051, 200053), _ack),
    200151: _batch_ack,
    37: _end_transaction,
    **dict.fromkeys((36, 33), _at_stored_place),
    770_001: _put_at_offsets,
    770_003: _stage,
    103: _register_broker,
    **dict.fromkeys((104, 205, 327, 904), _registration_of_claimed),
    **dict.fromkeys((25, 318, 1009), _update_settings),
    **dict.fromkeys((41, 42), _lock),
}
