"""Frames of producers, plain and odd, cut into reads: a random sequence for each seed."""

import json
import struct
from collections.abc import Iterator
from typing import Final

from tools.fuzz.frame_encoding import damage_frame, encode_request
from tools.fuzz.mutations import mutate_request, write_body
from tools.fuzz.valid_requests import FuzzRequest, RequestSource
from tools.fuzz.values import Chance, extreme_text
from tools.fuzz.world import FuzzWorld

TOPIC: Final = "plain"
TOPICS: Final = {
    "plain": (4, 4, "SINGLE_TAG"),
    "other": (8, 8, "SINGLE_TAG"),
    "tags": (2, 4, "MULTI_TAG"),
    "T" * 127: (1, 1, "SINGLE_TAG"),
    "fuzz_normal": (4, 4, "SINGLE_TAG"),
}
"""Topics that exist from the start: write queues, read queues, filter type."""
_ODD_TOPICS: Final = (
    *TOPICS, "%RETRY%g", "T" * 128, "T" * 126, "no/such", "SELF_TEST_TOPIC", "TBW102", "SCHEDULE_TOPIC_XXXX", "über",
    "created_by_a_send", "", "%", "plain ", "RMQ_SYS_TRANS_HALF_TOPIC",
)  # fmt: skip
_ODD_NUMBERS: Final = (
    "0", "1", "-1", "+1", "007", "true", "TRUE", "false", "", "9999999999", "2147483647", "2147483648", "-2147483648",
    "4", "8", "12", "16", "32", "64", "128", "256", "999999999999999999", "9223372036854775807",
    "9223372036854775808",
    "x", "٣", " 1", "1 ", "1.0", "0x1", "1_0", "000000000", "0000000000", "999999999", "1000000000", "\x00",
)  # fmt: skip
_ODD_PROPERTIES: Final = (
    ("__SHARDINGKEY", "s"), ("DELAY", "3"), ("DELAY", "0"), ("TRAN_MSG", "true"), ("TRAN_MSG", "x"),
    ("INNER_NUM", "2"),
    ("POP_CK", "1"), ("TIMER_DELAY_MS", "5"), ("TIMER_DELIVER_MS", "1"), ("TAGS", "again"), ("UNIQ_KEY", "Z2"),
    ("UNIQ_KEY", ""), ("xUNIQ_KEY", "Q"), ("MSG_REGION", "x"), ("_SYS_MSG_PRIORITY_", "1"), ("WAIT", "false"),
    ("WAIT", "TRUE"), ("xTAGS", "y"), ("", "e"), ("e", ""), ("a", "b"), ("PGROUP", "p"), ("MSG_TYPE", "reply"),
    ("TAGS", "a" * 40), ("CLUSTER", "c"), ("KEYS", "a b c"), ("RETRY_TOPIC", "r"), ("CONSUME_START_TIME", "1"),
)  # fmt: skip
_TEXTS: Final = (
    "", "x", "UNIQ_KEY\x01", "UNIQ_KEY\x01abc", "xUNIQ_KEY\x01abc", "UNIQ_KEY\x01a-b\x02", "\x02", "\x01",
    "UNIQ_KEY\x01a\x02TAGS", "UNIQ_KEY\x01a\x02TAGS\x01", "TAGS\x01b\x02UNIQ_KEY\x01a", "UNIQ_KEY\x01a\x02\x02",
    "a\x01UNIQ_KEY\x01b\x02UNIQ_KEY\x01c\x02", "UNIQ_KEY\x01" + "k" * 128 + "\x02", "UNIQ_KEY\x01" + "k" * 129,
    "UNIQ_KEY\x01a\"b\x02", "UNIQ_KEY\x01a\\b\x02", "UNIQ_KEY\x01a/b\x02", "UNIQ_KEY\x01a\x7fb\x02",
    "UNIQ_KEY\x01ü\x02",
)  # fmt: skip
_BODIES: Final = (0, 1, 2, 127, 128, 900, 1024, 4000, 4095, 4096, 5000, 65_535, 65_536, 65_537, 70_000)
_FLAGS: Final = (1, 2, 3, 4, -1, 1 << 30)
_CODES: Final = (10, 320, 310, 34, 11, 35, 999, 38)
_LETTERS: Final = "abcdefghijklmn"


