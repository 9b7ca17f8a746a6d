"""Two answers to the same request side by side: what differs that a client could notice.

Not responsible for getting the answers, nor for counting differences (comparer.py).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from codec.command import Command
from codec.errors import MessageFormatError
from codec.message import Message, iter_messages
from gateway.shadow.compare.answer_fields import (
    ABSENT,
    EMPTY,
    Leaf,
    Opaque,
    body_leaves,
    header_leaves,
    message_leaves,
    shown,
)
from gateway.shadow.compare.entries import entries
from gateway.shadow.compare.expected_differences import (
    CONSUMERS_OWN,
    LEFT_OVER_REMARK,
    PULLS,
    WITH_MESSAGES,
    mask,
    request_name,
)

MAX_DIFFERENCES: Final = 50
"""So many differences of one pair of answers are told, no more."""
_CONSUMERS_OWN = re.compile(rf"[\[{{](?:topic=|[^\]}}]*,topic=)?(?:{'|'.join(CONSUMERS_OWN)})")
_ADDRESS = re.compile(r"\[?[0-9a-fA-F:.]*[0-9a-fA-F]\]?:\d{1,5}\b")
_SUCCESS = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that two answers do not share. Values are as `fields.shown` gives them: bounded, no bodies.

    `path` names the field for counting, `at` the place of this example.
    """

    code: int
    path: str
    at: str
    primary: str
    target: str

    @property
    def name(self) -> str:
        """The request's official name."""
        return request_name(self.code)


@dataclass(frozen=True, slots=True)
class Terms:
    """How two clusters are compared.

    `kept`: the target has the primary's queue offsets. `rename`: the primary's broker names as the target has them.
    `words_added`: the target may say more after the primary's remark, as our server does.
    """

    kept: bool = False
    rename: Mapping[str, str] | None = None
    words_added: bool = False


SAME: Final = Terms(kept=True)
"""The terms of two answers of one server."""


def compare(code: int, primary: Command, target: Command, terms: Terms) -> list[Difference]:
    """What differs in the answers to a request with this code, masked fields left out; at most `MAX_DIFFERENCES`."""
    if _plainly_same(code, primary, target, terms):
        return []
    found = (
        Difference(code, path, at, shown(path, ours), shown(path, theirs))
        for path, at, ours, theirs in _differing(code, primary, target, terms)
        if mask(code, path, kept=terms.kept) is None and not _CONSUMERS_OWN.search(at)
    )
    return list(islice(found, MAX_DIFFERENCES))


def _plainly_same(code: int, primary: Command, target: Command, terms: Terms) -> bool:
    """Whether all that is compared has the very same bytes: most answers do, and this takes a tenth of the time."""
    if primary.code != target.code or primary.remark != target.remark:
        return False
    ours, theirs = primary.ext, target.ext
    if any(
        ours.get(name) != theirs.get(name) and mask(code, name, kept=terms.kept) is None
        for name in {**ours, **theirs}
    ):
        return False
    if primary.body == target.body:
        return not (primary.body and terms.rename)
    return code in PULLS and _same_messages(primary, target, terms.kept)


def _same_messages(primary: Command, target: Command, kept: bool) -> bool:
    """Whether two pulls brought the same messages, as far as both reach; False also when that takes a closer look."""
    try:
        ours, theirs = (
            list(entries(bytes(primary.body), kept=kept)),
            list(entries(bytes(target.body), kept=kept)),
        )
    except MessageFormatError:
        return False
    if kept:
        end = min(_next_offset(primary), _next_offset(target))
        ours, theirs = ([each for each in one if each.offset < end] for one in (ours, theirs))
        if len(ours) != len(theirs):
            return False
    if not ours or not theirs:
        return ours == theirs
    return all(
        mine.digest == other.digest
        and mine.identity == other.identity
        and (not kept or mine.offset == other.offset)
        for mine, other in zip(ours, theirs, strict=False)
    )


Pair = tuple[str, str, Any, Any]


def _differing(code: int, primary: Command, target: Command, terms: Terms) -> Iterator[Pair]:
    if primary.code != target.code:
        # What follows from it is not told again.
        yield "code", "code", _said(primary), _said(target)
        return
    if not _same_remark(primary.remark, target.remark, terms):
        yield "remark", "remark", primary.remark or ABSENT, target.remark or ABSENT
    yield from _unequal(header_leaves(code, primary.ext), header_leaves(code, target.ext))
    if code in WITH_MESSAGES and primary.code == _SUCCESS:
        yield from _messages(code, primary, target, terms)
    else:
        rename = terms.rename or {}
        ours, theirs = body_leaves(code, primary.body, rename), body_leaves(code, target.body, {})
        yield from _unequal(ours, theirs)


