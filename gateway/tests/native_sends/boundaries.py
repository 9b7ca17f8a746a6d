"""Frames on both sides of each rule that the native path shares with Python, by the name of the rule."""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from gateway.tests.native_sends.frames import binary_frame, json_frame, plain_fields

KEY: Final = "UNIQ_KEY\x01A1\x02"
BODY: Final = b"body"
_NUMBERS: Final = (
    "0", "1", "2", "3", "4", "8", "12", "16", "32", "64", "128", "256", "65536", "-1", "+1", "007", "000000000",
    "0000000000",
    "999999999", "1000000000", "2147483647", "2147483648", "999999999999999999", "1000000000000000000",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "", "x", " 1", "1 ", "1.0", "1_0", "٣",
    "true",
)  # fmt: skip
_WORDS: Final = (
    "DELAY", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_x", "POP_CK", "INNER_NUM", "TRAN_MSG",
    "MSG",
    "MSG_REGION", "MSG_TYPE", "_SYS_MSG_PRIORITY_", "__SHARDINGKEY", "WAIT", "KEYS", "TAGS", "PGROUP", "TRACE_ON",
    "CLUSTER",
    "RETRY_TOPIC", "REAL_TOPIC", "__STARTDELIVERTIME", "DUP_INFO", "LEVEL", "MIN_OFFSET", "BUYER_ID",
    "INNER_MULTI_DISPATCH",
)  # fmt: skip


def send(body: bytes = BODY, *, opaque: int = 7, **changes: str | None) -> Iterator[bytes]:
    """Yield a plain send in both header forms, with some fields changed, or left out where they are None."""
    fields = plain_fields(properties=KEY) | {
        name: value for name, value in changes.items() if value is not None
    }
    fields = {
        name: value for name, value in fields.items() if name not in changes or changes[name] is not None
    }
    yield binary_frame(fields, opaque, body)
    yield json_frame(fields, opaque, body)


def with_properties(*texts: str) -> Iterator[bytes]:
    for text in texts:
        yield from send(i=text)


def _topics() -> Iterator[bytes]:
    # Their queues exist afterwards, so that a send to them would find one.
    yield from with_properties(f"{KEY}TRAN_MSG\x01true\x02PGROUP\x01p\x02", f"{KEY}DELAY\x011\x02")
    for topic in (
        "plain", "other", "tags", "T" * 126, "T" * 127, "T" * 128, "new_topic", "no/such", "%RETRY%g", "%", "",
        "über", "plain\x00",
        "SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102", "Plain", "plai", "plainx",
    ):  # fmt: skip
        yield from send(b=topic)


def _queues() -> Iterator[bytes]:
    for topic in ("plain", "tags"):
        for queue in ("0", "1", "2", "3", "4", "5", "-1", "2147483647", "00", "01"):
            yield from send(b=topic, e=queue)


