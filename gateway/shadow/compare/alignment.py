"""Two sequences of messages side by side: which are the same, and what became of the others.

Not responsible for where the messages come from (queues.py); all of it is synchronous and bounded by a window.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from gateway.shadow.compare.entries import Entry, changed_part

SURE_AFTER: Final = 8
"""So many equal messages in a row end a stretch in which the two sides differ."""
_FIRST_STRETCH: Final = 64
_NEAR_COPIES: Final = 8
"""Of messages that are alike, so many on either side of the one that comes next are looked at."""


class Kind(Enum):
    """What can be wrong with a message."""

    MISSING = "missing"
    EXTRA = "extra"
    DUPLICATED = "duplicated"
    """The target has it more often than the primary."""
    REORDERED = "reordered"
    """It stands at another place among its neighbours: at another offset where the target keeps offsets."""
    CHANGED = "changed"


class Fault(NamedTuple):
    """One message that is wrong. Offsets are None where that side does not have it; `part` says what changed."""

    kind: Kind
    identity: bytes
    primary_offset: int | None
    target_offset: int | None
    part: str = ""
    order_broken: bool = False
    """With `REORDERED`: it changed places with a message of its own sharding key."""


class Ledger:
    """What was found so far: tells each fault once it is sure.

    A message without a partner waits for ``window`` further ones of either side: its partner may come late, and then it
    was reordered. Memory is bounded by ``window``. `same` counts equal messages below the primary's offset `end`,
    `waited` those with a partner whose place is chance (see `Entry`);
    `first_matched` and `last_matched` are offsets of the target, None before anything was found at the same place.
    """

    def __init__(self, window: int, tell: Callable[[Fault], None]) -> None:
        self.same = 0
        self.waited = 0
        self.end = 0
        self.first_matched: int | None = None
        self.last_matched: int | None = None
        self._window = window
        self._tell = tell
        self._clock = 0
        self._missing = _Waiting()
        self._extra = _Waiting()
        self._recent = _Recent(2 * window)

    def pair(self, primary: Entry, target: Entry) -> None:
        """The same message at the same place on both sides."""
        self._clock += 1
        self.last_matched = target.offset
        if self.first_matched is None:
            self.first_matched = target.offset
        self._recent.add(primary, target)
        self._content(primary, target)
        if self._missing or self._extra:
            self._expire(self._clock - self._window)

    def missing(self, primary: Entry) -> None:
        """The target does not have it at this place."""
        self._clock += 1
        partner = self._extra.take(primary.identity)
        if partner is not None:
            self._moved(primary, partner)
        else:
            self._missing.add(self._clock, primary)
        self._expire(self._clock - self._window)

    def extra(self, target: Entry) -> None:
        """The primary does not have it at this place."""
        self._clock += 1
        partner = self._missing.take(target.identity)
        if partner is not None:
            self._moved(partner, target)
        else:
            self._extra.add(self._clock, target)
        self._expire(self._clock - self._window)

    def close(self) -> None:
        """Nothing more comes."""
        self._expire(self._clock + 1)

    def _moved(self, primary: Entry, target: Entry) -> None:
        broken = self._recent.crossed(primary, target)
        self._recent.add(primary, target)
        place = (primary.identity, primary.offset, target.offset)
        self._tell(Fault(Kind.REORDERED, *place, order_broken=broken))
        self._content(primary, target)

    def _content(self, primary: Entry, target: Entry) -> None:
        self.waited += primary.waited
        if primary.digest == target.digest:
            self.same += primary.offset < self.end
            return
        part = changed_part(primary, target)
        self._tell(Fault(Kind.CHANGED, primary.identity, primary.offset, target.offset, part))

    def _expire(self, before: int) -> None:
        for entry in self._missing.before(before):
            self._tell(Fault(Kind.MISSING, entry.identity, entry.offset, None))
        for entry in self._extra.before(before):
            kind = Kind.DUPLICATED if self._recent.knows(entry.identity) else Kind.EXTRA
            self._tell(Fault(kind, entry.identity, None, entry.offset))


class _Waiting:
    """Entries without a partner, oldest first."""

    def __init__(self) -> None:
        self._by_age: OrderedDict[int, Entry] = OrderedDict()
        self._by_identity: dict[bytes, deque[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_age)

    def add(self, clock: int, entry: Entry) -> None:
        self._by_age[clock] = entry
        self._by_identity.setdefault(entry.identity, deque()).append(clock)

    def take(self, identity: bytes) -> Entry | None:
        """The oldest with this identity."""
        ages = self._by_identity.get(identity)
        if ages is None:
            return None
        entry = self._by_age.pop(ages.popleft())
        if not ages:
            del self._by_identity[identity]
        return entry

    def before(self, clock: int) -> list[Entry]:
        """Those that came before, taken out."""
        found = []
        while self._by_age and next(iter(self._by_age)) < clock:
            entry = next(iter(self._by_age.values()))
            found.append(entry)
            self.take(entry.identity)
        return found


class _Recent:
    """The last pairs: their identities, and by sharding key where they stand on both sides."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._order: deque[tuple[bytes, bytes | None]] = deque()
        self._count: dict[bytes, int] = {}
        self._places: dict[bytes, deque[tuple[int, int]]] = {}

    def add(self, primary: Entry, target: Entry) -> None:
        identity, key = primary.identity, primary.sharding_key
        self._order.append((identity, key))
        self._count[identity] = self._count.get(identity, 0) + 1
        if key is not None:
            self._places.setdefault(key, deque()).append((primary.offset, target.offset))
        if len(self._order) > self._size:
            self._forget(*self._order.popleft())

    def knows(self, identity: bytes) -> bool:
        return identity in self._count

    def crossed(self, primary: Entry, target: Entry) -> bool:
        """Whether a message of the same sharding key is before it on one side and behind it on the other."""
        if primary.sharding_key is None:
            return False
        places = self._places.get(primary.sharding_key, deque())
        return any((before < primary.offset) != (there < target.offset) for before, there in reversed(places))

    def _forget(self, identity: bytes, key: bytes | None) -> None:
        if self._count[identity] == 1:
            del self._count[identity]
        else:
            self._count[identity] -= 1
        if key is not None:
            places = self._places[key]
            places.popleft()
            if not places:
                del self._places[key]


