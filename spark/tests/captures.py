"""Capture files made by hand; no tests."""

from codec.batch import encode_batch
from codec.capture import BlockBuilder, CaptureRecord, encode_header, encode_index
from codec.command import Command, encode_command
from codec.message import Message, encode_message
from codec.properties import encode_properties, properties_text

EPOCH_MS = 1_700_000_000_000


def file_of(groups, *, closed=True, created_ms=EPOCH_MS, gateway="gw", run=7, level=1):
    """Return the bytes of a file with one block per group of records, and the blocks."""
    data, index = encode_header(created_ms, gateway, run), []
    for records in groups:
        block_data, block = block_of(records, len(data), level)
        data += block_data
        index.append(block)
    return data + (encode_index(len(data), index) if closed else b""), index


def block_of(records, position, level=1):
    """Return the bytes of a block at this position, and its description."""
    builder = BlockBuilder()
    for record in records:
        builder.add_record(record)
    return builder.build(position, level)


def frame(code, ext=None, body=b"", *, flag=0, remark=None, binary=False, language="JAVA"):
    return encode_command(Command(code, 1, flag, ext, body, remark, language, binary=binary))


def send(
    number, topic="orders", *, queue=0, at_ms=None, born_ms=None, properties=None, body=None, answer=0, target=0,
    **fields,
):  # fmt: skip
    """Return a record of a stored and mirrored send, with the offset `number` here and `number + 100` there."""
    all_properties = {
        "UNIQ_KEY": f"ID{number:06d}",
        "KEYS": f"key-{number % 5}",
        "TAGS": "a",
        **(properties or {}),
    }
    at_ms = EPOCH_MS + number if at_ms is None else at_ms
    ext = {
        "a": "PID", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0",
        "g": str(at_ms if born_ms is None else born_ms), "h": "3", "i": properties_text(all_properties), "j": "0",
    }  # fmt: skip
    stored = {"queueId": str(queue), "queueOffset": str(number), "msgId": f"7F{number:030X}"}
    there = {**stored, "queueOffset": str(number + 100)}
    values = {
        "code": 310,
        "request": frame(310, ext, b"body %d" % number if body is None else body),
        "answer": frame(
            answer, stored if answer == 0 else None, flag=1, remark=None if answer == 0 else "no"
        ),
        "target": None if target is None else frame(target, there, flag=1),
        "wall_ms": at_ms,
        "asked_us": number * 1000,
        "forwarded_us": 100 + number,
        "answered_us": 1000 + number,
        "target_us": 2000 + number,
        "connection": 1 + number % 3,
        "client": f"10.0.0.{1 + number % 3}:5000",
        "upstream": "10.0.0.9:10911",
        "broker": "broker-a",
        "topic": topic,
        "group": "PID",
        "fate": "mirrored",
        **fields,
    }
    return CaptureRecord(**values)


def batch_send(number, count=3, topic="orders"):
    """A batch as one record."""
    entries = [
        (0, b"part %d" % each, encode_properties({"UNIQ_KEY": f"B{number}-{each}"})) for each in range(count)
    ]
    ids = ",".join(f"7F{each:030X}" for each in range(count))
    plain = send(number, topic)
    ext = {"a": "PID", "b": topic, "e": "1", "f": "0", "g": str(EPOCH_MS), "h": "0", "i": "", "m": "true"}
    stored = {"queueId": "1", "queueOffset": str(number), "msgId": ids}
    return plain._replace(
        code=320, request=frame(320, ext, encode_batch(entries)), answer=frame(0, stored, flag=1), target=None
    )


def pull(number, messages, topic="orders", *, queue=0):
    """A pull that was answered with these messages."""
    ext = {"consumerGroup": "CID", "topic": topic, "queueId": str(queue), "queueOffset": str(number)}
    answer = frame(0, {"nextBeginOffset": "9"}, b"".join(map(encode_message, messages)), flag=1)
    return send(number, topic)._replace(
        code=11, request=frame(11, ext), answer=answer, target=None, fate="", target_us=0, group="CID"
    )


def stored(number, topic="orders", **fields):
    """Return a message as a broker stores it."""
    values = {
        "topic": topic,
        "body": b"stored %d" % number,
        "properties": {"UNIQ_KEY": f"S{number}", "TAGS": "b"},
        "queue_offset": number,
        "born_timestamp": EPOCH_MS,
        "store_timestamp": EPOCH_MS + 5,
        "born_host": ("10.0.0.1", 50000),
        "store_host": ("10.0.0.9", 10911),
        **fields,
    }
    return Message(**values)
