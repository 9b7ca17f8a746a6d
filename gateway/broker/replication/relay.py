"""Passes requests of producers on to the master that this broker handed over to.

Stock clients ask for routes every 30 s. Until then they send to the address of the former master, also when they
repeat a request that failed. After a planned change they would report errors to their applications for half a minute,
although the new master is ready. So the former one passes such requests on, and their answers back, for
`RELAY_S` seconds. The new master checks the signature of the client, which a request carries, as if it came directly.

A request whose outcome is not known, because the connection broke, is refused with SYSTEM_BUSY: the client sends the
message again, and it may be stored twice, as with any connection that breaks.

A master that a controller has just elected may hear of it later than the former one does. With ``max_promotion_s`` a
request that it refuses with SYSTEM_BUSY is sent again for a while: clients would use up their retries within
milliseconds.

A request that was passed on is not passed on again: two brokers that changed their roles twice would send it to and
fro. A flag of the frame marks it, because the signature does not cover flags.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import trio

from codec.command import Command, encode_command
from codec.constants import FLAG_ONEWAY, ResponseCode
from remoting.connection import Connection
from remoting.errors import REQUEST_FAILURES, RemotingClosed, RequestError
from remoting.local_command import LocalCommand

log = logging.getLogger(__name__)

RELAY_S: Final = 120.0
"""Four times the interval in which stock clients ask for routes."""
FLAG_RELAYED: Final = 1 << 8
"""Set in requests that were passed on; the official flags are 1 and 2."""
CONNECT_WAIT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.2
PROMOTION_RETRY_S: Final = 0.05
Dial = Callable[[str, int], AbstractAsyncContextManager[Connection]]


class Relay:
    """Passes requests on to ``address`` until ``end_s``, a time of `trio.current_time`.

    In the first ``max_promotion_s`` seconds, requests that are refused with SYSTEM_BUSY are sent again.
    """

    def __init__(
        self, address: tuple[str, int], dial: Dial, end_s: float, *, max_promotion_s: float = 0.0
    ) -> None:
        self.address = address
        self._dial = dial
        self._end_s = end_s
        self._promoted_by_s = trio.current_time() + max_promotion_s
        self._scope = trio.CancelScope()
        self._connection: Connection | None = None
        self._connected = trio.Event()
        self._last_sent: dict[Connection, trio.Event] = {}
        self.passed_on = 0
        self._has_begun = False

    def begin(self) -> bool:
        """Return True the first time: then `run` is to be started."""
        has_begun, self._has_begun = self._has_begun, True
        return not has_begun

    @property
    def is_active(self) -> bool:
        """False once the time is over."""
        return trio.current_time() < self._end_s

    def end(self) -> None:
        """Pass nothing on from now on: this broker got another role."""
        self._end_s = trio.current_time()
        self._scope.cancel()

    async def run(self) -> None:
        """Keep a connection open until the time is over."""
        self._scope.deadline = self._end_s
        with self._scope:
            while True:
                try:
                    async with self._dial(*self.address) as connection:
                        self._connection = connection
                        self._connected.set()
                        await _wait_until_closed(connection)
                except* REQUEST_FAILURES as problems:
                    log.debug("relay not connected", extra={"reason": str(problems.exceptions[0])})
                self._connection, self._connected = None, trio.Event()
                await trio.sleep(RETRY_S)

    def take(self, connection: Connection, command: Command) -> None:
        """Pass a request on; its answer is written when it comes. Raises RequestError at a limit.

        Requests of one connection are passed on in their order, as the new master would handle them.
        """
        previous, sent = self._last_sent.get(connection), trio.Event()
        connection.spawn(self._pass_on, connection, command, previous, sent)
        self._last_sent[connection] = sent
        if previous is None:
            connection.on_close(self._forget)

    def _forget(self, connection: Connection) -> None:
        self._last_sent.pop(connection, None)

    def takes(self, command: Command) -> bool:
        """Return False once the time is over, for a request that was passed on already, and for one of this process.

        That one has no signature that another broker accepts.
        """
        return self.is_active and not command.flag & FLAG_RELAYED and not isinstance(command, LocalCommand)

    async def _pass_on(
        self, connection: Connection, command: Command, previous: trio.Event | None, sent: trio.Event
    ) -> None:
        try:
            answer = await self._ask(command, previous, sent)
            while self._is_too_early(answer):
                await trio.sleep(PROMOTION_RETRY_S)
                answer = await self._ask(command, None, sent)
        except REQUEST_FAILURES as problem:
            error = RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]the request could not be passed on to the new master: {problem}",
            )
            connection.answer_late(command, lambda: _raise(error))
            return
        if answer is not None:
            answer.opaque = command.opaque
            connection.write(encode_command(answer))

    def _is_too_early(self, answer: Command | None) -> bool:
        """Tell whether the new master may have refused a request because it does not know yet that it is one."""
        is_busy = answer is not None and answer.code == ResponseCode.SYSTEM_BUSY
        return is_busy and trio.current_time() < self._promoted_by_s

    async def _ask(self, command: Command, previous: trio.Event | None, sent: trio.Event) -> Command | None:
        try:
            with trio.move_on_after(CONNECT_WAIT_S):
                await self._connected.wait()
            if previous is not None:
                await previous.wait()
        finally:
            # Whoever waits for it runs when this task waits the next time: after this request has been sent.
            sent.set()
        master = self._connection
        if master is None:
            raise RemotingClosed("it cannot be reached")
        passed = Command(
            command.code,
            flag=command.flag | FLAG_RELAYED,
            ext=dict(command.ext),
            body=command.body,
            language=command.language,
            version=command.version,
        )
        self.passed_on += 1
        if command.flag & FLAG_ONEWAY:
            master.send_command(passed)
            return None
        return await master.ask_command(passed, ANSWER_TIMEOUT_S)


async def _wait_until_closed(connection: Connection) -> None:
    closed = trio.Event()
    connection.on_close(lambda _: closed.set())
    await closed.wait()


def _raise(error: RequestError) -> bytes:
    raise error