Buffer = deque[Entry]


def align_by_offset(primary: Buffer, target: Buffer, ledger: Ledger) -> None:
    """Takes from both what can be decided, by queue offset, until one is empty."""
    while primary and target:
        ours, theirs = primary[0], target[0]
        if ours.offset < theirs.offset:
            ledger.missing(primary.popleft())
        elif theirs.offset < ours.offset:
            ledger.extra(target.popleft())
        else:
            primary.popleft()
            target.popleft()
            if ours.identity == theirs.identity or not (ours.keyed and theirs.keyed):
                ledger.pair(ours, theirs)
            else:
                ledger.missing(ours)
                ledger.extra(theirs)


def align_by_key(
    primary: Buffer, target: Buffer, ledger: Ledger, window: int, whole: tuple[bool, bool]
) -> None:
    """Takes from both what can be decided, by identity, until one is empty or more of it should be seen first.

    ``whole`` says of each side that its buffer is all there is at the moment; else there is more to come.
    """
    while primary and target:
        if primary[0].identity == target[0].identity:
            ledger.pair(primary.popleft(), target.popleft())
            continue
        grows = [
            not all_of_it and len(side) < window
            for side, all_of_it in zip((primary, target), whole, strict=True)
        ]
        if not _take_stretch(primary, target, ledger, window, guess=not any(grows)):
            return


def _take_stretch(primary: Buffer, target: Buffer, ledger: Ledger, window: int, *, guess: bool) -> bool:
    """Takes what comes before the sides agree again. False when that cannot be seen and ``guess`` is not allowed."""
    size, enough = _FIRST_STRETCH, min(window, max(len(primary), len(target)))
    while True:
        ours, theirs = list(islice(primary, size)), list(islice(target, size))
        pairs = common_run(ours, theirs)
        agreed = _first_agreement(pairs)
        if agreed is not None:
            _take(primary, target, ledger, pairs[:agreed], *pairs[agreed])
            return True
        if size >= enough:
            break
        size *= 4
    if guess and pairs:
        ours_at, theirs_at = pairs[-1]
        _take(primary, target, ledger, pairs, ours_at + 1, theirs_at + 1)
    elif guess:
        _take_older(primary, target, ledger)
    return guess


def _first_agreement(pairs: Sequence[tuple[int, int]]) -> int | None:
    row = 0
    for index in range(1, len(pairs)):
        (ours, theirs), (before, there) = pairs[index], pairs[index - 1]
        row = row + 1 if ours == before + 1 and theirs == there + 1 else 0
        if row == SURE_AFTER - 1:
            return index - row
    return None


def _take(
    primary: Buffer,
    target: Buffer,
    ledger: Ledger,
    pairs: Sequence[tuple[int, int]],
    ours: int,
    theirs: int,
) -> None:
    """Takes the first ``ours`` and ``theirs`` entries, of which ``pairs`` stand side by side."""
    mine = other = 0
    for mine_at, other_at in (*pairs, (ours, theirs)):
        for _ in range(mine_at - mine):
            ledger.missing(primary.popleft())
        for _ in range(other_at - other):
            ledger.extra(target.popleft())
        mine, other = mine_at, other_at
        if mine < ours:
            ledger.pair(primary.popleft(), target.popleft())
            mine, other = mine + 1, other + 1


def _take_older(primary: Buffer, target: Buffer, ledger: Ledger) -> None:
    """The sides share nothing within the window: the one whose messages were born earlier is behind."""
    if target[0].born_ms < primary[0].born_ms:
        limit = primary[0].born_ms
        while target and target[0].born_ms < limit:
            ledger.extra(target.popleft())
        return
    limit = target[0].born_ms
    ledger.missing(primary.popleft())
    while primary and primary[0].born_ms < limit:
        ledger.missing(primary.popleft())


def common_run(primary: Sequence[Entry], target: Sequence[Entry]) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence by identity (Hunt and Szymanski's way: quick when few repeat)."""
    places: dict[bytes, list[int]] = {}
    for index, entry in enumerate(target):
        places.setdefault(entry.identity, []).append(index)
    ends: list[int] = []
    links: list[tuple[int, int, int]] = []
    last: list[int] = []
    copies: dict[bytes, int] = {}
    for index, entry in enumerate(primary):
        copy = copies[entry.identity] = copies.get(entry.identity, 0) + 1
        near = places.get(entry.identity, [])[max(0, copy - _NEAR_COPIES) : copy + _NEAR_COPIES]
        for place in reversed(near):
            length = bisect_left(ends, place)
            links.append((index, place, last[length - 1] if length else -1))
            if length == len(ends):
                ends.append(place)
                last.append(len(links) - 1)
            else:
                ends[length], last[length] = place, len(links) - 1
    return _backwards(links, last[-1] if last else -1)


def _backwards(links: Sequence[tuple[int, int, int]], at: int) -> list[tuple[int, int]]:
    pairs = []
    while at >= 0:
        ours, theirs, at = links[at]
        pairs.append((ours, theirs))
    return pairs[::-1]
