"""Plain sends in C: has the frames of connections handled by `rocketmq_native.PlainSends`, where that is there.

`native/plain_sends.c` says what it takes and what it leaves to Python. Whether it may take anything at all is decided
by `FlowControl.limits_on_plain_sends`, each time that the guards of the broker are applied: only then can it change.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from codec.native import native_module
from gateway.broker.broker import Broker
from gateway.broker.messages.advertised_hosts import HOST_VIEW
from remoting.connection import Connection
from remoting.frame_connection import FrameConnection, FrameTaker
from remoting.limits import ConnectionLimits
from storage.clock import SystemClock
from storage.tags import TAGS

if TYPE_CHECKING:
    from rocketmq_native import PlainSends

CountAllowed = Callable[[Connection], int]
"""Returns how many sends of a connection may be taken now; see `FlowControl.limits_on_plain_sends`."""
_UNUSUAL: Final = (TAGS, b"\0")
"""Texts that matter in the properties of a message. C looks for them in those of the producer only, so the broker's own
must not hold them.
"""


class NativeSends(FrameTaker):
    """Takes plain sends for the present parts of a broker, or none while another has to decide about each.

    ``limits`` are those of the connections. Without the extension nothing is taken.
    """

    __slots__ = ("_confirmation", "_gate", "_limits", "_module", "_plain_sends", "_previous_frames")

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__()
        self._module = native_module()
        self._limits = limits
        self._plain_sends: PlainSends | None = None
        self._previous_frames = 0

    @property
    def frames(self) -> int:
        """Number of frames that were taken since the start."""
        return self._previous_frames + (0 if self._plain_sends is None else self._plain_sends.frames)

    def follow(self, broker: Broker, count_allowed: CountAllowed | None) -> None:
        """Take sends for these parts and their present settings from now on; none without ``count_allowed``."""
        self._previous_frames = self.frames
        # What was built for earlier parts holds their store.
        self._plain_sends = self.take = None
        suffix = broker.send_handler.own_properties_bytes
        if count_allowed is None or self._module is None or any(text in suffix for text in _UNUSUAL):
            return
        store, gate = broker.store, broker.answer_gate
        self._plain_sends = plain_sends = self._module.PlainSends(
            topics=broker.topics,
            store=store,
            queues=store.queues_by_key,
            log=store.commit_log,
            stored_counts=broker.stats.stored,
            mark_grown=broker.long_polls.mark_grown,
            host_view=HOST_VIEW,
            # C reads the machine's clock itself, which takes a fifth of a call.
            now_ms=None if type(store.clock) is SystemClock else store.clock.now_ms,
            room=count_allowed,
            suffix=suffix,
            answer_parts=broker.send_handler.answer_parts,
            max_frame_bytes=self._limits.max_frame_bytes,
            max_header_bytes=self._limits.max_header_bytes,
            max_body_bytes=store.config.max_message_bytes,
            holds_answers=gate.must_wait,
        )
        self._gate = gate
        confirmation = self._confirmation = broker.replication.confirmation
        if confirmation is not None:
            self.take = self._take_confirmed
        else:
            self.take = self._take_held if gate.must_wait else plain_sends.take

    def _take_held(
        self, connection: FrameConnection, buffer: bytes | bytearray, position: int
    ) -> tuple[int, bytes | None] | None:
        """Take sends whose answers wait until their messages are as safe as promised."""
        assert self._plain_sends is not None
        taken = self._plain_sends.take(connection, buffer, position)
        if taken is None:
            return None
        end, answers, log_ends = taken
        return end, self._gate.hold_all(connection, answers, log_ends)

    def _take_confirmed(
        self, connection: FrameConnection, buffer: bytes | bytearray, position: int
    ) -> tuple[int, bytes | None] | None:
        """Take sends at a master that confirms messages: C leaves their queue entries to the confirmation."""
        assert self._plain_sends is not None
        assert self._confirmation is not None
        taken = self._plain_sends.take(connection, buffer, position)
        if taken is None:
            return None
        # Before the answers are held: where no other replica is required, they leave at once.
        self._confirmation.advance()
        end, answers, log_ends = taken
        return end, self._gate.hold_all(connection, answers, log_ends)
