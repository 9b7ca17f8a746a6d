"""A simulated target that fails in any way a target can: a relay before it stalls, closes, refuses or loses answers."""

import contextlib
import itertools
from collections.abc import Awaitable, Callable

import trio
from trio.testing import memory_stream_pair

from codec.command import Command, encode_command, encode_response
from codec.frames import FrameSplitter
from gateway.shadow.tests.two_clusters import ClusterView
from remoting.transport import StreamTransport, Transport

SENDS = (10, 310, 320)
PORTS = itertools.count(61_000)


class FaultyTarget(ClusterView):
    """A target with a fault.

    `fault` is "", "stalled", "slow", "gone", "garbage", "acl", "disk" or "lost" (which changes nothing by itself). The
    next `answers_to_lose` sends are carried out, but their connection closes in place of the answer.
    """

    fault = ""
    answers_to_lose = 0
    dials = 0
    frames = 0

    async def _dial(self, host: str, port: int) -> Transport:
        self.dials += 1
        if self.fault == "gone":
            raise ConnectionRefusedError("nobody there")
        behind = await super()._dial(host, port)
        here, there = memory_stream_pair()
        relay = _Relay(self, StreamTransport(there), behind)
        self.simulated.nursery.start_soon(relay.run)
        return StreamTransport(here, remote=(host, port), local=("10.9.0.1", next(PORTS)))


class _Relay:
    def __init__(self, target: FaultyTarget, front: StreamTransport, behind: Transport) -> None:
        self._target, self._front, self._behind = target, front, behind
        self._lost_opaques: set[int] = set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for relay in (self._relay_requests, self._relay_answers):
                nursery.start_soon(self._relay_until_closed, relay, nursery.cancel_scope)

    async def _relay_until_closed(
        self, relay: Callable[[], Awaitable[None]], scope: trio.CancelScope
    ) -> None:
        with contextlib.suppress(OSError):
            await relay()
        self._front.close()
        self._behind.close()
        scope.cancel()

    async def _relay_requests(self) -> None:
        splitter = FrameSplitter()
        while data := await self._front.receive(65536):
            for command in splitter.feed(data):
                self._target.frames += 1
                if not await self._handle_request(command):
                    return

    async def _handle_request(self, command: Command) -> bool:
        fault = self._target.fault
        if fault == "gone":
            return False
        if fault == "stalled":
            await trio.sleep_forever()
        if fault == "garbage":
            await self._front.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        elif fault in ("acl", "disk") and command.code in SENDS:
            code, remark = (16, "no permission") if fault == "acl" else (14, "service not available now.")
            await self._front.send_all(encode_response(command.opaque, code, None, b"", remark))
        else:
            if fault == "slow":
                await trio.sleep(0.2)
            if command.code in (*SENDS, 37) and self._target.answers_to_lose:
                self._target.answers_to_lose -= 1
                self._lost_opaques.add(command.opaque)
            await self._behind.send_all(encode_command(command))
        return True

    async def _relay_answers(self) -> None:
        splitter = FrameSplitter()
        while data := await self._behind.receive(65536):
            for command in splitter.feed(data):
                assert isinstance(command, Command)
                if command.opaque in self._lost_opaques and command.is_response:
                    self._lost_opaques.discard(command.opaque)
                    return
                await self._front.send_all(encode_command(command))
