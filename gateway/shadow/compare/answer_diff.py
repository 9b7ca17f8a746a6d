"""The differences between two answers to the same request that a client could notice.

Answers are compared as leaves (`answer_fields.py`); fields that may differ are left out (`expected_differences.py`).
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from codec.command import Command
from codec.errors import MessageFormatError
from codec.java_numbers import parse_integer_or
from codec.message import Message, iter_messages
from gateway.shadow.compare.answer_fields import (
    ABSENT,
    EMPTY,
    Leaf,
    OpaqueBytes,
    body_leaves,
    format_value,
    header_leaves,
    message_leaves,
)
from gateway.shadow.compare.entries import parse_entries
from gateway.shadow.compare.expected_differences import (
    CONSUMER_TOPIC_PREFIXES,
    MESSAGE_LIST_CODES,
    PULL_CODES,
    UNSET_REMARK,
    find_expected_difference,
    request_name,
)

MAX_COMPARED_REMARK_CHARS: Final = 1_000
"""Longer remarks are compared up to here. The search for addresses in them takes time quadratic in the length."""
MAX_PLACE_CHARS: Final = 1_000
MAX_PATH_CHARS: Final = 200
MAX_COMPARED_MESSAGES: Final = 1_024
MAX_DIFFERENCES: Final = 50
"""Differences reported for one pair of answers; further ones are left out."""
_CONSUMER_TOPIC_PLACE = re.compile(
    rf"[\[{{](?:topic=|[^\]}}]*,topic=)?(?:{'|'.join(CONSUMER_TOPIC_PREFIXES)})"
)
_ADDRESS = re.compile(r"\[?[0-9a-fA-F:.]*[0-9a-fA-F]\]?:\d{1,5}\b")
_SUCCESS = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs between two answers. Values are those of `format_value`: bounded, no bodies.

    `path` names the field for counting, `at` is the exact place of this example.
    """

    code: int
    path: str
    at: str
    primary: str
    target: str

    @property
    def request(self) -> str:
        """The official name of the request."""
        return request_name(self.code)


@dataclass(frozen=True, slots=True)
class ComparisonTerms:
    """Facts about the target that decide which differences count.

    `same_offsets`: the target stores messages at the primary's queue offsets. `target_broker_names` maps the primary's
    broker names to the target's. `longer_remarks_allowed`: the target may append text to the primary's remark, as our
    broker does.
    """

    same_offsets: bool = False
    target_broker_names: Mapping[str, str] | None = None
    longer_remarks_allowed: bool = False


SAME_SERVER: Final = ComparisonTerms(same_offsets=True)
"""The terms for two answers of one server."""


def diff_answers(
    code: int, primary: Command, target: Command, terms: ComparisonTerms, max_body_bytes: float = math.inf
) -> list[Difference]:
    """Return the differences between two answers to a request with this code, at most `MAX_DIFFERENCES`.

    Expected differences are left out. A body of more than ``max_body_bytes`` is compared as one value.
    """
    if max(len(primary.body), len(target.body)) <= max_body_bytes and _equal_bytes(
        code, primary, target, terms
    ):
        return []
    differences: list[Difference] = []
    try:
        for path, at, primary_value, target_value in _iter_differences(
            code, primary, target, terms, max_body_bytes
        ):
            if find_expected_difference(
                code, path, same_offsets=terms.same_offsets
            ) is None and not _CONSUMER_TOPIC_PLACE.search(at[:MAX_PLACE_CHARS]):
                texts = format_value(path, primary_value), format_value(path, target_value)
                differences.append(Difference(code, path[:MAX_PATH_CHARS], at[:MAX_PLACE_CHARS], *texts))
                if len(differences) == MAX_DIFFERENCES:
                    break
    except RecursionError:  # an answer that is nested too deeply: no server writes such a thing
        differences.append(Difference(code, "body", "body", "nested too deeply", "nested too deeply"))
    return differences


