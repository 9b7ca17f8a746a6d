"""Protocol logic of a session's second upstream: requests that the director sends to the target.

The connection is opened for the first such request; requests queue up while it is being dialed. The target then gets
the client's last heartbeat, so that it knows the client, and each later one as well. Both clusters answer heartbeats;
the client gets only the primary's answers.

Bytes are passed on unchanged, including signatures, with two exceptions. The opaque of the target's own requests to the
client is replaced, because the primary may use the same one. The broker name in receipt handles is replaced if the two
brokers have different names: clients know the primary's broker, the target knows itself.

If the target cannot be reached, or disconnects while it owes answers, the session ends: to the client it looks like a
dead broker. Nothing here does I/O. The director decides which requests go to the target.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from codec import fastjson
from codec.command import Command, decode_frame, encode_command
from codec.constants import FLAG_ONEWAY, FLAG_RESPONSE, SERIALIZE_BINARY
from codec.errors import FrameError
from gateway.shadow.proxy.exchange_tracker import ExchangeTracker, PendingRequest
from gateway.shadow.proxy.frame_peek import HEADER_AT, OPAQUE_PATTERN, FrameHead, find_header_end, peek_head
from gateway.shadow.proxy.frame_splitter import ALL_FRAMES, RawFrameSplitter, ignore_growth
from gateway.shadow.proxy.listener_context import ListenerContext
from remoting.requests.client import HeartBeat, UnregisterClient
from remoting.requests.pop import AckMessage, BatchAckMessage, ChangeMessageInvisibletime
from remoting.transport import Buffer

HANDLE_CODES: Final = frozenset({AckMessage.code, ChangeMessageInvisibletime.code, BatchAckMessage.code})
"""Requests that carry a receipt handle, or the broker's name from one."""
MAX_BATCH_BODY_BYTES: Final = 256 * 1024
"""Largest body of a batch acknowledgement that is decoded; a larger one is passed on as it is."""
_NAME_INDEX: Final = 5
"""Index of the broker's name in a receipt handle.

Its parts are offset, pop time, invisible time, revive queue, kind of topic, broker, queue and queue offset."""


_BINARY_OPAQUE_AT: Final = HEADER_AT + 5
_INT = Struct(">i")
_FIRST_WORDS = Struct(">II")
INTRODUCTION_CODES: Final = frozenset({HeartBeat.code, UnregisterClient.code})
"""Requests that tell a broker which client it talks to."""
_FIRST_OPAQUE: Final = -(1 << 31)
_MAX_INTRODUCTION_FRAMES: Final = 64
# A client that has sent a full heartbeat once may leave out its subscriptions later (useHeartbeatV2).
_WITHOUT_SUBSCRIPTIONS = re.compile(rb'"(?:isW|w)ithoutSub"\s*:\s*true')


