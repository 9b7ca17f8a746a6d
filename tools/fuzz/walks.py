"""Walks: short sequences of frames over one connection, each made from the seed and a number only.

A walk is the unit that is repeated and minimised. Most are one mutated request on a connection that many walks share;
the others are stories (register, use, vanish), damaged frames, and peers that are slow, half done or numerous, each on
connections of their own. `build_walk` is a pure function of the seed, the walk's number and the world, so any subset
of a campaign can be sent again.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from codec.command import decode_frame
from codec.errors import FrameError
from remoting.declare import REQUESTS
from tools.fuzz.frame_encoding import damage_frame, encode_request
from tools.fuzz.mutations import UNDECLARED_CODES, keep_addresses_local, mutate_request, write_body
from tools.fuzz.valid_requests import (
    FREQUENT_CODES,
    FREQUENT_CODES_2,
    NAMESRV_CODES,
    FuzzRequest,
    RequestSource,
    encode_kept_messages,
)
from tools.fuzz.values import Chance, expression
from tools.fuzz.world import CLIENT_IDS, GROUPS, PRODUCER_GROUPS, TOPICS, FuzzWorld

OPAQUES_PER_WALK: Final = 32
REUSED_OPAQUES: Final = (0, 1, 7, -1, 2**31 - 1, -(2**31))
ODD_OPAQUES: Final = (2**31, -(2**31) - 1, 2**64, "7", None)
"""Opaques that are no 32-bit numbers; such a header is not a command."""
SUSPEND_BIT: Final = 2
FLAG_RESPONSE_OR_ONEWAY: Final = 3
_DECISIVE_FIELDS: Final = frozenset(("sysFlag", "pollTime", "commitOrRollback"))
_DIGITS: Final = re.compile(r"-?[0-9]{1,20}")
ASKS_CLIENT: Final = frozenset((221, 223, 307, 309, 324, 325, 222))
"""Requests that the broker answers when another client has answered, which the fuzzer may leave out."""


class Port(Enum):
    """The server's port that a walk talks to."""

    NAMESRV = "namesrv"
    BROKER = "broker"
    GRPC = "grpc"


class Expect(Enum):
    """The answer that is due to a frame."""

    ANSWER = "answer"
    """An answer, or the end of the connection, soon."""
    LATER = "later"
    """An answer that may officially wait for a message or another client."""
    NOTHING = "nothing"


class Ending(Enum):
    """The end of a connection of a walk's own."""

    FINISH = "finish"
    """Wait for the answers, then close."""
    CLOSE = "close"
    """Close at once, with answers outstanding."""
    RESET = "reset"
    """Close at once with a reset."""
    HALF_CLOSE = "half-close"
    """Send the end of the stream; the server must close."""
    HOLD = "hold"
    """Stay, without sending anything, until enough others do."""


@dataclass(slots=True)
class WalkFrame:
    """Bytes to send, and the answer that is due."""

    data: bytes
    code: Any = 0
    opaque: int = 0
    expects: Expect = Expect.NOTHING
    topic: str = ""
    group: str = ""
    half: bool = False


@dataclass(slots=True)
class Walk:
    """One walk. ``connections`` is 0 on a shared connection; otherwise each connection gets all frames."""

    number: int
    kind: str
    port: Port
    frames: list[WalkFrame] = field(default_factory=list)
    connections: int = 0
    ending: Ending = Ending.FINISH