def _equal_bytes(code: int, primary: Command, target: Command, terms: ComparisonTerms) -> bool:
    """Tell whether everything that is compared has identical bytes.

    Most answers do, and this check takes a tenth of the time of a full comparison.
    """
    if primary.code != target.code or primary.remark != target.remark:
        return False
    primary_fields, target_fields = primary.ext, target.ext
    if any(
        primary_fields.get(name) != target_fields.get(name)
        and find_expected_difference(code, name, same_offsets=terms.same_offsets) is None
        for name in {**primary_fields, **target_fields}
    ):
        return False
    if primary.body == target.body:
        # Equal bodies differ if broker names in them must be translated.
        return not (primary.body and terms.target_broker_names)
    return code in PULL_CODES and _same_messages(primary, target, terms.same_offsets)


def _same_messages(primary: Command, target: Command, same_offsets: bool) -> bool:
    """Tell whether two pulls returned the same messages, as far as both answers reach.

    Returns False also when only a full comparison can tell.
    """
    try:
        primary_entries, target_entries = (
            list(
                islice(parse_entries(bytes(primary.body), same_offsets=same_offsets), MAX_COMPARED_MESSAGES)
            ),
            list(islice(parse_entries(bytes(target.body), same_offsets=same_offsets), MAX_COMPARED_MESSAGES)),
        )
    except MessageFormatError:
        return False
    if same_offsets:
        # Each server decides how many messages fit an answer. Only the part that both reached counts.
        end = min(_next_offset(primary), _next_offset(target))
        primary_entries, target_entries = (
            [entry for entry in entries if entry.offset < end]
            for entries in (primary_entries, target_entries)
        )
        if len(primary_entries) != len(target_entries):
            return False
    if not primary_entries or not target_entries:
        return primary_entries == target_entries
    return all(
        primary_entry.digest == target_entry.digest
        and primary_entry.identity == target_entry.identity
        and (not same_offsets or primary_entry.offset == target_entry.offset)
        for primary_entry, target_entry in zip(primary_entries, target_entries, strict=False)
    )


LeafPair = tuple[str, str, Any, Any]


def _iter_differences(
    code: int, primary: Command, target: Command, terms: ComparisonTerms, max_body_bytes: float
) -> Iterator[LeafPair]:
    if primary.code != target.code:
        yield "code", "code", _describe_code(primary), _describe_code(target)
        return
    if not _same_remark(primary.remark, target.remark, terms):
        yield "remark", "remark", primary.remark or ABSENT, target.remark or ABSENT
    yield from _diff_leaves(header_leaves(code, primary.ext), header_leaves(code, target.ext))
    if max(len(primary.body), len(target.body)) > max_body_bytes:
        if primary.body != target.body:
            yield "body", "body", _describe_large(primary.body), _describe_large(target.body)
    elif code in MESSAGE_LIST_CODES and primary.code == _SUCCESS:
        yield from _diff_messages(code, primary, target, terms)
    else:
        rename = terms.target_broker_names or {}
        primary_leaves, target_leaves = (
            body_leaves(code, primary.body, rename),
            body_leaves(code, target.body, {}),
        )
        yield from _diff_leaves(primary_leaves, target_leaves)


def _describe_large(body: bytes | memoryview) -> str:
    return f"{len(body)} bytes, too many to compare by field"


def _describe_code(answer: Command) -> str:
    return f"{answer.code} {answer.remark}" if answer.remark else str(answer.code)


def _same_remark(primary: str | None, target: str | None, terms: ComparisonTerms) -> bool:
    # Empty and absent are the same: the official decoder turns both into null.
    primary_text, target_text = (
        ""
        if remark in (None, UNSET_REMARK)
        else _ADDRESS.sub("<address>", remark[:MAX_COMPARED_REMARK_CHARS])
        for remark in (primary, target)
    )
    return primary_text == target_text or (
        terms.longer_remarks_allowed and primary_text != "" and target_text.startswith(primary_text)
    )


def _diff_leaves(primary: Iterable[Leaf], target: Iterable[Leaf]) -> Iterator[LeafPair]:
    target_leaves = {leaf.at: leaf for leaf in target}
    for path, at, value in primary:
        other = target_leaves.pop(at, None)
        if other is None:
            if value is not EMPTY:
                yield path, at, value, ABSENT
        elif other.value != value or isinstance(other.value, bool) != isinstance(value, bool):
            yield path, at, value, other.value
    for path, at, value in target_leaves.values():
        if value is not EMPTY:
            yield path, at, ABSENT, value


