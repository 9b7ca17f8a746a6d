"""Removes bodies, properties and credentials from frames before they are written.

A frame that cannot be decoded cannot be redacted, so it is left out completely.
"""

import hashlib
import hmac
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

import remoting.requests  # noqa: F401 - declares them all
from codec import properties as names
from codec.batch import encode_batch, split_batch
from codec.command import Command, decode_frame, encode_command
from codec.errors import FrameError, MessageFormatError
from codec.java_numbers import I32, parse_integer_or
from codec.message import Message, encode_message, iter_messages
from codec.properties import decode_properties, encode_properties
from codec.sysflag import COMPRESSED, COMPRESSION_MASK
from gateway.shadow.capture.settings import RedactionRule
from remoting.declare import REQUESTS
from remoting.requests.replication import GetReplicatedAccounts

CREDENTIAL_FIELDS: Final = ("AccessKey", "Signature", "SecurityToken", "secretKey")
"""Header fields that authenticate a request.

Source: SessionCredentials, CreateAccessConfigRequestHeader, 4.9.8 and 5.4.0.
"""
CREDENTIAL_BODY_CODES: Final = frozenset(
    (25, 26, 54, 318, 319, 1009, 1010, 3001, 3002, 3004, 3005, GetReplicatedAccounts.code)
)
"""Requests about users with passwords, and about configurations, which may contain passwords.

54 (GET_BROKER_CLUSTER_ACL_CONFIG) is answered with the accounts of plain_acl.yml by brokers before 5.x.
Neither the bodies of these requests nor those of their answers are written.
"""
SEND_CODES: Final = frozenset((10, 310, 320, 324, 325, 326))
BATCH_SEND_CODE: Final = 320
MESSAGE_REQUEST_CODES: Final = frozenset((39, 309))
"""Requests of a broker whose body is a message in commit log form."""
MESSAGE_ANSWER_CODES: Final = frozenset((11, 12, 33, 361, 200050, 200052, 200070))
_ORIGINAL_TOPIC_NAMES: Final = (names.REAL_TOPIC, names.RETRY_TOPIC, names.DLQ_ORIGIN_TOPIC)
_PROPERTIES, _SYS_FLAG, _BATCH_FLAG = ("i", "properties"), ("f", "sysFlag"), ("m", "batch")


