"""Flow control: refuse or delay requests before their handlers run, when the broker is overloaded, the disk stalls or a
quota is exhausted.

The official broker has a thread pool and a queue for each kind of request, and limits the queues. This broker has
neither. It limits the time from the moment the reactor finds a socket readable until the request's turn comes, and
the number of sends whose answers wait for the disk or for replicas. While the disk stalls it refuses new sends
([REJECTREQUEST]), so it never has to refuse waiting ones: the official remarks [PCBUSY_CLEAN_QUEUE] and
[PC_SYNCHRONIZED] do not occur.

The limits are guards: `BrokerService` lists them, in order, where it binds the handlers. A guard returns the handler
itself for a request code that it does not limit, so a request pays for the limits of its code only. When settings or
topics change the limits, the listeners of `FlowControl` apply the guards again. So this is the one place that knows
which limits a plain send passes. The limits of one connection live in `remoting/limits.py`, the counting of quotas in
`quotas.py`.
"""

from collections.abc import Callable, Sequence
from math import floor
from typing import Any, Final

import trio

from codec.batch import ENTRY_HEAD
from codec.command import Command, encode_response
from codec.constants import ResponseCode
from codec.java_numbers import parse_integer_or
from codec.topics import PERM_WRITE
from gateway.broker.limits.quotas import PULL, SEND, Quotas
from gateway.broker.messages.message_services import MessageServices
from gateway.config.process import BrokerConfig
from remoting.connection import Connection, Handler
from remoting.declare import Request
from remoting.errors import RequestError
from remoting.handler_table import Protect
from remoting.local_command import LocalCommand
from remoting.requests.client import CheckClientConfig, GetConsumerListByGroup, HeartBeat, UnregisterClient
from remoting.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from remoting.requests.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeMessageInvisibletime,
    Notification,
    PeekMessage,
    PollingInfo,
    PopMessage,
    QueryAssignment,
    SetMessageRequestMode,
)
from remoting.requests.pull import LitePullMessage, PullMessage
from remoting.requests.query import QueryMessage, ViewMessageById
from remoting.requests.send import (
    ConsumerSendMsgBack,
    RecallMessage,
    SendBatchMessage,
    SendMessage,
    SendMessageV2,
    SendReplyMessage,
    SendReplyMessageV2,
)
from remoting.requests.transaction import EndTransaction

START_TEXT: Final = "start flow control for a while"


def long_wait_remark(waited_ms: int, queue_size: int) -> str:
    """Return the official remark for a request that waited too long before it was handled."""
    period = f"period in queue: {waited_ms}ms, size of queue: {queue_size}"
    return f"[TIMEOUT_CLEAN_QUEUE]broker busy, {START_TEXT}, {period}"


def _codes(*requests: type[Request[Any]]) -> frozenset[int]:
    return frozenset(request.code for request in requests)


SENDS: Final = _codes(SendMessage, SendMessageV2, SendBatchMessage)
PULLS: Final = _codes(PullMessage, LitePullMessage, PopMessage)
STALLED_BY_DISK: Final = SENDS | _codes(ConsumerSendMsgBack)
"""Codes that SendMessageProcessor serves."""
SEND_QUEUE: Final = STALLED_BY_DISK | _codes(RecallMessage)
PULL_QUEUE: Final = _codes(PullMessage, PopMessage, PeekMessage, Notification, PollingInfo)
LITE_PULL_QUEUE: Final = _codes(LitePullMessage)
HEARTBEAT_QUEUE: Final = _codes(HeartBeat)
TRANSACTION_QUEUE: Final = _codes(EndTransaction)
ACK_QUEUE: Final = _codes(AckMessage, BatchAckMessage, ChangeMessageInvisibletime)
UNLIMITED: Final = _codes(
    QueryMessage, ViewMessageById, UnregisterClient, CheckClientConfig, GetConsumerListByGroup, QueryConsumerOffset,
    UpdateConsumerOffset, SendReplyMessage, SendReplyMessageV2, QueryAssignment, SetMessageRequestMode,
)  # fmt: skip
"""Codes whose official queues have no limit. Codes in none of these sets belong to the queue of the admin tools."""
MAX_HOLD_S: Final = 15.0
BRIEF_HOLD_S: Final = 1.0
"""Longest hold of a pull or pop that does not ask to be held, as for cold data in the official broker."""
DEFAULT_MAX_PULL_BYTES: Final = 256 * 1024
SUSPEND: Final = 2
UNLIMITED_SENDS: Final = 1 << 31


