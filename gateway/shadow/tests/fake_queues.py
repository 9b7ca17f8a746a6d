"""Test helper: a cluster of one broker with one topic, whose queue is a list of messages."""

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


def stored(number, *, body=None, properties=None, stored_ms=None, **more):
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

    def __init__(self, queue, *, a_pull=7, first=0, arriving=()):
        self.queue = list(queue)
        self.first = first
        self.brokers = {"broker-a": {0: "10.0.0.1:10911"}}
        self.asked = 0
        self._a_pull = a_pull
        self._arriving = list(arriving)

    @property
    def end(self):
        return self.first + len(self.queue)

    async def route(self, topic):
        return TopicRouteData(queue_datas=[QueueData(broker_name="broker-a", read_queue_nums=1, perm=6)])

    async def ask_broker(self, broker, request, timeout_s=None):
        self.asked += 1
        if broker not in self.brokers:
            raise KeyError(broker)
        return _ANSWERS[type(request)](self, request)

    def _pull(self, request):
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

    def encoded(self, offset):
        message = self.queue[offset - self.first]
        message.queue_offset = offset
        return encode_message(message)

    def _reply(self, code, following):
        reply = PullMessageReply(
            suggest_which_broker_id=0, next_begin_offset=following, min_offset=self.first, max_offset=self.end
        )
        reply.code = code
        return reply

    def _search(self, request):
        times = [each.store_timestamp for each in self.queue]
        earlier = sum(time < request.timestamp for time in times)
        return SearchOffsetByTimestampReply(offset=self.first + earlier)


class Refusing(FakeQueues):
    """Refuses every request."""

    async def ask_broker(self, broker, request, timeout_s=None):
        raise RequestError(1, "not today")


_ANSWERS = {
    PullMessage: FakeQueues._pull,
    GetMaxOffset: lambda self, request: GetMaxOffsetReply(offset=self.end),
    GetMinOffset: lambda self, request: GetMinOffsetReply(offset=self.first),
    SearchOffsetByTimestamp: FakeQueues._search,
}
