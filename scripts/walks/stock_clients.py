"""The program `walk-clients` of walks: the stock Java, Go and Python 5.x clients of a reader who moves them.

    walk-clients start             run the clients, all at the Proxy, until Ctrl-C
    walk-clients move LANGUAGE     restart the clients of a language at the gateway
    walk-clients send COUNT        send as fast as possible until COUNT messages are sent in all; returns at once
    walk-clients receive COUNT     wait until every group has received COUNT messages
    walk-clients pause             stop sending, and wait until the target has what the primary has
    walk-clients resume            go on sending
    walk-clients finish COUNT      send the rest of COUNT messages, wait for all of them, and judge

Commands go to the running clients through a socket in the current folder. Between `send` commands every producer sends
a few messages a second, so that each step of a move meets sends on their way.

The verdict is strict: every group must have received every message exactly once, and no send may have failed. A
delivery counts before it is acknowledged.
"""

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import Final, NoReturn

from compat_tests.clients.command_driver import CommandDriver, StockClientError
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.grpc_api import GrpcProducer, GrpcSimpleConsumer, StockGrpcClient
from compat_tests.clients.grpc_drivers import start_go_driver, start_python_driver
from compat_tests.clients.programs import build_go_driver, grpc_classes, install_python_client
from compat_tests.clients.typed import connect, create_group, has_route, topic_request
from compat_tests.jars import fetch_jars
from remoting.requests.offsets import GetMaxOffset

SOCKET: Final = "clients.sock"
NAMESRV: Final = "127.0.0.1:9876"
PRIMARY: Final = "127.0.0.1:10911"
TARGET: Final = "127.0.0.1:10921"
PROXY: Final = "127.0.0.1:8081"
GATEWAY: Final = "127.0.0.1:8091"

JAVA: Final = "grpc-client-5.1"
GO: Final = "5.1.4"
PYTHON: Final = "5.1.2"
DRIVERS: Final[Mapping[str, Callable[[], CommandDriver]]] = {
    "java": lambda: JavaDriver(JAVA, "", program=("GrpcDriver", grpc_classes())),
    "go": lambda: start_go_driver(GO),
    "python": lambda: start_python_driver(PYTHON),
}
QUEUES: Final = 4
SENDERS: Final = 4
"""Threads of a producer."""
TRICKLE_INTERVAL_S: Final = 0.1
"""Time between two messages of a topic, of all its producers together, while nothing else is to be sent."""
POLL_S: Final = 0.02
MAX_WAIT_S: Final = 600.0
INVISIBLE_S: Final = 20.0
"""Far above the time that a consumer needs for its messages on a busy machine; a group moves only after it."""
MAX_NAMED: Final = 20


def prepare() -> None:
    """Fetch and build the clients and the official cluster: walks have no network."""
    for profile in ("server-5.4", "proxy-5.4", JAVA):
        fetch_jars(profile)
    grpc_classes()
    build_go_driver(GO)
    install_python_client(PYTHON)