class FlowControl:
    """The guards that limit requests. Source: BrokerFastFailure, NettyRemotingAbstract.processRequestCommand, 5.4.0.

    ``waited_s`` returns how long the current request has waited for its turn.
    """

    def __init__(
        self,
        config: BrokerConfig,
        services: MessageServices,
        quotas: Quotas,
        waited_s: Callable[[], float],
    ) -> None:
        self._config = config
        self._store = services.store
        self._commit = services.group_commit
        self._answers = services.answer_gate
        self.quotas = quotas
        self.waited_s = waited_s
        self._quota_directions = (quotas.sending, quotas.pulling)
        self._listeners: list[Callable[[], None]] = []
        self._release = trio.Event()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever the guards must be applied again, because requests get or lose a limit."""
        self._listeners.append(listener)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings."""
        self._config = config
        self.quotas.reconfigure(config)
        self._notify_listeners()

    def note_topic_change(self) -> None:
        """Have the guards applied again if sends or pulls got their first quota, or lost their last."""
        # Topics change often, and nearly never a quota.
        if self._quota_directions != (self.quotas.sending, self.quotas.pulling):
            self._notify_listeners()

    def _notify_listeners(self) -> None:
        self._quota_directions = (self.quotas.sending, self.quotas.pulling)
        for listener in self._listeners:
            listener()

    # -- plain sends ----------------------------------------------------------------------------------------------

    def limits_on_plain_sends(self, guards: Sequence[Protect]) -> Callable[[Connection], int] | None:
        """Return the limits of sends as a function, for code that takes many plain sends at once (`native_sends.py`).

        ``guards`` are those that a send passes now. The function returns how many sends of a connection may be taken;
        0 stands for a refusal, which the guards put into words. Return None if requests have to be looked at one by
        one: other guards than the two below decide about each (access control, a pause, a slave, quotas), and so do
        settings that refuse sends.
        """
        config = self._config
        own_guards = (self.limit_waiting_time, self.limit_held_sends)
        if config.flow.native_sends == "off" or any(guard not in own_guards for guard in guards):
            return None
        if config.start_accept_send_timestamp_ms or not config.broker_permission & PERM_WRITE:
            return None
        limits_wait = self.limit_waiting_time in guards
        limit_ms = max_wait_ms(config, SendMessageV2.code)
        stall_s = config.flow.page_cache_busy_timeout_ms / 1000
        capacity, must_wait = config.flow.send_queue_capacity, self._answers.must_wait

        def count_allowed(connection: Connection) -> int:
            if limits_wait and (self._commit.flushing_s > stall_s or self.waited_s() * 1000 >= limit_ms):
                return 0
            if not must_wait:
                return UNLIMITED_SENDS
            try:
                self._answers.check_append()
            except RequestError:
                return 0
            outstanding = connection.limits.max_outstanding_requests - connection.outstanding_requests
            allowed = min(capacity - self._answers.held_count, outstanding)
            # Each message that is stored makes the gap to the slaves wider, which decides about the next one.
            return min(allowed, 1) if self._answers.may_refuse else allowed

        return count_allowed

    # -- overload -----------------------------------------------------------------------------------------------

    def limit_waiting_time(self, code: int, handler: Handler) -> Handler:
        """Refuse requests that waited too long for their turn, and sends while the disk stalls. A guard."""
        if not self._config.flow.broker_fast_failure_enable or code in UNLIMITED:
            return handler
        limit_ms = max_wait_ms(self._config, code)
        stall_s = self._config.flow.page_cache_busy_timeout_ms / 1000
        stalls = code in STALLED_BY_DISK

        def handle(connection: Connection, command: Command) -> bytes | None:
            # Before the waiting time: while the disk stalls, sends are refused whether they waited or not.
            if stalls and self._commit.flushing_s > stall_s:
                raise busy_refusal(f"[REJECTREQUEST]system busy, {START_TEXT}")
            # A timer may have made a local call long after the sockets were read: it has not waited since then.
            if isinstance(command, LocalCommand):
                return handler(connection, command)
            waited_ms = floor(self.waited_s() * 1000)
            if waited_ms >= limit_ms:
                raise busy_refusal(long_wait_remark(waited_ms, self._answers.held_count))
            return handler(connection, command)

        return handle

    def limit_held_sends(self, code: int, handler: Handler) -> Handler:
        """Refuse sends when too many others wait for the disk or for replicas (`answer_gate.py`). A guard."""
        if code not in SENDS or not self._answers.must_wait:
            return handler
        # Read when the guard is applied; a changed setting applies the guards again.
        capacity = self._config.flow.send_queue_capacity

        def handle(connection: Connection, command: Command) -> bytes | None:
            if self._answers.held_count >= capacity:
                raise busy_refusal(f"[OVERLOAD]system busy, {START_TEXT}")
            return handler(connection, command)

        return handle

    # -- quotas -------------------------------------------------------------------------------------------------

    def limit_send_rate(self, code: int, handler: Handler) -> Handler:
        """Refuse sends above the quotas of messages and bytes. A guard."""
        if code not in SENDS or not self.quotas.sending:
            return handler
        quotas = self.quotas

        def handle(connection: Connection, command: Command) -> bytes | None:
            # The field "b" is the topic in the short header of version 2 and of batches.
            topic = command.ext.get("topic" if command.code == SendMessage.code else "b", "")
            exhausted = quotas.describe_exhausted(SEND, topic)
            if exhausted is not None:
                raise busy_refusal(f"[REJECTREQUEST]system busy, {START_TEXT}, {exhausted}")
            answer = handler(connection, command)  # A send that the handler refuses does not count.
            quotas.consume(SEND, topic, _count_messages(command), len(command.body))
            return answer

        return handle

    def limit_pull_rate(self, code: int, handler: Handler) -> Handler:
        """Hold pulls above the quotas of messages and bytes, and give the others no more than is left. A guard."""
        if code not in PULLS or not self.quotas.pulling:
            return handler

        def handle(connection: Connection, command: Command) -> bytes | None:
            # Pulls take their tokens in `PullHandler` and `PopHandler`, which know how much they answer with; here a
            # request only waits for its turn.
            topic = command.ext.get("topic", "")
            wait_s = self.quotas.wait_s(PULL, topic)
            if wait_s > 0:
                connection.spawn(self._hold_until_allowed, handler, connection, command, wait_s)
                return None
            return self._serve_within_quota(handler, connection, command)

        return handle

    def _serve_within_quota(self, handler: Handler, connection: Connection, command: Command) -> bytes | None:
        """Serve a pull with no more messages and bytes than its quotas have left."""
        ext = command.ext
        max_messages = parse_integer_or(ext.get("maxMsgNums"), 0)
        max_bytes = parse_integer_or(ext.get("maxMsgBytes"), DEFAULT_MAX_PULL_BYTES)
        allowed_messages, allowed_bytes = self.quotas.limit_to_tokens(
            PULL, ext.get("topic", ""), max_messages, max_bytes
        )
        # A limit that the request does not exceed stays as the client wrote it, or absent.
        if allowed_messages < max_messages:
            ext["maxMsgNums"] = str(allowed_messages)
        if allowed_bytes < max_bytes:
            ext["maxMsgBytes"] = str(allowed_bytes)
        return handler(connection, command)

    def release_held(self) -> None:
        """Tell the clients whose pulls wait for their quotas to pull again, because the parts are to be replaced."""
        self._release.set()
        self._release = trio.Event()

    async def _hold_until_allowed(
        self, handler: Handler, connection: Connection, command: Command, wait_s: float
    ) -> None:
        """Answer a pull when its quotas allow it; at the end of its hold, tell the client to pull again.

        Deviation: the official broker, which only knows such a limit for cold data, refuses push consumers
        (SYSTEM_BUSY), which then log an error and pause for 3 s. Source: PullMessageProcessor, 5.4.0.
        """
        end = trio.current_time() + _hold_s(command)
        # Several pulls wait for the same tokens: whoever wakes up first takes them, the others wait again.
        release = self._release
        while wait_s > 0 and trio.current_time() < end and not release.is_set():
            with trio.move_on_after(min(wait_s, end - trio.current_time())):
                await release.wait()
            wait_s = self.quotas.wait_s(PULL, command.ext.get("topic", ""))
        if wait_s > 0:
            connection.write(self._encode_retry(command))
        else:
            connection.answer_late(command, lambda: self._serve_within_quota(handler, connection, command))

    def _encode_retry(self, command: Command) -> bytes:
        if command.code == PopMessage.code:
            return self._encode_pop_retry(command)
        topic, queue_id = command.ext.get("topic", ""), parse_integer_or(command.ext.get("queueId"), 0)
        ext = {
            "suggestWhichBrokerId": str(self._config.broker_id),
            "nextBeginOffset": str(parse_integer_or(command.ext.get("queueOffset"), 0)),
            "minOffset": str(self._store.min_offset(topic, queue_id)),
            "maxOffset": str(self._store.max_offset(topic, queue_id)),
        }
        # No offset moves, so the client pulls the same messages again, at once, and waits here.
        code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return encode_response(command.opaque, code, ext, b"", self._pull_remark(topic))

    def _encode_pop_retry(self, command: Command) -> bytes:
        """Encode the answer of a pop whose wait ended without messages."""
        invisible_time = parse_integer_or(command.ext.get("invisibleTime"), 0)
        ext = {"popTime": "0", "invisibleTime": str(invisible_time), "reviveQid": "0", "restNum": "0"}
        remark = self._pull_remark(command.ext.get("topic", ""))
        return encode_response(command.opaque, ResponseCode.POLLING_TIMEOUT, ext, b"", remark)

    def _pull_remark(self, topic: str) -> str:
        return f"{self.quotas.describe_exhausted(PULL, topic) or 'pull quota'}, try again"