def _diff_messages(
    code: int, primary: Command, target: Command, terms: ComparisonTerms
) -> Iterator[LeafPair]:
    try:
        primary_messages, target_messages = (
            list(islice(iter_messages(body), MAX_COMPARED_MESSAGES)) for body in (primary.body, target.body)
        )
    except MessageFormatError:
        if primary.body != target.body:
            yield (
                "messages",
                "messages",
                OpaqueBytes.from_bytes(primary.body),
                OpaqueBytes.from_bytes(target.body),
            )
        return
    at_primary, at_target = (
        _messages_by_name(primary_messages, terms.same_offsets),
        _messages_by_name(target_messages, terms.same_offsets),
    )
    if code in PULL_CODES:
        at_primary, at_target = _common_part(at_primary, at_target, primary, target, terms.same_offsets)
    yield from _diff_presence(at_primary, at_target)
    yield from _diff_order(at_primary, at_target)
    for name, message in at_primary.items():
        if name in at_target:
            yield from _diff_leaves(
                message_leaves(message, name, same_offsets=terms.same_offsets),
                message_leaves(at_target[name], name, same_offsets=terms.same_offsets),
            )


MessagesByName = dict[str, Message]


def _messages_by_name(messages: Iterable[Message], same_offsets: bool) -> MessagesByName:
    """Key messages by queue and offset if the target has the primary's offsets, else by unique key.

    Copies of one message get a number.
    """
    named: MessagesByName = {}
    copies: Counter[str] = Counter()
    for message in messages:
        position = f"{message.queue_id}:{message.queue_offset}"
        name = (
            position
            if same_offsets
            else message.unique_key or OpaqueBytes.from_bytes(message.body).digest.hex()
        )
        copies[name] += 1
        named[name if copies[name] == 1 else f"{name}#{copies[name]}"] = message
    return named


def _common_part(
    at_primary: MessagesByName,
    at_target: MessagesByName,
    primary: Command,
    target: Command,
    same_offsets: bool,
) -> tuple[MessagesByName, MessagesByName]:
    """Return the messages that both pulls reach, since each server decides how many messages an answer has."""
    if same_offsets:
        end = min(_next_offset(primary), _next_offset(target))
        return _below_offset(at_primary, end), _below_offset(at_target, end)
    common = [name for name in at_primary if name in at_target]
    if not common:
        return at_primary, at_target
    return _between_common(at_primary, common), _between_common(at_target, common)


def _next_offset(answer: Command) -> int:
    return parse_integer_or(answer.ext.get("nextBeginOffset"), 0)


def _below_offset(named: MessagesByName, end: int) -> MessagesByName:
    return {name: message for name, message in named.items() if message.queue_offset < end}


def _between_common(named: MessagesByName, common: list[str]) -> MessagesByName:
    """Return the messages from the first to the last common one.

    The pull's offset may have been mapped to an earlier one, so messages before the first common one do not count.
    """
    names = list(named)
    place_of = {name: index for index, name in enumerate(names)}
    places = [place_of[name] for name in common]
    return {name: named[name] for name in names[min(places) : max(places) + 1]}


def _diff_presence(at_primary: MessagesByName, at_target: MessagesByName) -> Iterator[LeafPair]:
    for name in at_primary:
        if name not in at_target:
            yield "messages[]", f"messages[{name}]", "present", ABSENT
    for name in at_target:
        if name not in at_primary:
            yield "messages[]", f"messages[{name}]", ABSENT, "present"


def _diff_order(at_primary: MessagesByName, at_target: MessagesByName) -> Iterator[LeafPair]:
    """Compare the order of messages queue by queue: the order of messages of different queues means nothing."""
    for queue_id in {message.queue_id for message in at_primary.values()}:
        primary_names, target_names = (
            [name for name in side if name in other and side[name].queue_id == queue_id]
            for side, other in ((at_primary, at_target), (at_target, at_primary))
        )
        # The first difference is enough: all later messages of the queue are displaced by it.
        for primary_name, target_name in zip(primary_names, target_names, strict=False):
            if primary_name != target_name:
                yield "messages[].order", f"messages[{primary_name}].order", primary_name, target_name
                break
