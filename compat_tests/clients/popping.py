"""Helpers for pop consumption: requests, the receipt handles of popped messages, and acks like a stock client's."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from codec.message import Message, iter_messages
from compat_tests.clients.typed import send_readable
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.bodies.pop import BatchAck, BatchAckMessageRequestBody
from remoting.requests.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeMessageInvisibletime,
    ChangeMessageInvisibletimeReply,
    PopMessage,
    PopMessageReply,
)

BROKER_NAME = "broker-a"
ORDERED_REVIVE_QUEUE_ID = 999
POLLING_FULL, POLLING_TIMEOUT = 209, 210


@dataclass(slots=True)
class PoppedMessage:
    """A popped message with the topic it is stored in (a retry topic, for instance) and its receipt handle."""

    message: Message
    topic: str
    receipt: str

    @property
    def body(self) -> bytes:
        return self.message.body


def send_each(broker: BlockingClient, topic: str, bodies: Iterable[bytes], **fields: Any) -> None:
    """Send one message after the other, because a server may reorder concurrent sends.

    Returns once all can be read: the official server fills its queues after it has answered.
    """
    for body in bodies:
        send_readable(broker, topic, body, **fields)


def pop_request(topic: str, group: str, **fields: Any) -> PopMessage:
    """Return a pop request for all queues that does not wait and starts at the beginning of each queue."""
    values = {
        "queue_id": -1,
        "max_msg_nums": 32,
        "invisible_time": 60_000,
        "poll_time": 0,
        "born_time": 0,
        "init_mode": 0,
        "exp_type": "TAG",
        "exp": "*",
        "order": False,
        **fields,
    }
    return PopMessage(consumer_group=group, topic=topic, **values)


def pop(
    broker: BlockingClient, topic: str, group: str, *, timeout_s: float | None = None, **fields: Any
) -> PopMessageReply:
    return broker.ask(pop_request(topic, group, **fields), timeout_s=timeout_s)


def parse_popped(reply: PopMessageReply, topic: str, group: str) -> list[PoppedMessage]:
    """Return the messages of an answer with their receipt handles.

    Source: MQClientAPIImpl.processPopResponse, 5.4.0.
    """
    starts = parse_start_offsets(reply)
    result = []
    for message in iter_messages(reply.body):
        receipt = message.properties.get("POP_CK")
        if receipt is None:
            start = starts["0", message.queue_id]
            receipt = (
                f"{start} {reply.pop_time} {reply.invisible_time} {reply.revive_qid} 0 {BROKER_NAME} "
                f"{message.queue_id} {message.queue_offset}"
            )
        marks = {"0": topic, "1": f"%RETRY%{group}_{topic}", "2": f"%RETRY%{group}+{topic}"}
        result.append(PoppedMessage(message, marks[receipt.split(" ")[4]], receipt))
    return result


def parse_start_offsets(reply: PopMessageReply) -> dict[tuple[str, int], int]:
    """Return the start offset of each popped queue, keyed by topic kind ("0", "1", "2") and queue id."""
    parts = [part.split(" ") for part in (reply.start_offset_info or "").split(";") if part]
    return {(kind, int(queue)): int(start) for kind, queue, start in parts}


def pop_messages(broker: BlockingClient, topic: str, group: str, **fields: Any) -> list[PoppedMessage]:
    """Pop once and return the messages; [] if the pop found none."""
    reply = pop(broker, topic, group, **fields)
    return parse_popped(reply, topic, group) if reply.code == 0 else []


def pop_until(
    broker: BlockingClient, topic: str, group: str, count: int, timeout_s: float = 60, **fields: Any
) -> list[PoppedMessage]:
    """Pop until `count` messages have come."""
    messages: list[PoppedMessage] = []

    def look() -> bool:
        messages.extend(pop_messages(broker, topic, group, **fields))
        return len(messages) >= count

    eventually(look, timeout_s)
    return messages


def ack(broker: BlockingClient, group: str, message: PoppedMessage, **fields: Any) -> None:
    broker.ask(ack_request(group, message, **fields))


def ack_request(group: str, message: PoppedMessage, **fields: Any) -> AckMessage:
    values = {
        "topic": message.topic,
        "queue_id": message.message.queue_id,
        "extra_info": message.receipt,
        "offset": message.message.queue_offset,
        **fields,
    }
    return AckMessage(consumer_group=group, **values)


def batch_ack(broker: BlockingClient, group: str, topic: str, messages: Iterable[PoppedMessage]) -> None:
    """Acknowledge messages of several pops with one request."""
    batches: dict[tuple[str, ...], list[int]] = {}
    for message in messages:
        start, pop_time, invisible, revive, kind, _, queue, offset = message.receipt.split(" ")
        key = (start, pop_time, invisible, revive, kind, queue)
        batches.setdefault(key, []).append(int(offset) - int(start))
    acks = [_batch(group, topic, key, bits) for key, bits in batches.items()]
    broker.ask(BatchAckMessage(data=BatchAckMessageRequestBody(broker_name=BROKER_NAME, acks=acks)))


def _batch(group: str, topic: str, key: tuple[str, ...], bits: list[int]) -> BatchAck:
    start, pop_time, invisible, revive, kind, queue = key
    number = sum(1 << bit for bit in bits)
    packed = number.to_bytes((number.bit_length() + 7) // 8, "little")
    return BatchAck(
        consumer_group=group,
        topic=topic,
        retry=kind,
        start_offset=int(start),
        queue_id=int(queue),
        revive_queue_id=int(revive),
        pop_time=int(pop_time),
        invisible_time=int(invisible),
        bit_set=base64.b64encode(packed).decode(),
    )


def invisible_time_request(
    group: str, message: PoppedMessage, invisible_ms: int, **fields: Any
) -> ChangeMessageInvisibletime:
    values = {
        "topic": message.topic,
        "queue_id": message.message.queue_id,
        "extra_info": message.receipt,
        "offset": message.message.queue_offset,
        **fields,
    }
    return ChangeMessageInvisibletime(consumer_group=group, invisible_time=invisible_ms, **values)


def change_invisible_time(
    broker: BlockingClient, group: str, message: PoppedMessage, invisible_ms: int, **fields: Any
) -> ChangeMessageInvisibletimeReply:
    """Change the invisible time of a message and update its receipt handle."""
    reply = broker.ask(invisible_time_request(group, message, invisible_ms, **fields))
    parts = message.receipt.split(" ")
    start = parts[0] if reply.revive_qid == ORDERED_REVIVE_QUEUE_ID else parts[7]
    parts[:4] = [start, str(reply.pop_time), str(reply.invisible_time), str(reply.revive_qid)]
    message.receipt = " ".join(parts)
    return reply
