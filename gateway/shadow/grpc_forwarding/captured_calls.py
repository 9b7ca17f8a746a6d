"""Sends and acknowledgements of forwarded calls as exchanges for the capture.

A capture holds remoting requests. A message of SendMessage becomes a SEND_MESSAGE_V2 with the properties under which
the Proxy stores it, and an entry of AckMessage becomes an ACK_MESSAGE. The answer has what the Proxy tells: the message
id, the transaction id and the offset. It does not tell the broker and the queue of a message that it stored, so these
are "" and -1; a receipt handle names both. Credentials are headers of the call, and are not part of it.

Calls are copied while they pass and are decoded at their end. A call that takes more than ``max_bytes``, or whose
messages the protocol does not allow, is counted as not captured.
"""

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import Any, Final

import trio
from google.protobuf.message import DecodeError

from codec import properties as keys
from codec.command import encode_command, encode_response
from codec.constants import ResponseCode
from codec.hosts import Host, format_host
from codec.properties import encode_properties
from codec.topics import DEFAULT_TOPIC
from gateway.grpc_front import messages
from gateway.grpc_front.framing import IDENTITY, GrpcError, MessageReader
from gateway.grpc_front.receipts import MessageReceipt
from gateway.grpc_front.request_size import check_field_count
from gateway.grpc_front.sending import properties_of, sys_flag_of
from gateway.grpc_front.statuses import StatusError
from gateway.shadow.traffic.exchange import Codes, Exchange
from remoting.requests.pop import AckMessage
from remoting.requests.send import SendMessageV2
from storage.clock import Clock

UNKNOWN_QUEUE: Final = -1
ENTRIES_PER_TURN: Final = 16
"""Messages or acknowledgements of a call that become exchanges in one turn of the event loop."""
_RECORDED: Final[dict[str, tuple[Any, Any, int]]] = {
    "SendMessage": (messages.SendMessageRequest, messages.SendMessageResponse, SendMessageV2.code),
    "AckMessage": (messages.AckMessageRequest, messages.AckMessageResponse, AckMessage.code),
}
_DEFAULT_QUEUES: Final = 4
Spawn = Callable[[Callable[..., Coroutine[Any, Any, None]], Iterator[Exchange]], None]
"""Runs an async function until it ends or the client has gone."""


@dataclass(slots=True)
class CallCapture:
    """The capture of a gateway as calls see it: who observes their exchanges, and the limits of a copy."""

    codes: Callable[[], Codes]
    observe: Callable[[Exchange], None]
    clock: Clock
    upstream: str
    max_bytes: int
    not_captured: int = 0
    long_work: trio.Lock = field(default_factory=trio.Lock)

    def recorder_for(
        self, method: str, connection: int, remote: Host, encoding: str, spawn: Spawn
    ) -> "CallRecorder | None":
        """Return what records a call of this method; None if it is not captured."""
        kind = _RECORDED.get(method)
        codes = self.codes()
        if kind is None or (codes is not None and kind[2] not in codes):
            return None
        return CallRecorder(self, method, connection, remote, encoding, spawn)


