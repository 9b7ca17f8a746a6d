"""Producers, consumers and an administrator of the simulation, which do what stock clients do."""

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import trio

from codec.message import decode_message
from gateway.broker.replication.tests.simulation.brokers import SimBroker
from gateway.broker.replication.tests.simulation.history import History, Queue, is_dropped
from gateway.broker.replication.tests.simulation.network import Network
from gateway.config.replication import Role
from gateway.tests.cluster import message
from gateway.tests.popping import pop_request, popped_messages
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.heartbeat import HeartbeatData, ProducerData
from remoting.declare import Request
from remoting.errors import RequestError
from remoting.requests.client import HeartBeat
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.offsets import UpdateConsumerOffset
from remoting.requests.pop import AckMessage
from remoting.requests.send import SendMessageReply, SendMessageV2
from remoting.requests.topics import DeleteTopicInBroker, UpdateAndCreateTopic
from remoting.requests.transaction import CheckTransactionState, EndTransaction

QUEUES: Final[tuple[Queue, ...]] = (("a", 0), ("a", 1), ("b", 0))
POPPED: Final[Queue] = ("o", 0)
DELAYED: Final[Queue] = ("d", 0)
ENDED: Final[Queue] = ("x", 0)
TOPICS: Final = {"a": 2, "b": 1, "o": 1, "d": 1, "x": 1}
PASSING: Final = ("z0", "z1")
"""Topics that are created and deleted again and again."""
GROUP: Final = "g"
POP_GROUP: Final = "pg"
COMMIT: Final = 8
ROLLBACK: Final = 12
SEND_TIMEOUT_S: Final = 6.0
RETRY_S: Final = 0.4
BEAT_S: Final = 10.0
INVISIBLE_MS: Final = 4000


class Unanswered(Exception):
    """No answer came: the request may be carried out or not."""


class Route(Protocol):
    """The namesrv's answer: the broker that is master, as it knows."""

    def master(self) -> SimBroker: ...

    def any_broker(self) -> SimBroker: ...


class Client:
    """A client with one connection to each broker."""

    def __init__(
        self, name: str, network: Network, route: Route, history: History, randomness: random.Random
    ) -> None:
        self.name = name
        self._network = network
        self._route = route
        self._history = history
        self._randomness = randomness

    async def run(self) -> None:
        """Do what the client does, until cancelled."""
        raise NotImplementedError

    def handle_request(self, broker: SimBroker, request: Request[Any]) -> None:
        """Take a request of a broker; most clients ignore it."""

    async def ask(self, broker: SimBroker, request: Request[Any], timeout_s: float = SEND_TIMEOUT_S) -> Any:
        """Return the reply, and the number of broken promises at its time. Raises RequestError, Unanswered."""
        answered = trio.Event()
        answers: list[tuple[Any, int]] = []

        def answer(outcome: Any) -> None:
            answers.append((outcome, len(self._history.broken_ends)))
            answered.set()

        with trio.move_on_after(timeout_s):
            await self._network.reach(self.name, broker.name)
            on_request: Callable[[Request[Any]], None] = partial(self.handle_request, broker)
            if not broker.start_request(self.name, request, answer, on_request):
                raise Unanswered  # the connection is refused
            await answered.wait()
            await self._network.reach(broker.name, self.name)
            if isinstance(answers[0][0], RequestError):
                raise answers[0][0]
            if not isinstance(answers[0][0], Exception):
                return answers[0]
        raise Unanswered


