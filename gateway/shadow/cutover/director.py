"""Where requests go while topics and groups move: a table look-up by topic and group, both read from the header.

Not responsible for passing them there (forward), for keeping those that wait, nor for heartbeats, which a client's
link sends to every side it uses. Who is in a group is asked of the primary, which always hears all heartbeats.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Protocol

from codec import fastjson
from codec.command import Command, decode_frame
from codec.errors import FrameError
from codec.topics import RETRY_PREFIX
from gateway.runtime.metrics import Figure
from gateway.shadow.cutover.machine import Move
from gateway.shadow.cutover.traffic import READS, SENDS, Traffic, topic_of_send
from gateway.shadow.mirror.settings import TARGET_PRIMARY
from gateway.shadow.traffic.exchange import Hub, Side
from remoting.declare import Request
from remoting.requests.locks import LockBatchMq, UnlockBatchMq
from remoting.requests.offsets import (
    GetConsumeStats,
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
    InvokeBrokerToResetOffset,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from remoting.requests.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeMessageInvisibletime,
    Notification,
    PeekMessage,
    PollingInfo,
    PopMessage,
)
from remoting.requests.pull import LitePullMessage, PullMessage
from remoting.requests.send import (
    ConsumerSendMsgBack,
    RecallMessage,
    SendBatchMessage,
    SendMessage,
    SendMessageV2,
)
from remoting.requests.topics import GetTopicStatsInfo
from remoting.requests.transaction import EndTransaction

BY_GROUP: Final[tuple[type[Request[Any]], ...]] = (
    PullMessage,
    LitePullMessage,
    PopMessage,
    PeekMessage,
    AckMessage,
    ChangeMessageInvisibletime,
    Notification,
    PollingInfo,
    QueryConsumerOffset,
    UpdateConsumerOffset,
    GetConsumeStats,
)
BY_TOPIC: Final[tuple[type[Request[Any]], ...]] = (
    GetMaxOffset,
    GetMinOffset,
    SearchOffsetByTimestamp,
    GetEarliestMsgStoretime,
    GetTopicStatsInfo,
)
NOTHING: Final[frozenset[int]] = frozenset()
LED: Final = frozenset({*SENDS, EndTransaction.code, RecallMessage.code})


class Leads(Protocol):
    """Which topics the target leads (mode target-primary): sends go there, and come back to the primary."""

    def target_leads(self, topic: str) -> bool: ...

    def any_mode_in_use(self, modes: Sequence[str]) -> bool: ...


class Director:
    """The Director of `exchange.Hub`. `update` makes it follow the moves; `hold` lets sends of a topic wait.

    Requests of topics that are not under way, and what cannot be read, go to the primary. Of a topic that the target
    leads, sends go to the target; those without answer do not, as nobody could bring them back.
    """

    def __init__(self, hub: Hub, traffic: Traffic, leads: Leads | None = None) -> None:
        self._hub = hub
        self._traffic = traffic
        self._leads = leads
        self._followed: set[str] = set()
        self._moves: dict[str, Move] = {}
        self._groups: dict[str, Side] = {}
        self._held: set[str] = set()
        self._directed: dict[tuple[int, Side], int] = {}
        self._by_code = self._table()

    def _table(self) -> dict[int, Callable[[Command, bytes], Side]]:
        return {
            **{each.code: self._send for each in (SendMessage, SendMessageV2, SendBatchMessage)},
            **{each.code: self._read for each in BY_GROUP},
            **{each.code: self._home for each in BY_TOPIC},
            **{each.code: self._lock for each in (LockBatchMq, UnlockBatchMq)},
            InvokeBrokerToResetOffset.code: self._reset,
            BatchAckMessage.code: self._batch_ack,
            ConsumerSendMsgBack.code: self._send_back,
            EndTransaction.code: self._end,
            RecallMessage.code: self._recall,
        }

    # -- following the moves --------------------------------------------------------------------------------------

    def update(self, moves: Iterable[Move]) -> None:
        """Goes by these moves from now on; what waits is asked about again."""
        self._moves = {move.topic: move for move in moves if move.under_way}
        self._groups = _sides_of_groups(self._moves.values())
        self._watch()
        self._hub.announce_decision()

    def follow(self, topic: str, *, wanted: bool) -> None:
        """Counts sends of a topic that does not move, or no longer."""
        (self._followed.add if wanted else self._followed.discard)(topic)
        self._watch()

    def _watch(self) -> None:
        self._traffic.watch(self._moves.keys() | self._followed)
        self._hub.refresh_interests()

    def hold(self, topic: str) -> None:
        """Lets sends of a topic wait until `release`."""
        self._held.add(topic)

    def release(self, topic: str) -> None:
        """They go where the moves say."""
        self._held.discard(topic)
        self._hub.announce_decision()

    # -- a Director -----------------------------------------------------------------------------------------------

    def codes(self) -> Collection[int]:
        """None while nothing is under way."""
        if self._moves:
            return self._by_code
        led = self._followed or (self._leads is not None and self._leads.any_mode_in_use((TARGET_PRIMARY,)))
        return LED if led else NOTHING

    def choose_side(self, code: int, frame: bytes) -> Side:
        """Where one request goes."""
        try:
            command = decode_frame(frame, 4, len(frame))
        except FrameError:
            return Side.PRIMARY
        side = self._by_code[code](command, frame)
        self._directed[code, side] = self._directed.get((code, side), 0) + 1
        return side

    def figures(self) -> Iterable[Figure]:
        """How many requests were looked at, by where they went."""
        meaning = "Requests of moving topics and groups, by where they went."
        for (code, side), count in self._directed.items():
            labels = {"code": str(code), "side": side.value}
            yield Figure("cutover_directed_total", count, meaning, labels=labels)

    # -- by code --------------------------------------------------------------------------------------------------

    def _send(self, command: Command, frame: bytes) -> Side:
        topic = topic_of_send(command)
        move = self._moves.get(topic)
        if move is None and _is_retry(topic):
            return self._groups.get(topic.removeprefix(RETRY_PREFIX), Side.PRIMARY)
        side = self._producers(topic)
        if move is None and side is Side.TARGET:
            if command.is_oneway:
                return Side.PRIMARY
            if topic not in self._followed:
                self.follow(topic, wanted=True)
        if topic in self._held:
            return Side.WAIT
        if topic in self._traffic.topics:
            self._traffic.passes(topic, frame)
        return side

    def _read(self, command: Command, frame: bytes) -> Side:
        topic = command.ext.get("topic") or ""
        side = self._consumers(topic, command.ext.get("consumerGroup") or "")
        if side is Side.TARGET and command.code in READS and self._traffic.reads(topic, frame):
            self._hub.refresh_interests()
        return side

    def _reset(self, command: Command, frame: bytes) -> Side:
        return self._consumers(command.ext.get("topic") or "", command.ext.get("group") or "")

    def _consumers(self, topic: str, group: str) -> Side:
        if not topic:
            return self._groups.get(group, Side.PRIMARY)
        if _is_retry(topic):
            rest = topic.removeprefix(RETRY_PREFIX + group)
            if not rest or rest == topic:
                return self._groups.get(group, Side.PRIMARY)
            topic = rest[1:]  # a retry topic of pop names the topic as well
        move = self._moves.get(topic)
        return Side.PRIMARY if move is None else move.consumers(group)

    def _home(self, command: Command, frame: bytes) -> Side:
        topic = command.ext.get("topic") or ""
        if _is_retry(topic):
            return self._groups.get(topic.removeprefix(RETRY_PREFIX), Side.PRIMARY)
        move = self._moves.get(topic)
        return Side.PRIMARY if move is None else move.home

    def _lock(self, command: Command, frame: bytes) -> Side:
        return self._groups.get(_body(command).get("consumerGroup") or "", Side.PRIMARY)

    def _batch_ack(self, command: Command, frame: bytes) -> Side:
        acks = _body(command).get("acks") or [{}]
        return self._consumers(acks[0].get("t") or "", acks[0].get("c") or "")

    def _send_back(self, command: Command, frame: bytes) -> Side:
        topic, group = command.ext.get("originTopic") or "", command.ext.get("group") or ""
        return self._consumers("" if _is_retry(topic) else topic, group)

    def _end(self, command: Command, frame: bytes) -> Side:
        ext = command.ext
        known = self._traffic.half_side(ext.get("msgId") or "", ext.get("transactionId") or "")
        return known or self._producers(ext.get("topic") or "")

    def _recall(self, command: Command, frame: bytes) -> Side:
        return self._producers(command.ext.get("topic") or "")

    def _producers(self, topic: str) -> Side:
        move = self._moves.get(topic)
        if move is not None:
            return move.producers
        led = self._leads is not None and self._leads.target_leads(topic)
        return Side.TARGET if led else Side.PRIMARY


def _is_retry(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def _body(command: Command) -> dict[str, Any]:
    try:
        value = fastjson.loads(bytes(command.body))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _sides_of_groups(moves: Iterable[Move]) -> dict[str, Side]:
    """Where a group's retry topic and locks are: at the target when all its moving topics are consumed there."""
    sides: dict[str, Side] = {}
    for move in moves:
        for group in move.groups:
            there = sides.get(group, Side.TARGET) is Side.TARGET and move.consumers(group) is Side.TARGET
            sides[group] = Side.TARGET if there else Side.PRIMARY
    return sides
