"""Aligns the messages of two queues: finds the equal ones and reports the others as findings.

Messages come in two buffers (`queue_reader.py` fills them). With equal queue offsets on both sides they are aligned by
offset, else by a longest common subsequence of their identities. Messages without a partner on the other side go to the
ledger, which waits one window for a late partner before it reports the message as missing or extra. Everything is
synchronous, and memory is bounded by the window.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from gateway.shadow.compare.entries import ComparedMessage, DifferingField, changed_part, find_differences
from toolkit.subsequences import longest_chain_from_end

MIN_AGREEING_MESSAGES: Final = 8
"""Equal messages in a row that end a run of differences."""
MAX_ORDER_PLACES: Final = 64
"""Latest messages of its sharding key among which a moved message is looked for in another order."""
MAX_MESSAGES_PER_TURN: Final = 512
DISJOINT_STEPS_PER_WINDOW: Final = 32
"""Steps in which a window of messages without any partner is taken."""
_INITIAL_LOOKAHEAD: Final = 64
_MAX_COPIES_EACH_SIDE: Final = 8
"""Copies of a message that are considered on each side of the expected one: bounds the time for many equal messages."""


class FindingKind(Enum):
    """The kinds of findings about a message."""

    MISSING = "missing"
    EXTRA = "extra"
    DUPLICATED = "duplicated"
    """The target has it more often than the primary."""
    REORDERED = "reordered"
    """It is at another place among its neighbours, or at another offset if the target has the primary's offsets."""
    CHANGED = "changed"


class ParityFinding(NamedTuple):
    """One message that differs. An offset is None if that side does not have the message; `part` says what changed."""

    kind: FindingKind
    identity: bytes
    primary_offset: int | None
    target_offset: int | None
    part: str = ""
    differences: tuple[DifferingField, ...] = ()
    """With `CHANGED`: the fields that differ."""
    order_broken: bool = False
    """With `REORDERED`: it changed places with a message of its own sharding key."""


class AlignmentLedger:
    """Collects pairs and unmatched messages, and reports each finding once it is certain.

    A message without a partner waits for ``window`` further messages of either side: its partner may come late, which
    means that it was reordered. Memory is bounded by ``window``. `equal_count` counts equal messages below the
    primary's offset `primary_end`; `delivered_later_count` counts matched ones whose place in the queue is arbitrary
    (see `ComparedMessage`); `sent_again_count` the equal messages with another born host.
    `first_matched` and `last_matched` are offsets of the target, None before the first pair.
    """

    def __init__(self, window: int, report: Callable[[ParityFinding], None]) -> None:
        self.equal_count = 0
        self.sent_again_count = 0
        self.delivered_later_count = 0
        self.primary_end = 0
        self.first_matched: int | None = None
        self.last_matched: int | None = None
        self._window = window
        self._report = report
        self._clock = 0
        self._missing = _UnmatchedMessages()
        self._extra = _UnmatchedMessages()
        self._recent = _RecentPairs(2 * window)

    def record_pair(self, primary: ComparedMessage, target: ComparedMessage) -> None:
        """Record the same message at the same place on both sides."""
        self._clock += 1
        self.last_matched = target.offset
        if self.first_matched is None:
            self.first_matched = target.offset
        self._recent.add_pair(primary, target)
        self._compare_content(primary, target)
        if self._missing or self._extra:
            self._expire_unmatched(self._clock - self._window)

    def record_missing(self, primary: ComparedMessage) -> None:
        """Record a message that the target does not have at this place."""
        self._clock += 1
        partner = self._extra.take_oldest(primary.identity)
        if partner is not None:
            self._record_moved(primary, partner)
        else:
            self._missing.append_entry(self._clock, primary)
        self._expire_unmatched(self._clock - self._window)

    def record_extra(self, target: ComparedMessage) -> None:
        """Record a message that the primary does not have at this place."""
        self._clock += 1
        partner = self._missing.take_oldest(target.identity)
        if partner is not None:
            self._record_moved(partner, target)
        else:
            self._extra.append_entry(self._clock, target)
        self._expire_unmatched(self._clock - self._window)

    def finish(self) -> None:
        """Report all messages that are still unmatched: nothing more comes."""
        self._expire_unmatched(self._clock + 1)

    def _record_moved(self, primary: ComparedMessage, target: ComparedMessage) -> None:
        broken = self._recent.changed_order(primary, target)
        self._recent.add_pair(primary, target)
        positions = (primary.identity, primary.offset, target.offset)
        self._report(ParityFinding(FindingKind.REORDERED, *positions, order_broken=broken))
        self._compare_content(primary, target)

    def _compare_content(self, primary: ComparedMessage, target: ComparedMessage) -> None:
        self.delivered_later_count += primary.delivered_later
        if primary.digest == target.digest:
            counts = primary.offset < self.primary_end
            self.equal_count += counts
            self.sent_again_count += counts and primary.born_host != target.born_host
            return
        self._report(
            ParityFinding(
                FindingKind.CHANGED,
                primary.identity,
                primary.offset,
                target.offset,
                changed_part(primary, target),
                tuple(find_differences(primary, target)),
            )
        )

    def _expire_unmatched(self, before: int) -> None:
        for entry in self._missing.take_older_than(before):
            self._report(ParityFinding(FindingKind.MISSING, entry.identity, entry.offset, None))
        for entry in self._extra.take_older_than(before):
            # The identity was matched lately, so the target has a copy of that message too many.
            kind = (
                FindingKind.DUPLICATED
                if self._recent.contains_identity(entry.identity)
                else FindingKind.EXTRA
            )
            self._report(ParityFinding(kind, entry.identity, None, entry.offset))