class WalkBuilder:
    """Builds one walk."""

    def __init__(self, seed: int, number: int, world: FuzzWorld, ports: Sequence[Port]) -> None:
        self.chance = Chance(f"{seed}/{number}")
        self.source = RequestSource(self.chance, world)
        self.walk = Walk(number, "single", self.chance.pick(ports))
        self._next_opaque = 100 + number * OPAQUES_PER_WALK % 0x7FFF_FF00

    def build(self) -> Walk:
        """Return the walk."""
        kind = self.chance.random()
        if kind < 0.88:
            self.add_request(self.chance_code(), mutate=0.85)
            self._isolate_bad_frame()
        elif kind < 0.95:
            self._build_story()
        elif kind < 0.985:
            self._build_damage()
        else:
            self._build_unusual_peer()
        return self.walk

    def chance_code(self) -> int:
        """Return a request code, most often one that the walk's port serves and that does much."""
        chance = self.chance
        kind = chance.random()
        if kind < 0.02:
            return chance.pick(UNDECLARED_CODES)
        if self.walk.port is Port.NAMESRV and kind < 0.9:
            return chance.pick(NAMESRV_CODES)
        if self.walk.port is Port.BROKER and kind < 0.45:
            return chance.pick(FREQUENT_CODES)
        if self.walk.port is Port.BROKER and kind < 0.65:
            return chance.pick(FREQUENT_CODES_2)
        return chance.pick(_ALL_CODES)

    def add_request(self, code: int, ext: Mapping[str, str] | None = None, *, mutate: float = 0.3) -> None:
        """Append one request, mutated with a probability; ``ext`` are header fields to set before."""
        declared = code in REQUESTS
        request = self.source.request(code) if declared else FuzzRequest(code, {"topic": TOPICS[0]})
        request.ext.update(ext or {})
        self.add_built(request, mutate)

    def add_built(self, request: FuzzRequest, mutate: float) -> None:
        """Append a request that is already built, mutated with a probability."""
        chance = self.chance
        request.binary = request.code <= 0x7FFF and chance.happens(0.25)
        request.opaque = self._next_opaque = self._next_opaque + 1
        if chance.happens(mutate):
            mutate_request(self.source, request)
            if chance.happens(0.01):
                request.opaque = chance.pick(REUSED_OPAQUES if chance.happens(0.8) else ODD_OPAQUES)
        keep_addresses_local(request)
        write_body(request)
        self.walk.frames.append(_frame_of(request))

    def _isolate_bad_frame(self) -> None:
        """Give a frame that ends its connection one of its own, so that it takes no other request with it."""
        frame = self.walk.frames[0].data
        try:
            decode_frame(frame, 4, len(frame))
        except FrameError:
            self.walk.kind, self.walk.connections = "bad frame", 1
            self.walk.ending = Ending.HALF_CLOSE

    # -- stories ------------------------------------------------------------------------------------------------

    def _build_story(self) -> None:
        stories = _NAMESRV_STORIES if self.walk.port is Port.NAMESRV else _BROKER_STORIES
        story = self.chance.pick(stories)
        self.walk.kind = story.__name__.strip("_")
        self.walk.connections = 1
        self.walk.ending = self.chance.pick((Ending.FINISH, Ending.FINISH, Ending.CLOSE, Ending.RESET))
        story(self)

    # -- damage and unusual peers ---------------------------------------------------------------------------------

    def _build_damage(self) -> None:
        """Send whole requests, then a damaged frame, and perhaps more after it."""
        self.walk.kind, self.walk.connections = "damage", 1
        self.walk.ending = self.chance.pick(
            (Ending.HALF_CLOSE, Ending.HALF_CLOSE, Ending.CLOSE, Ending.RESET)
        )
        for _ in range(self.chance.below(3)):
            self.add_request(self.chance_code())
        self.add_request(self.chance_code())
        last = self.walk.frames[-1]
        self.walk.frames[-1] = WalkFrame(damage_frame(self.chance, last.data), last.code)
        if self.chance.happens(0.3):
            self.walk.frames.append(WalkFrame(last.data, last.code))

    def _build_unusual_peer(self) -> None:
        """Be many peers, or slow ones that hold part of a frame or an unread answer."""
        kind = self.chance.random()
        self.walk.ending = Ending.HOLD if kind < 0.6 else self.chance.pick((Ending.CLOSE, Ending.RESET))
        self.walk.connections = self.chance.pick((1, 1, 2, 8))
        self.walk.kind = "unusual peer"
        self.add_request(self.chance_code())
        frame = self.walk.frames.pop()
        if kind < 0.4:
            part = frame.data[: 1 + self.chance.below(len(frame.data) - 1)]
            self.walk.frames.append(WalkFrame(part, frame.code))
        elif kind < 0.5:
            # Announces a large frame, and sends the beginning of it
            size = self.chance.pick((100_000, 1_000_000, 16_000_000))
            self.walk.frames.append(WalkFrame(size.to_bytes(4) + frame.data[4:] + bytes(20_000), frame.code))
        elif kind < 0.9:
            self.walk.frames.append(WalkFrame(frame.data, frame.code))


def _frame_of(request: FuzzRequest) -> WalkFrame:
    """Encode a request and decide on its answer."""
    ext = request.ext
    return WalkFrame(
        encode_request(request),
        request.code,
        request.opaque,
        expected_answer(request),
        str(ext.get("topic") or ext.get("b") or ""),
        str(ext.get("consumerGroup") or ""),
        "TRAN_MSG" in str(ext.get("properties") or ext.get("i") or ""),
    )