class Producer(Client):
    """Sends numbered messages one after another, and sends each again until it is stored.

    Some are delayed, some are halves of transactions: of these it commits or rolls back each, as its body says, or
    leaves that to the broker's question.
    """

    def __init__(self, name: str, *arguments: Any) -> None:
        super().__init__(name, *arguments)
        self.is_stored = False
        self._number = 0
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._beat)
            while True:
                await self.send_one()
                await trio.sleep(
                    self._randomness.choice([0, 0.05, 0.4, 0.8, 3.0]) * self._randomness.random()
                )

    async def answer_questions(self) -> None:
        """Send nothing more, but still answer the questions of brokers."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._beat()

    async def _beat(self) -> None:
        data = HeartbeatData(client_id=self.name, producer_data_set=[ProducerData(group_name="P")])
        while True:
            try:
                await self.ask(self._route.master(), HeartBeat(data=data))
            except (RequestError, Unanswered):
                await trio.sleep(1)
            else:
                await trio.sleep(BEAT_S / 5)

    async def send_one(self) -> None:
        kind = self._randomness.choices(
            ["plain", "popped", "level", "timer", "commit", "rollback", "asked"], [12, 4, 2, 2, 2, 1, 2]
        )[0]
        queue = {"plain": self._randomness.choice(QUEUES), "popped": POPPED}.get(kind)
        queue = queue or (DELAYED if kind in ("level", "timer") else ENDED)
        padding = self._randomness.choice([0, 10, 10, 300, 3000] if kind == "plain" else [0, 20])
        body = b"%s-%d %s " % (self.name.encode(), self._number, kind.encode()) + bytes(padding)
        self._number += 1
        while True:
            self._history.note_attempt(body, queue)
            broker = self._route.master()
            try:
                reply, breaks = await self.ask(broker, self._request(kind, queue, body))
            except (RequestError, Unanswered):
                self.is_stored = False
                await trio.sleep(RETRY_S)
                continue
            self.is_stored = not reply.code
            waits = kind not in ("plain", "popped")
            end = int(reply.msg_id[-16:], 16) + 1
            self._history.note_answer(body, reply.code, reply.queue_offset, end, breaks, waits=waits)
            if kind in ("commit", "rollback"):
                await self._end(broker, reply, ROLLBACK if is_dropped(body) else COMMIT)
            return

    def _request(self, kind: str, queue: Queue, body: bytes) -> SendMessageV2:
        """Return the send of a message; its body is its unique key."""
        properties, flag = {}, 0
        if kind == "level":
            properties = {"DELAY": str(self._randomness.choice([1, 2, 3]))}
        elif kind == "timer":
            properties = {"TIMER_DELAY_MS": str(self._randomness.choice([500, 2500, 9000]))}
        elif kind in ("commit", "rollback", "asked"):
            properties, flag = {"TRAN_MSG": "true", "PGROUP": "P"}, 4
        return message(
            queue[0], body, queue_id=queue[1], tags="t", key=body[:12].decode().strip(" \0"),
            properties=properties, sys_flag=flag, producer_group="P",
            born_timestamp=1_700_000_000_000 + int(trio.current_time() * 1000),
        )  # fmt: skip

    async def _end(self, broker: SimBroker, sent: SendMessageReply, decision: int) -> None:
        request = EndTransaction(
            producer_group="P", tran_state_table_offset=sent.queue_offset,
            commit_log_offset=int(sent.msg_id[-16:], 16), commit_or_rollback=decision,
            msg_id=sent.transaction_id or "",
        )  # fmt: skip
        with suppress(RequestError, Unanswered):  # the broker asks about it
            await self.ask(broker, request)

    def handle_request(self, broker: SimBroker, request: Request[Any]) -> None:
        if isinstance(request, CheckTransactionState) and self._nursery is not None:
            self._nursery.start_soon(self._answer_question, broker, request)

    async def _answer_question(self, broker: SimBroker, question: CheckTransactionState) -> None:
        with trio.move_on_after(5):
            await self._network.reach(broker.name, self.name)
            body = bytes(decode_message(question.body).body)
            request = EndTransaction(
                producer_group="P", tran_state_table_offset=question.tran_state_table_offset,
                commit_log_offset=question.commit_log_offset,
                commit_or_rollback=ROLLBACK if is_dropped(body) else COMMIT,
                from_transaction_check=True, msg_id=question.msg_id or "",
            )  # fmt: skip
            with suppress(RequestError, Unanswered):  # it is asked again
                await self.ask(broker, request)


class Consumer(Client):
    """Reads all queues again and again, at the master and at the slaves, and commits how far it is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._committed = dict.fromkeys(QUEUES, 0)

    async def run(self) -> None:
        positions = dict.fromkeys(QUEUES, 0)
        while True:
            await trio.sleep(2 * self._randomness.random())
            queue = self._randomness.choice(QUEUES)
            if self._randomness.random() < 0.2:
                positions[queue] = max(0, positions[queue] - 10)
            with trio.move_on_after(2):
                await self._read(queue, positions)
            if self._randomness.random() < 0.6:
                await self._commit(queue, positions[queue])

    async def _read(self, queue: Queue, positions: dict[Queue, int]) -> None:
        broker = self._route.any_broker()
        await self._network.reach(self.name, broker.name)
        if not broker.is_up:
            return
        messages, changes = broker.read(*queue, positions[queue]), self._history.changes
        await self._network.reach(broker.name, self.name)
        if changes != self._history.changes:
            return  # a new master may have others at these offsets by now
        for offset, body in messages:
            self._history.note_read(f"{self.name} at {broker.name}", queue, offset, body)
            positions[queue] = offset + 1

    async def _commit(self, queue: Queue, offset: int) -> None:
        if offset <= self._committed[queue]:
            return
        self._committed[queue] = offset
        request = UpdateConsumerOffset(
            consumer_group=GROUP, topic=queue[0], queue_id=queue[1], commit_offset=offset
        )
        changes, master = self._history.changes, self._route.master()
        try:
            await self.ask(master, request)
        except (RequestError, Unanswered):
            return
        # What a former master takes, now a slave, reaches the present one later.
        is_master = master.store is not None and master.role is Role.MASTER
        if changes == self._history.changes and is_master:
            commits = self._history.commits.setdefault((GROUP, queue), [])
            # Other messages get the offsets of those that were read at a former master and are lost. A master that was
            # killed goes back to the end that its queue has then, so that nobody skips them.
            commits.append((trio.current_time(), min(offset, master.open_store.max_offset(*queue))))


