"""Fields of answers that may differ between primary and target, each with its reason.

Stored messages have their own table, in `codec.expected_differences`. Fields that differ only in one particular cluster
are learned, not declared (`noise.py`).
"""

from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from codec.expected_differences import DifferenceScope
from remoting.declare import REQUESTS


class ExpectedDifference(NamedTuple):
    """A field that is not compared. `code` None: of every request; `path` may hold shell wildcards."""

    code: int | None
    path: str
    when: DifferenceScope
    reason: str


_OWN_PLACE = "a place in the server's own commit log, or its address"
_OWN_TIME = "when the server did it"
_OWN_COUNT = "how often the server's own table changed"
_OWN_OFFSETS = "queue offsets are the target's own unless it preserves the primary's"
_MOVES = "grows with every message; parity compares where queues end"
_OWN_SETTINGS = "settings and state of the server itself"
_ADVICE = "which replica to read from, and how much fits one answer, is the server's own decision"
_WHERE = "addresses and names of brokers and clusters are those of the cluster"
_METRICS = "metrics of the server's own traffic"

SEND_CODES: Final = (10, 310, 320, 324, 325)
PULL_CODES: Final = (11, 361)
POP_CODES: Final = (200050, 200052, 200070)
QUERY_CODES: Final = (12, 33)
MESSAGE_LIST_CODES: Final = frozenset((*PULL_CODES, *POP_CODES, *QUERY_CODES))
"""Codes of requests whose answers carry messages as their body."""
_POP_HANDLE_FIELDS = ("popTime", "reviveQid", "startOffsetInfo", "msgOffsetInfo", "orderCountInfo")


_ALWAYS, _IF_OWN_OFFSETS = DifferenceScope.ALWAYS, DifferenceScope.OWN_OFFSETS
_SINGLE_DIFFERENCES: Final = (
    ExpectedDifference(None, "messages[].physicalOffset", _ALWAYS, _OWN_PLACE),
    ExpectedDifference(None, "messages[].storeHost", _ALWAYS, _OWN_PLACE),
    ExpectedDifference(None, "messages[].preparedTransactionOffset", _ALWAYS, _OWN_PLACE),
    ExpectedDifference(None, "messages[].storeTimestamp", _ALWAYS, _OWN_TIME),
    ExpectedDifference(None, "messages[].queueOffset", _IF_OWN_OFFSETS, _OWN_OFFSETS),
    ExpectedDifference(
        None,
        "messages[].bornHost",
        _IF_OWN_OFFSETS,
        "an official broker stores the sender's address, which is the mirror's",
    ),
    ExpectedDifference(None, "body.*ataVersion.*", _ALWAYS, _OWN_COUNT),
    ExpectedDifference(None, "body*.brokerAddr", _ALWAYS, _WHERE),
    ExpectedDifference(26, "*", _ALWAYS, _OWN_SETTINGS),
    ExpectedDifference(319, "*", _ALWAYS, _OWN_SETTINGS),
    ExpectedDifference(28, "*", _ALWAYS, _METRICS),
    ExpectedDifference(315, "*", _ALWAYS, _METRICS),
    ExpectedDifference(52, "*", _ALWAYS, _OWN_SETTINGS),
    ExpectedDifference(14, "offset", _IF_OWN_OFFSETS, _OWN_OFFSETS),
    ExpectedDifference(29, "offset", _ALWAYS, "searched by store time, which is the server's own"),
    ExpectedDifference(30, "offset", _IF_OWN_OFFSETS, _OWN_OFFSETS),
    ExpectedDifference(31, "offset", _IF_OWN_OFFSETS, _OWN_OFFSETS),
    ExpectedDifference(32, "timestamp", _ALWAYS, _OWN_TIME),
    ExpectedDifference(45, "body.offsetTable*", _IF_OWN_OFFSETS, _OWN_OFFSETS),
    ExpectedDifference(43, "body.offsetTable*", _IF_OWN_OFFSETS, _OWN_OFFSETS),
    ExpectedDifference(60, "*", _ALWAYS, _OWN_PLACE),
    ExpectedDifference(21, "totalTopicNum", _ALWAYS, "a count of entries that are compared one by one"),
    ExpectedDifference(201, "totalGroupNum", _ALWAYS, "a count of entries that are compared one by one"),
    ExpectedDifference(202, "body.offsetTable{}.*Offset", _IF_OWN_OFFSETS, _OWN_OFFSETS),
    ExpectedDifference(202, "body.offsetTable{}.lastUpdateTimestamp", _ALWAYS, _OWN_TIME),
    ExpectedDifference(202, "body.topicPutTps", _ALWAYS, _METRICS),
    ExpectedDifference(208, "body.offsetTable{}.*Offset", _IF_OWN_OFFSETS, _OWN_OFFSETS),
    ExpectedDifference(
        208, "body.offsetTable{}.pullOffset", _ALWAYS, "nobody pulls for this group from the target"
    ),
    ExpectedDifference(208, "body.offsetTable{}.lastTimestamp", _ALWAYS, _OWN_TIME),
    ExpectedDifference(208, "body.consumeTps", _ALWAYS, _METRICS),
    ExpectedDifference(12, "indexLastUpdate*", _ALWAYS, _OWN_PLACE),
    ExpectedDifference(105, "body.brokerDatas[].brokerAddrs*", _ALWAYS, _WHERE),
    ExpectedDifference(105, "body.brokerDatas[].cluster", _ALWAYS, _WHERE),
    ExpectedDifference(105, "body.brokerDatas[].zoneName", _ALWAYS, _WHERE),
    ExpectedDifference(105, "body.brokerDatas[].enableActingMaster", _ALWAYS, _OWN_SETTINGS),
    ExpectedDifference(106, "*", _ALWAYS, _WHERE),
    ExpectedDifference(304, "*", _ALWAYS, _WHERE),
)


