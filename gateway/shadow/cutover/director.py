"""Sends the requests of moving topics and groups to the right side: a table look-up by topic and group.

Topic and group are read from the request header, or from the body where the header has none. Heartbeats are not
directed: the client's session sends them to every side it uses. The primary receives all heartbeats, so group members
are asked of the primary. Held requests wait in the proxy's sessions.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Protocol

from codec import fastjson
from codec.command import Command, decode_frame
from codec.errors import FrameError
from codec.topics import RETRY_PREFIX
from gateway.runtime.metrics import Metric
from gateway.shadow.cutover.move_traffic import READ_CODES, SEND_CODES, MoveTraffic, topic_of_send
from gateway.shadow.cutover.moves import Move
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

GROUP_REQUESTS: Final[tuple[type[Request[Any]], ...]] = (
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
TOPIC_REQUESTS: Final[tuple[type[Request[Any]], ...]] = (
    GetMaxOffset,
    GetMinOffset,
    SearchOffsetByTimestamp,
    GetEarliestMsgStoretime,
    GetTopicStatsInfo,
)
MAX_ROUTING_BODY_BYTES: Final = 256 * 1024
"""Largest body that decides about a request's side; a larger one would hold up everybody's requests."""
NO_CODES: Final[frozenset[int]] = frozenset()
PRODUCER_CODES: Final = frozenset({*SEND_CODES, EndTransaction.code, RecallMessage.code})


class LeadRules(Protocol):
    """The mirror rules that say which topics the target leads (mode target-primary): sends go there and are copied
    back.
    """

    def target_leads(self, topic: str) -> bool: ...

    def any_mode_in_use(self, modes: Sequence[str]) -> bool: ...


class MoveDirector:
    """The Director of `exchange.Hub`: follows the moves, and holds the sends of a topic during a switch.

    Requests of topics that are not under way, and requests that cannot be read, go to the primary. Sends of a topic
    that the target leads go to the target, except oneway sends: without an answer nobody could copy them back.
    """

    def __init__(self, hub: Hub, traffic: MoveTraffic, leads: LeadRules | None = None) -> None:
        self._hub = hub
        self._traffic = traffic
        self._lead_rules = leads
        self._watched_topics: set[str] = set()
        self._moves: dict[str, Move] = {}
        self._group_sides: dict[str, Side] = {}
        self._held_topics: set[str] = set()
        self._directed_counts: dict[tuple[int, Side], int] = {}
        self._side_by_code = self._side_functions()

    def _side_functions(self) -> dict[int, Callable[[Command, bytes], Side]]:
        return {
            **{
                request.code: self._side_of_send for request in (SendMessage, SendMessageV2, SendBatchMessage)
            },
            **{request.code: self._side_of_read for request in GROUP_REQUESTS},
            **{request.code: self._side_of_topic_request for request in TOPIC_REQUESTS},
            **{request.code: self._side_of_lock for request in (LockBatchMq, UnlockBatchMq)},
            InvokeBrokerToResetOffset.code: self._side_of_reset,
            BatchAckMessage.code: self._side_of_batch_ack,
            ConsumerSendMsgBack.code: self._side_of_send_back,
            EndTransaction.code: self._side_of_transaction_end,
            RecallMessage.code: self._side_of_recall,
        }

    # -- following the moves --------------------------------------------------------------------------------------

    def follow_moves(self, moves: Iterable[Move]) -> None:
        """Direct requests by these moves from now on, and ask again for the requests that are held."""
        moves = list(moves)
        self._moves = {move.topic: move for move in moves if move.is_under_way}
        self._hub.writable_routes = {
            move.topic: frozenset(move.taken_permissions) for move in moves if move.is_read_only
        }
        self._group_sides = _sides_of_groups(self._moves.values())
        self._update_watched_topics()
        self._hub.announce_decision()

    def watch_sends(self, topic: str, *, watched: bool) -> None:
        """Start or stop counting the sends of a topic that does not move."""
        (self._watched_topics.add if watched else self._watched_topics.discard)(topic)
        self._update_watched_topics()

    def _update_watched_topics(self) -> None:
        self._traffic.watch_topics(self._moves.keys() | self._watched_topics)
        self._hub.refresh_interests()

    def hold_sends(self, topic: str) -> None:
        """Hold the sends of a topic until `release_sends`."""
        self._held_topics.add(topic)

    def release_sends(self, topic: str) -> None:
        """Let the held sends continue to the side that the moves say."""
        self._held_topics.discard(topic)
        self._hub.announce_decision()

    # -- a Director -----------------------------------------------------------------------------------------------

    def codes(self) -> Collection[int]:
        """Return the request codes to direct; none while no move is under way and the target leads no topic."""
        if self._moves:
            return self._side_by_code
        led = self._watched_topics or (
            self._lead_rules is not None and self._lead_rules.any_mode_in_use((TARGET_PRIMARY,))
        )
        return PRODUCER_CODES if led else NO_CODES

    def choose_side(self, code: int, frame: bytes) -> Side:
        """Return the side of one request."""
        try:
            command = decode_frame(frame, 4, len(frame))
        except FrameError:
            # The primary refuses it as it would without a gateway.
            return Side.PRIMARY
        side = self._side_by_code[code](command, frame)
        self._directed_counts[code, side] = self._directed_counts.get((code, side), 0) + 1
        return side

    def collect_metrics(self) -> Iterable[Metric]:
        """Yield the number of directed requests by code and side."""
        meaning = "Requests of moving topics and groups, by the side they went to."
        for (code, side), count in self._directed_counts.items():
            labels = {"code": str(code), "side": side.value}
            yield Metric("cutover_directed_total", count, meaning, labels=labels)

    # -- by code --------------------------------------------------------------------------------------------------

    def _side_of_send(self, command: Command, frame: bytes) -> Side:
        topic = topic_of_send(command)
        move = self._moves.get(topic)
        # A client that could not return a message to the broker sends it to the retry topic of its group itself.
        if move is None and _is_retry_topic(topic):
            return self._group_sides.get(topic.removeprefix(RETRY_PREFIX), Side.PRIMARY)
        side = self._producer_side(topic)
        if move is None and side is Side.TARGET:
            if command.is_oneway:
                return Side.PRIMARY
            if topic not in self._watched_topics:
                self.watch_sends(topic, watched=True)
        if topic in self._held_topics:
            # Not counted among the sends under way: the session asks for a side again after `release_sends`.
            return Side.WAIT
        if topic in self._traffic.topics:
            self._traffic.note_send(topic, frame)
        return side

    def _side_of_read(self, command: Command, frame: bytes) -> Side:
        topic = command.ext.get("topic") or ""
        group = command.ext.get("consumerGroup") or ""
        side = self._consumer_side(topic, group)
        if command.code == PopMessage.code:
            self._traffic.note_pop(group, topic)
        if side is Side.TARGET and command.code in READ_CODES and self._traffic.note_read(topic, frame):
            self._hub.refresh_interests()
        return side

    def _side_of_reset(self, command: Command, frame: bytes) -> Side:
        return self._consumer_side(command.ext.get("topic") or "", command.ext.get("group") or "")

    def _consumer_side(self, topic: str, group: str) -> Side:
        if not topic:
            return self._group_sides.get(group, Side.PRIMARY)
        if _is_retry_topic(topic):
            rest = topic.removeprefix(RETRY_PREFIX + group)
            if not rest or rest == topic:
                return self._group_sides.get(group, Side.PRIMARY)
            topic = rest[1:]  # a retry topic of pop names the topic as well
        move = self._moves.get(topic)
        return Side.PRIMARY if move is None else move.consumer_side(group)

    def _side_of_topic_request(self, command: Command, frame: bytes) -> Side:
        topic = command.ext.get("topic") or ""
        if _is_retry_topic(topic):
            return self._group_sides.get(topic.removeprefix(RETRY_PREFIX), Side.PRIMARY)
        move = self._moves.get(topic)
        return Side.PRIMARY if move is None else move.default_side

    def _side_of_lock(self, command: Command, frame: bytes) -> Side:
        return self._group_sides.get(_text(_parse_body(command).get("consumerGroup")), Side.PRIMARY)

    def _side_of_batch_ack(self, command: Command, frame: bytes) -> Side:
        acks = _parse_body(command).get("acks")
        first = acks[0] if isinstance(acks, list) and acks and isinstance(acks[0], dict) else {}
        return self._consumer_side(_text(first.get("t")), _text(first.get("c")))

    def _side_of_send_back(self, command: Command, frame: bytes) -> Side:
        topic, group = command.ext.get("originTopic") or "", command.ext.get("group") or ""
        return self._consumer_side("" if _is_retry_topic(topic) else topic, group)

    def _side_of_transaction_end(self, command: Command, frame: bytes) -> Side:
        ext = command.ext
        half_message_side = self._traffic.side_of_half_message(
            ext.get("msgId") or "", ext.get("transactionId") or ""
        )
        return half_message_side or self._producer_side(ext.get("topic") or "")

    def _side_of_recall(self, command: Command, frame: bytes) -> Side:
        return self._producer_side(command.ext.get("topic") or "")

    def _producer_side(self, topic: str) -> Side:
        move = self._moves.get(topic)
        if move is not None:
            return move.producer_side
        led = self._lead_rules is not None and self._lead_rules.target_leads(topic)
        return Side.TARGET if led else Side.PRIMARY


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def _parse_body(command: Command) -> dict[str, Any]:
    if len(command.body) > MAX_ROUTING_BODY_BYTES:
        return {}
    try:
        value = fastjson.loads(bytes(command.body))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _sides_of_groups(moves: Iterable[Move]) -> dict[str, Side]:
    """Return the side of each group's retry topic and locks: the target if all its moving topics are consumed there."""
    sides: dict[str, Side] = {}
    for move in moves:
        for group in move.groups:
            there = sides.get(group, Side.TARGET) is Side.TARGET and move.consumer_side(group) is Side.TARGET
            sides[group] = Side.TARGET if there else Side.PRIMARY
    return sides