def plain_fields(
    topic: str = TOPIC, queue: str = "0", properties: str = "UNIQ_KEY\x01K1\x02"
) -> dict[str, str]:
    """Return the header fields of a plain send, as the official producer writes them."""
    return {
        "a": "benchmark_producer", "b": topic, "c": "TBW102", "d": "4", "e": queue, "f": "0", "g": "1795000000000",
        "h": "0", "i": properties, "j": "0", "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip


def binary_frame(fields: dict[str, str], opaque: int, body: bytes, code: int = 310, flag: int = 0) -> bytes:
    """Return a frame with a binary header."""
    encoded = b"".join(
        struct.pack(">H", len(name.encode()))
        + name.encode()
        + struct.pack(">I", len(value.encode()))
        + value.encode()
        for name, value in fields.items()
    )
    header = struct.pack(">hBhiii", code, 0, 493, opaque, flag, 0) + struct.pack(">I", len(encoded)) + encoded
    return struct.pack(">II", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


def json_frame(fields: dict[str, str], opaque: int, body: bytes, code: int = 310, flag: int = 0) -> bytes:
    """Return a frame with a JSON header."""
    header = json.dumps(
        {
            "code": code, "extFields": fields, "flag": flag, "language": "JAVA", "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON", "version": 493,
        },
        separators=(",", ":"),
    ).encode()  # fmt: skip
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


class FrameSource:
    """Draws frames from a seeded generator. ``oddity`` is the share of sends with something unusual in them."""

    def __init__(self, seed: int, oddity: float = 0.4) -> None:
        self.chance = Chance(seed)
        self._oddity = oddity
        self._fuzzed = RequestSource(self.chance, FuzzWorld())
        self._opaque = 0

    def frame(self) -> bytes:
        """Return one frame: mostly a send of code 310, plain or with one oddity."""
        chance = self.chance
        self._opaque += 1
        kind = chance.random()
        if kind < 1 - self._oddity:
            return self._plain()
        if kind < 1 - 0.12 * self._oddity:
            return self._odd()
        return self._from_fuzzer()

    def _plain(self) -> bytes:
        chance = self.chance
        properties = (
            f"UNIQ_KEY\x01{chance.getrandbits(128):032X}\x02WAIT\x01true\x02TAGS\x01Tag{chance.below(4)}\x02"
        )
        fields = plain_fields("plain" if chance.random() < 0.7 else "other", str(chance.below(4)), properties)
        body = chance.randbytes(1 + chance.below(300))
        write = binary_frame if chance.random() < 0.5 else json_frame
        return write(fields, self._opaque, body)

    def _odd(self) -> bytes:
        chance = self.chance
        fields = plain_fields(chance.pick(tuple(TOPICS)), str(chance.below(4)), self._properties())
        body, code, flag, opaque = chance.randbytes(1 + chance.below(300)), 310, 0, self._opaque
        kind = chance.below(9)
        if kind == 0:
            fields["b"] = chance.pick(_ODD_TOPICS)
        elif kind == 1:
            fields["e"] = chance.pick(("0", "1", "3", "4", "5", "7", "8", "-1", "99", "004", "2147483647"))
        elif kind == 2:
            fields[chance.pick("defghjlkm")] = chance.pick(_ODD_NUMBERS)
        elif kind == 3:
            fields.pop(chance.pick(_LETTERS), None)
        elif kind == 4:
            fields[chance.pick(("zz", "", "ab", "l", "o", "z", "topic", "bname"))] = chance.pick(
                ("", "1", "-1", "x" * 300)
            )
        elif kind == 5:
            body = bytes(chance.pick(_BODIES))
        elif kind == 6 and chance.random() < 0.5:
            code, flag = chance.pick(_CODES), chance.pick((0, 0, 2))
        elif kind == 6:
            flag = chance.pick(_FLAGS)
        elif kind == 7:
            opaque = chance.pick((0, -1, 2**31 - 1, -(2**31), 1 << 30))
        fields = self._reordered(fields) if chance.random() < 0.1 else fields
        return (binary_frame if chance.random() < 0.5 else json_frame)(fields, opaque, body, code, flag)

    def _reordered(self, fields: dict[str, str]) -> dict[str, str]:
        names = list(fields)
        self.chance.shuffle(names)
        return {name: fields[name] for name in names}

    def _properties(self) -> str:
        chance = self.chance
        if chance.random() < 0.1:
            return chance.pick(_TEXTS)
        pairs = [
            ("UNIQ_KEY", f"{chance.getrandbits(64):016X}"), ("WAIT", "true"),
            ("TAGS", chance.pick(("a", "b", "", "ü", "x" * 70, "red"))),
            ("KEYS", chance.pick(("k1 k2", "DELAY", "MSG", "MSG_REGION", "ключ", "\x00", "TIMER_", "k"))),
        ]  # fmt: skip
        if chance.random() < 0.5:
            del pairs[3]
        if chance.random() < 0.5:
            pairs.insert(chance.below(len(pairs) + 1), chance.pick(_ODD_PROPERTIES))
        if chance.random() < 0.1:
            chance.shuffle(pairs)
        if chance.random() < 0.02:
            pairs.append(("big", "v" * (chance.pick((100, 32_000, 32_767, 33_000)) - chance.below(200))))
        text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
        return text[:-1] if chance.random() < 0.2 else text

    def _from_fuzzer(self) -> bytes:
        """Return a request of the fuzzer, mostly a send and mutated; sometimes its frame is damaged."""
        chance = self.chance
        request = self._fuzzed.request(chance.pick((310, 310, 310, 10, 320, 36, 34)))
        request.opaque, request.binary = self._opaque, chance.random() < 0.5
        if request.code == 310 and chance.random() < 0.7:
            _make_plain(chance, request)
        if chance.random() < 0.8:
            mutate_request(self._fuzzed, request)
        write_body(request)
        frame = encode_request(request)
        if chance.random() < 0.03:
            # Damage within the header or the body, so that most of them are still requests.
            return (
                frame[:8] + _flip(chance, frame[8:]) if chance.random() < 0.8 else damage_frame(chance, frame)
            )
        return frame


def _make_plain(chance: Chance, request: FuzzRequest) -> None:
    """Give the fuzzer's send the fields of a plain one, so that a mutation is its only oddity."""
    key = f"UNIQ_KEY\x01{chance.getrandbits(64):016X}\x02"
    request.ext.update(plain_fields(queue=str(chance.below(4)), properties=key))
    if chance.random() < 0.1:
        request.ext["i"] = key + extreme_text(chance)
    request.body = request.body or b"body"


def _flip(chance: Chance, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(1 + chance.below(2)):
        if changed:
            changed[chance.below(len(changed))] = chance.below(256)
    return bytes(changed)


def cut_into_reads(chance: Chance, frames: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the bytes of all frames in pieces: some hold one frame or many, some end anywhere within one."""
    rest = b""
    while True:
        batch = [frame for frame, _ in zip(frames, range(chance.pick((1, 1, 2, 5, 20, 64))), strict=False)]
        if not batch:
            break
        data, rest = rest + b"".join(batch), b""
        if chance.random() < 0.3 and len(data) > 10:
            at = 1 + chance.below(len(data) - 1)
            data, rest = data[:at], data[at:]
        yield data
    if rest:
        yield rest
