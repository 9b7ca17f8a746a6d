"""Message properties: named text values in one string, and the names the protocol itself uses.

Source: MessageDecoder.messageProperties2String, MessageDecoder.string2messageProperties, MessageConst, 5.4.0.
"""

from collections.abc import Mapping

from codec.java_numbers import I64, JavaInteger, parse_integer_or

KEYS = "KEYS"
TAGS = "TAGS"
WAIT_STORE_MSG_OK = "WAIT"
DELAY_TIME_LEVEL = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_GROUP = "ORIGIN_GROUP"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
BUYER_ID = "BUYER_ID"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG = "TRANSFER_FLAG"
CORRECTION_FLAG = "CORRECTION_FLAG"
MQ2_FLAG = "MQ2_FLAG"
RECONSUME_TIME = "RECONSUME_TIME"
MSG_REGION = "MSG_REGION"
TRACE_SWITCH = "TRACE_ON"
UNIQ_CLIENT_MESSAGE_ID_KEYIDX = "UNIQ_KEY"
TRANS_OFFSET = "TRANS_OFFSET"
EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIMESTAMP = "CONSUME_START_TIME"
PRIORITY = "_SYS_MSG_PRIORITY_"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
DUP_INFO = "DUP_INFO"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
INSTANCE_ID = "INSTANCE_ID"
CORRELATION_ID = "CORRELATION_ID"
MESSAGE_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
MESSAGE_TTL = "TTL"
REPLY_MESSAGE_ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
CLUSTER = "CLUSTER"
MESSAGE_TYPE = "MSG_TYPE"
POP_CK = "POP_CK"
POP_CK_OFFSET = "POP_CK_OFFSET"
FIRST_POP_TIME = "1ST_POP_TIME"
SHARDING_KEY = "__SHARDINGKEY"
FORWARD_QUEUE_ID = "PROPERTY_FORWARD_QUEUE_ID"
REDIRECT = "REDIRECT"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
TRACE_CONTEXT = "TRACE_CONTEXT"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."
TRANSIENT_TOPIC_CONFIG = TRANSIENT_PREFIX + "TOPIC_SYS_FLAG"
TRANSIENT_GROUP_CONFIG = TRANSIENT_PREFIX + "GROUP_SYS_FLAG"
KEY_SEPARATOR = " "
INDEX_KEY_TYPE = "K"
INDEX_UNIQUE_TYPE = "U"
INDEX_TAG_TYPE = "T"
TIMER_ENGINE_TYPE = "E_T"
TIMER_ENGINE_ROCKSDB_TIMELINE = "R"
TIMER_ENGINE_FILE_TIME_WHEEL = "F"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
TIMER_ROLL_LABEL = "TIMER_ROLL_LABEL"
TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
CRC32 = "__CRC32#"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

RESERVED = frozenset(
    {
        TRACE_SWITCH,
        MSG_REGION,
        KEYS,
        TAGS,
        WAIT_STORE_MSG_OK,
        DELAY_TIME_LEVEL,
        RETRY_TOPIC,
        ORIGIN_GROUP,
        REAL_TOPIC,
        REAL_QUEUE_ID,
        TRANSACTION_PREPARED,
        PRODUCER_GROUP,
        MIN_OFFSET,
        MAX_OFFSET,
        BUYER_ID,
        ORIGIN_MESSAGE_ID,
        TRANSFER_FLAG,
        CORRECTION_FLAG,
        MQ2_FLAG,
        RECONSUME_TIME,
        UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
        MAX_RECONSUME_TIMES,
        CONSUME_START_TIMESTAMP,
        POP_CK,
        POP_CK_OFFSET,
        FIRST_POP_TIME,
        TRANSACTION_PREPARED_QUEUE_OFFSET,
        DUP_INFO,
        EXTEND_UNIQ_INFO,
        INSTANCE_ID,
        CORRELATION_ID,
        MESSAGE_REPLY_TO_CLIENT,
        MESSAGE_TTL,
        REPLY_MESSAGE_ARRIVE_TIME,
        PUSH_REPLY_TIME,
        CLUSTER,
        MESSAGE_TYPE,
        INNER_MULTI_QUEUE_OFFSET,
        TIMER_DELAY_MS,
        TIMER_DELAY_SEC,
        TIMER_DELIVER_MS,
        TIMER_ENQUEUE_MS,
        TIMER_DEQUEUE_MS,
        TIMER_ROLL_TIMES,
        TIMER_OUT_MS,
        TIMER_DEL_UNIQKEY,
        TIMER_DELAY_LEVEL,
        BORN_HOST,
        BORN_TIMESTAMP,
        DLQ_ORIGIN_TOPIC,
        DLQ_ORIGIN_MESSAGE_ID,
        CRC32,
        PRIORITY,
    }
)
"""Names that the official client refuses as user properties."""

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"


def properties_text(properties: Mapping[str, str | None]) -> str:
    """Return the string form: each pair ends with a separator; pairs with the value None are left out."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items() if value is not None])


def encode_properties(properties: Mapping[str, str | None]) -> bytes:
    """Return `properties_text` as UTF-8; a lone surrogate becomes a question mark, as in Java."""
    return properties_text(properties).encode("utf-8", "replace")


def decode_properties(properties: str | bytes | bytearray | memoryview) -> dict[str, str]:
    """Return the pairs in order of their first appearance; the last value of a name wins.

    Pairs without a name or a value are skipped. A value may contain the name-value separator. Bytes that are not
    UTF-8 become U+FFFD, as in Java.
    """
    text = properties if isinstance(properties, str) else str(properties, "utf-8", "replace")
    pairs: dict[str, str] = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if value and name:
            pairs[name] = value
    return pairs


def find_property(properties: bytes, name: bytes) -> bytes | None:
    """Return the value `decode_properties` gives for ``name``, without decoding the others; None if absent."""
    at = properties.rfind(b"\x02%b\x01" % name)
    if at < 0:
        if not properties.startswith(name + b"\x01"):
            return None
        start = len(name) + 1
    else:
        start = at + len(name) + 2
    end = properties.find(b"\x02", start)
    value = properties[start:] if end < 0 else properties[start:end]
    if value:
        return value
    # A pair without a value does not count; an earlier one of that name may.
    decoded = decode_properties(properties).get(str(name, "utf-8", "replace"))
    return None if decoded is None else decoded.encode()


def find_integer(properties: bytes, name: bytes, default: int, limits: JavaInteger = I64) -> int:
    """Return a property as `parse_integer_or` parses it; ``default`` when it is absent or not such a number."""
    value = find_property(properties, name)
    return default if value is None else parse_integer_or(str(value, "utf-8", "replace"), default, limits)