def expected_answer(request: FuzzRequest) -> Expect:
    """Return the answer that is due to a request, as far as its sender can tell."""
    if not isinstance(request.opaque, int) or not -(2**31) <= request.opaque < 2**31:
        return Expect.NOTHING
    if not isinstance(request.flag, int) or request.flag & FLAG_RESPONSE_OR_ONEWAY:
        return Expect.NOTHING
    if request.opaque in REUSED_OPAQUES:
        return Expect.LATER  # nobody can tell whose answer is whose
    code, ext = request.code, request.ext
    if any(name in _DECISIVE_FIELDS for name, _ in request.repeated):
        return Expect.LATER
    if code in (11, 361):
        return Expect.LATER if _number(ext.get("sysFlag")) & SUSPEND_BIT else Expect.ANSWER
    if code in (200050, 200054, 200070):
        # A binary header has 16 bits for the code, so these arrive as others.
        return Expect.LATER if _number(ext.get("pollTime")) > 0 else Expect.ANSWER
    if code == 37 and ext.get("commitOrRollback") not in ("8", "12"):
        return Expect.LATER  # officially none, for a transaction that is left open
    return Expect.LATER if code in ASKS_CLIENT else Expect.ANSWER


def _number(value: object) -> int:
    """Return the number that a server may read from a value; one that waits, if that is not clear."""
    text = str(value if value is not None else 0)
    return int(text) if _DIGITS.fullmatch(text) else SUSPEND_BIT


# -- stories of the broker --------------------------------------------------------------------------------------------


