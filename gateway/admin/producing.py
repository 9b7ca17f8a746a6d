"""Sends messages, from arguments, files or standard input, to the queues of a topic in turn."""

import base64
import binascii
import itertools
import os
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import orjson

from codec import properties as names
from codec.hashing import java_hash
from codec.ids import make_unique_key
from codec.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, properties_text
from codec.topics import DEFAULT_TOPIC, PERM_WRITE
from gateway.admin.errors import AdminError, Refused
from remoting.requests.send import SendMessageReply, SendMessageV2
from toolkit.times import elapsed_in_month_ms

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

PRODUCER_GROUP: Final = "TOOLS_PRODUCER"
MAX_BATCH_MESSAGES: Final = 200
MAX_BATCH_BYTES: Final = 1024 * 1024
"""Maximum size of a batch, and so of the messages in memory."""
_READ_BYTES: Final = 256 * 1024
_JSON_KEYS: Final = frozenset(
    {"value", "valueBase64", "key", "keys", "tag", "properties", "delayMs", "shardingKey"}
)


class InputError(AdminError):
    """Input that cannot be read as a message."""


@dataclass(frozen=True, slots=True)
class ProducedMessage:
    """A message to send; ``queue`` and ``broker`` choose its queue."""

    value: bytes
    keys: tuple[str, ...] = ()
    tag: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_ms: int = 0
    delay_level: int = 0
    deliver_at_ms: int = 0
    sharding_key: str = ""
    queue: int | None = None
    broker: str = ""

    def all_properties(self, unique_key: str) -> dict[str, str]:
        """Return the properties to send. Raises InputError for a reserved name, or a separator in a text."""
        for name, value in self.properties.items():
            if name in names.RESERVED:
                raise InputError(f'property "{name}" is reserved by the system; use another name')
            if any(mark in name + value for mark in (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR)):
                raise InputError(
                    f'property "{name}" contains the character \\x01 or \\x02, which separate properties'
                )
        wire_properties = dict(self.properties)
        wire_properties[names.UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = unique_key
        wire_properties[names.WAIT_STORE_MSG_OK] = "true"
        optional = {
            names.KEYS: names.KEY_SEPARATOR.join(self.keys),
            names.TAGS: self.tag,
            names.DELAY_TIME_LEVEL: str(self.delay_level) if self.delay_level else "",
            names.TIMER_DELAY_MS: str(self.delay_ms) if self.delay_ms else "",
            names.TIMER_DELIVER_MS: str(self.deliver_at_ms) if self.deliver_at_ms else "",
            names.SHARDING_KEY: self.sharding_key,
        }
        for name in (names.KEYS, names.TAGS, names.SHARDING_KEY):
            if any(mark in optional[name] for mark in (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR)):
                raise InputError(f"{name} contains the character \\x01 or \\x02, which separate properties")
        return wire_properties | {name: text for name, text in optional.items() if text}


@dataclass(frozen=True, slots=True)
class SentMessage:
    """The queue and offset of one stored message."""

    topic: str
    broker: str
    reply: SendMessageReply
    unique_key: str

    def to_dict(self) -> dict[str, Any]:
        """Return them as a JSON object."""
        return {
            "topic": self.topic,
            "broker": self.broker,
            "queue": self.reply.queue_id,
            "offset": self.reply.queue_offset,
            "messageId": self.reply.msg_id,
            "uniqueKey": self.unique_key,
            "recallHandle": self.reply.recall_handle,
        }


class TopicSender:
    """Sends messages to one topic. Raises NotFound at construction for a topic that does not exist."""

    def __init__(self, client: "AdminClient", topic: str) -> None:
        self._client = client
        self._topic = topic
        self._queues = [
            (data.broker_name, queue)
            for data in sorted(client.route(topic).queue_datas, key=lambda queue_data: queue_data.broker_name)
            if data.perm & PERM_WRITE and data.broker_name in client.masters
            for queue in range(data.write_queue_nums)
        ]
        if not self._queues:
            raise AdminError(
                f'topic "{topic}" has no writable queue; see "rmq-gateway topic describe {topic}"'
            )
        self._turn = secrets.randbelow(len(self._queues))
        self._keys = itertools.count(secrets.randbelow(0x10000))
        self._process_key = secrets.randbits(32)

    def send(self, messages: Iterable[ProducedMessage]) -> Iterator[SentMessage]:
        """Send messages in batches and yield the result of each. Raises the error of the first refused one."""
        for batch in split_batches(messages):
            yield from self._send_batch(batch)

    def _send_batch(self, batch: list[ProducedMessage]) -> Iterator[SentMessage]:
        """Send each queue's messages one after the other, and those of different queues at once.

        Official brokers store requests that arrive together in any order.
        """
        waiting: dict[tuple[str, int], deque[tuple[str, SendMessageV2]]] = {}
        for message in batch:
            broker, queue = self._choose_queue(message)
            waiting.setdefault((broker, queue), deque()).append(self._request(message, broker, queue))
        while waiting:
            by_broker: dict[str, list[tuple[str, SendMessageV2]]] = {}
            for (broker, queue), requests in list(waiting.items()):
                by_broker.setdefault(broker, []).append(requests.popleft())
                if not requests:
                    del waiting[broker, queue]
            for broker, next_requests in by_broker.items():
                yield from self._send_together(broker, next_requests)

    def _send_together(self, broker: str, requests: list[tuple[str, SendMessageV2]]) -> Iterator[SentMessage]:
        replies = self._client.ask_many(self._client.master(broker), [request for _, request in requests])
        for (unique_key, _), reply in zip(requests, replies, strict=True):
            if isinstance(reply, Refused):
                raise reply
            yield SentMessage(self._topic, broker, reply, unique_key)

    def _choose_queue(self, message: ProducedMessage) -> tuple[str, int]:
        candidates = self._queues
        if message.queue is not None or message.broker:
            candidates = [
                (broker, queue)
                for broker, queue in candidates
                if (not message.broker or broker == message.broker)
                and (message.queue is None or queue == message.queue)
            ]
            if not candidates:
                queue_text = f"queue {message.queue}" if message.queue is not None else "writable queue"
                broker_text = f" on {message.broker}" if message.broker else ""
                raise AdminError(f'topic "{self._topic}" has no {queue_text}{broker_text}')
        if message.sharding_key:
            return candidates[java_hash(message.sharding_key) % len(candidates)]
        self._turn += 1
        return candidates[self._turn % len(candidates)]

    def _request(self, message: ProducedMessage, broker: str, queue: int) -> tuple[str, SendMessageV2]:
        now_ms = round(time.time() * 1000)
        elapsed_ms = elapsed_in_month_ms(now_ms)
        unique_key = make_unique_key(
            "127.0.0.1", os.getpid(), self._process_key, elapsed_ms, next(self._keys)
        )
        request = SendMessageV2(
            producer_group=PRODUCER_GROUP,
            topic=self._topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue,
            sys_flag=0,
            born_timestamp=now_ms,
            flag=0,
            properties=properties_text(message.all_properties(unique_key)),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name=broker,
        )
        request.body = message.value
        return unique_key, request


def split_batches(messages: Iterable[ProducedMessage]) -> Iterator[list[ProducedMessage]]:
    """Yield the messages in lists that are sent at once."""
    batch: list[ProducedMessage] = []
    size = 0
    for message in messages:
        if batch and size + len(message.value) > MAX_BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message.value)
        if len(batch) == MAX_BATCH_MESSAGES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# -- input ---------------------------------------------------------------------------------------------------------


