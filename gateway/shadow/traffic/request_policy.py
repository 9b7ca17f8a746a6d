"""The policy of a mirror for each request code and for topics that are not users' own, declared in one table.

`mirror` and `replication` carry the policy out. `docs/reference/mirror-policy.md` is printed from here.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from codec.topics import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, SYSTEM_TOPICS
from remoting import requests
from remoting.declare import REQUESTS

__all__ = [
    "POLICIES",
    "RequestPolicy",
    "Treatment",
    "mirrored_codes",
    "policy_of",
    "render_policy_page",
    "requests",
    "topic_exclusion_reason",
]


class Treatment(Enum):
    """The way in which a request reaches the target."""

    REPEATED = "repeated"
    """Sent again with the same fields and body, signed anew."""
    TRANSLATED = "translated"
    """Sent again with fields changed to their values at the target."""
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """The treatment of one request code, and its reason."""

    treatment: Treatment
    reason: str


def _repeat_codes(reason: str, *codes: int) -> dict[int, RequestPolicy]:
    return {code: RequestPolicy(Treatment.REPEATED, reason) for code in codes}


def _translate_codes(reason: str, *codes: int) -> dict[int, RequestPolicy]:
    return {code: RequestPolicy(Treatment.TRANSLATED, reason) for code in codes}


def _leave_out_codes(reason: str, *codes: int) -> dict[int, RequestPolicy]:
    return {code: RequestPolicy(Treatment.LEFT_OUT, reason) for code in codes}


SEND_CODES: Final = frozenset({10, 310, 320})
END_TRANSACTION: Final = 37
UPDATE_CONSUMER_OFFSET: Final = 15
RECALL_MESSAGE: Final = 370

POLICIES: Final[dict[int, RequestPolicy]] = {
    **_translate_codes(
        "to the same queue of the same topic, the one the primary chose; a half message waits at the target as one; "
        "only what the primary stored",
        *SEND_CODES,
    ),
    **_translate_codes("ends the target's half message that belongs to the primary's", END_TRANSACTION),
    **_translate_codes(
        "the offset that is not ahead at the target; left out where the group is active there, for retry topics "
        "and for queues nothing was mirrored to",
        UPDATE_CONSUMER_OFFSET,
    ),
    **_translate_codes("by the target's own handle of the same message", RECALL_MESSAGE),
    **_repeat_codes("topics", 17, 18, 215),
    **_repeat_codes("groups and what they may read", 200, 225, 207, 353),
    **_repeat_codes("how a group's queues are shared, pull or pop", 401),
    **_leave_out_codes("reads; compared, if asked for, not mirrored", 11, 361, 12, 33, 321, 200052, 354),
    **_leave_out_codes(
        "asks; changes nothing",
        *(
            14,
            21,
            26,
            28,
            29,
            30,
            31,
            32,
            38,
            43,
            45,
            46,
            52,
            60,
            61,
            101,
            105,
            106,
            201,
            202,
            203,
            204,
            206,
            208,
        ),
        *(
            219,
            223,
            224,
            300,
            303,
            304,
            305,
            307,
            308,
            311,
            312,
            313,
            315,
            317,
            319,
            322,
            328,
            343,
            345,
            351,
            352,
        ),
        *(400, 402, 901, 907, 1004, 1005, 1006, 1007, 1010, 2003, 3004, 3005, 3009, 3010),
        *(200054, 200055, 200074, 200075, 200076, 200077, 200078),
    ),
    **_leave_out_codes(
        "the target's groups would look active; clients tell it themselves once they are switched", 34, 35
    ),
    **_leave_out_codes(
        "queues are locked where they are consumed, which is at the primary until consumers switch", 41, 42
    ),
    **_leave_out_codes(
        "what waits in a retry topic is consumed at the primary before its group is switched; a target of kind "
        '"ours" gets retry topics at their own offsets, with what the primary put there',
        36,
    ),
    **_leave_out_codes(
        "a receipt names a check point of the broker that handed the message out; the group's offset is copied "
        "at the cut-over",
        *(200050, 200051, 200053, 200151),
    ),
    **_leave_out_codes(
        "the client that waits for the reply is connected to the primary; only it can be told", 324, 325
    ),
    **_leave_out_codes(
        "arrives as the offsets the group's consumers commit afterwards, or by `shadow sync`", 222, 314
    ),
    **_leave_out_codes("a question of the broker to its client", 39, 40, 220, 221, 309, 326, 200073),
    **_leave_out_codes(
        "settings of one broker or namesrv as a process", 25, 318, 2001, 2002, 2004, 5001, 1009
    ),
    **_leave_out_codes(
        "names brokers of the primary; `shadow sync` copies what belongs to topics", 100, 102, 216, 217, 513
    ),
    **_leave_out_codes(
        "accounts and rules belong to a cluster", 50, 51, 53, 3001, 3002, 3003, 3006, 3007, 3008
    ),
    **_leave_out_codes("housekeeping of one broker", 306, 316, 329, 323, 355, 200056, 200079),
    **_leave_out_codes("whether a broker takes writes is its own matter", 205, 327),
    **_leave_out_codes(
        "passed among servers, not by clients",
        *(103, 104, 902, 903, 904, 905, 906, 908, 1001, 1002, 1003, 1008, 1011, 1012, 1013),
        *(770001,),
    ),
    **_leave_out_codes(
        "a batch waits at the broker it is staged at; what is published comes with its queues to a target of kind "
        '"ours", and to no other',
        *(770002, 770003, 770004),
    ),
    **_leave_out_codes("subscriptions of lite topics live in connections", 200070, 200071, 200072),
}
UNKNOWN_CODE_POLICY: Final = RequestPolicy(
    Treatment.LEFT_OUT, "not known here: passed to the primary as it is"
)


def policy_of(code: int) -> RequestPolicy:
    """Return the policy of a request code, known or not."""
    return POLICIES.get(code, UNKNOWN_CODE_POLICY)


def mirrored_codes() -> frozenset[int]:
    """Return the codes that reach the target."""
    return frozenset(code for code, policy in POLICIES.items() if policy.treatment is not Treatment.LEFT_OUT)


TOPIC_POLICIES: Final = (
    (
        f"`{RETRY_PREFIX}*`",
        "left out for a target of any kind: consumed at the primary before the group is switched",
    ),
    (f"`{DLQ_PREFIX}*`", 'left out as sends; copied to a target of kind "ours", and never to another'),
    ("system topics", "left out: every broker fills its own (traces, timers, half messages, …)"),
)


def topic_exclusion_reason(topic: str) -> str:
    """Return the reason why messages of a topic are not sent again; "" for those that are."""
    if topic.startswith(RETRY_PREFIX):
        return "a retry topic is consumed at the primary"
    if topic.startswith(DLQ_PREFIX):
        return 'a dead-letter topic is copied to a target of kind "ours" alone'
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX):
        return "a system topic"
    return ""


def render_policy_page() -> str:
    """Return the table as Markdown."""
    lines = [
        "# What a mirror does with each request",
        "",
        "Printed from `policy.py`. Requests of codes that are not here go to the primary only.",
        "",
        "| code | request | at the target | how, or why not |",
        "|---|---|---|---|",
    ]
    for code, policy in sorted(POLICIES.items()):
        lines.append(f"| {code} | {REQUESTS[code].NAME} | {policy.treatment.value} | {policy.reason} |")
    lines += ["", "| messages sent to | at the target |", "|---|---|"]
    lines += [f"| {name} | {reason} |" for name, reason in TOPIC_POLICIES]
    return "\n".join([*lines, ""])