class Gate:
    """Threads pass through it; while it is closed nobody is inside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_closed = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Wait until the gate is open, and be inside during the block."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Close the gate during the block, which begins when everybody has come out."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._is_closed = False
                self._changed.notify_all()


class TopicLedger:
    """The messages that the clients of a topic sent and received.

    ``shares`` are the parts of the messages that each producer sends.
    ``total`` is the number of messages to be sent by all of them up to now. Messages are numbered by producer.
    """

    def __init__(self, topic: str, shares: Mapping[str, int], groups: Iterable[str]) -> None:
        self.topic = topic
        self._shares = shares
        self._lock = threading.Lock()
        self._started = Counter(dict.fromkeys(shares, 0))
        self._sent: set[str] = set()
        self._received: dict[str, Counter[str]] = {group: Counter() for group in groups}
        self.failed_sends: dict[str, str] = {}
        self.failed_calls: dict[str, str] = {}
        self.total = 0
        self.is_trickling = False

    def next_body(self, language: str) -> str | None:
        """Return the next message that a producer has to send, if any."""
        with self._lock:
            number = self._started[language]
            if number >= self._count_due(language):
                return None
            self._started[language] += 1
            return f"{language} {number}"

    def trickle(self) -> None:
        """Let one more message be sent."""
        with self._lock:
            self.total += self.is_trickling

    def note_sent(self, body: str) -> None:
        """Count a message whose receipt came."""
        with self._lock:
            self._sent.add(body)

    def note_received(self, group: str, body: str) -> None:
        """Count a delivery."""
        with self._lock:
            self._received[group][body] += 1

    def send_until(self, total: int) -> None:
        """Let messages be sent until there are so many in all. Raises ValueError if there are more already."""
        with self._lock:
            if total < self.total:
                raise ValueError(f"{self.total} messages of {self.topic} were sent already")
            self.total = total

    def is_sent(self) -> bool:
        """Tell whether everything was sent that was to be sent."""
        with self._lock:
            return len(self._sent) == sum(map(self._count_due, self._shares))

    def _count_due(self, language: str) -> int:
        """Return how many messages a producer has to send up to now."""
        return self.total * self._shares[language] // sum(self._shares.values())

    def has_received(self, count: int) -> bool:
        """Tell whether every group has received this number of messages."""
        with self._lock:
            return all(len(bodies) >= count for bodies in self._received.values())

    def is_received(self) -> bool:
        """Tell whether every group has received everything that was sent."""
        return self.has_received(len(self._sent))

    def describe(self) -> list[str]:
        """Return the numbers, a line for the producers and one for each group."""
        with self._lock:
            parts = ", ".join(f"{language} {count}" for language, count in self._started.items())
            lines = [
                f"{self.topic}: {len(self._sent)} messages sent ({parts}), {len(self.failed_sends)} sent again"
            ]
            for group, bodies in sorted(self._received.items()):
                missing, repeated = self._differences(bodies)
                lines.append(
                    f"{self.topic}: {group} received {len(bodies)}, {len(missing)} missing, "
                    f"{len(repeated)} more than once"
                )
            return lines

    def problems(self) -> list[str]:
        """Return what is not as it should be: messages that a group misses or got twice, and failures of clients."""
        with self._lock:
            lines = [f"{self.topic}: send {body}: {text}" for body, text in self.failed_sends.items()]
            lines += [f"{self.topic}: {call}: {text}" for call, text in self.failed_calls.items()]
            for group, bodies in sorted(self._received.items()):
                missing, repeated = self._differences(bodies)
                lines += [f"{self.topic}: {group} misses {body}" for body in missing[:MAX_NAMED]]
                lines += [
                    f"{self.topic}: {group} got {body} {bodies[body]} times" for body in repeated[:MAX_NAMED]
                ]
            return lines

    def _differences(self, bodies: Counter[str]) -> tuple[list[str], list[str]]:
        """Return the messages that a group misses, and those that it got more than once."""
        return sorted(self._sent - bodies.keys()), sorted(body for body, count in bodies.items() if count > 1)


class LanguageClients:
    """The producer and the consumer of a topic in one language, which run until the process ends."""

    def __init__(
        self, language: str, driver: CommandDriver, ledger: TopicLedger, group: str, endpoint: str
    ) -> None:
        self._language = language
        self._driver = driver
        self._ledger = ledger
        self._group = group
        self._gate = Gate()
        self._running = ExitStack()
        self._consumer, self._producer = self._connect(endpoint)

    def start(self, start_thread: Callable[[Callable[[], None]], None]) -> None:
        """Start to send and to receive."""
        for run in (*[self._send_forever] * SENDERS, self._receive_forever):
            start_thread(run)

    def move(self, endpoint: str) -> None:
        """Stop the clients, as a user does to change a setting, and start them at another endpoint."""
        with self._gate.closed():
            self._running.close()
            self._consumer, self._producer = self._connect(endpoint)

    def _connect(self, endpoint: str) -> tuple[GrpcSimpleConsumer, GrpcProducer]:
        client = StockGrpcClient(self._driver, endpoint)
        return (
            self._running.enter_context(client.simple(self._group, self._ledger.topic)),
            self._running.enter_context(client.producer(self._ledger.topic)),
        )

    def _send_forever(self) -> None:
        while True:
            with self._gate.passing():
                body = self._ledger.next_body(self._language)
                if body is not None:
                    self._send(body)
            if body is None:
                time.sleep(POLL_S)

    def _send(self, body: str) -> None:
        while True:
            try:
                self._producer.send({"topic": self._ledger.topic, "body": body})
            except StockClientError as problem:
                self._ledger.failed_sends[body] = str(problem)
            else:
                self._ledger.note_sent(body)
                return

    def _receive_forever(self) -> None:
        for number in itertools.count():
            with self._gate.passing():
                try:
                    messages = self._consumer.receive(invisible_s=INVISIBLE_S)
                except StockClientError as problem:
                    self._ledger.failed_calls[f"receive {number} of {self._language}"] = str(problem)
                    continue
                acks = []
                for message in messages:
                    self._ledger.note_received(self._group, message["body"])
                    ack = self._driver.start_call(
                        "simple.ack", name=self._consumer.name, index=message["index"]
                    )
                    acks.append((message["body"], ack))
                for body, ack in acks:
                    try:
                        ack.result(MAX_WAIT_S)
                    except StockClientError as problem:
                        self._ledger.failed_calls[f"ack {body} by {self._language}"] = str(problem)


class StockClients:
    """All clients, and the commands about them.

    Java, Go and Python clients send Orders. Java and Go clients of the group billing receive them, and Python clients
    of the group audit. Clients of Bills stay at the Proxy for ever.
    """

    def __init__(self) -> None:
        self._orders = TopicLedger("Orders", {"java": 8, "go": 7, "python": 5}, ("billing", "audit"))
        self._bills = TopicLedger("Bills", {"java": 1}, ("archive",))
        self._failures: list[str] = []
        self._drivers: dict[str, CommandDriver] = {}
        self._clients: dict[str, LanguageClients] = {}
        self._commands: Mapping[str, Callable[..., str]] = {
            "move": self.move,
            "send": self.send,
            "receive": self.receive,
            "pause": self.pause,
            "resume": self.resume,
            "finish": self.finish,
        }

    def start(self) -> None:
        """Create topics and groups, and start every client at the Proxy."""
        with connect(PRIMARY) as broker:
            for topic in ("Orders", "Bills"):
                broker.ask(topic_request(topic, QUEUES))
            for group in ("billing", "audit", "archive"):
                create_group(broker, group)
        with connect(NAMESRV) as namesrv:
            self._wait(lambda: all(has_route(namesrv, topic) for topic in ("Orders", "Bills")))
        with ThreadPoolExecutor() as pool:
            drivers = pool.map(lambda start: start(), DRIVERS.values())
            self._drivers |= zip(DRIVERS, drivers, strict=True)
        groups = {"java": "billing", "go": "billing", "python": "audit"}
        for language, driver in self._drivers.items():
            clients = LanguageClients(language, driver, self._orders, groups[language], PROXY)
            self._clients[language] = clients
            clients.start(self._start_thread)
        bill_clients = LanguageClients("java", self._drivers["java"], self._bills, "archive", PROXY)
        bill_clients.start(self._start_thread)
        self._orders.is_trickling = self._bills.is_trickling = True
        self._start_thread(self._trickle)

    def close(self) -> None:
        """End the processes of the clients."""
        for driver in self._drivers.values():
            driver.close()

    def run_command(self, word: str, *arguments: str) -> tuple[bool, str]:
        """Run one command; return whether it succeeded, and what to show."""
        try:
            return True, self._commands[word](*arguments)
        except (AssertionError, StockClientError, ValueError) as problem:
            return False, str(problem)

    def move(self, language: str) -> str:
        """Restart the clients of a language at the gateway."""
        self._clients[language].move(GATEWAY)
        return f"the {language} clients are at {GATEWAY}"

    def send(self, count: str) -> str:
        """Begin to send until there are ``count`` messages in all."""
        self._orders.send_until(int(count))
        return f"sending up to {count} messages"

    def receive(self, count: str) -> str:
        """Wait until every group has received ``count`` messages."""
        self._wait(lambda: self._orders.has_received(int(count)))
        return "\n".join(self._orders.describe())

    def pause(self) -> str:
        """Stop sending, and wait until the target has what the primary has."""
        self._orders.is_trickling = False
        self._wait(self._orders.is_sent)
        self._wait(lambda: _queue_ends(PRIMARY, "Orders") == _queue_ends(TARGET, "Orders"))
        return "\n".join(self._orders.describe())

    def resume(self) -> str:
        """Go on sending."""
        self._orders.is_trickling = True
        return "sending"

    def finish(self, count: str) -> str:
        """Send up to ``count`` messages, wait until every group has received everything, and judge."""
        ledgers = (self._orders, self._bills)
        for ledger in ledgers:
            ledger.is_trickling = False
        self._orders.send_until(int(count))
        self._wait(lambda: all(ledger.is_sent() and ledger.is_received() for ledger in ledgers))
        lines = [line for ledger in ledgers for line in ledger.describe()]
        if problems := [line for ledger in ledgers for line in ledger.problems()]:
            raise AssertionError("\n".join([*lines, *problems]))
        return "\n".join([*lines, "every group received each message once"])

    def _wait(self, is_reached: Callable[[], bool]) -> None:
        """Wait for a state. Raises AssertionError when a client has failed, or after `MAX_WAIT_S`."""
        end_s = time.monotonic() + MAX_WAIT_S
        while not is_reached():
            if self._failures or time.monotonic() > end_s:
                lines = [line for ledger in (self._orders, self._bills) for line in ledger.describe()]
                raise AssertionError("\n".join([*lines, *self._failures, "not reached"]))
            time.sleep(POLL_S)

    def _trickle(self) -> None:
        while True:
            time.sleep(TRICKLE_INTERVAL_S)
            self._orders.trickle()
            self._bills.trickle()

    def _start_thread(self, run: Callable[[], None]) -> None:
        """Run a function in a thread that ends with the process, and note its failure."""

        def watch() -> None:
            try:
                run()
            except Exception as problem:  # noqa: BLE001 - shown by the command that waits
                self._failures.append(f"{type(problem).__name__}: {problem}")

        threading.Thread(target=watch, daemon=True).start()


def _queue_ends(broker: str, topic: str) -> list[int]:
    with connect(broker) as client:
        return [client.ask(GetMaxOffset(topic=topic, queue_id=queue)).offset for queue in range(QUEUES)]


def serve_commands() -> NoReturn:
    """Run the clients, and the commands that come through the socket."""
    with closing(StockClients()) as clients:
        clients.start()
        with Listener(SOCKET) as listener:
            print(f"ready: java, go and python clients at {PROXY}", flush=True)
            while True:
                with listener.accept() as connection:
                    _answer(connection, clients)


def _answer(connection: Connection, clients: StockClients) -> None:
    with suppress(EOFError, BrokenPipeError):
        connection.send(clients.run_command(*connection.recv()))


def main(*words: str) -> int:
    """Run the clients, or give them a command; return the exit status."""
    if words == ("start",):
        serve_commands()
    with Client(SOCKET) as connection:
        connection.send(words)
        succeeded, text = connection.recv()
    print(text)
    return int(not succeeded)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
