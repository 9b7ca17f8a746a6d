"""Extreme headers and bodies of every declared request: each differs from a usual one in one place.

A usual header or body is accepted by its handler, or gets far into it, so that each extreme value is tried where it
would do harm.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from itertools import combinations, product
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from codec.batch import encode_batch
from codec.java_numbers import I16, I32, I64, JavaInteger
from codec.recall_handle import RecallHandle
from gateway.tests.cluster import EPOCH_MS
from remoting.declare import Request
from remoting.fields import Field
from remoting.json_body import JsonBody

TOPIC, GROUP, PRODUCERS, CLIENT, BROKER = "orders", "GID", "PID", "client-1", "broker-a"
REVIVE_LOG = "rmq_sys_REVIVE_LOG_DefaultCluster"
NOT_NUMBERS: Final = ("", "x", " 1", "1_0", "1e3", "9" * 400, "-" + "9" * 400, "9" * 5000, "\0")
TEXTS: Final = (
    "", " ", "\0", "../../x", "a/b", ".", "%RETRY%", "%DLQ%", "%RETRY%" + GROUP, "@", f"{TOPIC}@{GROUP}", REVIVE_LOG,
    "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102", "\x01\x02", "é𐀀\ufffd", "x" * 300, "x" * 100_000,
    "[" * 20_000, "999", "null", "{}", "\ud800",
)  # fmt: skip
BOOLS: Final = ("true", "TRUE", "x", "")
HUGE = I64.high
RECEIPTS: Final = tuple(
    " ".join(map(str, parts))
    for revive_queue in (0, 999, -1, 7, I32.high, 1 << 40)
    for times in ((0, 0), (HUGE, HUGE), (-HUGE, -HUGE), (0, HUGE), (1_700_000_000_000, HUGE))
    for parts in ((0, *times, revive_queue, 0, BROKER, 0, 0), (HUGE, *times, revive_queue, 1, BROKER, 0, 0))
)
PROPERTIES: Final = tuple(
    f"UNIQ_KEY\x01U1\x02{name}\x01{value}\x02"
    for name in (
        "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY",
        "TRAN_MSG", "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_CHECK_TIMES", "UNIQ_KEY", "REAL_TOPIC", "REAL_QID",
        "INNER_NUM", "INNER_BASE", "MAX_RECONSUME_TIMES", "RECONSUME_TIME", "POP_CK", "PGROUP", "KEYS", "TAGS", "WAIT",
        "MSG_REGION", "_SYS_MSG_PRIORITY_", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "REPLY_TO_CLIENT", "CLUSTER",
    )
    for value in (
        "0", "1", "true", "-1", str(HUGE), "9" * 400, "9" * 5000, "x" * 32_000, "../../x", " ".join("ab" * 9999),
    )
)  # fmt: skip
HALF: Final = tuple(
    properties + f"TRAN_MSG\x01true\x02PGROUP\x01{PRODUCERS}\x02" for properties in PROPERTIES[:170]
)
SPECIAL: Final[Mapping[str, tuple[str, ...]]] = {
    "extra_info": RECEIPTS,
    "properties": PROPERTIES + HALF,
    "msg_id": (
        "0A00000100002A9F" + "F" * 16,
        "0A00000100002A9F" + "7" + "F" * 15,
        "0A00000100002A9F" + "0" * 16,
    ),
    "recall_handle": tuple(
        RecallHandle(topic, BROKER, time, "U1\x02REAL_TOPIC\x01x").encode()
        for topic in (TOPIC, REVIVE_LOG)
        for time in ("1700000001000", "9" * 400, str(HUGE), "-1")
    ),
    "attributes": tuple(
        f"+{name}={value}"
        for name in ("message.type", "quota.send.messages", "reserve.time", "queue.type", "x")
        for value in ("", "0", "-1", str(HUGE), "9" * 400, "x" * 40_000)
    ),
    "expression_type": ("SQL92", "TAG", "nothing"),
    "exp_type": ("SQL92", "TAG", "nothing"),
    "subscription": ("a > " + "9" * 400, "(" * 5000, "a || b", "a = 'x" + "'" * 999, "||" * 9999),
    "exp": ("a > " + "9" * 400, "(" * 5000, "a || b"),
    "data_version": ('{"counter":1}', '{"counter":"x","timestamp":' + "9" * 400 + "}", "[" * 20_000),
    "stats_name": ("TOPIC_PUT_NUMS", "GROUP_GET_SIZE", "_", "TOPIC_PUT_"),
    "stats_key": (TOPIC, f"{TOPIC}@{GROUP}", "@", "@@@"),
    "boundary_type": ("UPPER", "LOWER", "x"),
    "index_type": ("U", "T", "K", "x"),
}
USUAL: Final[Mapping[str, str]] = {
    "topic": TOPIC, "consumer_group": GROUP, "group": GROUP, "group_name": GROUP, "src_group": GROUP,
    "dest_group": "OTHER", "compare_group": GROUP, "producer_group": PRODUCERS, "client_id": CLIENT,
    "client_addr": CLIENT, "default_topic": "TBW102", "default_topic_queue_nums": "4", "max_msg_nums": "32",
    "read_queue_nums": "4", "write_queue_nums": "4", "perm": "6", "topic_filter_type": "SINGLE_TAG",
    "subscription": "*", "properties": "UNIQ_KEY\x01U1\x02REPLY_TO_CLIENT\x01client-1\x02",
    "born_timestamp": "1700000000000", "extra_info": RECEIPTS[0], "invisible_time": "1000",
    "commit_or_rollback": "8", "broker_name": BROKER, "broker_addr": "10.0.0.5:10911",
    "cluster_name": "DefaultCluster", "ha_server_addr": "10.0.0.5:10912", "namespace": "ns", "key": "U1",
    "end_timestamp": str(HUGE), "max_num": "8", "stats_name": "TOPIC_PUT_NUMS", "stats_key": TOPIC, "count": "4",
    "writer": "w", "stage": "s", "msg_id": "0A00000100002A9F" + "0" * 16, "suspend_timeout_millis": "1000",
    "poll_time": "1000", "unit_mode": "false", "index": "0", "value": "v", "target_broker_name": BROKER,
    "recall_handle": RecallHandle(TOPIC, BROKER, "1700000001000", "U1").encode(), "topic_name": TOPIC,
    "expression_type": "TAG", "exp_type": "TAG", "sub_string": "*", "retry": "0", "bit_set": "AQ==", "mode": "POP",
    "strategy_name": "AVG", "consume_type": "CONSUME_PASSIVELY", "message_model": "CLUSTERING", "name": "s",
    "revive_queue_id": "0", "retry_queue_nums": "1", "pieces": "1", "config_type": "topics",
}  # fmt: skip
ORDERED_RECEIPT: Final = f"0 {EPOCH_MS} 10000 999 0 {BROKER} 0 0"
"""The receipt of a message that the group ORDERED popped in order, as soon as the test began."""
ORDERED: Final = {"consumer_group": "ORDERED", "extra_info": ORDERED_RECEIPT}
VARIANTS: Final[Mapping[str, tuple[Mapping[str, str], ...]]] = {
    "SendMessage": ({"batch": "true"}, {"topic": "%RETRY%" + GROUP, "max_reconsume_times": "0"}),
    "SendMessageV2": ({"batch": "true"}, {"topic": "%RETRY%" + GROUP, "max_reconsume_times": "0"}),
    "PullMessage": (
        {"sys_flag": "3"},
        {"request_source": "1", "proxy_froward_client_id": "c"},
        {"queue_offset": "4"},
    ),
    "PopMessage": ({"consumer_group": "ORDERED", "order": "true", "attempt_id": "a"}, {"queue_id": "-1"}),
    "Notification": ({"consumer_group": "ORDERED", "order": "true"}, {"queue_id": "-1"}),
    "AckMessage": (ORDERED,),
    "ChangeMessageInvisibletime": (ORDERED,),
    "EndTransaction": ({"from_transaction_check": "true"}, {"commit_or_rollback": "12"}),
    "QueryMessage": ({"index_type": "T"}, {"unique_key_query": "true"}),
    "InvokeBrokerToResetOffset": ({"queue_id": "-1"},),
}
"""Other usual headers of a request, by field, each of which leads to another part of its handler."""
ATTRIBUTES: Final[Mapping[str, dict[str, str]]] = {
    "TopicConfig": {"+quota.send.messages": "5"},
    "SubscriptionGroupConfig": {"+priority.factor": "5"},
}
PULL_FLAGS: Final = "7"
"""Commit an offset, wait, and bring the subscription."""


# -- headers -------------------------------------------------------------------------------------------------------


def usual_header(request: type[Request[Any]], known: Mapping[str, str]) -> dict[str, str]:
    """Return a header that the handler accepts, or nearly so: every required field and those with a usual value.

    ``known`` has values that only the running broker knows, by name of the request and field.
    """
    ext = {}
    for item in request.WIRE_FIELDS:
        name = f"{request.__name__}.{item.name}"
        if name in known:
            ext[item.wire] = known[name]
        elif item.name == "sys_flag" and "Pull" in request.__name__:
            ext[item.wire] = PULL_FLAGS
        elif item.name in USUAL:
            ext[item.wire] = USUAL[item.name]
        elif item.required:
            ext[item.wire] = "false" if _plain(item.type) is bool else "0" if _limits(item.type) else "x"
    return ext


def usual_headers(request: type[Request[Any]], known: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the usual header and its variants."""
    wires = {item.name: item.wire for item in request.WIRE_FIELDS}
    usual = usual_header(request, known)
    variants = VARIANTS.get(request.__name__, ())
    return [usual, *({**usual, **{wires[name]: text for name, text in more.items()}} for more in variants)]