class TargetConversation:
    """One connection to the target. Only answers to requests that were sent there reach the client.

    A request of the target to the client gets an opaque from a range that no upstream reaches in its first two
    billion requests, because the primary may use the same opaque.
    """

    __slots__ = (
        "_broker_name",
        "_counters",
        "_hub",
        "_max_remembered",
        "_next_opaque",
        "_send_released",
        "_target_opaques",
        "splitter",
        "tracker",
    )

    def __init__(
        self,
        tracker: ExchangeTracker,
        broker_name: str,
        context: ListenerContext,
        send_released: Callable[[Buffer], None],
        on_large_input: Callable[[int], None] = ignore_growth,
    ) -> None:
        self._hub = context.hub
        self._counters = context.counters
        self._max_remembered = context.settings.remembered
        self._send_released = send_released
        # "" where both brokers have the same name: receipt handles then pass untouched.
        self._broker_name = broker_name if broker_name != tracker.upstream.broker else ""
        self._next_opaque = _FIRST_OPAQUE
        self._target_opaques: OrderedDict[int, int] = OrderedDict()
        self.tracker = tracker
        self.splitter = RawFrameSplitter(context.settings.frame_bytes, on_large_input)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an unfinished frame and of remembered requests."""
        return len(self.splitter.unfinished) + self.tracker.buffered_bytes

    @property
    def owes_answers(self) -> bool:
        """Tell whether the client waits for an answer of the target."""
        return bool(self.tracker.requests.by_opaque)

    @property
    def expects_answers(self) -> bool:
        """Tell whether the target waits for an answer of the client."""
        return bool(self._target_opaques)

    def release(self) -> None:
        """Free the unfinished frame, and drop answers that are released later: the conversation has ended."""
        self.splitter.release()
        self._send_released = _drop_answer

    def translate_request(self, head: FrameHead, frame: bytes) -> tuple[PendingRequest, bytes]:
        """Remember a request of the client; return its record and the frame that the target gets."""
        observed = self._hub.interests[head.code].observed
        request = self.tracker.remember_request(head, frame if observed else b"")
        if self._broker_name and head.code in HANDLE_CODES:
            frame = replace_broker_name(frame, self._broker_name)
        return request, frame

    def translate_answer(self, head: FrameHead, frame: bytes) -> bytes | None:
        """Return the client's answer with the opaque that the target used; None if it answers no target's request."""
        if head.opaque not in self._target_opaques:
            return None
        self.tracker.finish_reverse_request(head.opaque, frame)
        return replace_opaque(frame, self._target_opaques.pop(head.opaque))

    def receive_bytes(self, data: bytes, max_frames: int = ALL_FRAMES) -> Buffer:
        """Return the bytes that the client gets now. After a bad frame, `splitter.error` says what is wrong."""
        data, ends = self.splitter.split(data, max_frames)
        if not ends:
            return b""
        self._counters.answers += len(ends)
        self._counters.answer_bytes += ends[-1]
        pieces: list[bytes] = []
        start = 0
        for end in ends:
            head, frame = peek_head(data, start, end), data[start:end]
            if head is not None:
                is_answer = head.flag & FLAG_RESPONSE
                piece = self._receive_answer(head, frame) if is_answer else self._receive_request(head, frame)
                if piece is not None:
                    pieces.append(piece)
            start = end
        return b"".join(pieces)

    def _receive_answer(self, head: FrameHead, frame: bytes) -> bytes | None:
        request = self.tracker.requests.take(head.opaque)
        # Answers to introductions are not remembered: the client already gets the primary's answer to the same
        # heartbeat.
        if request is None or self.tracker.finish_or_hold(request, frame, self._release_answer):
            return None
        return frame

    def _receive_request(self, head: FrameHead, frame: bytes) -> bytes | None:
        if head.flag & FLAG_ONEWAY:
            self.tracker.remember_reverse_request(head, frame)
            return frame
        # The client will answer with this opaque, which tells whose request it answers.
        opaque = self._next_opaque
        try:
            renumbered = replace_opaque(frame, opaque)
        except FrameError:
            return None
        self._next_opaque += 1
        self.tracker.remember_reverse_request(head._replace(opaque=opaque), frame)
        self._target_opaques[opaque] = head.opaque
        # A client that never answers must not fill the memory.
        if len(self._target_opaques) > self._max_remembered:
            self._target_opaques.popitem(last=False)
        return renumbered

    def _release_answer(self, frame: bytes) -> None:
        """Send an answer that was held."""
        self.tracker.held_answers -= 1
        self._send_released(frame)


class TargetUpstream:
    """The target as seen from one session: not connected, being dialed (requests queue up), or in conversation."""

    __slots__ = ("_introduction", "_max_queued_bytes", "conversation", "is_dialing", "queue", "queued_bytes")

    def __init__(self, max_queued_bytes: int) -> None:
        self._max_queued_bytes = max_queued_bytes
        self._introduction: list[bytes] = []
        self.conversation: TargetConversation | None = None
        self.is_dialing = False
        self.queue: list[tuple[FrameHead, bytes]] = []
        """Requests that wait for the connection."""
        self.queued_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of queued requests, of the introduction, and of the conversation."""
        conversation = 0 if self.conversation is None else self.conversation.buffered_bytes
        return sum(map(len, self._introduction)) + self.queued_bytes + conversation

    @property
    def is_queue_full(self) -> bool:
        """Tell whether the queued requests are above the high watermark."""
        return self.queued_bytes > self._max_queued_bytes

    @property
    def has_unsent_answers(self) -> bool:
        """Tell whether requests wait for the connection, or the holder keeps answers back."""
        return self.is_dialing or (
            self.conversation is not None and self.conversation.tracker.held_answers > 0
        )

    def enqueue_request(self, head: FrameHead, frame: bytes) -> None:
        """Keep a request until the target is connected."""
        self.queue.append((head, frame))
        self.queued_bytes += len(frame)

    def note_introduction(self, code: int, frame: bytes) -> None:
        """Keep the last full heartbeat and the unregistrations since, for a target that is dialed later."""
        if code == HeartBeat.code and not _WITHOUT_SUBSCRIPTIONS.search(frame):
            self._introduction = [frame]
        elif code == UnregisterClient.code and len(self._introduction) < _MAX_INTRODUCTION_FRAMES:
            self._introduction.append(frame)

    def open_conversation(
        self, conversation: TargetConversation
    ) -> tuple[list[bytes], list[tuple[FrameHead, bytes]]]:
        """Begin a conversation; return the frames that introduce the client, and the queued requests."""
        self.is_dialing = False
        self.conversation = conversation
        # The introduction is kept: the next conversation of this session needs it again.
        queue, self.queue, self.queued_bytes = self.queue, [], 0
        return self._introduction, queue

    def close_conversation(self) -> bool:
        """End the conversation; return True if the client waits for answers that will not come."""
        conversation, self.conversation = self.conversation, None
        if conversation is None:
            return False
        owed = conversation.owes_answers
        # Observers are told that no answer came, before the buffers are freed.
        conversation.tracker.finish_all()
        conversation.release()
        return owed