def read_records(stream: BinaryIO, delimiter: bytes) -> Iterator[bytes]:
    """Yield the parts of a stream between delimiters, as soon as each is complete, without an empty last one."""
    if delimiter == b"\n":
        for line in stream:
            yield line.removesuffix(b"\n")
        return
    rest = b""
    read = getattr(stream, "read1", stream.read)
    while data := read(_READ_BYTES):
        *records, rest = (rest + data).split(delimiter)
        yield from records
    if rest:
        yield rest


def parse_line(record: bytes, template: ProducedMessage, key_delimiter: bytes | None) -> ProducedMessage:
    """Return the message of one line, whose key, if any, stands before the key delimiter."""
    if key_delimiter is None:
        return replace(template, value=record)
    key, separator, value = record.partition(key_delimiter)
    if not separator:
        return replace(template, value=record)
    return replace(template, value=value, keys=(*template.keys, *key.decode("utf-8", "replace").split()))


def parse_json_line(record: bytes, template: ProducedMessage, number: int) -> ProducedMessage:
    """Return the message of one JSON line, whose keys override the flags. Raises InputError, which names the line.

    Other keys, such as the offset in the output of `consume --json`, are ignored.
    """
    try:
        fields = orjson.loads(record)
        if not isinstance(fields, dict):
            raise ValueError("expected an object")
        if not fields.keys() & _JSON_KEYS:
            raise ValueError(f"expected one of the keys {', '.join(sorted(_JSON_KEYS))}")
        return _from_json(fields, template)
    except (ValueError, TypeError) as error:
        raise InputError(f"line {number} of the input is not a message: {error}") from None


def _from_json(fields: dict[str, Any], template: ProducedMessage) -> ProducedMessage:
    keys = fields.get("keys", fields.get("key"))
    if isinstance(keys, str):
        keys = [keys]
    properties = fields.get("properties") or {}
    for name, kind, value in (
        ("keys", list, keys),
        ("tag", str, fields.get("tag")),
        ("properties", dict, properties),
        ("shardingKey", str, fields.get("shardingKey")),
        ("delayMs", int, fields.get("delayMs")),
    ):
        if value is not None and not isinstance(value, kind):
            raise TypeError(f'"{name}" must be a {kind.__name__}')
    return replace(
        template,
        value=_value_of(fields),
        keys=tuple(map(str, keys)) if keys else template.keys,
        tag=fields.get("tag") or template.tag,
        properties={**template.properties, **{name: str(text) for name, text in properties.items()}},
        sharding_key=fields.get("shardingKey") or template.sharding_key,
        delay_ms=fields.get("delayMs") or template.delay_ms,
    )


def _value_of(fields: dict[str, Any]) -> bytes:
    encoded = fields.get("valueBase64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ValueError('"valueBase64" is not base 64') from None
    value = fields.get("value", "")
    return value.encode() if isinstance(value, str) else orjson.dumps(value)