def max_wait_ms(config: BrokerConfig, code: int) -> int:
    """Return the wait limit of a code. Source: BrokerFastFailure, BrokerController.registerProcessor, 5.4.0."""
    for codes, limit_ms in (
        (SEND_QUEUE, config.flow.wait_time_send_ms),
        (PULL_QUEUE, config.flow.wait_time_pull_ms),
        (LITE_PULL_QUEUE, config.flow.wait_time_lite_pull_ms),
        (HEARTBEAT_QUEUE, config.flow.wait_time_heartbeat_ms),
        (TRANSACTION_QUEUE, config.flow.wait_time_transaction_ms),
        (ACK_QUEUE, config.flow.wait_time_ack_ms),
    ):
        if code in codes:
            return limit_ms
    return config.flow.wait_time_admin_ms


def busy_refusal(remark: str) -> RequestError:
    """Return a refusal that makes stock producers try another broker.

    Source: DefaultMQProducer.retryResponseCodes, 5.4.0.
    """
    return RequestError(ResponseCode.SYSTEM_BUSY, remark)


def _hold_s(command: Command) -> float:
    if command.code == PopMessage.code:
        return (
            min(MAX_HOLD_S, max(0, parse_integer_or(command.ext.get("pollTime"), 0)) / 1000) or BRIEF_HOLD_S
        )
    if not parse_integer_or(command.ext.get("sysFlag"), 0) & SUSPEND:
        return BRIEF_HOLD_S
    return min(MAX_HOLD_S, max(0, parse_integer_or(command.ext.get("suspendTimeoutMillis"), 0)) / 1000)


def _count_messages(command: Command) -> int:
    """Return the number of messages in an accepted send."""
    flag = command.ext.get("batch" if command.code == SendMessage.code else "m", "")
    if command.code != SendBatchMessage.code and flag.lower() != "true":
        return 1
    # Only the lengths are followed. An entry is at least its head, so the loop ends whatever the lengths say.
    count, position, body = 0, 0, bytes(command.body)
    while position < len(body):
        position += max(ENTRY_HEAD.size, int.from_bytes(body[position : position + 4], "big"))
        count += 1
    return count