class Popper(Client):
    """Pops messages, and acks most of them; the others come again. ``acks_all`` at the end of the story."""

    acks_all = False

    async def run(self) -> None:
        while True:
            await trio.sleep(self._randomness.random() * 2)
            broker = self._route.master()
            request = pop_request(POPPED[0], POP_GROUP, invisible_time=INVISIBLE_MS, max_msg_nums=8)
            try:
                reply, _ = await self.ask(broker, request)
            except (RequestError, Unanswered):
                continue
            for popped in popped_messages(reply, "broker", POPPED[0], POP_GROUP):
                body = bytes(popped.body)
                self._history.popped[body] += 1
                if body in self._history.acked:
                    self._history.redeliveries += 1
                if self.acks_all or self._randomness.random() < 0.7:
                    self._history.acking.add(body)
                    try:
                        await self.ask(broker, popped.request(AckMessage, POP_GROUP))
                    except (RequestError, Unanswered):
                        continue
                    self._history.acked.add(body)


class Administrator(Client):
    """Creates topics and groups that stay, and topics that it deletes again."""

    def __init__(self, *arguments: Any, deletes_topics: bool) -> None:
        super().__init__(*arguments)
        self._deletes_topics = deletes_topics

    async def create_first(self) -> None:
        """Create the topics and groups that everybody uses, if they were never created, or that may be lost."""
        requests: dict[str, Request[Any]] = {
            topic: create_topic(topic, queues) for topic, queues in TOPICS.items()
        }
        requests |= {f"@{group}": create_group(group) for group in (GROUP, POP_GROUP)}
        for name, request in requests.items():
            if name not in self._history.names and await self._try(request):
                self._history.names[name] = trio.current_time()

    async def _try(self, request: Request[Any]) -> bool:
        """Ask the master; return False if that fails, or another broker became master meanwhile."""
        changes = self._history.changes
        try:
            await self.ask(self._route.master(), request)
        except (RequestError, Unanswered):
            return False
        return changes == self._history.changes

    async def run(self) -> None:
        number = 0
        while True:
            await trio.sleep(3 * self._randomness.random())
            await self.create_first()
            number += 1
            if self._randomness.random() < 0.4:
                if await self._try(create_topic(f"n{number}", 1)):
                    self._history.names[f"n{number}"] = trio.current_time()
            elif self._randomness.random() < 0.4:
                if await self._try(create_group(f"n{number}")):
                    self._history.names[f"@n{number}"] = trio.current_time()
            elif self._deletes_topics:
                await self._let_pass(self._randomness.choice(PASSING), number)

    async def _let_pass(self, topic: str, number: int) -> None:
        """Create a topic, send it some messages, delete it."""
        history = self._history
        deleted_s = history.deletions.pop(topic, None)
        if not await self._try(create_topic(topic, 1)):
            if deleted_s is not None:
                history.half_deleted.add(topic)
            return
        if deleted_s is not None:
            history.first_numbers[topic] = deleted_s, 10 * number
        for part in range(self._randomness.randrange(4)):
            body = b"%s-%d passing " % (topic.encode(), 10 * number + part)
            history.note_attempt(body, (topic, 0))
            try:
                await self.ask(self._route.master(), message(topic, body, key=None))
            except (RequestError, Unanswered):
                break
        await trio.sleep(self._randomness.choice([0.1, 5, 15]) * self._randomness.random())
        history.half_deleted.add(topic)
        if await self._try(DeleteTopicInBroker(topic=topic)):
            history.half_deleted.discard(topic)
            history.deletions[topic] = trio.current_time()


def create_topic(topic: str, queues: int) -> UpdateAndCreateTopic:
    """Return the request that creates a topic."""
    return UpdateAndCreateTopic(
        topic=topic, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6,
        topic_filter_type="SINGLE_TAG",
    )  # fmt: skip


def create_group(group: str) -> UpdateAndCreateSubscriptionGroup:
    """Return the request that creates a group."""
    return UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name=group))
