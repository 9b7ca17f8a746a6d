"""Picks the exchanges to capture by rules, and turns an exchange into a record."""

import zlib
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

import remoting.requests  # noqa: F401 - declares them all
from codec.capture import CaptureRecord
from codec.command import Command, encode_command
from codec.errors import FrameError
from gateway.shadow.capture.redaction import Redaction
from gateway.shadow.capture.settings import CaptureRule, CaptureSettings
from gateway.shadow.traffic.exchange import ALL_CODES, Codes, Exchange, Side
from gateway.shadow.traffic.outcome import Outcome
from remoting.declare import REQUESTS

TOPIC_NAMES = ("topic", "origin_topic", "parent_topic")
GROUP_NAMES = ("consumer_group", "producer_group", "group", "group_name", "src_group")
QUEUE_NAMES = ("queue_id",)


class SubjectFields(NamedTuple):
    """Names of the header fields, on the wire, that hold topic, group and queue; the first that a request has counts.

    `gateway.shadow.traffic.subject` finds more about fewer codes, such as the offset at which a send was stored.
    """

    topic: tuple[str, ...]
    group: tuple[str, ...]
    queue: tuple[str, ...]


# An undeclared request may still use the names that most requests use.
_USUAL_FIELDS = SubjectFields(("topic",), ("consumerGroup", "producerGroup", "group"), ("queueId",))


@lru_cache(maxsize=1024)
def subject_fields(code: int) -> SubjectFields:
    """Return the names of the fields in which requests of this code name their subject."""
    declared = REQUESTS.get(code)
    if declared is None:
        return _USUAL_FIELDS
    by_name = {item.name: item.wire for item in declared.WIRE_FIELDS}

    def present(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(by_name[name] for name in names if name in by_name)

    return SubjectFields(present(TOPIC_NAMES), present(GROUP_NAMES), present(QUEUE_NAMES))


def declared_topic(command: Command) -> str:
    """Return the topic a request names, "" for none."""
    return _first_field(command, subject_fields(command.code).topic)


def declared_group(command: Command) -> str:
    """Return the producer or consumer group a request names, "" for none."""
    return _first_field(command, subject_fields(command.code).group)


def declared_queue_id(command: Command) -> str:
    """Return the queue id a request names as text, "" for none."""
    return _first_field(command, subject_fields(command.code).queue)


def _first_field(command: Command, names: tuple[str, ...]) -> str:
    for name in names:
        value = command.ext.get(name)
        if value:
            return value
    return ""


_EVERYTHING = CaptureRule()
MAX_CACHED_CHARS = 1024


class CaptureSelection:
    """The rules of a capture. Used by one thread at a time."""

    def __init__(self, settings: CaptureSettings) -> None:
        self._rules = settings.rules or [_EVERYTHING]
        self._redaction = Redaction(settings.redact)
        self._rule_for = lru_cache(maxsize=4096)(self._find_rule)

    def codes(self) -> Codes:
        """Return the request codes that any rule may select."""
        if any(not rule.codes and rule.sample for rule in self._rules):
            return ALL_CODES
        return frozenset(code for rule in self._rules if rule.sample for code in rule.codes)

    def make_record(self, exchange: Exchange, outcome: Outcome | None) -> CaptureRecord | None:
        """Return the record of an exchange, None when no rule selects it or it is not in the sample."""
        try:
            command = exchange.request_command
        except FrameError:
            return self._make_unreadable_record(exchange)
        topic, group = declared_topic(command), declared_group(command)
        # Names that no broker accepts would make the cache large.
        find_rule = self._rule_for if len(topic) + len(group) <= MAX_CACHED_CHARS else self._find_rule
        rule = find_rule(topic, group, exchange.code)
        if rule is None or not _is_sampled(rule, exchange, command, topic):
            return None
        request = self._redaction.redact_request(command, exchange.request, topic)
        answer = exchange.answer
        if answer is not None:
            answer = self._answer_frame(exchange.code, answer, rule)
        redacted = request is not exchange.request or answer is not exchange.answer
        return _build_record(
            exchange, outcome, request, answer, topic, group, self._target_frame(outcome, rule), redacted
        )

    def _make_unreadable_record(self, exchange: Exchange) -> CaptureRecord | None:
        """Return a record without the bytes of an undecodable request, which could contain anything, even credentials.

        Only a rule for all topics and groups selects such a request.
        """
        rule = self._rule_for("", "", exchange.code)
        if rule is None or not rule.sample:
            return None
        return _build_record(exchange, None, b"", None, "", "", None, True)

    def _answer_frame(self, code: int, frame: bytes, rule: CaptureRule) -> bytes | None:
        if rule.answers == "none":
            return None
        return self._redaction.redact_answer(code, frame, whole=rule.answers == "whole")

    def _target_frame(self, outcome: Outcome | None, rule: CaptureRule) -> bytes | None:
        if outcome is None or outcome.answer is None:
            return None
        return self._answer_frame(outcome.exchange.code, encode_command(outcome.answer), rule)

    def _find_rule(self, topic: str, group: str, code: int) -> CaptureRule | None:
        for rule in self._rules:
            if rule.codes and code not in rule.codes:
                continue
            if _matches_any(topic, rule.topics) and _matches_any(group, rule.groups):
                return rule
        return None


def _build_record(
    exchange: Exchange,
    outcome: Outcome | None,
    request: bytes,
    answer: bytes | None,
    topic: str,
    group: str,
    target: bytes | None,
    redacted: bool,
) -> CaptureRecord:
    asked_s = exchange.asked_s
    return CaptureRecord(
        exchange.code,
        request,
        answer,
        target,
        exchange.wall_ms,
        round(asked_s * 1e6),
        round((exchange.forwarded_s - asked_s) * 1e6),
        round((exchange.answered_s - exchange.forwarded_s) * 1e6),
        0 if outcome is None else round(outcome.latency_s * 1e6),
        exchange.connection,
        exchange.client,
        exchange.upstream,
        exchange.broker,
        topic,
        group,
        "" if outcome is None else outcome.kind.value,
        exchange.reverse,
        exchange.side is Side.TARGET,
        redacted,
    )


def _matches_any(text: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _is_sampled(rule: CaptureRule, exchange: Exchange, command: Command, topic: str) -> bool:
    """Return whether an exchange is in the sample; the same for all exchanges of a connection, or of a queue."""
    if rule.sample >= 1:
        return True
    if rule.sample_by == "queue":
        sampled_unit = f"{exchange.broker} {topic} {declared_queue_id(command)}"
    else:
        sampled_unit = f"{exchange.client} {exchange.connection}"
    return zlib.crc32(sampled_unit.encode("utf-8", "replace")) < rule.sample * 2**32