def _drop_answer(data: Buffer) -> None:
    """Drop an answer that was released after its conversation had ended."""


def replace_broker_name(frame: bytes, name: str) -> bytes:
    """Return a frame of one of `HANDLE_CODES` with another broker name; one that cannot be read is returned as is.

    A broker matches an acknowledgement with its pop checkpoint by the broker name in both. If the names differ, the
    acknowledgement has no effect, and the message is delivered again.
    Source: AckMessageProcessor, ChangeInvisibleTimeProcessor, PopCheckPoint, 5.4.0.
    """
    try:
        command = decode_frame(frame, 4, len(frame))
        is_batch = command.code == BatchAckMessage.code
        changed = _rename_in_body(command, name) if is_batch else _rename_in_handle(command, name)
    except (FrameError, ValueError):
        return frame
    return encode_command(command) if changed else frame


def _rename_in_handle(command: Command, name: str) -> bool:
    parts = command.ext.get("extraInfo", "").split(" ")
    if len(parts) <= _NAME_INDEX or parts[_NAME_INDEX] == name:
        return False
    command.ext["extraInfo"] = " ".join([*parts[:_NAME_INDEX], name, *parts[_NAME_INDEX + 1 :]])
    return True


def _rename_in_body(command: Command, name: str) -> bool:
    if len(command.body) > MAX_BATCH_BODY_BYTES:
        return False
    value: Any = fastjson.loads(bytes(command.body))
    if not isinstance(value, dict) or value.get("brokerName") == name:
        return False
    command.body = fastjson.dumps({**value, "brokerName": name})
    return True


def replace_opaque(frame: bytes, opaque: int) -> bytes:
    """Return a frame with another opaque, and nothing else changed. Raises FrameError if it is not a command."""
    # The binary header has the opaque at a fixed place. In JSON its length may change, and with it both length words.
    if frame[4] == SERIALIZE_BINARY:
        return frame[:_BINARY_OPAQUE_AT] + _INT.pack(opaque) + frame[_BINARY_OPAQUE_AT + 4 :]
    end = find_header_end(frame, 0)
    match = OPAQUE_PATTERN.search(frame, HEADER_AT, end)
    # The header may have a field of that name among its own fields as well: then only decoding tells them apart.
    if match is None or frame.rfind(b'"opaque"', HEADER_AT, end) != match.start():
        return _reencode(frame, opaque)
    header = b"%b%d%b" % (frame[HEADER_AT : match.start(1)], opaque, frame[match.end(1) : end])
    return _FIRST_WORDS.pack(len(frame) - end + len(header) + 4, len(header)) + header + frame[end:]


def _reencode(frame: bytes, opaque: int) -> bytes:
    """Decode and encode a frame whose header has an unusual form, or a header field named "opaque"."""
    command = decode_frame(frame, 4, len(frame))
    command.opaque = opaque
    return encode_command(command)
