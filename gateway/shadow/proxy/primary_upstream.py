"""Protocol logic of a session's connection to the primary: answers, and the primary's own requests to the client.

The client gets the bytes unchanged, except for the primary's addresses. Nothing here does I/O.
"""

from collections.abc import Callable, Collection
from functools import partial

from codec.command import decode_frame
from codec.constants import FLAG_RESPONSE
from codec.errors import FrameError
from gateway.shadow.proxy.address_book import AddressView
from gateway.shadow.proxy.address_rewrite import REWRITTEN_ANSWER_CODES, patch_answers, rewrite_answer
from gateway.shadow.proxy.exchange_tracker import ExchangeTracker, PendingRequest
from gateway.shadow.proxy.frame_peek import FrameHead, peek_code, peek_head
from gateway.shadow.proxy.frame_splitter import ALL_FRAMES, RawFrameSplitter, ignore_growth
from gateway.shadow.proxy.listener_context import ListenerContext
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.transport import Buffer


class PrimaryUpstream:
    """Turns bytes of the primary into bytes for the client.

    ``send_released`` is called with an answer that the holder has released.
    """

    __slots__ = ("_hub", "_send_released", "_view", "counters", "id_prefix", "splitter", "tracker")

    def __init__(
        self,
        tracker: ExchangeTracker,
        view: AddressView,
        context: ListenerContext,
        send_released: Callable[[Buffer], None],
        on_large_input: Callable[[int], None] = ignore_growth,
    ) -> None:
        self._hub = context.hub
        self._view = view
        self._send_released = send_released
        self.counters = context.counters
        self.tracker = tracker
        self.splitter = RawFrameSplitter(context.settings.frame_bytes, on_large_input)
        self.id_prefix = context.book.id_prefix(tracker.upstream.address)
        """Beginning of the ids of messages that this broker stored."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an unfinished frame and of remembered requests."""
        return len(self.splitter.unfinished) + self.tracker.buffered_bytes

    def release(self) -> None:
        """Free the unfinished frame, and drop answers that are released later: the session has ended."""
        self.splitter.release()
        self._send_released = _drop_answer

    def receive_bytes(self, data: bytes, max_frames: int = ALL_FRAMES) -> Buffer:
        """Return the bytes that the client gets now. After a bad frame, `splitter.error` says what is wrong."""
        data, ends = self.splitter.split(data, max_frames)
        if not ends:
            return b""
        counters = self.counters
        counters.answers += len(ends)
        counters.answer_bytes += ends[-1]
        # Matching reads the original bytes, and the client gets the patched ones. No patch changes a length, so `ends`
        # fit both.
        patched = patch_answers(data, ends, self._view, self.id_prefix)
        # Otherwise no frame can be an answer that somebody waits for, nor a request that somebody observes.
        if self.tracker.requests.by_opaque or self._hub.observes_anything:
            return self._match_frames(data, patched, ends)
        return patched if ends[-1] == len(patched) else patched[: ends[-1]]

    def _match_frames(self, data: bytes, patched: Buffer, ends: list[int]) -> Buffer:
        """Match answers to remembered requests; return the frames that are not held, in their order."""
        pieces: list[Buffer] = []
        requests, interests = self.tracker.requests.by_opaque, self._hub.interests
        begin = start = 0
        for end in ends:
            # An answer carries a response code, so while requests are remembered every frame has to be looked at.
            if requests or interests[peek_code(data, start, end)].observed:
                head = peek_head(data, start, end)
                # The observers get the frame as the primary sent it.
                replacement = None if head is None else self._match_frame(head, data[start:end])
                if replacement is not None:
                    pieces += (patched[begin:start], replacement)
                    begin = end
            start = end
        if begin == 0 and start == len(patched):
            return patched
        pieces.append(patched[begin:start])
        return b"".join(pieces)

    def _match_frame(self, head: FrameHead, frame: bytes) -> bytes | None:
        """Return the bytes that replace a frame: none if its answer is held. Return None if the frame stays."""
        tracker = self.tracker
        if not head.flag & FLAG_RESPONSE:
            tracker.remember_reverse_request(head, frame)
            return None
        request = tracker.requests.take(head.opaque)
        if request is None:
            return None
        if tracker.finish_or_hold(request, frame, partial(self._release_answer, request)):
            return b""
        return (
            rewrite_answer(request.code, frame, self._view, self._writable_brokers(request))
            if request.code in REWRITTEN_ANSWER_CODES
            else None
        )

    def _writable_brokers(self, request: PendingRequest) -> Collection[str]:
        """Return the brokers whose queues are writable to clients, though the primary calls them read-only."""
        routes = self._hub.writable_routes
        if not routes or request.code != GetRouteInfoByTopic.code or not request.frame:
            return ()
        try:
            topic = decode_frame(request.frame, 4, len(request.frame)).ext.get("topic")
        except FrameError:
            return ()
        return routes.get(topic or "", ())

    def _release_answer(self, request: PendingRequest, frame: bytes) -> None:
        """Send an answer that was held, with addresses rewritten like those of any other answer."""
        self.tracker.held_answers -= 1
        # A strict refusal is a frame of the mirror's own; patching does no harm to it.
        patched = bytes(patch_answers(frame, [len(frame)], self._view, self.id_prefix))
        if request.code in REWRITTEN_ANSWER_CODES:
            writable = self._writable_brokers(request)
            patched = rewrite_answer(request.code, patched, self._view, writable)
        self._send_released(patched)


def _drop_answer(data: Buffer) -> None:
    """Drop an answer that was released after its session had ended."""
