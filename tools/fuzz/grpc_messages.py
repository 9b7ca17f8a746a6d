"""Requests of the gRPC protocol as bytes, valid or not, without its classes: fields by their numbers.

A schema names the kind of each field: ``s`` text, ``b`` bytes, ``i`` a number, or the schema of a part; a list has one
element, its kind. Source: definition.proto and service.proto of apache/rocketmq-apis.
"""

from collections.abc import Mapping
from typing import Any, Final

from tools.fuzz.values import Chance
from tools.fuzz.world import GROUPS, TOPICS, FuzzWorld

Schema = Mapping[int, Any]

RESOURCE: Final[Schema] = {1: "s", 2: "name"}
TIME: Final[Schema] = {1: "seconds", 2: "i"}
TOPIC: Final[Schema] = {1: "s", 2: "topic"}
GROUP: Final[Schema] = {1: "s", 2: "group"}
FILTER: Final[Schema] = {1: "i", 2: "expression"}
ENDPOINTS: Final[Schema] = {1: "i", 2: [{1: "s", 2: "i"}]}
QUEUE: Final[Schema] = {1: TOPIC, 2: "i", 3: "i", 4: {1: "s", 2: "i", 3: ENDPOINTS}, 5: ["i"]}
SYSTEM: Final[Schema] = {
    1: "s", 2: ["s"], 3: "id", 4: {1: "i", 2: "s"}, 5: "i", 6: "i", 7: TIME, 8: "s", 9: TIME, 10: "s", 11: TIME,
    12: "handle", 13: "i", 14: "i", 15: TIME, 16: "i", 17: "s", 18: "s", 19: TIME, 20: {1: "s", 2: "s"},
    21: "s", 22: "i",
}  # fmt: skip
MESSAGE: Final[Schema] = {1: TOPIC, 2: [{1: "s", 2: "s"}], 3: SYSTEM, 4: "b"}
SUBSCRIPTION: Final[Schema] = {1: GROUP, 2: [{1: TOPIC, 2: FILTER}], 3: "i", 4: "i", 5: TIME}
RETRIES: Final[Schema] = {1: "i", 2: {1: [TIME]}, 3: {1: TIME, 2: TIME, 3: "b"}}
SETTINGS: Final[Schema] = {
    1: "i", 2: ENDPOINTS, 3: RETRIES, 4: TIME, 5: {1: [TOPIC], 2: "i", 3: "i"}, 6: SUBSCRIPTION,
    7: {1: "i", 2: "s", 3: "s", 4: "s"}, 8: {1: "i", 2: ENDPOINTS},
}  # fmt: skip
METHODS: Final[Mapping[str, Schema]] = {
    "QueryRoute": {1: TOPIC, 2: ENDPOINTS},
    "Heartbeat": {1: GROUP, 2: "i"},
    "SendMessage": {1: [MESSAGE]},
    "QueryAssignment": {1: TOPIC, 2: GROUP, 3: ENDPOINTS},
    "ReceiveMessage": {1: GROUP, 2: QUEUE, 3: FILTER, 4: "i", 5: TIME, 6: "i", 7: TIME, 8: "s"},
    "AckMessage": {1: GROUP, 2: TOPIC, 3: [{1: "id", 2: "handle"}]},
    "ForwardMessageToDeadLetterQueue": {1: GROUP, 2: TOPIC, 3: "handle", 4: "id", 5: "i", 6: "i"},
    "EndTransaction": {1: TOPIC, 2: "id", 3: "id", 4: "i", 5: "i", 6: "s"},
    "Telemetry": {
        1: {1: "i", 2: "s"},
        2: SETTINGS,
        3: {1: "s", 2: "s"},
        4: {1: "s"},
        5: {1: MESSAGE, 2: "s"},
    },
    "NotifyClientTermination": {1: GROUP},
    "ChangeInvisibleDuration": {1: GROUP, 2: TOPIC, 3: "handle", 4: TIME, 5: "id"},
    "RecallMessage": {1: TOPIC, 2: "recall"},
    "PullMessage": {1: GROUP, 2: QUEUE, 3: "i", 4: "i"},
}
WAITING: Final = ("ReceiveMessage", "Telemetry")
"""Methods whose answers may wait."""
TEXTS: Final = (
    "", " ", "TagA", "a||b", "||", "*", "\x00", "\x01\x02", "é", "\U0001f600", "x" * 300, "x" * 20_000, "-1", "9" * 30,
    "a > 1 AND TAGS = 'a'", "((", "rmq_sys_x", "%RETRY%x", "SCHEDULE_TOPIC_XXXX", "KEYS", "TIMER_DELIVER_MS", "PGROUP",
)  # fmt: skip
NUMBERS: Final = (
    0, 1, 2, 3, 4, 5, 6, 32, 77, 10_000, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2**31,
)  # fmt: skip
"""Numbers as varints hold them: those above 2**63 are negative."""
SECONDS: Final = (0, 1, 10, 15, 60, 43_200, 1_700_000_000, 253_402_300_800, 2**63 - 1, 2**64 - 1, 2**53)
BODIES: Final = (b"x", b"hello", b"", b"\xff" * 50, b"z" * 5000)
MAX_DEPTH: Final = 6


