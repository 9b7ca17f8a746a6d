"""Receipt handles as 5.x clients hold them: those of a pop, followed by the physical offset of the message.

Source: ReceiptHandle and ConsumerProcessor.createHandle, 5.4.0.
"""

from typing import NamedTuple, Self

from codec.java_numbers import I32, parse_java_integer
from codec.message import Message
from codec.properties import POP_CK
from gateway.broker.pop.receipts import RETRY_V1, RETRY_V2, topic_of_kind
from gateway.grpc_front import messages
from gateway.grpc_front.statuses import StatusError
from remoting.errors import RequestError
from remoting.requests.pop import PopMessageReply

NO_OFFSET = -1


class MessageReceipt(NamedTuple):
    """A receipt handle and the parts of it that requests need. Times are in ms."""

    text: str
    pop_time: int
    invisible_time: int
    kind: str
    broker_name: str
    queue_id: int
    offset: int
    physical_offset: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a handle. Raises StatusError."""
        parts = text.split(" ")
        try:
            physical = parse_java_integer(parts[8]) if len(parts) > 8 else NO_OFFSET
            return cls(
                text,
                parse_java_integer(parts[1]),
                parse_java_integer(parts[2]),
                parts[4],
                parts[5],
                parse_java_integer(parts[6], I32),
                parse_java_integer(parts[7]),
                physical,
            )
        except (ValueError, IndexError) as error:
            raise StatusError(
                messages.INVALID_RECEIPT_HANDLE,
                f"the receipt handle cannot be read, it has {len(parts)} parts",
            ) from error

    @property
    def visible_ms(self) -> int:
        """The time (ms since 1970) at which the message is delivered again."""
        return self.pop_time + self.invisible_time

    def check_valid(self, now_ms: int) -> None:
        """Refuse a handle whose message is visible again already. Raises StatusError."""
        if self.visible_ms <= now_ms:
            raise StatusError(messages.INVALID_RECEIPT_HANDLE, "receipt handle is expired")

    def real_topic(self, topic: str, group: str) -> str:
        """Return the topic in which the message is: the given one, or a retry topic of it. Raises StatusError."""
        try:
            return topic_of_kind(topic, group, self.kind)
        except RequestError as error:
            raise StatusError(messages.INVALID_RECEIPT_HANDLE, error.remark or "") from error

    def renewed(self, pop_time: int, invisible_time: int, revive_queue_id: int) -> Self:
        """Return the handle of the same message after its invisible time was changed."""
        return self.parse(
            f"{self.offset} {pop_time} {invisible_time} {revive_queue_id} {self.kind} {self.broker_name} "
            f"{self.queue_id} {self.offset} {self.physical_offset}"
        )


class PopReceipts:
    """Makes the receipt handles of the messages of one pop. Source: MQClientAPIImpl.processPopResponse, 5.4.0."""

    def __init__(self, reply: PopMessageReply, broker_name: str) -> None:
        self._reply = reply
        self._broker_name = broker_name
        self._starts = dict(_keyed(reply.start_offset_info))
        self._counts = dict(_keyed(reply.order_count_info))

    def receipt_of(self, message: Message) -> MessageReceipt:
        """Return the handle of a message. One of a retry topic brings it along, because its topic was changed."""
        handle = _handle_of_retry(message.properties.get(POP_CK, ""))
        if handle is None:
            reply = self._reply
            start = self._starts.get(f"0@{message.queue_id}", str(message.queue_offset))
            handle = (
                f"{start} {reply.pop_time} {reply.invisible_time} {reply.revive_qid} 0 {self._broker_name} "
                f"{message.queue_id} {message.queue_offset}"
            )
        return MessageReceipt.parse(f"{handle} {message.physical_offset}")

    def times_consumed(self, message: Message) -> int:
        """Return how often a message was delivered before. The pop's answer has this count for ordered groups only."""
        by_offset = self._counts.get(f"0@qo{message.queue_id}%{message.queue_offset}")
        counted = by_offset or self._counts.get(f"0@{message.queue_id}")
        return int(counted) if counted and int(counted) > 0 else message.reconsume_times


def _handle_of_retry(text: str) -> str | None:
    """Return a handle that the broker attached to a message; None for any other text.

    It attaches those of retry topics only. Senders can write others into the messages of a batch, because the official
    broker removes the property from single messages only, and one that nobody can use would be renewed in vain.
    """
    try:
        receipt = MessageReceipt.parse(text)
    except StatusError:
        return None
    return text if receipt.kind in (RETRY_V1, RETRY_V2) else None


def _keyed(info: str | None) -> list[tuple[str, str]]:
    """Return the pairs of ``kind queue value;kind queue value``."""
    entries = [entry.split(" ") for entry in (info or "").split(";") if entry]
    return [(f"{kind}@{queue}", value) for kind, queue, value in entries]
