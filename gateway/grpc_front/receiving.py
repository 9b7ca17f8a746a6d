"""ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: pop consumption.

Source: ReceiveMessageActivity, AckMessageActivity, ChangeInvisibleDurationActivity, ForwardMessageToDLQActivity,
ConsumerProcessor, ProducerProcessor, 5.4.0.
"""

import logging
import math
from collections.abc import Coroutine
from typing import Any, Final

import trio

from codec import properties as keys
from codec.constants import ResponseCode
from codec.message import Message, iter_messages
from gateway.broker.filters.message_filter import TAG
from gateway.broker.processors.turns import ITEMS_PER_TURN, end_turn
from gateway.grpc_front import messages
from gateway.grpc_front.broker_link import BrokerLink
from gateway.grpc_front.clients import Clients
from gateway.grpc_front.cluster import ServedBroker, ServedCluster
from gateway.grpc_front.conversion import set_ms, subscription_to, to_grpc_message, to_ms
from gateway.grpc_front.long_work import LongWork
from gateway.grpc_front.names import (
    MIN_RECEIVE_INVISIBLE_MS,
    check_group,
    check_invisible_time,
    check_topic,
)
from gateway.grpc_front.receipts import MessageReceipt, PopReceipts
from gateway.grpc_front.renewals import RENEWED_INVISIBLE_MS, HeldMessage, Renewals
from gateway.grpc_front.rpc import Method, Rpc, unary
from gateway.grpc_front.statuses import OK, StatusError, make_status, overall_status, status_of
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.heartbeat import SubscriptionData
from remoting.eager import enter_task
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.pop import (
    AckMessage,
    ChangeMessageInvisibletime,
    PopMessage,
    PopMessageReply,
)
from remoting.requests.send import ConsumerSendMsgBack

log = logging.getLogger(__name__)

MIN_POLL_MS: Final = 5_000
MAX_POLL_MS: Final = 20_000
MAX_BATCH: Final = 32
ANY_QUEUE: Final = -1
FROM_END: Final = 1
"""New groups of 5.x clients begin at the end of the queues. Source: ConsumeInitMode.MAX, 5.4.0."""
RETURN_MS: Final = 1_000
"""Invisible time of messages that could not be passed on to their consumer."""
POLL_GRACE_S: Final = 5.0
MAX_PUT_ASIDE_S: Final = 10.0
"""Longest time for the messages of a pop that its consumer does not get; its client waits meanwhile."""
DLQ_LEVEL: Final = -1
_CLIENT_WITH_POLLING_CODE: Final = (5, 0, 3)
MAX_VERSION_DIGITS: Final = 9