def varint(number: int) -> bytes:
    """Encode a number below 2**64."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def part(number: int, data: bytes) -> bytes:
    """Encode a field of text, bytes or parts."""
    return varint(number << 3 | 2) + varint(len(data)) + data


class MessageSource:
    """Builds requests from a chance and what the world has learned."""

    def __init__(self, chance: Chance, world: FuzzWorld) -> None:
        self._chance = chance
        self._world = world

    def request(self, method: str) -> bytes:
        """Build a request whose fields are there or not, with values that fit, or do not."""
        return self._message(METHODS[method], 0)

    def valid_send(self) -> bytes:
        """Build a request that stores a message, unless its topic is for others."""
        system = part(3, b"01" + b"%032d" % self._chance.below(10**9)) + b"\x30\x01"
        topic = part(1, part(2, self._chance.pick(TOPICS).encode()))
        return part(1, topic + part(3, system) + part(4, b"hello"))

    def valid_receive(self) -> bytes:
        """Build a request that pops messages and waits for a while if there are none."""
        topic = part(2, self._chance.pick(TOPICS).encode())
        group = part(1, part(2, self._chance.pick(GROUPS).encode()))
        times = part(5, b"\x08\x0f") + part(7, b"\x08\x05")
        return group + part(2, part(1, topic)) + part(3, b"\x08\x01" + part(2, b"*")) + b"\x20\x20" + times

    def settings(self) -> bytes:
        """Build the settings of a client of a kind that is served."""
        chance = self._chance
        topic = part(2, chance.pick(TOPICS).encode())
        if chance.happens(0.4):
            return part(2, b"\x08\x01" + part(5, part(1, topic)))
        entry = part(1, topic) + part(2, b"\x08\x01" + part(2, chance.pick(TEXTS).encode()))
        group = part(1, part(2, chance.pick(GROUPS).encode()))
        return part(2, bytes([8, chance.pick((2, 3))]) + part(6, group + part(2, entry)))

    def _message(self, schema: Schema, depth: int) -> bytes:
        encoded = b""
        for number, kind in schema.items():
            if self._chance.happens(0.15 if depth < 3 else 0.4):
                continue
            repeats = 1
            if isinstance(kind, list):
                (kind,) = kind
                repeats = self._chance.pick((0, 1, 1, 1, 2, 5))
            for _ in range(repeats):
                encoded += self._field(number, kind, depth)
        return encoded

    def _field(self, number: int, kind: Any, depth: int) -> bytes:
        chance = self._chance
        if chance.happens(0.01):  # another kind than declared
            return part(number, chance.randbytes(chance.below(20)))
        if not isinstance(kind, str):
            return part(number, self._message(kind, depth + 1)) if depth < MAX_DEPTH else b""
        if kind in ("i", "seconds"):
            return varint(number << 3) + varint(chance.pick(SECONDS if kind == "seconds" else NUMBERS))
        if kind == "b":
            return part(number, chance.pick(BODIES))
        return part(number, self._text(kind))

    def _text(self, kind: str) -> bytes:
        chance, world = self._chance, self._world
        if chance.happens(0.02):
            return b"\xff\xfe"  # no UTF-8
        if chance.happens(0.15):
            return chance.pick(TEXTS).encode()
        match kind:
            case "topic":
                return chance.pick(TOPICS).encode()
            case "group":
                return chance.pick(GROUPS).encode()
            case "expression":
                return chance.pick(("*", "a||b", "a > 1", "TAGS = 'a'")).encode()
            case "handle":
                fields = f"{world.receipts[chance.below(len(world.receipts))].extra_info} 0 0".split(" ")
                if chance.happens(0.5):
                    fields[chance.below(len(fields))] = str(chance.pick(NUMBERS))
                return " ".join(fields).encode()
            case "recall":
                return world.recall_handles[chance.below(len(world.recall_handles))].encode()
            case "id":
                return b"01%032d" % chance.below(100)
        return chance.pick(TEXTS).encode()