def _consumer(builder: WalkBuilder) -> None:
    """Appear as a consumer, pull and wait, be asked about itself, change the subscription, and leave or vanish."""
    chance = builder.chance
    group, client, topic = chance.pick(GROUPS), chance.pick(CLIENT_IDS), chance.pick(TOPICS)
    request = builder.source.request(34)
    consumer = {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    kind, expression_text = expression(chance)
    subscription = {"topic": topic, "subString": expression_text, "expressionType": kind, "subVersion": 5}
    consumer["consumeFromWhere"] = "CONSUME_FROM_FIRST_OFFSET"
    consumers = [{**consumer, "subscriptionDataSet": [subscription]}]
    producers = [{"groupName": PRODUCER_GROUPS[0]}]
    request.json_body = {"clientID": client, "consumerDataSet": consumers, "producerDataSet": producers}
    builder.add_built(request, 0.2)
    ext = {"consumerGroup": group, "group": group, "topic": topic, "clientId": client, "clientAddr": client}
    for _ in range(2 + chance.below(5)):
        code = chance.pick((11, 361, 14, 15, 38, 41, 400, 34, 307, 309, 203, 204, 208, 223, 345, 300))
        declared = {item.wire for item in REQUESTS[code].WIRE_FIELDS}
        builder.add_request(code, {name: value for name, value in ext.items() if name in declared})
    if chance.happens(0.5):
        builder.add_request(35, {"clientID": client})


def _transaction(builder: WalkBuilder) -> None:
    chance = builder.chance
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01{PRODUCER_GROUPS[0]}\x02"
    for _ in range(1 + chance.below(3)):
        builder.add_request(310, {"b": "fuzz_transaction", "i": properties, "f": "4"})
    for _ in range(1 + chance.below(4)):
        builder.add_request(37)


def _pop(builder: WalkBuilder) -> None:
    chance = builder.chance
    topic, group = chance.pick(TOPICS[:3]), chance.pick(GROUPS)
    builder.add_request(310, {"b": topic})
    queue = chance.pick(("-1", "0", "1"))
    builder.add_request(200050, {"topic": topic, "consumerGroup": group, "queueId": queue})
    for _ in range(1 + chance.below(6)):
        builder.add_request(chance.pick((200051, 200053, 200151, 200051)))
    builder.add_request(chance.pick((200052, 200054, 200055, 200050)))


def _topic_life(builder: WalkBuilder) -> None:
    """Create, use, shrink, delete and recreate a topic while it is in use."""
    chance = builder.chance
    topic = f"fuzz_new_{chance.below(20)}"
    for code in (17, 310, 11, 17, 202, 215, 310, 11, 200050, 17, 30):
        if chance.happens(0.7):
            builder.add_request(code, {"b" if code == 310 else "topic": topic})


def _group_life(builder: WalkBuilder) -> None:
    chance = builder.chance
    group = f"fuzz_group_{chance.below(20)}"
    for code in (34, 200, 15, 200050, 208, 207, 15, 222, 203, 207):
        if chance.happens(0.7):
            builder.add_request(code, {{207: "groupName", 222: "group"}.get(code, "consumerGroup"): group})


def _locks(builder: WalkBuilder) -> None:
    for _ in range(2 + builder.chance.below(4)):
        builder.add_request(builder.chance.pick((41, 41, 42)))


def _staged(builder: WalkBuilder) -> None:
    writer, batch = f"fuzz-writer-{builder.chance.below(4)}", builder.chance.below(6)
    for code in (770_003, 770_003, 770_004, 770_002, 770_003, 770_004):
        builder.add_request(code, {"writer": writer, "batch": str(batch)})


def _put_at_offsets(builder: WalkBuilder) -> None:
    """Store messages with gaps, again, and after a reset."""
    queue = builder.chance.below(2)
    for offset in (0, 1, 1, builder.chance.below(10), 2):
        request = builder.source.request(770_001)
        reset = builder.chance.pick(("false", "false", "true"))
        request.ext |= {"queueId": str(queue), "firstOffset": str(offset), "reset": reset}
        request.body = encode_kept_messages(queue, offset, 1 + builder.chance.below(3))
        builder.add_built(request, 0.2)


def _send_back(builder: WalkBuilder) -> None:
    builder.add_request(310)
    for _ in range(2):
        builder.add_request(36, {"delayLevel": builder.chance.pick(("-1", "0", "1"))})
    builder.add_request(11, {"topic": f"%RETRY%{GROUPS[0]}"})


def _timers(builder: WalkBuilder) -> None:
    chance = builder.chance
    delay = chance.pick(("TIMER_DELAY_SEC\x011\x02", "TIMER_DELAY_MS\x01100\x02", "DELAY\x011\x02"))
    for _ in range(1 + chance.below(3)):
        builder.add_request(310, {"b": "fuzz_delay", "i": f"{delay}UNIQ_KEY\x01U{chance.below(9)}\x02"})
    builder.add_request(370, {"topic": "fuzz_delay"})


def _oneway_flood(builder: WalkBuilder) -> None:
    code = builder.chance.pick((310, 34, 15, 200051, 37))
    for _ in range(20):
        request = builder.source.request(code)
        request.flag = 2
        builder.add_built(request, 0.3)


def _same_opaque(builder: WalkBuilder) -> None:
    """Use one opaque for several requests, some of which wait."""
    for code in (11, 200050, 11, 310, 34, 200054):
        request = builder.source.request(code)
        builder.add_built(request, 0.1)
        first, last = builder.walk.frames[0], builder.walk.frames[-1]
        request.opaque = first.opaque
        last.data, last.opaque, last.expects = encode_request(request), first.opaque, Expect.NOTHING


_BROKER_STORIES: Final[tuple[Callable[[WalkBuilder], None], ...]] = (
    _consumer,
    _consumer,
    _transaction,
    _pop,
    _pop,
    _topic_life,
    _group_life,
    _locks,
    _staged,
    _put_at_offsets,
    _send_back,
    _timers,
    _oneway_flood,
    _same_opaque,
)


# -- stories of the namesrv -------------------------------------------------------------------------------------------


def _broker_life(builder: WalkBuilder) -> None:
    """Register a broker, change and use its routes, and unregister or vanish."""
    for code in (103, 904, 105, 322, 103, 901, 205, 105, 327, 104, 105):
        if builder.chance.happens(0.7):
            builder.add_request(code)


def _configuration(builder: WalkBuilder) -> None:
    for _ in range(4):
        builder.add_request(builder.chance.pick((100, 101, 102, 219)))


def _topic_in_namesrv(builder: WalkBuilder) -> None:
    topic = f"fuzz_new_{builder.chance.below(20)}"
    for code in (217, 105, 216, 105, 206):
        builder.add_request(code, {"topic": topic})


_NAMESRV_STORIES: Final = (_broker_life, _broker_life, _configuration, _topic_in_namesrv)

_ALL_CODES: Final = tuple(sorted(REQUESTS))


def build_walk(seed: int, number: int, world: FuzzWorld, ports: Sequence[Port]) -> Walk:
    """Return the walk of this number; the same arguments give the same bytes, but for what the world has learned."""
    return WalkBuilder(seed, number, world, ports).build()