class _UnmatchedMessages:
    """Messages without a partner, oldest first."""

    def __init__(self) -> None:
        self._by_age: OrderedDict[int, ComparedMessage] = OrderedDict()
        self._by_identity: dict[bytes, deque[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_age)

    def append_entry(self, clock: int, entry: ComparedMessage) -> None:
        self._by_age[clock] = entry
        self._by_identity.setdefault(entry.identity, deque()).append(clock)

    def take_oldest(self, identity: bytes) -> ComparedMessage | None:
        """Remove and return the oldest message with this identity, None without one."""
        ages = self._by_identity.get(identity)
        if ages is None:
            return None
        entry = self._by_age.pop(ages.popleft())
        if not ages:
            del self._by_identity[identity]
        return entry

    def take_older_than(self, clock: int) -> list[ComparedMessage]:
        """Remove and return the messages recorded before this clock."""
        entries = []
        while self._by_age and next(iter(self._by_age)) < clock:
            entry = next(iter(self._by_age.values()))
            entries.append(entry)
            self.take_oldest(entry.identity)
        return entries


class _RecentPairs:
    """The last pairs: their identities, and their offsets on both sides by sharding key."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._order: deque[tuple[bytes, bytes | None]] = deque()
        self._count: dict[bytes, int] = {}
        self._places: dict[bytes, deque[tuple[int, int]]] = {}

    def add_pair(self, primary: ComparedMessage, target: ComparedMessage) -> None:
        identity, key = primary.identity, primary.sharding_key
        self._order.append((identity, key))
        self._count[identity] = self._count.get(identity, 0) + 1
        if key is not None:
            self._places.setdefault(key, deque()).append((primary.offset, target.offset))
        if len(self._order) > self._size:
            self._forget_pair(*self._order.popleft())

    def contains_identity(self, identity: bytes) -> bool:
        return identity in self._count

    def changed_order(self, primary: ComparedMessage, target: ComparedMessage) -> bool:
        """Tell whether a message of the same sharding key is before this one on one side and after it on the other."""
        if primary.sharding_key is None:
            return False
        # Only the latest: comparing with all of them would take time quadratic in the window.
        places = islice(reversed(self._places.get(primary.sharding_key, deque())), MAX_ORDER_PLACES)
        return any((before < primary.offset) != (there < target.offset) for before, there in places)

    def _forget_pair(self, identity: bytes, key: bytes | None) -> None:
        if self._count[identity] == 1:
            del self._count[identity]
        else:
            self._count[identity] -= 1
        if key is not None:
            places = self._places[key]
            places.popleft()
            if not places:
                del self._places[key]


EntryBuffer = deque[ComparedMessage]


def align_by_offset(primary: EntryBuffer, target: EntryBuffer, ledger: AlignmentLedger) -> None:
    """Take at most `MAX_MESSAGES_PER_TURN` messages from both buffers by queue offset, until one is empty."""
    for _ in range(MAX_MESSAGES_PER_TURN):
        if not (primary and target):
            return
        primary_entry, target_entry = primary[0], target[0]
        if primary_entry.offset < target_entry.offset:
            ledger.record_missing(primary.popleft())
        elif target_entry.offset < primary_entry.offset:
            ledger.record_extra(target.popleft())
        else:
            primary.popleft()
            target.popleft()
            if primary_entry.identity == target_entry.identity or not (
                primary_entry.keyed and target_entry.keyed
            ):
                ledger.record_pair(primary_entry, target_entry)
            else:
                ledger.record_missing(primary_entry)
                ledger.record_extra(target_entry)


def align_by_key(
    primary: EntryBuffer, target: EntryBuffer, ledger: AlignmentLedger, window: int, whole: tuple[bool, bool]
) -> None:
    """Take messages from both buffers by identity, until one is empty or must be filled further before a decision.

    A call takes at most `MAX_MESSAGES_PER_TURN` messages, so that the caller can let other tasks run. If it takes none,
    a buffer must be filled further. ``whole`` tells for each side whether its buffer holds all messages that the queue
    has at the moment.
    """
    for _ in range(MAX_MESSAGES_PER_TURN):
        if not (primary and target):
            return
        if primary[0].identity == target[0].identity:
            ledger.record_pair(primary.popleft(), target.popleft())
            continue
        # While a buffer can still grow, more messages may show where the sides agree again.
        can_grow = [
            not is_whole and len(side) < window
            for side, is_whole in zip((primary, target), whole, strict=True)
        ]
        _take_until_agreement(primary, target, ledger, window, guess=not any(can_grow))
        return


def _take_until_agreement(
    primary: EntryBuffer, target: EntryBuffer, ledger: AlignmentLedger, window: int, *, guess: bool
) -> None:
    """Take the messages up to the place where the sides agree again.

    Takes none if the buffers do not reach that place and ``guess`` is not allowed.
    """
    # With nothing in common there is no place where the sides agree again.
    if {entry.identity for entry in primary}.isdisjoint(entry.identity for entry in target):
        if guess:
            _take_older_side(primary, target, ledger, max(1, window // DISJOINT_STEPS_PER_WINDOW))
        return
    # Most differences are short, so a short part is searched first: the time grows faster than the size.
    size, enough = _INITIAL_LOOKAHEAD, min(window, max(len(primary), len(target)))
    while True:
        primary_window, target_window = list(islice(primary, size)), list(islice(target, size))
        pairs = longest_common_subsequence(primary_window, target_window)
        agreed = _first_agreement(pairs)
        if agreed is not None:
            _take_aligned(primary, target, ledger, pairs[:agreed], *pairs[agreed])
            return
        if size >= enough:
            break
        size *= 4
    # The sides do not agree again within the window. Take everything up to the last message that both have.
    if guess and pairs:
        primary_at, target_at = pairs[-1]
        _take_aligned(primary, target, ledger, pairs, primary_at + 1, target_at + 1)
    elif guess:
        _take_older_side(primary, target, ledger, 1)


def _first_agreement(pairs: Sequence[tuple[int, int]]) -> int | None:
    """Return the index of the first of `MIN_AGREEING_MESSAGES` adjacent pairs, None without such a row."""
    row = 0
    for index in range(1, len(pairs)):
        (primary_at, target_at), (previous_primary_at, previous_target_at) = pairs[index], pairs[index - 1]
        row = row + 1 if primary_at == previous_primary_at + 1 and target_at == previous_target_at + 1 else 0
        if row == MIN_AGREEING_MESSAGES - 1:
            return index - row
    return None


def _take_aligned(
    primary: EntryBuffer,
    target: EntryBuffer,
    ledger: AlignmentLedger,
    pairs: Sequence[tuple[int, int]],
    primary_count: int,
    target_count: int,
) -> None:
    """Take the first ``primary_count`` and ``target_count`` messages of the two sides, of which ``pairs`` match."""
    primary_taken = target_taken = 0
    for primary_at, target_at in (*pairs, (primary_count, target_count)):
        for _ in range(primary_at - primary_taken):
            ledger.record_missing(primary.popleft())
        for _ in range(target_at - target_taken):
            ledger.record_extra(target.popleft())
        primary_taken, target_taken = primary_at, target_at
        if primary_taken < primary_count:
            ledger.record_pair(primary.popleft(), target.popleft())
            primary_taken, target_taken = primary_taken + 1, target_taken + 1


def _take_older_side(
    primary: EntryBuffer, target: EntryBuffer, ledger: AlignmentLedger, at_least: int
) -> None:
    """Take the older messages of the side that is behind, that is, whose first message was born earlier.

    For sides that share no message in the window. With a single message at a time, two queues that have nothing in
    common took minutes.
    """
    if target[0].born_ms < primary[0].born_ms:
        limit = primary[0].born_ms
        while target and target[0].born_ms < limit:
            ledger.record_extra(target.popleft())
        return
    limit = target[0].born_ms
    while primary and (at_least > 0 or primary[0].born_ms < limit):
        ledger.record_missing(primary.popleft())
        at_least -= 1


def longest_common_subsequence(
    primary: Sequence[ComparedMessage], target: Sequence[ComparedMessage]
) -> list[tuple[int, int]]:
    """Return index pairs of a longest common subsequence by identity.

    Of a message with many copies only those near the expected one are considered.
    """
    places: dict[bytes, list[int]] = {}
    for index, entry in enumerate(target):
        places.setdefault(entry.identity, []).append(index)
    return list(longest_chain_from_end(_candidates(primary, places)))[::-1]


def _candidates(
    primary: Sequence[ComparedMessage], places: Mapping[bytes, list[int]]
) -> Iterator[Iterable[int]]:
    """Yield for each message of the primary the places of its copies at the target, in descending order."""
    copies: dict[bytes, int] = {}
    for entry in primary:
        copy = copies[entry.identity] = copies.get(entry.identity, 0) + 1
        first = max(0, copy - _MAX_COPIES_EACH_SIDE)
        yield reversed(places.get(entry.identity, [])[first : copy + _MAX_COPIES_EACH_SIDE])