class Redaction:
    """Applies redaction rules. A frame that needs no change is returned as the very same object."""

    def __init__(self, rules: list[RedactionRule]) -> None:
        self._rules = rules
        self._active = any(rule.body != "keep" or rule.properties for rule in rules)
        self._rule_of = lru_cache(maxsize=4096)(self._find_rule)

    def redact_request(self, command: Command, frame: bytes, topic: str) -> bytes:
        """Return the request as it may be written."""
        bodies_stay = not self._active and command.code not in CREDENTIAL_BODY_CODES
        if bodies_stay and command.ext.keys().isdisjoint(CREDENTIAL_FIELDS):
            return frame
        ext = {name: value for name, value in command.ext.items() if name not in CREDENTIAL_FIELDS}
        body = self._redact_request_body(command, ext, topic)
        if len(ext) == len(command.ext) and body is command.body and ext == command.ext:
            return frame
        return _encode_changed(command, ext, body)

    def redact_answer(self, code: int, frame: bytes, *, whole: bool = True) -> bytes:
        """Return the answer to a request of this code as it may be written; not ``whole``: without its body."""
        # With rules, the body of an unknown request could hold messages that no rule can reach.
        opaque_body = code in CREDENTIAL_BODY_CODES or (self._active and code not in REQUESTS)
        if whole and not opaque_body and not (self._active and code in MESSAGE_ANSWER_CODES):
            return frame
        try:
            command = decode_frame(frame, 4, len(frame))
        except FrameError:
            return b""
        body: bytes = bytes(command.body)
        if not whole or opaque_body:
            body = b""
        elif body:
            body = self._redact_stored(body)
        return frame if body == command.body else _encode_changed(command, command.ext, body)

    def _redact_request_body(self, command: Command, ext: dict[str, str], topic: str) -> bytes | memoryview:
        code, body = command.code, command.body
        if code in CREDENTIAL_BODY_CODES:
            return b""
        if not self._active:
            return body
        if code in SEND_CODES:
            return self._redact_send(command, ext, topic)
        if code in MESSAGE_REQUEST_CODES:
            return self._redact_stored(bytes(body)) if body else body
        return body if code in REQUESTS else b""

    def _redact_send(self, command: Command, ext: dict[str, str], topic: str) -> bytes | memoryview:
        """Return the redacted body of a send; its properties and flags are changed in ``ext``."""
        at = next((name for name in _PROPERTIES if name in ext), "properties")
        properties = decode_properties(ext.get(at, ""))
        rule = self._rule_of(_original_topic(topic, properties))
        if rule is None:
            return command.body
        if command.code == BATCH_SEND_CODE or any(
            ext.get(name, "").lower() == "true" for name in _BATCH_FLAG
        ):
            return self._redact_batch(bytes(command.body), rule)
        flag_at = next((name for name in _SYS_FLAG if name in ext), "sysFlag")
        flag = max(0, parse_integer_or(ext.get(flag_at), 0, I32))
        body, remaining_properties, new_flag = _apply_rule(rule, bytes(command.body), properties, flag)
        if remaining_properties != properties:
            ext[at] = encode_properties(remaining_properties).decode()
        if new_flag != flag:
            ext[flag_at] = str(new_flag)
        return command.body if body == command.body else body

    @staticmethod
    def _redact_batch(body: bytes, rule: RedactionRule) -> bytes:
        try:
            entries = []
            for flag, message_body, packed in split_batch(body):
                redacted_body, remaining_properties, _ = _apply_rule(
                    rule, message_body, decode_properties(packed), 0
                )
                entries.append((flag, redacted_body, encode_properties(remaining_properties)))
            return encode_batch(entries)
        except MessageFormatError:
            return b""

    def _redact_stored(self, body: bytes) -> bytes:
        """Redact messages in commit log form, each by the rule of its own topic."""
        try:
            return b"".join(map(self._redact_stored_message, iter_messages(body, check_crc=False)))
        except MessageFormatError:
            return b""

    def _redact_stored_message(self, message: Message) -> bytes:
        rule = self._rule_of(_original_topic(message.topic, message.properties))
        if rule is not None:
            message.body, message.properties, message.sys_flag = _apply_rule(
                rule, message.body, message.properties, message.sys_flag
            )
        return encode_message(message)

    def _find_rule(self, topic: str) -> RedactionRule | None:
        """Return the first rule whose topics match, None when that one keeps everything."""
        for rule in self._rules:
            if any(fnmatchcase(topic, pattern) for pattern in rule.topics):
                return None if rule.body == "keep" and not rule.properties else rule
        return None


def _apply_rule(
    rule: RedactionRule, body: bytes, properties: dict[str, str], sys_flag: int
) -> tuple[bytes, dict[str, str], int]:
    """Return body, properties and sys flag of a message after a rule was applied."""
    remaining = properties
    if rule.properties:
        remaining = {
            name: value
            for name, value in properties.items()
            if not any(fnmatchcase(name, pattern) for pattern in rule.properties)
        }
    if rule.body == "keep":
        return body, remaining, sys_flag
    # The new body is not compressed, whatever the old one was.
    plain_flag = sys_flag & ~(COMPRESSED | COMPRESSION_MASK)
    if rule.body == "drop":
        return b"", remaining, plain_flag
    if rule.body == "hash":
        return _hash_body(rule, body), remaining, plain_flag
    return _decompress_body(body, sys_flag)[: rule.truncate_bytes], remaining, plain_flag


def _hash_body(rule: RedactionRule, body: bytes) -> bytes:
    if rule.hash_key:
        return hmac.new(rule.hash_key.encode(), body, hashlib.sha256).hexdigest().encode()
    return hashlib.sha256(body).hexdigest().encode()


def _decompress_body(body: bytes, sys_flag: int) -> bytes:
    """Return the uncompressed body, b"" if that fails: a prefix of compressed bytes would be useless."""
    try:
        return Message("", body, sys_flag=sys_flag).decompressed_body()
    except MessageFormatError:
        return b""


def _original_topic(topic: str, properties: dict[str, str]) -> str:
    """Return the topic a message had before it moved to a retry, dead-letter or system topic."""
    return next((properties[name] for name in _ORIGINAL_TOPIC_NAMES if name in properties), topic)


def _encode_changed(command: Command, ext: dict[str, str], body: bytes | memoryview) -> bytes:
    return encode_command(
        Command(
            command.code,
            command.opaque,
            command.flag,
            ext,
            body,
            command.remark,
            command.language,
            command.version,
            command.binary,
        )
    )
