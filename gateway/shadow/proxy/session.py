"""Protocol logic of one session: a client, its connection to the primary, and perhaps one to the target.

Theory of operation. A `Session` does no I/O. Its driver (`session_driver.py`) tells it what happened on the
connections; the session says what to do. It decides for each frame whether anybody has to see it and where it goes,
matches answers to requests, and applies back-pressure.

1. The driver passes received bytes to `receive_from_client`, `receive_from_primary` or `receive_from_target`. Each
   returns the bytes for the opposite end (the primary, or the client), which the driver writes. Nearly always nothing
   else has to be done.
2. Anything else that follows is an `Action`. The session then sets `has_followup`; the driver
   takes the actions, performs them in order, and calls `complete_writes`, which publishes finished exchanges. So the
   client has its answer before observers are told.
3. Every other event (an output above its high watermark, a connection that ended, a decision of the director, …) has a
   method as well. Of these, only `decision_made` returns bytes, for the primary. The driver checks `has_followup` after
   each.

Invariants: frames of one client reach each upstream in the order in which they came. While a request waits for the
director's decision, it and all later frames of the client wait, and the client is not read. The client is not read
either while an upstream's output is above its high watermark, and the upstreams are not read while the client's output
is. So each direction buffers at most the watermark, one read and one frame.

Turns. One read may hold a thousand small frames, and observers may take 0.1 ms for each. While anybody observes, at
most `MAX_FRAMES_PER_TURN` frames of a peer are handled at a time. The rest stays in the splitter and the peer is not
read, until the driver calls `continue_turn` after all other sessions and tasks had a turn.

The fast path, in the first lines of `receive_from_client` and `receive_from_primary`, forwards a single frame that
nobody needs to see without splitting it. It is the only place where a frame skips the steps of the others.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from struct import Struct
from typing import Final

from codec.command import decode_frame
from codec.constants import FLAG_RESPONSE
from codec.errors import FrameError
from gateway.shadow.proxy.address_book import AddressView
from gateway.shadow.proxy.address_rewrite import (
    REWRITTEN_ANSWER_CODES,
    REWRITTEN_REQUEST_CODES,
    restore_message_ids,
)
from gateway.shadow.proxy.exchange_tracker import (
    ClientIdentity,
    ExchangeTracker,
    FinishedExchanges,
    PendingRequest,
)
from gateway.shadow.proxy.frame_peek import (
    HEADER_AT,
    HEADER_LENGTH_MASK,
    HEADER_START,
    UNKNOWN,
    FrameHead,
    find_plain_start,
    peek_code,
    peek_head,
)
from gateway.shadow.proxy.frame_splitter import ALL_FRAMES, RawFrameSplitter
from gateway.shadow.proxy.listener_context import ListenerContext, UpstreamAddress
from gateway.shadow.proxy.primary_upstream import PrimaryUpstream
from gateway.shadow.proxy.target_upstream import INTRODUCTION_CODES, TargetConversation, TargetUpstream
from gateway.shadow.traffic.exchange import Side
from remoting.requests.namesrv import GetRouteInfoByTopic, RegisterBroker
from remoting.transport import Buffer


class Peer(Enum):
    """One of the three connections of a session."""

    CLIENT = "client"
    PRIMARY = "primary"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class Send:
    """Write bytes to a peer, in the order of these actions."""

    peer: Peer
    data: Buffer


@dataclass(frozen=True, slots=True)
class PauseReading:
    """Read nothing more from a peer until `ResumeReading`."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class ResumeReading:
    """Read from a peer again; nothing happens if it is read from already."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class DialTarget:
    """Connect to the target, then call `Session.target_connected` or `Session.target_unreachable`."""


@dataclass(frozen=True, slots=True)
class CloseTarget:
    """Close the connection to the target."""


@dataclass(frozen=True, slots=True)
class StartStallTimer:
    """Call `Session.stall_timed_out` after the configured time, unless `StopStallTimer` comes first."""


@dataclass(frozen=True, slots=True)
class StopStallTimer:
    """Stop the stall timer."""


@dataclass(frozen=True, slots=True)
class AwaitDecision:
    """Call `Session.decision_made` after the director's next decision."""


