"""The protocol's numbers: response codes, languages, versions, magic words and limits.

Each request code is declared once, with its header, in `remoting.requests`.
"""

from enum import IntEnum

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

SERIALIZE_JSON = 0
SERIALIZE_BINARY = 1

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2

MASTER_ID = 0
"""Broker id of a master; its replicas have higher ids. Source: MixAll.MASTER_ID, 5.4.0."""

MAX_FRAME_BYTES = 16 * 1024 * 1024
# An official server lets a header fill a frame. The largest sensible one has 32,767 bytes of properties, six bytes each
# as JSON escapes; five times that is ample and keeps an oversized header cheap to refuse.
MAX_HEADER_BYTES = 1024 * 1024


class ResponseCode(IntEnum):
    """The outcome in an answer. Source: ResponseCode, RemotingSysResponseCode, 5.5.0."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    RPC_UNKNOWN = -1000
    RPC_ADDR_IS_NULL = -1002
    RPC_SEND_TO_CHANNEL_FAILED = -1004
    RPC_TIME_OUT = -1006
    GO_AWAY = 1500
    CONTROLLER_FENCED_MASTER_EPOCH = 2000
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001
    CONTROLLER_INVALID_MASTER = 2002
    CONTROLLER_INVALID_REPLICAS = 2003
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004
    CONTROLLER_INVALID_REQUEST = 2005
    CONTROLLER_BROKER_NOT_ALIVE = 2006
    CONTROLLER_NOT_LEADER = 2007
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010
    CONTROLLER_MASTER_STILL_EXIST = 2011
    CONTROLLER_ELECT_MASTER_FAILED = 2012
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013
    CONTROLLER_BROKER_ID_INVALID = 2014
    CONTROLLER_JRAFT_INTERNAL_ERROR = 2015
    CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS = 2016
    LMQ_QUOTA_EXCEEDED = 2017
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 2018
    USER_NOT_EXIST = 3001
    POLICY_NOT_EXIST = 3002


STORED_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Answers to a send that mean the message was stored, though perhaps not as durably as requested."""


LANGUAGE_NAMES = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)
"""Languages by their binary code. Source: LanguageCode, 5.4.0."""
LANGUAGE_CODES = {name: code for code, name in enumerate(LANGUAGE_NAMES)}
LANGUAGE_OTHER = LANGUAGE_CODES["OTHER"]


def _version_names() -> tuple[str, ...]:
    """Build the version names by ordinal: 16 early ones, then a snapshot and a release of each number in turn."""
    early = "SNAPSHOT ALPHA1 BETA1 BETA2 BETA3 BETA4 BETA5 BETA6_SNAPSHOT BETA6 BETA7_SNAPSHOT BETA7"
    early += " BETA8_SNAPSHOT BETA8 BETA9_SNAPSHOT BETA9 FINAL"
    names = [f"V3_0_0_{suffix}" for suffix in early.split()]
    patches = {(3, 0): range(1, 16), (3, 1): range(10), (3, 2): range(10)}
    for major, minor in ((major, minor) for major in (3, 4, 5) for minor in range(10)):
        for patch in patches.get((major, minor), range(1 if major == 3 else 0, 10)):
            names += (f"V{major}_{minor}_{patch}_SNAPSHOT", f"V{major}_{minor}_{patch}")
    return (*names, "HIGHER_VERSION")


VERSION_NAMES = _version_names()
"""Version names by their ordinal, the number headers carry. Source: MQVersion, 5.4.0."""
CURRENT_VERSION = VERSION_NAMES.index("V5_4_0")


FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""The end of many official remarks. Source: FAQUrl.suggestTodo, 5.4.0."""


def version_name(version: int) -> str:
    """Return the name of a header's version; numbers beyond the table give the last, negative ones the first."""
    return VERSION_NAMES[min(max(version, 0), len(VERSION_NAMES) - 1)]
