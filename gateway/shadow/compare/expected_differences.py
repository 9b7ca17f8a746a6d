"""What may differ between a primary and its target without meaning anything, each with its reason.

The one place that says so for fields of answers; for stored messages it is `codec.copies`. What turns out to
be noise only in one cluster is learned (noise.py), not declared.
"""

from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from codec.copies import When
from remoting.declare import REQUESTS


class Mask(NamedTuple):
    """One field that is not compared. `code` None: of every request; `path` may hold shell wildcards."""

    code: int | None
    path: str
    when: When
    reason: str


_OWN_PLACE = "a place in the server's own commit log, or its address"
_OWN_TIME = "when the server did it"
_OWN_COUNT = "how often the server's own table changed"
_OWN_OFFSETS = "queue offsets are the target's own unless it keeps the primary's"
_MOVES = "moves with every message; parity compares where queues end"
_OWN_SETTINGS = "settings and state of the server itself"
_ADVICE = "which replica to read from, and how much fits one answer, is the server's own decision"
_WHERE = "addresses and names of brokers and clusters are those of the cluster"
_FIGURES = "figures of the server's own traffic"

SENDS: Final = (10, 310, 320, 324, 325)
PULLS: Final = (11, 361)
POPS: Final = (200050, 200052, 200070)
QUERIES: Final = (12, 33)
WITH_MESSAGES: Final = frozenset((*PULLS, *POPS, *QUERIES))
"""Codes whose answers have messages as their body."""
_HANDLES = ("popTime", "reviveQid", "startOffsetInfo", "msgOffsetInfo", "orderCountInfo")


_ALWAYS, _NOT_KEPT = When.ALWAYS, When.NOT_KEPT
_SINGLE: Final = (
    Mask(None, "messages[].physicalOffset", _ALWAYS, _OWN_PLACE),
    Mask(None, "messages[].storeHost", _ALWAYS, _OWN_PLACE),
    Mask(None, "messages[].preparedTransactionOffset", _ALWAYS, _OWN_PLACE),
    Mask(None, "messages[].storeTimestamp", _ALWAYS, _OWN_TIME),
    Mask(None, "messages[].queueOffset", _NOT_KEPT, _OWN_OFFSETS),
    Mask(
        None,
        "messages[].bornHost",
        _NOT_KEPT,
        "an official broker stores who sent it, which is the mirror",
    ),
    Mask(None, "body.*ataVersion.*", _ALWAYS, _OWN_COUNT),
    Mask(None, "body*.brokerAddr", _ALWAYS, _WHERE),
    Mask(26, "*", _ALWAYS, _OWN_SETTINGS),
    Mask(319, "*", _ALWAYS, _OWN_SETTINGS),
    Mask(28, "*", _ALWAYS, _FIGURES),
    Mask(315, "*", _ALWAYS, _FIGURES),
    Mask(52, "*", _ALWAYS, _OWN_SETTINGS),
    Mask(14, "offset", _NOT_KEPT, _OWN_OFFSETS),
    Mask(29, "offset", _ALWAYS, "searched by store time, which is the server's own"),
    Mask(30, "offset", _NOT_KEPT, _OWN_OFFSETS),
    Mask(31, "offset", _NOT_KEPT, _OWN_OFFSETS),
    Mask(32, "timestamp", _ALWAYS, _OWN_TIME),
    Mask(45, "body.offsetTable*", _NOT_KEPT, _OWN_OFFSETS),
    Mask(43, "body.offsetTable*", _NOT_KEPT, _OWN_OFFSETS),
    Mask(60, "*", _ALWAYS, _OWN_PLACE),
    Mask(21, "totalTopicNum", _ALWAYS, "how many there are: each is compared itself"),
    Mask(201, "totalGroupNum", _ALWAYS, "how many there are: each is compared itself"),
    Mask(202, "body.offsetTable{}.*Offset", _NOT_KEPT, _OWN_OFFSETS),
    Mask(202, "body.offsetTable{}.lastUpdateTimestamp", _ALWAYS, _OWN_TIME),
    Mask(202, "body.topicPutTps", _ALWAYS, _FIGURES),
    Mask(208, "body.offsetTable{}.*Offset", _NOT_KEPT, _OWN_OFFSETS),
    Mask(208, "body.offsetTable{}.pullOffset", _ALWAYS, "nobody pulls for this group from the target"),
    Mask(208, "body.offsetTable{}.lastTimestamp", _ALWAYS, _OWN_TIME),
    Mask(208, "body.consumeTps", _ALWAYS, _FIGURES),
    Mask(12, "indexLastUpdate*", _ALWAYS, _OWN_PLACE),
    Mask(105, "body.brokerDatas[].brokerAddrs*", _ALWAYS, _WHERE),
    Mask(105, "body.brokerDatas[].cluster", _ALWAYS, _WHERE),
    Mask(105, "body.brokerDatas[].zoneName", _ALWAYS, _WHERE),
    Mask(105, "body.brokerDatas[].enableActingMaster", _ALWAYS, _OWN_SETTINGS),
    Mask(106, "*", _ALWAYS, _WHERE),
    Mask(304, "*", _ALWAYS, _WHERE),
)