class ReceiveMethods:
    """The RPCs of consumers."""

    def __init__(self, cluster: ServedCluster, clients: Clients, renewals: Renewals) -> None:
        self._cluster = cluster
        self._clients = clients
        self._renewals = renewals
        self._long_acks = LongWork()

    def methods(self) -> dict[str, Method]:
        """Return the RPCs by name."""
        return {
            "ReceiveMessage": unary(
                messages.ReceiveMessageRequest,
                messages.ReceiveMessageResponse,
                self.receive_message,
                lambda status: failed_receive(status, self._cluster.clock.now_ms()),
                is_eager=True,
            ),
            "AckMessage": unary(
                messages.AckMessageRequest, messages.AckMessageResponse, self.ack_message, is_eager=True
            ),
            "ChangeInvisibleDuration": unary(
                messages.ChangeInvisibleDurationRequest,
                messages.ChangeInvisibleDurationResponse,
                self.change_invisible_duration,
                is_eager=True,
            ),
            "ForwardMessageToDeadLetterQueue": unary(
                messages.ForwardMessageToDeadLetterQueueRequest,
                messages.ForwardMessageToDeadLetterQueueResponse,
                self.forward_to_dead_letters,
            ),
        }

    # -- receiving -----------------------------------------------------------------------------------------

    async def receive_message(
        self, rpc: Rpc, request: messages.ReceiveMessageRequest
    ) -> list[messages.ReceiveMessageResponse]:
        """Return messages as soon as there are any, or that there are none."""
        poll_ms = _poll_time(rpc, request, self._request_timeout_ms(rpc))
        topic = check_topic(request.message_queue.topic)
        group = check_group(request.group)
        invisible_ms = to_ms(request.invisible_duration)
        if request.auto_renew:
            invisible_ms = RENEWED_INVISIBLE_MS
        else:
            check_invisible_time(invisible_ms, MIN_RECEIVE_INVISIBLE_MS)
        subscription = subscription_to(topic, request.filter_expression, 0)
        broker = self._cluster.readable_broker(topic, request.message_queue.broker.name)
        config = self._cluster.find_group(group) or SubscriptionGroupConfig(group_name=group)
        pop = PopMessage(
            consumer_group=group,
            topic=topic,
            queue_id=ANY_QUEUE,
            max_msg_nums=min(max(request.batch_size, 1), MAX_BATCH),
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=self._cluster.clock.now_ms(),
            init_mode=FROM_END,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=config.consume_message_orderly,
            attempt_id=request.attempt_id if request.HasField("attempt_id") else None,
            bname=broker.name,
        )
        link = self._cluster.open_link(rpc.connection, broker)  # Closing it ends a pop that waits.
        try:
            reply = await link.call(
                pop,
                rpc.sender,
                timeout_s=poll_ms / 1000 + POLL_GRACE_S,
                on_unclaimed=lambda late: self._return_unclaimed(rpc, link, broker, late, topic, group),
            )
            deliveries = await self._pass_on(rpc, link, broker, reply, subscription, config)
            if rpc.is_cancelled:
                self._return_messages(rpc, link, [receipt for _, receipt in deliveries], topic, group)
                return []
        finally:
            link.close("the receive has ended")
        return self._answers(rpc, reply, deliveries, request)

    def _request_timeout_ms(self, rpc: Rpc) -> int:
        """Return the request timeout that the client's settings name; 0 if it has told none."""
        client = self._clients.get(rpc.client_id)
        return 0 if client is None else to_ms(client.settings.request_timeout)

    def _answers(
        self,
        rpc: Rpc,
        reply: PopMessageReply,
        deliveries: list[tuple[Message, MessageReceipt]],
        request: messages.ReceiveMessageRequest,
    ) -> list[messages.ReceiveMessageResponse]:
        """Return the answers of a receive; its consumer holds the messages from now on."""
        if not deliveries:
            if reply.code == ResponseCode.POLLING_FULL:
                status = make_status(messages.TOO_MANY_REQUESTS, "polling full")
            else:
                status = make_status(
                    messages.MESSAGE_NOT_FOUND,
                    "no new message" if reply.code else "no match message",
                )
            return failed_receive(status, self._cluster.clock.now_ms())
        answers = [messages.ReceiveMessageResponse(status=OK)]
        for message, receipt in deliveries:
            converted = to_grpc_message(message, receipt.text)
            set_ms(converted.system_properties.invisible_duration, receipt.invisible_time)
            answers.append(messages.ReceiveMessageResponse(message=converted))
            if request.auto_renew:
                held = HeldMessage(
                    rpc.client_id,
                    request.group.name,
                    message.topic,
                    receipt,
                    rpc.sender,
                    rpc.connection,
                    self._cluster.clock.now_ms(),
                )
                self._renewals.hold(held)
        end = messages.ReceiveMessageResponse()
        set_ms(end.delivery_timestamp, self._cluster.clock.now_ms())
        return [*answers, end]

    async def _pass_on(
        self,
        rpc: Rpc,
        link: BrokerLink,
        broker: ServedBroker,
        reply: PopMessageReply,
        subscription: SubscriptionData,
        config: SubscriptionGroupConfig,
    ) -> list[tuple[Message, MessageReceipt]]:
        """Return the messages of a pop that the consumer gets. Others are acknowledged, or given up."""
        receipts = PopReceipts(reply, broker.name)
        deliveries = []
        work: list[Coroutine[Any, Any, None]] = []
        topic, group = subscription.topic, config.group_name
        for message in iter_messages(reply.body):
            receipt = receipts.receipt_of(message)
            message.reconsume_times = receipts.times_consumed(message)
            message.topic = topic
            message.properties.setdefault(keys.FIRST_POP_TIME, str(reply.pop_time))
            if not _has_wanted_tag(message, subscription):
                work.append(self.acknowledge(link, rpc, receipt, topic, group))
            elif message.reconsume_times > config.retry_max_times:
                work.append(self.give_up(link, rpc, receipt, message.unique_key or "", topic, group))
            else:
                deliveries.append((message, receipt))
        if work:
            await enter_task()
            # What a slow broker leaves over is delivered again after its invisible time.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + MAX_PUT_ASIDE_S):
                while work:
                    await self._try(work.pop(0))
            for step in work:
                step.close()
        return deliveries

    @staticmethod
    async def _try(step: Coroutine[Any, Any, None]) -> None:
        try:
            await step
        except (StatusError, RequestError, RemotingClosed, RemotingTimeout) as error:
            log.warning("a popped message could not be put aside", extra={"reason": str(error)})

    def _return_unclaimed(
        self, rpc: Rpc, link: BrokerLink, broker: ServedBroker, reply: PopMessageReply, topic: str, group: str
    ) -> None:
        """Make messages visible soon that were popped while the client gave up."""
        receipts = PopReceipts(reply, broker.name)
        popped = [receipts.receipt_of(message) for message in iter_messages(reply.body)]
        self._return_messages(rpc, link, popped, topic, group)

    @staticmethod
    def _return_messages(
        rpc: Rpc, link: BrokerLink, receipts: list[MessageReceipt], topic: str, group: str
    ) -> None:
        for receipt in receipts:
            link.post(_change_request(receipt, topic, group, RETURN_MS), rpc.sender)

    # -- receipts ------------------------------------------------------------------------------------------

    async def ack_message(self, rpc: Rpc, request: messages.AckMessageRequest) -> messages.AckMessageResponse:
        """Record that messages are consumed."""
        topic, group = check_topic(request.topic), check_group(request.group)
        answer = messages.AckMessageResponse()
        if len(request.entries) >= ITEMS_PER_TURN:  # `end_turn` may wait.
            await enter_task()
        async with self._long_acks.lock_for(len(request.entries)):
            for number, entry in enumerate(request.entries):
                try:
                    with self._renewals.released(rpc.client_id, group, entry.receipt_handle) as receipt:
                        await self.acknowledge(self._link_for(rpc, receipt), rpc, receipt, topic, group)
                    status = OK
                except Exception as error:  # noqa: BLE001 - each entry has a result of its own
                    status = status_of(error)
                answer.entries.add(
                    message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
                )
                await end_turn(number)
        if not answer.entries:
            raise StatusError(messages.INTERNAL_SERVER_ERROR, "ack message result is empty")
        answer.status.CopyFrom(overall_status([entry.status for entry in answer.entries]))
        return answer

    async def acknowledge(
        self, link: BrokerLink, rpc: Rpc, receipt: MessageReceipt, topic: str, group: str
    ) -> None:
        """Record that one message is consumed. Raises StatusError, RequestError."""
        receipt.check_valid(self._cluster.clock.now_ms())
        ack = AckMessage(
            consumer_group=group,
            topic=receipt.real_topic(topic, group),
            queue_id=receipt.queue_id,
            extra_info=receipt.text,
            offset=receipt.offset,
            bname=receipt.broker_name,
        )
        await link.call(ack, rpc.sender)

    async def change_invisible_duration(
        self, rpc: Rpc, request: messages.ChangeInvisibleDurationRequest
    ) -> messages.ChangeInvisibleDurationResponse:
        """Start a new invisible time for a message: another delay before its next delivery."""
        topic, group = check_topic(request.topic), check_group(request.group)
        invisible_ms = to_ms(request.invisible_duration)
        check_invisible_time(invisible_ms)
        with self._renewals.released(rpc.client_id, group, request.receipt_handle) as receipt:
            receipt.check_valid(self._cluster.clock.now_ms())
            link = self._link_for(rpc, receipt)
            change = _change_request(receipt, topic, group, invisible_ms)
            change.suspend = request.suspend
            reply = await link.call(change, rpc.sender)
        changed = receipt.renewed(reply.pop_time, reply.invisible_time, reply.revive_qid)
        return messages.ChangeInvisibleDurationResponse(status=OK, receipt_handle=changed.text)

    async def forward_to_dead_letters(
        self, rpc: Rpc, request: messages.ForwardMessageToDeadLetterQueueRequest
    ) -> messages.ForwardMessageToDeadLetterQueueResponse:
        """Give a message up that its consumer could not process."""
        topic, group = check_topic(request.topic), check_group(request.group)
        with self._renewals.released(rpc.client_id, group, request.receipt_handle) as receipt:
            link = self._link_for(rpc, receipt)
            await self.give_up(link, rpc, receipt, request.message_id, topic, group)
        return messages.ForwardMessageToDeadLetterQueueResponse(status=OK)

    async def give_up(
        self, link: BrokerLink, rpc: Rpc, receipt: MessageReceipt, message_id: str, topic: str, group: str
    ) -> None:
        """Move a message to the dead letters of its group. Raises StatusError, RequestError."""
        if receipt.physical_offset < 0:
            raise StatusError(messages.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
        back = ConsumerSendMsgBack(
            offset=receipt.physical_offset,
            group=group,
            delay_level=DLQ_LEVEL,
            origin_msg_id=message_id,
            origin_topic=receipt.real_topic(topic, group),
            max_reconsume_times=0,
            bname=receipt.broker_name,
        )
        await link.call(back, rpc.sender)
        await self.acknowledge(link, rpc, receipt, topic, group)

    def _link_for(self, rpc: Rpc, receipt: MessageReceipt) -> BrokerLink:
        broker = self._cluster.broker(receipt.broker_name)
        if broker is None:
            raise StatusError(
                messages.INVALID_RECEIPT_HANDLE, f"this server has no broker {receipt.broker_name}"
            )
        return self._cluster.link(rpc.connection, broker)


def failed_receive(status: messages.Status, now_ms: int) -> list[messages.ReceiveMessageResponse]:
    """Return the answers of a receive without messages."""
    end = messages.ReceiveMessageResponse()
    set_ms(end.delivery_timestamp, now_ms)
    return [messages.ReceiveMessageResponse(status=status), end]


def _poll_time(rpc: Rpc, request: messages.ReceiveMessageRequest, request_timeout_ms: int) -> int:
    """Return how long (ms) a receive may wait. Raises StatusError if its deadline is too close.

    Clients add their request timeout to the time for which they want to wait, and older ones say only the sum. Half of
    it is left for the way back. Source: ReceiveMessageActivity.receiveMessage, 5.4.0.
    """
    left_ms = math.inf if math.isinf(rpc.left_s) else rpc.left_s * 1000
    duration = request.long_polling_timeout if request.HasField("long_polling_timeout") else None
    poll_ms = left_ms - request_timeout_ms / 2 if duration is None else to_ms(duration)
    poll_ms = min(max(poll_ms, MIN_POLL_MS), MAX_POLL_MS)
    if poll_ms <= left_ms:
        return int(poll_ms)
    if left_ms >= MIN_POLL_MS:
        return int(left_ms)
    is_known = _version_of(rpc.metadata.get("x-mq-client-version", "")) >= _CLIENT_WITH_POLLING_CODE
    raise StatusError(
        messages.ILLEGAL_POLLING_TIME if is_known else messages.BAD_REQUEST,
        "The deadline time remaining is not enough for polling, please check network condition",
    )


def _version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part[:MAX_VERSION_DIGITS]) for part in text.split(".")[:3] if part.isdecimal())


def _has_wanted_tag(message: Message, subscription: SubscriptionData) -> bool:
    """Tell whether the tag itself was asked for: brokers compare only its hash."""
    is_filtered = subscription.expression_type == TAG and bool(subscription.tags_set)
    return not is_filtered or (message.tags or "").strip() in subscription.tags_set


def _change_request(
    receipt: MessageReceipt, topic: str, group: str, invisible_ms: int
) -> ChangeMessageInvisibletime:
    return ChangeMessageInvisibletime(
        consumer_group=group,
        topic=receipt.real_topic(topic, group),
        queue_id=receipt.queue_id,
        extra_info=receipt.text,
        offset=receipt.offset,
        invisible_time=invisible_ms,
        bname=receipt.broker_name,
    )
