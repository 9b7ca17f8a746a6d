"""Valid and extreme values, drawn from one seeded random generator.

`Chance` is the generator of one walk. The tables below are what has broken servers of this kind before: numbers at the
borders of Java's types and in every spelling that Python's ``int`` takes and Java's does not, names with separators,
and texts that are long, empty, or no text at all.
"""

import random
from collections.abc import Sequence
from typing import Final, TypeVar

from codec import properties as names
from codec import topics
from codec.java_numbers import I16, I32, I64

T = TypeVar("T")

MIB: Final = 1024 * 1024
HUGE_TEXT_SHARE: Final = 0.0005
"""Share of extreme texts that are huge; each costs the generator and the server as much as a thousand others."""


class Chance(random.Random):
    """The random generator of one walk."""

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items; about five times as fast as `choice`."""
        return items[int(self.random() * len(items))]

    def happens(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability

    def below(self, end: int) -> int:
        """Return an integer of ``range(end)``."""
        return int(self.random() * end)


# -- numbers ----------------------------------------------------------------------------------------------------------

_BORDERS = sorted(
    {
        border + step
        for limits in (I16, I32, I64, (0, 255), (-(1 << 64), 1 << 64), (0, 1 << 53), (0, 1000))
        for border in limits
        for step in (-1, 0, 1)
    }
)
INTEGERS: Final = tuple(map(str, _BORDERS))
SMALL_INTEGERS: Final = (
    "-2",
    "-1",
    "0",
    "1",
    "2",
    "3",
    "7",
    "8",
    "15",
    "16",
    "17",
    "31",
    "32",
    "63",
    "64",
    "1024",
)
ODD_NUMBERS: Final = (
    "",
    " ",
    "+5",
    "-0",
    "--1",
    "-",
    "+",
    " 5",
    "5 ",
    "5\n",
    "\t5",
    "1_000",
    "0x10",
    "0b1",
    "1e5",
    "1.5",
    "1L",
    "NaN",
    "Infinity",
    "-inf",
    "null",
    "true",
    "٣",
    "५५",
    "\uff15",
    "²",
    "\uff11\uff12\uff13",
    "\U0001d7d9\U0001d7da",
    "\x005",
    "5\x00",
    "0" * 50 + "1",
    "9" * 400,
    "-" + "9" * 400,
    "9" * 5000,
)
TIMES_MS: Final = (
    "0",
    "1",
    "1000",
    "-1000",
    "253402300799999",
    "253402300800000",
    "-62135596800001",
    "9223372036854",
    "1700000000000",
    "4102444800000",
)


def extreme_number(chance: Chance) -> str:
    """Return a number that is at a border, out of range, or not a number at all."""
    return chance.pick(chance.pick((INTEGERS, INTEGERS, SMALL_INTEGERS, ODD_NUMBERS, TIMES_MS)))


# -- names and texts --------------------------------------------------------------------------------------------------

INTERNAL_TOPICS: Final = (
    *sorted(topics.SYSTEM_TOPICS),
    topics.TIMER_TOPIC,
    "rmq_sys_REVIVE_LOG_DefaultCluster",
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a",
    "DefaultCluster",
    "broker-a",
    "DefaultCluster_REPLY_TOPIC",
    "%RETRY%TOOLS_CONSUMER",
    "%RETRY%CID_RMQ_SYS_TRANS",
    "%DLQ%TOOLS_CONSUMER",
    "%LMQ%fuzz",
    "%RETRY%",
    "%DLQ%",
    "%RETRY%%RETRY%fuzz_group",
    "%RETRY%fuzz_group_fuzz_normal",
    "%RETRY%fuzz_group+fuzz_normal",
)
INTERNAL_GROUPS: Final = (
    *topics.PREDEFINED_GROUPS,
    "DEFAULT_CONSUMER",
    "SCHEDULE_CONSUMER",
    "CID_RMQ_SYS_anything",
    "__MONITOR_CONSUMER",
    "%RETRY%fuzz_group",
)
TEXTS: Final = (
    "",
    " ",
    ".",
    "..",
    "../../x",
    "/",
    "/tmp/../tmp",
    "a/b",
    "a\\b",
    "~",
    "\0",
    "a\0b",
    "\x01",
    "\x02",
    "a\x01b\x02c\x01d\x02",
    "\x01\x01\x02\x02",
    "@",
    "a@b",
    "@@",
    "fuzz_normal@fuzz_group",
    "a@b@c",
    "^",
    "a^b",
    "%",
    "%s%n",
    "%00",
    "a%b",
    "+",
    "a+b",
    ":",
    "::1",
    ";",
    "a;b;c",
    ",",
    "|",
    "||",
    "a||b",
    "a || b || c",
    "*",
    "#",
    "$",
    "${x}",
    "{}",
    "{",
    "[]",
    '"',
    "'",
    "null",
    "true",
    "NaN",
    "undefined",
    "=",
    "a=b",
    "a\nb",
    "a\r\nb",
    "\n",
    "é",
    "日本語",
    "😀",
    "\ud800",
    "\udc00a",
    "a\ud800b",
    "\ufeffx",
    "\u202ex",
    "\u2028",
    "\x7f",
    "\x80",
    "İ",
    "ß",
    "x" * 119,
    "x" * 120,
    "x" * 127,
    "x" * 128,
    "x" * 255,
    "x" * 256,
    "é" * 64,
    "x" * 4096,
    "0",
    "-1",
    "999",
    "CLUSTERING",
    "TAG",
    "SQL92",
    "PULL",
    "POP",
    "v1",
    "AAAA",
    "====",
    "QUFBQQ==",
    "//////////////////8=",
)
LONG_TEXTS: Final = ("x" * 32_767, "x" * 32_768, "%" * 65_536, "é" * 40_000, "\x02" * 32_000, "a " * 30_000)
HUGE_TEXTS: Final = ("x" * MIB, "\x01" * 300_000, "1" * MIB)
ADDRESSES: Final = (
    "127.0.0.1:1",
    "127.0.0.1:9",
    "127.0.0.1:65535",
    "127.0.0.1:65536",
    "127.0.0.1:0",
    "127.0.0.1:-1",
    "127.0.0.1:",
    "127.0.0.1",
    "127.0.0.1:port",
    "127.0.0.1:1:1",
    "127.0.0.1:٣",
    "[::1]:1",
    "::1:1",
    "[::1",
    ":1",
    ":",
    "",
    " ",
    "\0:1",
    "127.0.0.1 :1",
    "127.0.0.1:1;127.0.0.1:2",
    "127.0.0.1:1,127.0.0.1:2",
    "127.0.0.1:" + "9" * 400,
)
"""Addresses for registrations: a gateway dials what it is told, so all of these are loopback or no address."""


def extreme_text(chance: Chance) -> str:
    """Return a text that a name, a list or a file name must not be."""
    if chance.happens(HUGE_TEXT_SHARE):
        return chance.pick(HUGE_TEXTS)
    if chance.happens(0.01):
        return chance.pick(LONG_TEXTS)
    if chance.happens(0.1):
        return chance.pick(INTERNAL_TOPICS if chance.happens(0.5) else INTERNAL_GROUPS)
    if chance.happens(0.1):
        return extreme_number(chance)
    return chance.pick(TEXTS)


# -- expressions ------------------------------------------------------------------------------------------------------

TAG_EXPRESSIONS: Final = ("*", "a", "a || b", "a||b||c||d", "red || green", "")
SQL_EXPRESSIONS: Final = (
    "a = 1",
    "a > 5 AND b = 'x'",
    "a IS NOT NULL",
    "TAGS IN ('a', 'b')",
    "a BETWEEN 1 AND 10 OR NOT b CONTAINS 'x'",
    "b LIKE 'x%' OR b STARTSWITH 'y'",
    "TRUE",
)
EXTREME_EXPRESSIONS: Final = (
    "",
    " ",
    "(",
    ")",
    "a =",
    "= a",
    "a = = 1",
    "a = '",
    "NOT",
    "NOT " * 500 + "TRUE",
    "NOT " * 5000 + "TRUE",
    "(" * 300 + "a" + ")" * 300,
    "(" * 10_000,
    "-" * 1000 + "1 = 1",
    "a = 1 AND " * 1000 + "a = 1",
    "a = 1 OR " * 3000 + "a = 1",
    "a IN (" + ",".join(f"'{number}'" for number in range(2000)) + ")",
    "a = " + "9" * 400,
    "a = 1e999",
    "a = 0x" + "f" * 100,
    "a = 1." + "0" * 1000,
    "a BETWEEN 10 AND 1",
    "a = b = c",
    "é = 1",
    "a CONTAINS ''",
    "a CONTAINS '" + "x" * 5000 + "'",
    "\0",
    "a = '\0'",
    "a = '\ud800'",
    "/* a",
    "-- a",
    "1 / 0 = 1",
    "a % 0 = 1",
    "a || " * 3000,
    "||" * 3000,
    "x" * 70_000,
    "Aa || BB",
)


def expression(chance: Chance) -> tuple[str, str]:
    """Return an expression type and an expression, usually of that type."""
    kind = chance.pick(("TAG", "TAG", "SQL92"))
    if chance.happens(0.1):
        return chance.pick(("TAG", "SQL92", "", "sql92", "OTHER", "\0")), chance.pick(EXTREME_EXPRESSIONS)
    return kind, chance.pick(TAG_EXPRESSIONS if kind == "TAG" else SQL_EXPRESSIONS)


# -- properties of messages -------------------------------------------------------------------------------------------

KNOWN_PROPERTIES: Final = tuple(
    sorted(
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and len(value) > 2
    )
)
PROPERTY_VALUES: Final = {
    names.KEYS: ("k1", "k1 k2", "k", " ".join(f"k{number}" for number in range(300))),
    names.TAGS: ("a", "b", "red"),
    names.DELAY_TIME_LEVEL: ("1", "2", "3", "18"),
    names.TIMER_DELAY_SEC: ("1", "2", "3"),
    names.TIMER_DELAY_MS: ("500", "1500"),
    names.TRANSACTION_PREPARED: ("true", "false", "TRUE"),
    names.PRODUCER_GROUP: ("fuzz_producer",),
    names.CHECK_IMMUNITY_TIME_IN_SECONDS: ("1", "0", "100"),
    names.RECONSUME_TIME: ("0", "1", "16"),
    names.MAX_RECONSUME_TIMES: ("1", "16"),
    names.CORRELATION_ID: ("c-1",),
    names.MESSAGE_REPLY_TO_CLIENT: ("fuzz_client_0", "fuzz_client_1"),
    names.MESSAGE_TTL: ("1000",),
    names.CLUSTER: ("DefaultCluster",),
    names.PRIORITY: ("0", "3"),
    names.SHARDING_KEY: ("s1",),
    names.INNER_MULTI_DISPATCH: ("%LMQ%a,%LMQ%b",),
    names.INNER_MULTI_QUEUE_OFFSET: ("0,0",),
    names.UNIQ_CLIENT_MESSAGE_ID_KEYIDX: ("7F0000010001000000000000000000A1",),
    names.WAIT_STORE_MSG_OK: ("true", "false"),
}
"""Valid values of properties that lead somewhere; all others get a plain text."""


def valid_properties(chance: Chance) -> str:
    """Return properties as a producer sends them, with up to three that the server acts on."""
    parts = [f"a\x01{chance.below(20)}\x02"]
    for _ in range(chance.below(4)):
        name = chance.pick(tuple(PROPERTY_VALUES))
        parts.append(f"{name}\x01{chance.pick(PROPERTY_VALUES[name])}\x02")
    return "".join(parts)


def extreme_properties(chance: Chance) -> str:
    """Return properties with any known name and any value, or a text that is not properties."""
    if chance.happens(0.05):
        return chance.pick(TEXTS)
    parts = []
    for _ in range(1 + chance.below(4)):
        name = chance.pick(KNOWN_PROPERTIES)
        valid = PROPERTY_VALUES.get(name)
        value = chance.pick(valid) if valid and chance.happens(0.4) else None
        if value is None:
            value = extreme_number(chance) if chance.happens(0.6) else extreme_text(chance)
        separator, end = (
            ("\x01", "\x02") if chance.happens(0.97) else chance.pick((("", ""), ("\x02", "\x01")))
        )
        parts.append(f"{name}{separator}{value}{end}")
    if chance.happens(0.1):
        parts *= 2
    return "".join(parts)
