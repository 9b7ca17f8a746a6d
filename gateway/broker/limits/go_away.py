"""GO_AWAY: the answer of a broker that stops, so that clients neither wait for it in vain nor send it new work.

Theory of operation
-------------------
Problem: Java clients before 5.0 and Go clients do not fail a waiting pull when its connection closes. They wait for its
timeout, 30 s after they sent it, and receive nothing of that queue until then, however soon the broker is back.

1. The listeners close, so a successor can open the port, and clients that reconnect do not come back here.
2. Every waiting pull, pop and notification is answered as at its deadline.
3. The client sends the next one at once. It is refused with GO_AWAY: clients that know the code (from 5.3.2 on) connect
   again and repeat the request, all others treat it as an error and try again after 3 s.
4. The connections close when no request was refused for `QUIET_S`, at the latest after `MAX_LINGER_S`.

Requests that are answered at once are served to older clients until the end, because an error would surface in the
application. Source: NettyRemotingAbstract.processRequestCommand, 5.4.0. Deviations: the official broker does this only
with enableShutdownGracefully, for a fixed time, and leaves waiting requests of older clients unanswered.
"""

from typing import Final

import trio

from codec.command import Command, encode_response
from codec.constants import VERSION_NAMES, ResponseCode
from remoting.connection import Connection, Handler
from remoting.requests.pop import Notification, PopMessage
from remoting.requests.pull import LitePullMessage, PullMessage
from storage.clock import Clock

LAST_VERSION_WITHOUT_GO_AWAY: Final = VERSION_NAMES.index("V5_3_1")
MAY_WAIT: Final = frozenset(
    request.code for request in (PullMessage, LitePullMessage, PopMessage, Notification)
)
"""Requests that are refused to clients of every version, because they could wait until the connection closes."""
QUIET_S: Final = 0.3
"""Time without a refusal after which clients are taken to have noticed; more than a round trip between continents."""
MAX_LINGER_S: Final = 2.0
_POLL_S: Final = 0.02


class GoAway:
    """Refuses requests once the broker stops, and notes when the last one was refused."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_stopping = False
        self._refused_s = clock.monotonic()

    def begin(self) -> None:
        """Let `guard` refuse requests from now on."""
        self._is_stopping = True
        self._refused_s = self._clock.monotonic()

    def guard(self, code: int, handler: Handler) -> Handler:
        """Refuse the requests of a code whose senders should go elsewhere, once the broker stops."""
        if not self._is_stopping:
            return handler
        may_wait = code in MAY_WAIT

        def handle(connection: Connection, command: Command) -> bytes | None:
            if may_wait or command.version > LAST_VERSION_WITHOUT_GO_AWAY:
                self._refused_s = self._clock.monotonic()
                return encode_response(command.opaque, ResponseCode.GO_AWAY, None, b"", "please go away")
            return handler(connection, command)

        return handle

    async def wait_quiet(self) -> None:
        """Wait until clients have noticed: no request was refused for `QUIET_S`, or `MAX_LINGER_S` passed."""
        with trio.move_on_after(MAX_LINGER_S):
            while self._clock.monotonic() < self._refused_s + QUIET_S:  # noqa: ASYNC110 - refusals keep coming
                await trio.sleep(_POLL_S)
