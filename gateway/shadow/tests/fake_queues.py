"""Test helper: a cluster of one broker with one topic, whose queue is a list of messages."""

from collections.abc import Iterable
from typing import Any

from codec.message import Message, encode_message
from remoting.bodies.routes import QueueData, TopicRouteData
from remoting.errors import RequestError
from remoting.requests.offsets import (
    GetMaxOffset,
    GetMaxOffsetReply,
    GetMinOffset,
    GetMinOffsetReply,
    SearchOffsetByTimestamp,
    SearchOffsetByTimestampReply,
)
from remoting.requests.pull import PullMessage, PullMessageReply

BORN_MS = 1_700_000_000_000


def stored(
    number: int,
    *,
    body: bytes | None = None,
    properties: dict[str, str] | None = None,
    stored_ms: int | None = None,
    **more: Any,
) -> Message:
    """Return the message that a producer sent as number ``number``."""
    return Message(
        "orders",
        b"body %d" % number if body is None else body,
        {"UNIQ_KEY": f"U{number:08}", "__SHARDINGKEY": f"K{number % 3}"}
        if properties is None
        else properties,
        born_timestamp=BORN_MS + number,
        store_timestamp=BORN_MS + number if stored_ms is None else stored_ms,
        **more,
    )


class FakeQueues:
    """Answers the requests of `compare.queue_reader`. `queue` is a list of `Message`; None is a hole.

    An answer holds at most ``a_pull`` messages; each pull that finds the end appends one message of ``arriving``.
    """

    def __init__(
        self,
        queue: Iterable[Message | None],
        *,
        a_pull: int = 7,
        first: int = 0,
        arriving: Iterable[Message] = (),
    ) -> None:
        self.queue = list(queue)
        self.first = first
        self.brokers = {"broker-a": {0: "10.0.0.1:10911"}}
        self.asked = 0
        self._a_pull = a_pull
        self._arriving = list(arriving)

    @property
    def end(self) -> int:
        return self.first + len(self.queue)

    async def route(self, topic: str) -> TopicRouteData:
        return TopicRouteData(queue_datas=[QueueData(broker_name="broker-a", read_queue_nums=1, perm=6)])

    async def ask_broker(self, broker: str, request: Any, timeout_s: float | None = None) -> Any:
        self.asked += 1
        if broker not in self.brokers:
            raise KeyError(broker)
        return _ANSWERS[type(request)](self, request)

    def _pull(self, request: Any) -> PullMessageReply:
        offset = request.queue_offset
        if offset >= self.end:
            reply = self._reply(19 if offset == self.end else 21, self.end)
            self.queue += [self._arriving.pop(0)] if self._arriving else []
            return reply
        if offset < self.first:
            return self._reply(21, self.first)
        found = range(offset, min(offset + self._a_pull, self.end))
        reply = self._reply(0, found.stop)
        reply.body = b"".join(self.encoded(each) for each in found if self.queue[each - self.first])
        return reply

    def encoded(self, offset: int) -> bytes:
        message = self.queue[offset - self.first]
        message.queue_offset = offset
        return encode_message(message)

    def _reply(self, code: int, following: int) -> PullMessageReply:
        reply = PullMessageReply(
            suggest_which_broker_id=0, next_begin_offset=following, min_offset=self.first, max_offset=self.end
        )
        reply.code = code
        return reply

    def _search(self, request: Any) -> SearchOffsetByTimestampReply:
        times = [each.store_timestamp for each in self.queue]
        earlier = sum(time < request.timestamp for time in times)
        return SearchOffsetByTimestampReply(offset=self.first + earlier)


class Refusing(FakeQueues):
    """Refuses every request."""

    async def ask_broker(self, broker: str, request: Any, timeout_s: float | None = None) -> Any:
        raise RequestError(1, "not today")


_ANSWERS = {
    PullMessage: FakeQueues._pull,
    GetMaxOffset: lambda self, request: GetMaxOffsetReply(offset=self.end),
    GetMinOffset: lambda self, request: GetMinOffsetReply(offset=self.first),
    SearchOffsetByTimestamp: FakeQueues._search,
}
