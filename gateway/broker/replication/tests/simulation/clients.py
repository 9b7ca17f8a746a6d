"""Producers and consumers of the simulation, which do what stock clients do."""

import random
from typing import Final, Protocol

import trio

from gateway.broker.replication.tests.simulation.brokers import NOT_MASTER, SimBroker
from gateway.broker.replication.tests.simulation.history import History, Queue
from gateway.broker.replication.tests.simulation.network import Network

QUEUES: Final[tuple[Queue, ...]] = (("a", 0), ("a", 1), ("b", 0))
SEND_TIMEOUT_S: Final = 6.0
RETRY_S: Final = 0.4


class Route(Protocol):
    """The namesrv's answer: the broker that is master, as it knows."""

    def master(self) -> SimBroker: ...

    def any_broker(self) -> SimBroker: ...


class Producer:
    """Sends numbered messages one after another, and sends each again until it is stored."""

    def __init__(
        self, name: str, network: Network, route: Route, history: History, randomness: random.Random
    ) -> None:
        self.name = name
        self.last_code = NOT_MASTER
        self._network = network
        self._route = route
        self._history = history
        self._randomness = randomness
        self._number = 0

    async def run(self) -> None:
        while True:
            await self.send_one()
            await trio.sleep(self._randomness.choice([0, 0, 0.05, 0.8, 3.0]) * self._randomness.random())

    async def send_one(self) -> None:
        queue = self._randomness.choice(QUEUES)
        padding = self._randomness.choice([0, 10, 10, 300, 3000])
        body = b"%s-%d " % (self.name.encode(), self._number) + bytes(padding)
        self._number += 1
        while True:
            self._history.note_attempt(body, queue)
            with trio.move_on_after(SEND_TIMEOUT_S):
                self.last_code = await self._try_send(queue, body)
                if self.last_code != NOT_MASTER:
                    return
            await trio.sleep(RETRY_S)

    async def _try_send(self, queue: Queue, body: bytes) -> int:
        """Send once; return the code of the answer."""
        broker, client = self._route.master(), self.name
        await self._network.reach(client, broker.name)
        answered = trio.Event()
        answers: list[tuple[int, int, int, int]] = []

        def reply(code: int, offset: int) -> None:
            breaks = len(self._history.broken_ends)
            answers.append((code, offset, broker.end_of(queue, offset), breaks))
            answered.set()

        if not broker.start_request(lambda: broker.send(*queue, body, reply)):
            return NOT_MASTER  # the connection is refused
        await answered.wait()
        await self._network.reach(broker.name, client)
        code, offset, end, breaks = answers[0]
        if code != NOT_MASTER:
            self._history.note_answer(body, code, offset, end, breaks)
        return code


class Consumer:
    """Reads all queues again and again, at the master and at the slave."""

    def __init__(
        self, name: str, network: Network, route: Route, history: History, randomness: random.Random
    ) -> None:
        self.name = name
        self._network = network
        self._route = route
        self._history = history
        self._randomness = randomness

    async def run(self) -> None:
        positions = dict.fromkeys(QUEUES, 0)
        while True:
            await trio.sleep(2 * self._randomness.random())
            queue = self._randomness.choice(QUEUES)
            if self._randomness.random() < 0.2:
                positions[queue] = max(0, positions[queue] - 10)
            with trio.move_on_after(2):
                await self._read(queue, positions)

    async def _read(self, queue: Queue, positions: dict[Queue, int]) -> None:
        broker = self._route.any_broker()
        await self._network.reach(self.name, broker.name)
        messages: list[tuple[int, bytes]] = []
        answered = trio.Event()

        def read() -> None:
            messages.extend(broker.read(*queue, positions[queue]))
            answered.set()

        if not broker.start_request(read):
            return
        await answered.wait()
        await self._network.reach(broker.name, self.name)
        for offset, body in messages:
            self._history.note_read(f"{self.name} at {broker.name}", queue, offset, body)
            positions[queue] = offset + 1