def _alike() -> list[Mask]:
    """Masks of requests that are answered alike."""
    masks = []
    for code in SENDS:
        masks += [
            Mask(code, "msgId", _ALWAYS, _OWN_PLACE),
            Mask(code, "queueOffset", _NOT_KEPT, _OWN_OFFSETS),
            Mask(code, "recallHandle", _ALWAYS, "holds the broker's name and the time"),
            Mask(code, "MSG_REGION", _ALWAYS, _OWN_SETTINGS),
        ]
    for code in PULLS:
        masks += [
            Mask(code, "suggestWhichBrokerId", _ALWAYS, _ADVICE),
            Mask(code, "nextBeginOffset", _ALWAYS, _ADVICE),
            Mask(code, "maxOffset", _ALWAYS, _MOVES),
            Mask(
                code,
                "minOffset",
                _ALWAYS,
                "retention is the server's own; parity compares where queues begin",
            ),
        ]
    for code in POPS:
        masks += [Mask(code, name, _ALWAYS, "handles of the server's own checkpoints") for name in _HANDLES]
    masks += [Mask(code, "restNum", _NOT_KEPT, _OWN_OFFSETS) for code in POPS[:2]]
    return masks


MASKS: Final = (*_SINGLE, *_alike())
_known: dict[tuple[int, bool], dict[str, Mask | None]] = {}


def mask(code: int, path: str, *, kept: bool) -> Mask | None:
    """The mask of a field, None when it is compared. ``kept``: the target has the primary's queue offsets."""
    by_path = _known.setdefault((code, kept), {})
    if path not in by_path:
        if len(by_path) >= 10_000:  # Paths come from bodies; nobody makes so many on purpose.
            by_path.clear()
        by_path[path] = next((each for each in MASKS if _holds(each, code, path, kept)), None)
    return by_path[path]


def _holds(each: Mask, code: int, path: str, kept: bool) -> bool:
    if each.code not in (None, code) or (kept and each.when is When.NOT_KEPT):
        return False
    # Brackets of a path are meant as they stand.
    return fnmatchcase(path, each.path.replace("[", "[[]"))


UNORDERED: Final[dict[str, tuple[str, ...]]] = {
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
"""Lists that are sets for the official server, and the fields that name an element; () where it names itself."""

LEFT_OVER_REMARK: Final = "not set any response code"
"""What some answers of an official server say beside success: left over from how they are made, and nothing at all."""

CONSUMERS_OWN: Final = ("%RETRY%", "%DLQ%")
"""Topics whose name begins so come into being with consumers and their failures. Consumers are clients of the primary,
so whether the target has such a topic is not compared; what is in it, parity looks at when asked."""

SECRETS: Final = ("password", "secret", "credential", "token", "accesskey", "signature")
"""Fields whose name holds one of these are never shown."""


def request_name(code: int) -> str:
    """The official constant, or the number of a code nobody declared."""
    declared = REQUESTS.get(code)
    return str(code) if declared is None else declared.NAME