def _differences_by_code() -> list[ExpectedDifference]:
    """Return the expected differences of requests that several codes share."""
    differences = []
    for code in SEND_CODES:
        differences += [
            ExpectedDifference(code, "msgId", _ALWAYS, _OWN_PLACE),
            ExpectedDifference(code, "queueOffset", _IF_OWN_OFFSETS, _OWN_OFFSETS),
            ExpectedDifference(code, "recallHandle", _ALWAYS, "holds the broker's name and the time"),
            ExpectedDifference(code, "MSG_REGION", _ALWAYS, _OWN_SETTINGS),
        ]
    for code in PULL_CODES:
        differences += [
            ExpectedDifference(code, "suggestWhichBrokerId", _ALWAYS, _ADVICE),
            ExpectedDifference(code, "nextBeginOffset", _ALWAYS, _ADVICE),
            ExpectedDifference(code, "maxOffset", _ALWAYS, _MOVES),
            ExpectedDifference(
                code,
                "minOffset",
                _ALWAYS,
                "retention is the server's own; parity compares where queues begin",
            ),
        ]
    for code in POP_CODES:
        differences += [
            ExpectedDifference(code, name, _ALWAYS, "handles of the server's own checkpoints")
            for name in _POP_HANDLE_FIELDS
        ]
    differences += [
        ExpectedDifference(code, "restNum", _IF_OWN_OFFSETS, _OWN_OFFSETS) for code in POP_CODES[:2]
    ]
    return differences


EXPECTED_DIFFERENCES: Final = (*_SINGLE_DIFFERENCES, *_differences_by_code())
_cache: dict[tuple[int, bool], dict[str, ExpectedDifference | None]] = {}


def find_expected_difference(code: int, path: str, *, same_offsets: bool) -> ExpectedDifference | None:
    """Return the entry for a field, None when the field is compared.

    ``same_offsets``: the target stores messages at the primary's queue offsets.
    """
    by_path = _cache.setdefault((code, same_offsets), {})
    if path not in by_path:
        if len(by_path) >= 10_000:  # Paths come from bodies, so a hostile target could invent any number.
            by_path.clear()
        by_path[path] = next(
            (entry for entry in EXPECTED_DIFFERENCES if _applies_to(entry, code, path, same_offsets)), None
        )
    return by_path[path]


def _applies_to(entry: ExpectedDifference, code: int, path: str, same_offsets: bool) -> bool:
    if entry.code not in (None, code) or (same_offsets and entry.when is DifferenceScope.OWN_OFFSETS):
        return False
    # Brackets in a path are literal.
    return fnmatchcase(path, entry.path.replace("[", "[[]"))


UNORDERED_LISTS: Final[dict[str, tuple[str, ...]]] = {
    "body.topicList": (),
    "body.groupList": (),
    "body.consumerIdList": (),
    "body.clusterAddrTable{}": (),
    "body.queueDatas": ("brokerName",),
    "body.brokerDatas": ("brokerName",),
    "body.connectionSet": ("clientId",),
    "body.lockOKMQSet": ("brokerName", "topic", "queueId"),
    "body.messageQueueAssignments": (),
    "body.consumeTimeSpanSet": ("messageQueue",),
    "body.subscriptionDataSet": ("topic",),
}
"""Lists that are sets for the official server, with the fields that identify an element.

Without any, the element itself is its identity.
"""

UNSET_REMARK: Final = "not set any response code"
"""A remark that an official server leaves in some successful answers. It carries no information."""

CONSUMER_TOPIC_PREFIXES: Final = ("%RETRY%", "%DLQ%")
"""Prefixes of topics that consumers create by failing (retry and dead-letter topics).

Consumers are clients of the primary, so the target need not have these topics. Content parity compares them on request.
"""

SECRET_WORDS: Final = ("password", "secret", "credential", "token", "accesskey", "signature")
"""A field whose name contains one of these words is never shown."""


def request_name(code: int) -> str:
    """Return the official name of a request code, or the number of an undeclared one."""
    declared = REQUESTS.get(code)
    return str(code) if declared is None else declared.NAME
