"""Read-only requests that may be sent again, to the target or the primary, and how to send them without any effect.

Only codes in `READ_ONLY_CODES` are ever repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from codec.command import Command
from codec.errors import FrameError
from codec.message import decode_message, iter_messages, message_end
from gateway.shadow.compare.expected_differences import CONSUMER_TOPIC_PREFIXES, PULL_CODES
from gateway.shadow.traffic.exchange import Exchange
from remoting.acl import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from remoting.errors import RequestError
from remoting.requests.client import HeartBeat
from remoting.requests.pull import PULL_FLAG_SUBSCRIPTION, PullMessage, read_only_pull
from remoting.requests.query import QueryMessage, ViewMessageById

READ_ONLY_CODES: Final = {
    11: "messages of a queue; repeated in the name of the tools' group, without commit or long poll",
    361: "as 11",
    12: "messages by key",
    14: "a group's offset",
    21: "all topics of a broker",
    30: "maximum offset of a queue",
    31: "minimum offset of a queue",
    33: "a message by its id; read from the target by its unique key, since ids contain the broker's address",
    43: "offsets of all groups",
    101: "one KV setting of a namesrv",
    105: "a route",
    201: "all groups of a broker",
    202: "offsets of a topic's queues",
    206: "all topics of a namesrv",
    208: "progress of a group",
    219: "KV settings of a namesrv",
    343: "topics of a group",
    351: "one topic",
    352: "one group",
    402: "assignment of queues to a group's clients",
}
"""Request codes that change nothing, with what they read.

Left out on purpose: requests about connected clients (38, 203, 204, 307, 400), about statistics and settings of the
server itself (26, 28, 315, 319), pulls with side effects, pops, peeks and everything that writes.
"""
_MAX_TIMESTAMP_MS: Final = (1 << 63) - 1
_CLASS_FILTER_FLAG: Final = 8
_MAX_SUBSCRIPTIONS: Final = 20_000
MAX_HEARTBEAT_BYTES: Final = 64 * 1024
"""Larger heartbeats are not decoded: clients' requests would wait for it. Their pulls are not compared."""
MAX_EXPRESSION_CHARS: Final = 4_096
MAX_NAME_CHARS: Final = 255
_CREDENTIAL_FIELDS: Final = (ACCESS_KEY, SECURITY_TOKEN, SIGNATURE)
_MAX_COPIES: Final = 32
_MAX_QUERY_RESULTS: Final = 32
"""Maximum number of messages a query returns by default. Source: MessageStoreConfig.defaultQueryMaxNum, 5.4.0."""

MapOffset = Callable[[str, str, int, int], int | None]
"""Maps a queue offset of the primary (broker, topic, queue id, offset) to the target's.

Returns the same message's offset or a slightly earlier one, None when it is not known.
"""


class NotRepeatable(Exception):
    """An exchange is not repeated; the text is one of a few fixed reasons, which are counted."""


@dataclass(frozen=True, slots=True)
class RepeatedRead:
    """A read to be repeated.

    `target_request` goes to the target and, for a second read, `primary_request` to the primary.
    """

    exchange: Exchange
    primary_answer: Command
    target_request: Command
    primary_request: Command

    def as_primary_answer(self, answer: Command) -> Command:
        """Return the target's answer in the form of the primary's: a message by id is read from the target by its
        unique key.

        Raises MessageFormatError.
        """
        if self.exchange.code != ViewMessageById.code or answer.code != 0:
            return answer
        unique_key = decode_message(self.primary_answer.body).unique_key
        stored_copies, position = b"", 0
        for message in islice(iter_messages(answer.body), _MAX_COPIES):
            end = message_end(answer.body, position)
            stored_copies += bytes(answer.body[position:end]) if message.unique_key == unique_key else b""
            position = end
        return Command(0, body=stored_copies)


class KnownSubscriptions:
    """The subscriptions of groups, learned from heartbeats: pulls of push consumers do not carry them."""

    def __init__(self) -> None:
        self._subscriptions: dict[tuple[str, str], tuple[str, str]] = {}

    def learn_heartbeat(self, exchange: Exchange) -> None:
        """Remember the subscriptions of a heartbeat and forget the oldest above the limit; ignore other requests."""
        if len(exchange.request) > MAX_HEARTBEAT_BYTES:
            return
        try:
            data = HeartBeat.from_command(exchange.request_command).data
        except (RequestError, FrameError):
            return
        for consumer in data.consumer_data_set:
            for subscription in consumer.subscription_data_set:
                key = (consumer.group_name, subscription.topic)
                self._subscriptions.pop(key, None)
                expression = subscription.sub_string or "*"
                if len(expression) <= MAX_EXPRESSION_CHARS and max(map(len, key)) <= MAX_NAME_CHARS:
                    self._subscriptions[key] = (expression, subscription.expression_type or "TAG")
        while len(self._subscriptions) > _MAX_SUBSCRIPTIONS:
            del self._subscriptions[next(iter(self._subscriptions))]

    def find_subscription(self, group: str, topic: str) -> tuple[str, str] | None:
        """Return expression and expression type of a group's subscription, None when unknown."""
        return self._subscriptions.get((group, topic))


