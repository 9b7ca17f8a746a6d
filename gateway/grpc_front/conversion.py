"""Converts messages, times and subscriptions between the protocol and brokers. Source: GrpcConverter, 5.4.0."""

import hashlib
from typing import Any, Final

from codec import properties as keys
from codec.hashing import java_hash
from codec.hosts import format_host
from codec.java_numbers import parse_integer_or
from codec.message import Message
from codec.sysflag import COMPRESSED
from gateway.broker.filters.message_filter import SQL92, SUBSCRIBE_ALL, TAG, split_tags
from gateway.grpc_front import messages
from gateway.grpc_front.statuses import StatusError
from remoting.bodies.heartbeat import SubscriptionData

_TIMED: Final = (keys.DELAY_TIME_LEVEL, keys.TIMER_DELIVER_MS, keys.TIMER_DELAY_SEC, keys.TIMER_DELAY_MS)


def to_grpc_message(message: Message, receipt_handle: str | None = None) -> messages.Message:
    """Return a message with its system properties."""
    properties = message.properties
    converted = messages.Message(
        topic=messages.Resource(name=message.topic),
        user_properties={name: value for name, value in properties.items() if name not in keys.RESERVED},
        body=message.body,
    )
    system = converted.system_properties
    if keys.TAGS in properties:
        system.tag = properties[keys.TAGS]
    system.keys.extend(message.keys)
    system.message_id = message.unique_key or message.msg_id
    system.body_digest.type = messages.MD5
    system.body_digest.checksum = hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = messages.GZIP if message.sys_flag & COMPRESSED else messages.IDENTITY
    system.message_type = _type_of(properties)
    set_ms(system.born_timestamp, message.born_timestamp)
    system.born_host = properties.get(keys.BORN_HOST) or message.born_host[0]
    set_ms(system.store_timestamp, message.store_timestamp)
    system.store_host = format_host(message.store_host)
    _set_delivery(system, properties, message.store_timestamp)
    if keys.SHARDING_KEY in properties:
        system.message_group = properties[keys.SHARDING_KEY]
    if receipt_handle is not None:
        system.receipt_handle = receipt_handle
    system.queue_id = message.queue_id
    system.queue_offset = message.queue_offset
    system.delivery_attempt = message.reconsume_times + 1
    if keys.TRACE_CONTEXT in properties:
        system.trace_context = properties[keys.TRACE_CONTEXT]
    if keys.DLQ_ORIGIN_TOPIC in properties and keys.DLQ_ORIGIN_MESSAGE_ID in properties:
        system.dead_letter_queue.topic = properties[keys.DLQ_ORIGIN_TOPIC]
        system.dead_letter_queue.message_id = properties[keys.DLQ_ORIGIN_MESSAGE_ID]
    return converted


def _type_of(properties: dict[str, str]) -> messages.MessageType:
    if properties.get(keys.TRANSACTION_PREPARED) == "true":
        return messages.TRANSACTION
    if any(name in properties for name in _TIMED):
        return messages.DELAY
    if keys.PRIORITY in properties:
        return messages.PRIORITY
    return messages.FIFO if keys.SHARDING_KEY in properties else messages.NORMAL


def _set_delivery(system: messages.SystemProperties, properties: dict[str, str], stored_ms: int) -> None:
    """Set the time for which the message was scheduled.

    Deviation: a delay in seconds counts from the time it was stored; in the official Proxy from now, so it changes with
    each delivery.
    """
    delay_s = parse_integer_or(properties.get(keys.TIMER_DELAY_SEC), -1)
    due_ms = parse_integer_or(properties.get(keys.TIMER_DELIVER_MS), -1)
    delay_ms = parse_integer_or(properties.get(keys.TIMER_DELAY_MS), -1)
    if delay_s >= 0:
        due_ms = stored_ms + delay_s * 1000
    elif due_ms < 0 <= delay_ms:
        due_ms = stored_ms + delay_ms
    if 0 <= due_ms < _MAX_TIMESTAMP_MS:
        set_ms(system.delivery_timestamp, due_ms)


_MAX_TIMESTAMP_MS: Final = 253_402_300_800_000
"""The year 10000, where timestamps of this format end."""


def to_ms(time: Any) -> int:
    """Return a Timestamp (since 1970) or a Duration in ms. Of values out of range, what they say."""
    return int(time.seconds) * 1000 + int(time.nanos) // 1_000_000


def set_ms(time: Any, milliseconds: int) -> None:
    """Set a Timestamp or a Duration."""
    time.seconds, rest_ms = divmod(milliseconds, 1000)
    time.nanos = rest_ms * 1_000_000


def subscription_to(topic: str, expression: messages.FilterExpression, version: int) -> SubscriptionData:
    """Return a subscription of a 5.x client as brokers know it, with the tags of its expression.

    Raises StatusError for an expression that is empty or names no tag. Source: FilterAPI.build, GrpcConverter, 5.4.0.
    """
    text = expression.expression
    if expression.type == messages.SQL:
        if not text.strip():
            raise StatusError(messages.ILLEGAL_FILTER_EXPRESSION, "the SQL expression is empty")
        return SubscriptionData(topic=topic, sub_string=text, sub_version=version, expression_type=SQL92)
    if not text.strip() or text == SUBSCRIBE_ALL:
        return SubscriptionData(topic=topic, sub_string=SUBSCRIBE_ALL, sub_version=version)
    tags = list(dict.fromkeys(split_tags(text)))
    if not tags:
        raise StatusError(messages.ILLEGAL_FILTER_EXPRESSION, f"the expression {text!r} names no tag")
    return SubscriptionData(
        topic=topic,
        sub_string=text,
        tags_set=tags,
        code_set=[java_hash(tag) for tag in tags],
        sub_version=version,
        expression_type=TAG,
    )
