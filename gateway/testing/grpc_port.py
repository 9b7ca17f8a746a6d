"""The gRPC port of servers under test: opened when it is first asked for, and again whenever a broker comes or goes.

The front serves a fixed list of brokers, so a changed list needs a new one. It gets the same port, and clients connect
again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import trio

from codec.command import Command
from codec.properties import TIMER_DELIVER_MS, decode_properties, encode_properties
from gateway.broker.assembly.service import BrokerService
from gateway.config.process import ServeConfig
from gateway.process.grpc_endpoint import GrpcEndpoint, local_cluster
from gateway.process.parts import ProcessParts
from gateway.testing.clock import AdvancingClock
from remoting.connection import Connection, Handler
from remoting.local_command import LocalCommand
from remoting.requests.send import SendMessageV2

if TYPE_CHECKING:
    from gateway.namesrv.service import NamesrvService


class RunningGrpc:
    """The gRPC port in front of some brokers, until `stop`. Raises ListenError for a port that is taken."""

    def __init__(self, config: ServeConfig, parts: ProcessParts, port: int, clock: AdvancingClock) -> None:
        config = replace(config, process=replace(config.process, grpc_port=port))
        self._parts = parts
        self._endpoint = GrpcEndpoint(config, parts)
        self._clock = clock
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.address = ""

    async def run(
        self,
        services: Sequence[BrokerService],
        namesrv: "NamesrvService",
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Serve until `stop`; report when the port is open."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self.address = self._endpoint.start(
                        nursery,
                        local_cluster(
                            self._parts,
                            services,
                            namesrv,
                            lambda handlers: ShiftingHandlers(handlers, self._clock),
                        ),
                    )
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Close the port and all connections at once."""
        self._scope.cancel()
        await self._ended.wait()


class ShiftingHandlers(Mapping[int, Handler]):
    """The handlers of a broker, to which a message comes with its time of delivery moved to the servers' clock.

    `shift_client_times` does the same for remoting clients.
    """

    def __init__(self, handlers: Mapping[int, Handler], clock: AdvancingClock) -> None:
        self._handlers = handlers
        self._clock = clock

    def __getitem__(self, code: int) -> Handler:
        handler = self._handlers[code]
        if code != SendMessageV2.code or not self._clock.ahead_ms:
            return handler

        def handle(connection: Connection, command: Command) -> bytes | None:
            return handler(connection, shift_delivery(cast(LocalCommand, command), self._clock.ahead_ms))

        return handle

    def __iter__(self) -> Iterator[int]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


def shift_delivery(command: LocalCommand, ahead_ms: int) -> LocalCommand:
    """Move a message's time of delivery ahead, in place; return the command."""
    request = cast(SendMessageV2, command.request)
    properties = decode_properties((request.properties or "").encode())
    if TIMER_DELIVER_MS in properties:
        due_ms = int(properties[TIMER_DELIVER_MS]) + ahead_ms
        request.properties = encode_properties({**properties, TIMER_DELIVER_MS: str(due_ms)}).decode()
    return command