class CallRecorder:
    """Copies one call, and hands its exchanges to the capture at its end."""

    def __init__(
        self, capture: CallCapture, method: str, connection: int, remote: Host, encoding: str, spawn: Spawn
    ) -> None:
        self._capture = capture
        self._method = method
        self._connection = connection
        self._remote = remote
        self._spawn = spawn
        self._request_reader = MessageReader(encoding, capture.max_bytes)
        self._answer_reader = MessageReader(IDENTITY, capture.max_bytes)
        self._requests: list[bytes] = []
        self._answers: list[bytes] = []
        self._is_given_up = False
        self._wall_ms = capture.clock.now_ms()
        self._asked_s = self._forwarded_s = monotonic()
        self._answered_s = 0.0

    @property
    def held_bytes(self) -> int:
        """Bytes that are copied."""
        whole_bytes = sum(map(len, self._requests)) + sum(map(len, self._answers))
        return whole_bytes + self._request_reader.held_bytes + self._answer_reader.held_bytes

    def give_up(self) -> None:
        """Forget the call, which takes too much memory."""
        if not self._is_given_up:
            self._is_given_up = True
            self._capture.not_captured += 1
            self._requests, self._answers = [], []

    def add_request(self, data: bytes) -> None:
        """Copy a part of the request."""
        self._forwarded_s = monotonic()
        self._copy(self._request_reader, self._requests, data)

    def add_answer(self, data: bytes) -> None:
        """Copy a part of the answer."""
        self._copy(self._answer_reader, self._answers, data)

    def _copy(self, reader: MessageReader, copies: list[bytes], data: bytes) -> None:
        if self._is_given_up:
            return
        try:
            copies += reader.feed(data)
        except GrpcError:
            self.give_up()
            return
        if len(copies) > 1:
            self.give_up()  # These calls have one request and one answer.

    def finish(self, ending: int | str) -> None:
        """Hand the call to the capture, if it is complete and reads as one. ``ending`` is its status."""
        if self._is_given_up:
            return
        self._answered_s = monotonic()
        request_type, answer_type, _ = _RECORDED[self._method]
        try:
            (encoded,) = self._requests
            check_field_count(encoded, request_type.DESCRIPTOR)
            request = request_type.FromString(encoded)
            answer = answer_type.FromString(self._answers[0]) if self._answers else None
        except (ValueError, DecodeError, GrpcError):
            self.give_up()
            return
        make = self._sends if self._method == "SendMessage" else self._acknowledgements
        exchanges = make(request, answer, ending)
        for exchange in islice(exchanges, ENTRIES_PER_TURN):
            self._capture.observe(exchange)
        entries = request.messages if self._method == "SendMessage" else request.entries
        if len(entries) > ENTRIES_PER_TURN:
            self._spawn(self._observe_rest, exchanges)

    async def _observe_rest(self, exchanges: Iterator[Exchange]) -> None:
        """Hand over the exchanges of a long call, after others had their turn; one long call at a time."""
        async with self._capture.long_work:
            while batch := list(islice(exchanges, ENTRIES_PER_TURN)):
                for exchange in batch:
                    self._capture.observe(exchange)
                await trio.lowlevel.checkpoint()

    # -- exchanges ----------------------------------------------------------------------------------------------

    def _sends(
        self,
        request: messages.SendMessageRequest,
        answer: messages.SendMessageResponse | None,
        ending: int | str,
    ) -> Iterator[Exchange]:
        for number, message in enumerate(request.messages):
            try:
                properties = properties_of(message, self._wall_ms, self._remote)
            except StatusError:
                self._capture.not_captured += 1  # The Proxy refuses it as well.
                continue
            command = SendMessageV2(
                producer_group=message.topic.name,
                topic=message.topic.name,
                default_topic=DEFAULT_TOPIC,
                default_topic_queue_nums=_DEFAULT_QUEUES,
                queue_id=UNKNOWN_QUEUE,
                sys_flag=sys_flag_of(message),
                born_timestamp=int(properties[keys.BORN_TIMESTAMP]),
                flag=0,
                properties=encode_properties(properties).decode(),
                reconsume_times=0,
                batch=False,
            ).to_command()
            command.body = message.body
            entry = answer.entries[number] if answer is not None and number < len(answer.entries) else None
            fields = None if entry is None else _reply_fields(entry)
            yield self._exchange(
                command.code,
                encode_command(command),
                self._answer_frame(answer, entry, fields, ending),
                broker="",
            )

    def _acknowledgements(
        self,
        request: messages.AckMessageRequest,
        answer: messages.AckMessageResponse | None,
        ending: int | str,
    ) -> Iterator[Exchange]:
        for number, ack in enumerate(request.entries):
            try:
                receipt = MessageReceipt.parse(ack.receipt_handle)
            except StatusError:
                self._capture.not_captured += 1
                continue
            command = AckMessage(
                consumer_group=request.group.name,
                topic=request.topic.name,
                queue_id=receipt.queue_id,
                extra_info=receipt.text,
                offset=receipt.offset,
            ).to_command()
            entry = answer.entries[number] if answer is not None and number < len(answer.entries) else None
            yield self._exchange(
                command.code,
                encode_command(command),
                self._answer_frame(answer, entry, None, ending),
                broker=receipt.broker_name,
            )

    @staticmethod
    def _answer_frame(
        answer: Any, entry: Any, fields: dict[str, str] | None, ending: int | str
    ) -> bytes | None:
        """Return the answer of a broker that says the same; None if the call failed without an answer."""
        if answer is None:
            return None
        status = answer.status if entry is None else entry.status
        if status.code == messages.OK and isinstance(ending, int):
            return encode_response(0, ResponseCode.SUCCESS, fields)
        remark = f"{status.code}: {status.message}"
        return encode_response(0, ResponseCode.SYSTEM_ERROR, None, b"", remark)

    def _exchange(self, code: int, request: bytes, answer: bytes | None, *, broker: str) -> Exchange:
        return Exchange(
            code,
            request,
            answer,
            connection=self._connection,
            client=format_host(self._remote),
            upstream=self._capture.upstream,
            broker=broker,
            wall_ms=self._wall_ms,
            asked_s=self._asked_s,
            forwarded_s=self._forwarded_s,
            answered_s=self._answered_s,
        )


def _reply_fields(entry: messages.SendResultEntry) -> dict[str, str]:
    fields = {
        "msgId": entry.message_id,
        "queueId": str(UNKNOWN_QUEUE),
        "queueOffset": str(entry.offset),
        "transactionId": entry.transaction_id,
        "recallHandle": entry.recall_handle,
    }
    return {name: value for name, value in fields.items() if value}