def _said(answer: Command) -> str:
    return f"{answer.code} {answer.remark}" if answer.remark else str(answer.code)


def _same_remark(primary: str | None, target: str | None, terms: Terms) -> bool:
    # Empty and absent are the same: the official decoder makes null of both.
    ours, theirs = (
        "" if remark in (None, LEFT_OVER_REMARK) else _ADDRESS.sub("<address>", remark)
        for remark in (primary, target)
    )
    return ours == theirs or (terms.words_added and ours != "" and theirs.startswith(ours))


def _unequal(primary: Iterable[Leaf], target: Iterable[Leaf]) -> Iterator[Pair]:
    theirs = {leaf.at: leaf for leaf in target}
    for path, at, value in primary:
        other = theirs.pop(at, None)
        if other is None:
            if value is not EMPTY:
                yield path, at, value, ABSENT
        elif other.value != value or isinstance(other.value, bool) != isinstance(value, bool):
            yield path, at, value, other.value
    for path, at, value in theirs.values():
        if value is not EMPTY:
            yield path, at, ABSENT, value


def _messages(code: int, primary: Command, target: Command, terms: Terms) -> Iterator[Pair]:
    try:
        ours, theirs = list(iter_messages(primary.body)), list(iter_messages(target.body))
    except MessageFormatError:
        if primary.body != target.body:
            yield "messages", "messages", Opaque.of(primary.body), Opaque.of(target.body)
        return
    first, second = _named(ours, terms.kept), _named(theirs, terms.kept)
    if code in PULLS:
        first, second = _overlap(first, second, primary, target, terms.kept)
    yield from _presence(first, second)
    yield from _order(first, second)
    for name, message in first.items():
        if name in second:
            yield from _unequal(
                message_leaves(message, name, kept=terms.kept),
                message_leaves(second[name], name, kept=terms.kept),
            )


Named = dict[str, Message]


def _named(messages: Iterable[Message], kept: bool) -> Named:
    """By queue and offset where the target keeps them, else by unique key; a number tells copies apart."""
    named: Named = {}
    for message in messages:
        place = f"{message.queue_id}:{message.queue_offset}"
        name = place if kept else message.unique_key or Opaque.of(message.body).digest.hex()
        copies = 1
        while name in named:
            copies += 1
            name = f"{name.partition('#')[0]}#{copies}"
        named[name] = message
    return named


def _overlap(
    first: Named, second: Named, primary: Command, target: Command, kept: bool
) -> tuple[Named, Named]:
    """What both pulls reach: how many messages fit an answer is each server's own decision."""
    if kept:
        end = min(_next_offset(primary), _next_offset(target))
        return _before(first, end), _before(second, end)
    common = [name for name in first if name in second]
    if not common:
        return first, second
    return _reach(first, common), _reach(second, common)


def _next_offset(answer: Command) -> int:
    text = answer.ext.get("nextBeginOffset", "")
    return int(text) if text.isdecimal() else 0


def _before(named: Named, end: int) -> Named:
    return {name: message for name, message in named.items() if message.queue_offset < end}


def _reach(named: Named, common: list[str]) -> Named:
    """From the first to the last of the common ones; the offset asked for may have been mapped to an earlier one."""
    names = list(named)
    places = [names.index(name) for name in common]
    return {name: named[name] for name in names[min(places) : max(places) + 1]}


def _presence(first: Named, second: Named) -> Iterator[Pair]:
    for name in first:
        if name not in second:
            yield "messages[]", f"messages[{name}]", "present", ABSENT
    for name in second:
        if name not in first:
            yield "messages[]", f"messages[{name}]", ABSENT, "present"


def _order(first: Named, second: Named) -> Iterator[Pair]:
    """Queue by queue: how messages of different queues follow each other in a log is no promise."""
    for queue_id in {message.queue_id for message in first.values()}:
        ours, theirs = (
            [name for name in one if name in other and one[name].queue_id == queue_id]
            for one, other in ((first, second), (second, first))
        )
        moved = next(((mine, its) for mine, its in zip(ours, theirs, strict=False) if mine != its), None)
        if moved is not None:
            yield "messages[].order", f"messages[{moved[0]}].order", *moved