def _bodies() -> Iterator[bytes]:
    for size in (0, 1, 7, 8, 9, 199, 200, 201, 3999, 4000, 4001, 4095, 4096, 65_535, 65_536, 65_537, 100_000):
        yield from send(bytes(range(256)) * (size // 256) + bytes(size % 256))


def _stored_sizes() -> Iterator[bytes]:
    """Yield messages of which some have just the sizes at which the histogram's buckets end."""
    for bound in (1024, 4096):
        for size in range(bound - 230, bound - 130):
            fields = plain_fields(properties=KEY if size % 2 else f"__SHARDINGKEY\x01s\x02{KEY}")
            yield binary_frame(fields, size, bytes(size))


def _property_lengths() -> Iterator[bytes]:
    for size in range(32_640, 32_780):
        text = f"{KEY}big\x01"
        yield binary_frame(plain_fields(properties=text + "v" * (size - len(text))), size, BODY)


def _unique_keys() -> Iterator[bytes]:
    yield from with_properties(
        "", "\x02", "UNIQ_KEY\x01", "UNIQ_KEY\x01\x02", "UNIQ_KEY", "xUNIQ_KEY\x01a\x02", "a\x01b\x02UNIQ_KEY\x01c",
        "UNIQ_KEY\x01a",
        "a\x01UNIQ_KEY\x01b\x02UNIQ_KEY\x01c\x02", "UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02", "UNIQ_KEY\x01a b\x02",
        "UNIQ_KEY\x01é\x02",
        'UNIQ_KEY\x01a"b\x02', "UNIQ_KEY\x01a\\b\x02", "UNIQ_KEY\x01a/b\x02", "UNIQ_KEY\x01a\nb\x02",
        "UNIQ_KEY\x01a\x01b\x02",
        "UNIQ_KEY\x01a\x7fb\x02", "UNIQ_KEY\x01<a>\x02", "UNIQ_KEY\x01a-b_c.d\x02", "uniq_key\x01a\x02",
        "xUNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02",
        *(f"UNIQ_KEY\x01{'k' * size}\x02" for size in (1, 127, 128, 129, 130, 300, 5000)),
    )  # fmt: skip
    yield from send(i=None)


def _words() -> Iterator[bytes]:
    for word in _WORDS:
        for text in (
            f"{word}\x01true\x02",
            f"{word}\x01" + "1\x02",
            f"x{word}x\x01y\x02",
            f"n\x01{word}\x02",
            f"{word}\x01\x02",
        ):
            yield from with_properties(KEY + text, text + KEY)


def _tags() -> Iterator[bytes]:
    yield from with_properties(
        *(f"TAGS\x01{tag}\x02{KEY}" for tag in ("", "a", "TagA", "x" * 70, "a b", "a||b", "é", "ÿ", "😀", "\x7f")),
        f"{KEY}TAGS\x01a", f"{KEY}TAGS\x01", f"{KEY}TAGS", f"{KEY}xTAGS\x01a\x02", f"TAGS\x01a\x02{KEY}TAGS\x01b\x02",
        f"xTAGS\x01a\x02TAGS\x01b\x02{KEY}", f"a\x01TAGS\x01b\x02{KEY}", f"{KEY}\x02TAGS\x01b\x02\x02",
        f"TAGS\x01TAGS\x01b\x02{KEY}",
        f"{KEY}TAGS\x01a\x02xTAGS\x01b\x02",
    )  # fmt: skip


def _waits() -> Iterator[bytes]:
    values = ("true", "TRUE", "false", "tru", "", "truex", "true\x02WAIT\x01false", "false\x02WAIT\x01true")
    yield from with_properties(*(f"{KEY}WAIT\x01{value}\x02" for value in values))
    yield from with_properties(
        f"{KEY}WAIT\x01tru", f"{KEY}WAIT\x01", f"{KEY}xWAIT\x01false\x02", f"{KEY}WAIT\x01true"
    )


def _numbers() -> Iterator[bytes]:
    for name in "defghjl":
        for value in _NUMBERS:
            yield from send(**{name: value})


def _flags() -> Iterator[bytes]:
    for value in ("false", "true", "FALSE", "TRUE", "False", "", "0", "1", "no", "falsex"):
        for name in "km":
            yield from send(**{name: value})


def _missing_fields() -> Iterator[bytes]:
    for name in "abcdefghijklmn":
        yield from send(**{name: None})


def _other_fields() -> Iterator[bytes]:
    for name in ("zz", "", "l", "o", "z", "A", "é", "`", "{", "topic", "code"):
        for value in ("", "1", "é", "\x00", "x" * 9000, '"\\\n'):
            yield from send(**{name: value})
    for name in "abcdefghijkmn":
        yield from send(**{name: "\x00"})
        yield from send(**{name: "a" * 9000})


def _heads() -> Iterator[bytes]:
    fields = plain_fields(properties=KEY)
    for code in (10, 11, 310, 311, 320, 999, -1, 32_767):
        for flag in (0, 1, 2, 3, 4, -1, 1 << 30):
            yield binary_frame(fields, 7, BODY, code, flag)
            yield json_frame(fields, 7, BODY, code, flag)
    for opaque in (0, 1, -1, 2**31 - 1, -(2**31)):
        yield from send(opaque=opaque)
    yield json_frame(fields, 2**31, BODY)


def _json_spellings() -> Iterator[bytes]:
    usual = json_frame(plain_fields(properties=KEY), 7, BODY)[8 : -len(BODY)].decode()
    properties = "UNIQ_KEY\\u0001A1\\u0002"
    assert properties in usual
    for old, new in (
        ("", ""), ('"code":310', '"code": 310'), ('"code":310', '"code":310.0'), ('"code":310', '"code":"310"'),
        ('"code":310', '"code":0310'), ('"code":310', '"code":3.1e2'), ('"code":310', '"code":-310'),
        ('"opaque":7', '"opaque":07'),
        ('"opaque":7', '"opaque":2147483647'), ('"opaque":7', '"opaque":2147483648'), ('"opaque":7', '"opaque":null'),
        ('"opaque":7', '"opaque":12345678901'), ('"version":493', '"version":-1'),
        ('"version":493', '"version":99999'),
        ('"version":493', '"version":493,"remark":"r"'), ('"version":493', '"version":493,"remark":null'),
        ('"version":493', '"version":493,"version":494'), ('"version":493', '"version":493,"x":1'),
        (',"version":493', ""),
        ('"version":493}', '"version":493} '), ('"version":493}', '"version":493}x'),
        ('"version":493}', '"version":493'),
        ('"version":493}', '"version":493,}'), ('{"code"', ' {"code"'), ('{"code"', '{,"code"'),
        ('"language":"JAVA"', '"language":"GO"'),
        ('"language":"JAVA"', '"language":"KLINGON"'), ('"language":"JAVA"', '"language":3'),
        ('"language":"JAVA",', ""),
        ('"serializeTypeCurrentRPC":"JSON",', ""),
        ('"serializeTypeCurrentRPC":"JSON"', '"serializeTypeCurrentRPC":"ROCKETMQ"'),
        ('"e":"0"', '"e":0'), ('"e":"0"', '"e":null'), ('"e":"0"', '"e":"\\u0030"'), ('"e":"0"', '"e":"0","e":"1"'),
        ('"e":"0"', '"e":["0"]'),
        ('"b":"plain"', '"b":"pl\\u0061in"'), ('"b":"plain"', '"\\u0062":"plain"'),
        ('"b":"plain"', '"b":"pl\\u00e9in"'),
        ('"b":"plain"', '"b":"plain\\u0000"'), ('"b":"plain"', '"b":"\\ud800"'), ('"b":"plain"', '"b":"plain\\'),
        ('"b":"plain"', '"b":"pla\\qin"'),
        ("A1", "A\\/1"), ("A1", "A\\u00411"), ("A1", 'A\\"1'), ("A1", "A\\n1"), ("A1", "A\\b\\f\\r\\t1"),
        ("A1", "A\\u001"), ("A1", "A\x011"),
        ("A1", "A\\u007F1"), ("A1", "A\\u00801"), ("A1", "A\\U00411"), ("A1", "A\\u004g1"), ("A1", "A\\u004é1"),
        ('"extFields":{', '"extFields":{ '), ('"extFields":{', '"extFields":{},"extFields":{'),
        ('"extFields":{', '"extfields":{},"extFields":{'),
        (properties, properties + "\\u0041" * 3000), (properties, properties + "x" * 8100),
        (properties, properties + "\\t" + "x" * 9000),
    ):  # fmt: skip
        assert old in usual
        header = (usual.replace(old, new) if old else usual).encode()
        yield _frame(header, 0)
    for cut in range(0, len(usual), 7):
        yield _frame(usual[:cut].encode(), 0)


def _binary_spellings() -> Iterator[bytes]:
    usual = binary_frame(plain_fields(properties=KEY), 7, BODY)[8 : -len(BODY)]
    fields_at = 21
    for at in (0, 2, 3, 5, 9, 13, 17, fields_at, fields_at + 3):
        size = 2 if at in (0, 3, fields_at) else 1 if at == 2 else 4
        word = int.from_bytes(usual[at : at + size])
        for changed in (0, 1, word - 1, word + 1, word + 1000, (1 << 8 * size) - 1, 1 << (8 * size - 1)):
            yield _frame(usual[:at] + (changed % (1 << 8 * size)).to_bytes(size) + usual[at + size :], 1)
    for cut in range(0, len(usual), 5):
        yield _frame(usual[:cut], 1)
        fields = usual[fields_at:cut]
        yield _frame(usual[: fields_at - 4] + struct.pack(">I", len(fields)) + fields, 1)
    for extra in (
        b"\0", b"\0\0", b"\0\1z", b"\0\1z\0\0\0\0", b"\0\0\0\0\0\1x", b"\0\1e\0\0\0\1" + b"1", b"\0\1z\xff\xff\xff\xff",
        b"\0\1\xff\0\0\0\1\xff", b"\0\1z\0\0\0\1\xff", b"\0\2zz\0\0\0\1\xff", b"\xff\xffz\0\0\0\0",
    ):  # fmt: skip
        fields = usual[fields_at:] + extra
        yield _frame(usual[: fields_at - 4] + struct.pack(">I", len(fields)) + fields, 1)


def _not_utf_8() -> Iterator[bytes]:
    """Yield binary headers with a field that is not UTF-8; producers of Java write a surrogate alone that way."""
    for name in "abcdefghijklmn":
        for value in (b"\xff", b"\xed\xa0\x80", b"plain\xc3", b"\xc3\xa9"):
            frame = binary_frame(plain_fields(properties=KEY) | {name: "#" * len(value)}, 7, BODY)
            yield frame.replace(b"#" * len(value), value)


def _frame(header: bytes, kind: int) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(BODY), kind << 24 | len(header)) + header + BODY


def _header_words() -> Iterator[bytes]:
    for frame in send():
        word = int.from_bytes(frame[4:8])
        for changed in (
            word + 1,
            word + 3,
            word + 4,
            word - 1,
            word | 7 << 24,
            word ^ 1 << 24,
            word & 0xFF000000,
            word + 100_000,
        ):
            yield frame[:4] + (changed & 0xFFFFFFFF).to_bytes(4) + frame[8:]


RULES: Final[Mapping[str, Callable[[], Iterator[bytes]]]] = {
    "topics": _topics,
    "queue ids": _queues,
    "bodies": _bodies,
    "stored sizes": _stored_sizes,
    "property lengths": _property_lengths,
    "unique keys": _unique_keys,
    "special words": _words,
    "tags": _tags,
    "waiting for the disk": _waits,
    "numbers": _numbers,
    "true and false": _flags,
    "missing fields": _missing_fields,
    "other fields": _other_fields,
    "heads": _heads,
    "JSON spellings": _json_spellings,
    "binary spellings": _binary_spellings,
    "texts that are not UTF-8": _not_utf_8,
    "lengths of headers": _header_words,
}
"""The frames of each rule."""
