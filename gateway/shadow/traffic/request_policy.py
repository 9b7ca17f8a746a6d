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
        "sent to the queue that the primary chose, if the primary stored the message; a half message becomes a half "
        "message at the target",
        *SEND_CODES,
    ),
    **_translate_codes("ends the target's copy of the half message", END_TRANSACTION),
    **_translate_codes(
        "commits the largest offset at the target that is not ahead of the primary's; left out if the group is active "
        "at the target, for retry topics, and for queues without mirrored messages",
        UPDATE_CONSUMER_OFFSET,
    ),
    **_translate_codes("sent with the target's handle of the same message", RECALL_MESSAGE),
    **_repeat_codes("changes topics", 17, 18, 215),
    **_repeat_codes("changes consumer groups or their permission to read", 200, 225, 207, 353),
    **_repeat_codes("sets whether a group pulls or pops a topic", 401),
    **_leave_out_codes("only reads messages", 11, 361, 12, 33, 321, 200052, 354),
    **_leave_out_codes(
        "changes nothing",
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
        *(770020, 400, 402, 901, 907, 1004, 1005, 1006, 1007, 1010, 2003, 3004, 3005, 3009, 3010),
        *(200054, 200055, 200074, 200075, 200076, 200077, 200078),
    ),
    **_leave_out_codes(
        "would make the groups look active at the target; clients report there themselves once they are switched",
        34,
        35,
    ),
    **_leave_out_codes(
        "queues are locked at the primary, where they are consumed until consumers switch", 41, 42
    ),
    **_leave_out_codes(
        "groups consume their retry topics at the primary before they are switched; a target of kind "
        '"ours" gets copies of the retry topics',
        36,
    ),
    **_leave_out_codes(
        "a receipt handle refers to a pop checkpoint of the broker that delivered the message; the cut-over copies "
        "the group's offsets",
        *(200050, 200051, 200053, 200151),
    ),
    **_leave_out_codes("only the primary has a connection to the client that waits for the reply", 324, 325),
    **_leave_out_codes(
        "reaches the target through the offsets that consumers commit afterwards, or through `shadow sync`",
        222,
        314,
    ),
    **_leave_out_codes("sent by a broker to its client", 39, 40, 220, 221, 309, 326, 200073),
    **_leave_out_codes(
        "changes settings of one broker, namesrv or controller", 25, 318, 2001, 2002, 2004, 5001, 1009
    ),
    **_leave_out_codes(
        "names brokers of the primary; `shadow sync` copies topic configuration", 100, 102, 216, 217, 513
    ),
    **_leave_out_codes(
        "accounts and access rules belong to one cluster", 50, 51, 53, 3001, 3002, 3003, 3006, 3007, 3008
    ),
    **_leave_out_codes("housekeeping of one broker", 306, 316, 329, 323, 355, 200056, 200079),
    **_leave_out_codes("write permission is set for each broker separately", 205, 327),
    **_leave_out_codes(
        "exchanged between servers, not sent by clients",
        *(103, 104, 902, 903, 904, 905, 906, 908, 1001, 1002, 1003, 1008, 1011, 1012, 1013),
        *(770001, 770010, 770011, 770012, 770013, 770021, 770022, 770023),
    ),
    **_leave_out_codes(
        "a staged batch belongs to the broker that receives it; a target of kind "
        '"ours" gets the published messages with their queues, any other target does not',
        *(770002, 770003, 770004),
    ),
    **_leave_out_codes(
        "subscriptions to lite topics belong to a client's connection", 200070, 200071, 200072
    ),
}
UNKNOWN_CODE_POLICY: Final = RequestPolicy(
    Treatment.LEFT_OUT, "unknown code: forwarded to the primary unchanged"
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
        'sends are left out; groups consume them at the primary before they are switched. A target of kind "ours" '
        "gets copies of the messages",
    ),
    (f"`{DLQ_PREFIX}*`", 'sends are left out; only a target of kind "ours" gets copies of the messages'),
    ("system topics", "left out: every broker writes its own (traces, timers, half messages, …)"),
)


def topic_exclusion_reason(topic: str) -> str:
    """Return the reason why messages of a topic are not sent again; "" for those that are."""
    if topic.startswith(RETRY_PREFIX):
        return "a retry topic is consumed at the primary"
    if topic.startswith(DLQ_PREFIX):
        return 'a dead-letter topic is copied only to a target of kind "ours"'
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX):
        return "a system topic"
    return ""


def render_policy_page() -> str:
    """Return the table as Markdown."""
    lines = [
        "# What a mirror does with each request",
        "",
        "The shadow gateway forwards every request to the primary. This table says how a mirror treats each",
        "request code; codes that are not listed are left out. The table is generated from",
        "`gateway/shadow/traffic/request_policy.py`.",
        "",
        "- *repeated*: the target gets the same header fields and body, signed again",
        "- *translated*: the target gets the request with fields such as offsets and ids changed to its own",
        "- *left out*: the mirror does not send the request. [Comparison](../how-to/migrate.md#compare) may repeat",
        "  read-only requests at the target, and a replay sends pulls if they are selected",
        "",
        "| code | request | treatment | details or reason |",
        "|---|---|---|---|",
    ]
    for code, policy in sorted(POLICIES.items()):
        lines.append(f"| {code} | {REQUESTS[code].NAME} | {policy.treatment.value} | {policy.reason} |")
    lines += ["", "| messages sent to | treatment |", "|---|---|"]
    lines += [f"| {name} | {reason} |" for name, reason in TOPIC_POLICIES]
    return "\n".join([*lines, ""])