def plan_repeated_read(
    exchange: Exchange, subscriptions: KnownSubscriptions, map_offset: MapOffset
) -> RepeatedRead:
    """Return how to repeat an exchange. Raises NotRepeatable, FrameError, RequestError, MessageFormatError."""
    request, answer = exchange.request_command, exchange.answer_command
    if exchange.code not in READ_ONLY_CODES or answer is None or exchange.reverse:
        raise NotRepeatable("not a read-only request with an answer")
    if request.ext.get("topic", "").startswith(CONSUMER_TOPIC_PREFIXES):
        raise NotRepeatable("a topic of consumers' own")
    if exchange.code in PULL_CODES:
        return _plan_pull(exchange, request, answer, subscriptions, map_offset)
    if exchange.code == QueryMessage.code and _reached_result_limit(request, answer):
        raise NotRepeatable(
            "a query that found as much as it may: which ones depends on the order of the log"
        )
    primary_request = _without_credentials(request)
    if exchange.code == ViewMessageById.code:
        if answer.code != 0:
            raise NotRepeatable("no message was found by its id")
        return RepeatedRead(exchange, answer, _query_by_unique_key(answer), primary_request)
    return RepeatedRead(exchange, answer, _without_credentials(request), primary_request)


def _reached_result_limit(request: Command, answer: Command) -> bool:
    limit = min(QueryMessage.from_ext(request.ext).max_num, _MAX_QUERY_RESULTS)
    return answer.code == 0 and sum(1 for _ in iter_messages(answer.body)) >= limit


def _without_credentials(request: Command) -> Command:
    """Return the request without the client's credentials: the sender signs with its own."""
    ext = {name: value for name, value in request.ext.items() if name not in _CREDENTIAL_FIELDS}
    return Command(request.code, 0, 0, ext, request.body, None, request.language, request.version)


def _query_by_unique_key(answer: Command) -> Command:
    message = decode_message(answer.body)
    if message.unique_key is None:
        raise NotRepeatable("a message without unique key")
    return QueryMessage(
        topic=message.topic,
        key=message.unique_key,
        max_num=_MAX_COPIES,
        begin_timestamp=0,
        end_timestamp=_MAX_TIMESTAMP_MS,
        unique_key_query=True,
    ).to_command()


def _plan_pull(
    exchange: Exchange,
    request: Command,
    answer: Command,
    subscriptions: KnownSubscriptions,
    map_offset: MapOffset,
) -> RepeatedRead:
    if answer.code != 0:
        raise NotRepeatable("a pull without messages")
    request_pull = PullMessage.from_ext(request.ext)
    if request_pull.sys_flag & _CLASS_FILTER_FLAG:
        raise NotRepeatable("a pull with a class filter")
    subscription: tuple[str, str] | None = (
        request_pull.subscription or "*",
        request_pull.expression_type or "TAG",
    )
    if not request_pull.sys_flag & PULL_FLAG_SUBSCRIPTION:
        subscription = subscriptions.find_subscription(request_pull.consumer_group, request_pull.topic)
    if subscription is None:
        raise NotRepeatable("a pull whose subscription is not known")
    target_offset = map_offset(
        exchange.broker, request_pull.topic, request_pull.queue_id, request_pull.queue_offset
    )
    if target_offset is None:
        raise NotRepeatable("a pull at an offset that is not mapped")
    target_request, primary_request = (
        _side_effect_free_pull(exchange.code, request_pull, offset, subscription)
        for offset in (target_offset, request_pull.queue_offset)
    )
    return RepeatedRead(exchange, answer, target_request, primary_request)


def _side_effect_free_pull(
    code: int, request_pull: PullMessage, offset: int, subscription: tuple[str, str]
) -> Command:
    text, kind = subscription
    pull = read_only_pull(
        request_pull.topic,
        request_pull.queue_id,
        offset,
        request_pull.max_msg_nums,
        subscription=text,
        expression_type=kind,
    )
    command = pull.to_command()
    command.code = code
    return command