def extreme_headers(
    request: type[Request[Any]], usual: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield a name and a header for each extreme value of each field, and for each field that is left out."""
    for item in request.WIRE_FIELDS:
        yield f"without {item.name}", {key: value for key, value in usual.items() if key != item.wire}
        for text in _extreme_texts(item):
            yield f"{item.name}={text[:60]!r}", {**usual, item.wire: text}
    yield from _pairs(request, usual)


def _pairs(request: type[Request[Any]], usual: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield headers with two fields at the ends of their types, and with all of them."""
    ends: dict[str, tuple[str, ...]] = {}
    for item in request.WIRE_FIELDS:
        limits = _limits(item.type)
        if limits is not None:
            ends[item.wire] = (str(limits.high), str(limits.low), "-1")
        elif _plain(item.type) is bool:
            ends[item.wire] = ("true",)
    for first, second in combinations(ends, 2):
        for one, other in product(ends[first], ends[second]):
            yield f"{first}={one} {second}={other}", {**usual, first: one, second: other}
    for number in range(3):
        extreme = {wire: texts[min(number, len(texts) - 1)] for wire, texts in ends.items()}
        yield f"all fields at end {number}", {**usual, **extreme}


def _extreme_texts(item: Field) -> tuple[str, ...]:
    limits = _limits(item.type)
    if limits is not None:
        numbers = sorted({0, 1, -1, I16.high, I32.high, I32.low, limits.high, limits.low, limits.high + 1})
        return (*map(str, numbers), *NOT_NUMBERS)
    texts = BOOLS if _plain(item.type) is bool else TEXTS
    return (*texts, *SPECIAL.get(item.name, ()))


def _plain(kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        (kind,) = [argument for argument in get_args(kind) if argument is not NoneType]
    return kind


def _limits(kind: Any) -> JavaInteger | None:
    kind = _plain(kind)
    return kind.__metadata__[0] if get_origin(kind) is Annotated else None


# -- bodies ---------------------------------------------------------------------------------------------------------

MALFORMED: Final = (
    b"", b"null", b"[]", b"{}", b"[null]", b"0", b'"x"', b"{", b"[" * 50_000, b"{" * 50_000, b'{"a":' * 20_000,
    b"\xff\xfe", b"\0" * 999, b'{"$ref":"$"}', b'[{"$ref":"$[0]"}]', b"9" * 5000, b'{"clientID":"\\ud800"}',
    b"x" * 200_000,
)  # fmt: skip
NUMBERS: Final = (
    0,
    1,
    -1,
    I32.high,
    I32.low,
    I64.high,
    I64.low,
    1 << 70,
    1.5,
    1e308,
    "9" * 400,
    "x",
    "",
    True,
)
OTHERS: Final = (None, [], {}, [[]], [None], {"x": None}, "x", 7)
BIT_SETS: Final = (
    "", "AQ==", "/" * 400, "AAAAAAAAAIA=", "x", base64.b64encode(b"\xff" * 20_000).decode(),
    base64.b64encode(b"\0" * 99).decode(),
)  # fmt: skip


def usual_body(kind: Any, name: str = "", depth: int = 0) -> Any:
    """Return a JSON value of a declared type with something in every list and map."""
    kind = _plain(kind)
    origin = get_origin(kind)
    if isinstance(kind, type) and issubclass(kind, JsonBody):
        if depth > 4:
            return None
        values = {item.wire: usual_body(item.type, item.name, depth + 1) for item in kind.FIELDS}
        if "attributes" in values:
            values["attributes"] = ATTRIBUTES.get(kind.__name__, {})
        return {key: value for key, value in values.items() if value is not None}
    if origin in (list, set):
        return [usual_body(get_args(kind)[0], name, depth + 1)]
    if origin is dict:
        key, value = get_args(kind)
        text = isinstance(key, type) and issubclass(key, str)
        return {usual_body(key, "topic"): usual_body(value, name, depth + 1)} if text else {}
    if origin is Literal:
        return get_args(kind)[0]
    if _limits(kind) is not None:
        return int(USUAL.get(name, "1"))
    return {str: USUAL.get(name, "x"), bool: False, float: 1.0, int: 1}.get(kind)


def extreme_values(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a name and a copy of a JSON value for each change of one place in it."""
    for other in OTHERS:
        yield f"{name}={other!r}", other
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"without {name}.{key}", {k: v for k, v in value.items() if k != key}
            for text, changed in extreme_values(inner, f"{name}.{key}"):
                yield text, {**value, key: changed}
        for key in TEXTS[:16]:
            yield f"{name} with key {key[:20]!r}", {**value, key: next(iter(value.values()), 1)}
    elif isinstance(value, list):
        for inner in value[:1]:
            yield f"{name} twice", [inner, inner]
            yield f"{name} often", [inner] * 300
            for text, changed in extreme_values(inner, f"{name}[]"):
                yield text, [changed]
    elif isinstance(value, str):
        for text in (*TEXTS, *(BIT_SETS if name.endswith(".b") else ())):
            yield f"{name}={text[:30]!r}", text
    elif isinstance(value, int | float):
        for number in NUMBERS:
            yield f"{name}={str(number)[:30]}", number


def extreme_bodies(kind: type[JsonBody] | None) -> Iterator[tuple[str, bytes]]:
    """Yield a name and a body for each extreme value of each field of a typed body; nothing without one."""
    if kind is None:
        return
    for body in MALFORMED:
        yield f"body {body[:20]!r}", body
    for text, value in extreme_values(usual_body(kind)):
        yield f"body{text}", json.dumps(value).encode()


ENTRY: Final = (0, b"hello", b"UNIQ_KEY\x01U1\x02")
RAW_BODIES: Final = (
    b"", b"x", b"\0" * 100, b"\xff" * 100, b"\x7f\xff\xff\xff" + b"\0" * 40, encode_batch([ENTRY] * 3),
    encode_batch([ENTRY])[:-3],
    encode_batch([(0, b"", b"UNIQ_KEY\x01U1\x02DELAY\x01" + b"9" * 5000 + b"\x02")]),
    encode_batch([(0, b"hello", b"TRAN_MSG\x01true\x02REAL_TOPIC\x01../../x\x02INNER_NUM\x0199\x02")]),
)  # fmt: skip
"""Bodies of requests whose bodies are not JSON."""