@dataclass(frozen=True, slots=True)
class ContinueLater:
    """Call `Session.continue_turn` with this peer after all other tasks had their turn."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class EndSession:
    """Deliver to each end the bytes that were received for it, then close all connections."""


Action = (
    Send
    | PauseReading
    | ResumeReading
    | DialTarget
    | CloseTarget
    | StartStallTimer
    | StopStallTimer
    | AwaitDecision
    | ContinueLater
    | EndSession
)

log = logging.getLogger(__name__)

_FIRST_WORDS = Struct(">II").unpack_from
MAX_FRAMES_PER_TURN: Final = 64
"""About 10 ms with every observer. A client reaches it only with many requests on their way at once."""
INSPECTED_CODES: Final = REWRITTEN_ANSWER_CODES | REWRITTEN_REQUEST_CODES | {RegisterBroker.code}
"""Requests that the session has to inspect even if nobody observes them."""


class Session:
    """The state of one session. ``wake`` is called when actions arise outside of the driver's calls.

    ``on_large_input`` is called as `RawFrameSplitter` calls it, and gets the peer that sends the large frame first.
    """

    __slots__ = (
        "_actions",
        "_client",
        "_client_splitter",
        "_context",
        "_counters",
        "_finished",
        "_forwarded",
        "_full_outputs",
        "_has_ended",
        "_hub",
        "_id_prefix",
        "_inspected_codes",
        "_is_stalled",
        "_on_large_input",
        "_one_frame_fits_a_read",
        "_plain_header_starts",
        "_primary",
        "_primary_requests",
        "_primary_reverse_requests",
        "_primary_splitter",
        "_target",
        "_undecided",
        "_view",
        "_waiting_turns",
        "_wake",
        "has_followup",
    )

    def __init__(
        self,
        client: ClientIdentity,
        view: AddressView,
        context: ListenerContext,
        wake: Callable[[], None],
        on_large_input: Callable[[Peer, int], None] = lambda peer, size: None,
    ) -> None:
        settings = context.settings
        self._client = client
        self._view = view
        self._context = context
        self._counters = context.counters
        self._hub = context.hub
        self._wake = wake
        self._on_large_input = on_large_input
        self._client_splitter = RawFrameSplitter(settings.frame_bytes, partial(on_large_input, Peer.CLIENT))
        self._finished = FinishedExchanges(context.hub)
        tracker = ExchangeTracker(client, context.upstream, Side.PRIMARY, context, self._finished)
        self._primary = PrimaryUpstream(
            tracker, view, context, self._send_released, partial(on_large_input, Peer.PRIMARY)
        )
        # Copies of nested attributes: the fast paths use them for every read, and each look-up costs time.
        self._primary_splitter = self._primary.splitter
        self._id_prefix = self._primary.id_prefix
        self._primary_requests = tracker.requests.by_opaque
        self._primary_reverse_requests = tracker.reverse_requests.by_opaque
        has_target = context.dial_target is not None
        self._target = TargetUpstream(settings.buffered_bytes) if has_target else None
        self._inspected_codes = INSPECTED_CODES | INTRODUCTION_CODES if has_target else INSPECTED_CODES
        # Otherwise a single read could be one frame above the limit, which the fast paths would not notice.
        self._one_frame_fits_a_read = settings.read_bytes <= settings.frame_bytes
        may_pass_plain = not has_target and self._one_frame_fits_a_read
        self._plain_header_starts = context.hub.plain_header_starts if may_pass_plain else set()
        self._undecided: tuple[bytes, list[int]] | None = None
        self._forwarded: list[tuple[ExchangeTracker, PendingRequest]] = []
        self._full_outputs: set[Peer] = set()
        self._waiting_turns: set[Peer] = set()
        self._is_stalled = False
        self._has_ended = False
        self._actions: list[Action] = []
        self.has_followup = False
        """Tells the driver to call `take_actions` and then `complete_writes`, after it has written returned bytes."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes held for the session: unfinished frames, remembered and waiting requests."""
        undecided = 0 if self._undecided is None else len(self._undecided[0])
        target = 0 if self._target is None else self._target.buffered_bytes
        return len(self._client_splitter.unfinished) + self._primary.buffered_bytes + target + undecided

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of unfinished frames of the client and its upstreams."""
        conversation = None if self._target is None else self._target.conversation
        target = 0 if conversation is None else len(conversation.splitter.unfinished)
        return len(self._client_splitter.unfinished) + len(self._primary_splitter.unfinished) + target

    @property
    def has_unsent_answers(self) -> bool:
        """Tell whether answers are held for the client, or requests wait for the target's connection."""
        target = self._target
        return self._primary.tracker.held_answers > 0 or (target is not None and target.has_unsent_answers)

    # -- what the driver does after each event --------------------------------------------------------------------

    def take_actions(self) -> list[Action]:
        """Return the actions to perform, in their order."""
        actions, self._actions = self._actions, []
        self.has_followup = False
        return actions

    def complete_writes(self) -> None:
        """Publish finished exchanges: all bytes that were returned, and those of all actions, are written now."""
        if self._forwarded:
            forwarded, self._forwarded = self._forwarded, []
            now_s = self._context.clock.monotonic()
            for tracker, request in forwarded:
                tracker.mark_forwarded(request, now_s)
        if self._finished.waiting:
            self._finished.publish_all()

    def _add_action(self, action: Action) -> None:
        self._actions.append(action)
        self.has_followup = True

    # -- bytes of the client --------------------------------------------------------------------------------------

    def receive_from_client(self, data: bytes) -> Buffer:
        """Return the bytes that the primary gets."""
        counters = self._counters
        if (  # The fast path: one whole frame of a kind that nobody needs to see.
            data[HEADER_START] in self._plain_header_starts
            and not self._client_splitter.unfinished
            and not self._primary_reverse_requests
            and not data[4]
            and int.from_bytes(data[:4]) == len(data) - 4
        ):
            counters.requests += 1
            counters.request_bytes += len(data)
            return data
        # While anybody observes, a turn ends after some frames: each of them may take the observers 0.1 ms, and the
        # other clients wait meanwhile.
        splitter = self._client_splitter
        data, ends = splitter.split(data, MAX_FRAMES_PER_TURN if self._hub.observes_anything else ALL_FRAMES)
        to_primary: Buffer = b""
        if ends:
            counters.requests += len(ends)
            counters.request_bytes += ends[-1]
            to_primary = self._forward_frames(data, ends)
        # While a decision is awaited, `decision_made` continues instead, so that no later frame overtakes the one that
        # waits.
        if splitter.has_more and self._undecided is None:
            self._yield_turn(Peer.CLIENT)
        # The frames before the bad prefix were good, and are still delivered before the session ends.
        if splitter.error is not None:
            self._reject_client(splitter.error)
        return to_primary

    def _reject_client(self, reason: str) -> None:
        self._counters.bad_frames += 1
        if self._counters.bad_frames.bit_count() == 1:  # scanners send nothing else
            extra = {
                "remote": self._client.address,
                "reason": reason,
                "bad_frames": self._counters.bad_frames,
            }
            log.warning("connection closed: bad frame", extra=extra)
        self.end()

    def _forward_frames(self, data: bytes, ends: list[int]) -> Buffer:
        """Return the bytes of whole frames that the primary gets; frames for the target become actions."""
        interests, inspected_codes, target = self._hub.interests, self._inspected_codes, self._target
        conversation = None if target is None else target.conversation
        # Answers of the client carry any code, so every frame has to be looked at while an upstream waits for one.
        expects_answers = self._primary_reverse_requests or (
            conversation is not None and conversation.expects_answers
        )
        pieces: list[bytes] = []
        is_plain = True
        begin = start = 0  # data[begin:start] goes to the primary unchanged.
        for end in ends:
            code = peek_code(data, start, end)
            interest = interests[code]
            if interest.inspected or code in inspected_codes or expects_answers:
                is_plain = False
                # A header that cannot be read passes unchanged: the primary judges it, as it would without a gateway.
                head = None if code == UNKNOWN else peek_head(data, start, end, code)
                if head is not None:
                    frame = data[start:end]
                    side = Side.PRIMARY
                    if interest.directed and self._may_be_directed(head):
                        side = self._hub.choose_side(code, frame)
                        # This frame and all after it wait. Those before it go on their way now, so the order holds.
                        if side is Side.WAIT:
                            self._await_decision(
                                data[start : ends[-1]], [later - start for later in ends if later > start]
                            )
                            break
                    to_primary = self._forward_frame(head, frame, side)
                    # The frame was changed or taken out: cut the run of unchanged bytes here. Otherwise nothing is
                    # copied.
                    if to_primary is not frame:
                        pieces.append(data[begin:start])
                        if to_primary is not None:
                            pieces.append(to_primary)
                        begin = end
            start = end
        # Observers are told in `complete_writes`, once the driver has written the bytes that are returned here.
        if self._forwarded or self._finished.waiting:
            self.has_followup = True
        if begin:
            pieces.append(data[begin:start])
            return b"".join(pieces)
        if (
            is_plain
            and target is None
            and len(ends) == 1
            and (header_start := find_plain_start(data)) is not None
        ):
            # Nobody needed to see this kind of frame. The next ones take the fast path until an interest changes.
            self._hub.plain_header_starts.add(header_start)
        return data if start == len(data) else data[:start]

    def _may_be_directed(self, head: FrameHead) -> bool:
        """Tell whether the director chooses the side: not of answers, nor of requests that both clusters get anyway."""
        is_introduction = self._target is not None and head.code in INTRODUCTION_CODES
        return not head.flag & FLAG_RESPONSE and not is_introduction

    def _forward_frame(self, head: FrameHead, frame: bytes, side: Side) -> bytes | None:
        """Return the bytes that the primary gets for one frame, None for nothing."""
        if head.flag & FLAG_RESPONSE:
            return self._forward_answer(head, frame)
        code, target = head.code, self._target
        if target is not None:
            if side is Side.TARGET:
                self._send_to_target(target, head, frame)
                return None
            # Heartbeats go to both clusters: the target has to know the client before the first request that is
            # directed there.
            if code in INTRODUCTION_CODES:
                self._introduce_client(target, code, frame)
        observed = self._hub.interests[code].observed
        if observed or code in REWRITTEN_ANSWER_CODES:
            tracker = self._primary.tracker
            # An unobserved request is remembered without its bytes, only to know what its answer is. The exception is a
            # route: its topic decides whether its queues are shown as writable.
            is_kept = observed or (code == GetRouteInfoByTopic.code and bool(self._hub.writable_routes))
            self._forwarded.append((tracker, tracker.remember_request(head, frame if is_kept else b"")))
        if code == RegisterBroker.code:
            self._ignore_registered_address(frame)
        return restore_message_ids(frame, self._view) if code in REWRITTEN_REQUEST_CODES else frame

    def _forward_answer(self, head: FrameHead, frame: bytes) -> bytes | None:
        """Pass an answer of the client to the upstream whose request it answers."""
        conversation = None if self._target is None else self._target.conversation
        if conversation is not None:
            to_target = conversation.translate_answer(head, frame)
            if to_target is not None:
                self._add_action(Send(Peer.TARGET, to_target))
                return None
        self._primary.tracker.finish_reverse_request(head.opaque, frame)
        return frame

    def _ignore_registered_address(self, frame: bytes) -> None:
        """Keep the address of a broker that registers through the gateway: it is not one of the primary's."""
        with suppress(FrameError):
            address = decode_frame(frame, 4, len(frame)).ext.get("brokerAddr")
            if address:
                self._context.book.ignore_address(address)

    # -- requests that wait for a decision, or go to the target ---------------------------------------------------

    def _await_decision(self, data: bytes, ends: list[int]) -> None:
        """Keep these frames until the director has decided about the first one."""
        self._undecided = data, ends
        self._add_action(AwaitDecision())
        self._update_client_reading()

    def decision_made(self) -> Buffer:
        """Route the frames that waited for a decision; return the bytes that the primary gets."""
        undecided, self._undecided = self._undecided, None
        if undecided is None or self._has_ended:
            return b""
        to_primary = self._forward_frames(*undecided)
        # Otherwise one of these frames has to wait again, and with it everything after it.
        if self._undecided is None:
            if self._client_splitter.has_more:
                self._yield_turn(Peer.CLIENT)
            self._update_client_reading()
        return to_primary

    # -- turns ----------------------------------------------------------------------------------------------------

    def _yield_turn(self, peer: Peer) -> None:
        """Handle the other frames of a peer after everybody else had a turn."""
        self._waiting_turns.add(peer)
        self._add_action(ContinueLater(peer))
        self._pause_for_turn(peer)

    def _pause_for_turn(self, peer: Peer) -> None:
        if peer is Peer.CLIENT:
            self._update_client_reading()
        else:
            self._update_upstream_reading(peer)

    def continue_turn(self, peer: Peer) -> Buffer:
        """Handle further frames of a peer that were received already; return the bytes for the opposite end."""
        self._waiting_turns.discard(peer)
        if self._has_ended:
            return b""
        receive = {
            Peer.CLIENT: self.receive_from_client,
            Peer.PRIMARY: self.receive_from_primary,
            Peer.TARGET: self.receive_from_target,
        }[peer]
        # No new bytes: the splitter still holds the frames of the last read.
        data = receive(b"")
        if peer not in self._waiting_turns:
            self._pause_for_turn(peer)
        return data

    def _send_to_target(self, target: TargetUpstream, head: FrameHead, frame: bytes) -> None:
        self._counters.directed += 1
        if target.conversation is not None:
            self._send_in_conversation(target.conversation, head, frame)
            return
        # Not connected yet. The request waits, while the client is read on until the queue is above the watermark.
        target.enqueue_request(head, frame)
        if not target.is_dialing:
            target.is_dialing = True
            self._add_action(DialTarget())
        if target.is_queue_full:
            self._update_client_reading()

    def _send_in_conversation(self, conversation: TargetConversation, head: FrameHead, frame: bytes) -> None:
        request, to_target = conversation.translate_request(head, frame)
        self._forwarded.append((conversation.tracker, request))
        self._add_action(Send(Peer.TARGET, to_target))

    def _introduce_client(self, target: TargetUpstream, code: int, frame: bytes) -> None:
        target.note_introduction(code, frame)
        if target.conversation is not None:
            self._add_action(Send(Peer.TARGET, frame))

    def target_connected(self, broker_name: str, address: str) -> None:
        """Introduce the client to the target, and send the requests that waited for the connection."""
        target = self._target
        assert target is not None
        upstream = UpstreamAddress(address, self._context.upstream.broker)
        tracker = ExchangeTracker(self._client, upstream, Side.TARGET, self._context, self._finished)
        conversation = TargetConversation(
            tracker,
            broker_name,
            self._context,
            self._send_released,
            partial(self._on_large_input, Peer.TARGET),
        )
        introduction, requests = target.open_conversation(conversation)
        # First, so that the target knows the client and its subscriptions when the requests arrive.
        for frame in introduction:
            self._add_action(Send(Peer.TARGET, frame))
        for head, frame in requests:
            self._send_in_conversation(conversation, head, frame)
        self._update_client_reading()

    def target_unreachable(self) -> None:
        """End the session: requests that were sent to the target cannot be answered."""
        assert self._target is not None
        self._target.is_dialing = False
        self._counters.target_unreachable += 1
        self.end()

    def target_moved(self, address: str) -> None:
        """Leave a broker that is not the target's master any more, now that another address is.

        It may hang, or refuse what only a master does, without ever closing its connections.
        """
        conversation = None if self._target is None else self._target.conversation
        if conversation is not None and conversation.tracker.upstream.address != address:
            self.connection_ended(Peer.TARGET, "another broker is the target's master")

    # -- bytes of the upstreams -----------------------------------------------------------------------------------

    def receive_from_primary(self, data: bytes) -> Buffer:
        """Return the bytes that the client gets."""
        size = len(data)
        if (  # The fast path: one whole frame without a body, while no answer is waited for.
            self._one_frame_fits_a_read
            and not self._primary_requests
            and not self._hub.observes_anything
            and not self._primary_splitter.unfinished
            and size >= HEADER_AT
        ):
            # A frame without a body holds no message, so that only ids in its header could need the gateway's address.
            length, header_word = _FIRST_WORDS(data)
            if length == size - 4 and header_word & HEADER_LENGTH_MASK == size - HEADER_AT:
                counters, prefix = self._counters, self._id_prefix
                counters.answers += 1
                counters.answer_bytes += size
                gateway_prefix = self._view.id_prefixes.get(prefix)
                return data if gateway_prefix is None else data.replace(prefix, gateway_prefix)
        to_client = self._primary.receive_bytes(
            data, MAX_FRAMES_PER_TURN if self._hub.observes_anything else ALL_FRAMES
        )
        if self._finished.waiting:
            self.has_followup = True
        if self._primary_splitter.has_more:
            self._yield_turn(Peer.PRIMARY)
        if self._primary_splitter.error is not None:
            self._counters.bad_frames += 1
            self.connection_ended(Peer.PRIMARY, self._primary_splitter.error)
        return to_client

    def receive_from_target(self, data: bytes) -> Buffer:
        """Return the bytes that the client gets."""
        conversation = None if self._target is None else self._target.conversation
        if conversation is None:
            return b""
        to_client = conversation.receive_bytes(data, MAX_FRAMES_PER_TURN)
        if self._finished.waiting:
            self.has_followup = True
        if conversation.splitter.has_more:
            self._yield_turn(Peer.TARGET)
        if conversation.splitter.error is not None:
            self._counters.bad_frames += 1
            self.connection_ended(Peer.TARGET, conversation.splitter.error)
        return to_client

    def _send_released(self, data: Buffer) -> None:
        """Send an answer that the holder has released, at any time."""
        self._add_action(Send(Peer.CLIENT, data))
        self._wake()

    # -- back-pressure --------------------------------------------------------------------------------------------

    def output_full(self, peer: Peer) -> None:
        """Stop reading from the other side: more than the high watermark waits to be sent to ``peer``."""
        self._full_outputs.add(peer)
        if peer is Peer.CLIENT:
            self._update_upstream_reading(Peer.PRIMARY)
            self._update_upstream_reading(Peer.TARGET)
        else:
            self._update_client_reading()

    def output_drained(self, peer: Peer) -> None:
        """Read from the other side again: ``peer`` has taken enough."""
        self._full_outputs.discard(peer)
        if peer is Peer.CLIENT:
            self._update_upstream_reading(Peer.PRIMARY)
            self._update_upstream_reading(Peer.TARGET)
        else:
            self._update_client_reading()

    def _update_upstream_reading(self, peer: Peer) -> None:
        blocked = Peer.CLIENT in self._full_outputs or peer in self._waiting_turns
        self._add_action(PauseReading(peer) if blocked else ResumeReading(peer))

    def _update_client_reading(self) -> None:
        """Pause or resume the client, and limit the time for which the target alone may stop it."""
        target_full = Peer.TARGET in self._full_outputs
        # Only the target is limited in time: a primary that does not read would stop the client without a gateway, too.
        if target_full != self._is_stalled:
            self._is_stalled = target_full
            self._add_action(StartStallTimer() if target_full else StopStallTimer())
        queue_full = self._target is not None and self._target.is_queue_full
        primary_full = Peer.PRIMARY in self._full_outputs
        waits = self._undecided is not None or Peer.CLIENT in self._waiting_turns
        blocked = target_full or queue_full or primary_full or waits
        self._add_action(PauseReading(Peer.CLIENT) if blocked else ResumeReading(Peer.CLIENT))

    def stall_timed_out(self) -> None:
        """End the session: its traffic with the primary then goes on over a new connection."""
        conversation = None if self._target is None else self._target.conversation
        if conversation is not None and self._is_stalled:
            upstream = conversation.tracker.upstream.address
            log.warning("session closed: the target stopped reading requests", extra={"upstream": upstream})
            self.end()

    # -- the end --------------------------------------------------------------------------------------------------

    def give_up_older_than(self, asked_s: float) -> None:
        """Stop waiting for answers to requests that were received before ``asked_s`` (monotonic seconds)."""
        self._primary.tracker.give_up_older_than(asked_s)
        if self._target is not None and self._target.conversation is not None:
            self._target.conversation.tracker.give_up_older_than(asked_s)
        self.has_followup = True

    def connection_ended(self, peer: Peer, reason: str) -> None:
        """End the session, unless only the target has gone and owes no answers."""
        log.debug(
            "connection ended", extra={"peer": peer.value, "remote": self._client.address, "reason": reason}
        )
        if peer is Peer.TARGET:
            self._add_action(CloseTarget())
            # A target that owes nothing may come and go: the next request that is directed there dials it again.
            if not self._close_conversation():
                return
        self.end()

    def _close_conversation(self) -> bool:
        """Forget the connection to the target; return True if it owed answers."""
        assert self._target is not None
        owed = self._target.close_conversation()
        self._full_outputs.discard(Peer.TARGET)
        self._update_client_reading()
        return owed

    def end(self) -> None:
        """End the session as if a connection had ended."""
        self._has_ended = True
        self._add_action(EndSession())

    def finish_all(self) -> None:
        """Finish every remembered request without an answer: all connections are closed."""
        self._has_ended = True
        self._primary.tracker.finish_all()
        if self._target is not None:
            self._target.close_conversation()
        self.has_followup = True

    def release(self) -> None:
        """Free unfinished frames, and the driver's functions: a session that refers to its driver outlives it.

        Nothing may arrive afterwards.
        """
        self._client_splitter.release()
        self._primary.release()
        if self._target is not None:
            self._target.close_conversation()
        self._undecided = None
        self._wake = _ignore_wake
        self._on_large_input = lambda peer, size: None


def _ignore_wake() -> None:
    """Ignore actions of a session that has ended."""
