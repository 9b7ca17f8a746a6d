"""A Python interface to the drivers of stock clients that speak gRPC: producers, consumers, and raw calls with Java."""

import base64
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from compat_tests.clients.command_driver import CommandDriver
from compat_tests.server import eventually
from remoting.acl import Credentials

_NAMES = itertools.count(1)
AWAIT_MS = 3000
"""Time that a simple consumer lets the server wait for a first message; the official Proxy waits 5 s at least."""


@dataclass(slots=True)
class StockGrpcClient:
    """A stock client in a driven process. `identity`: arguments of every client it starts, see `acting_as`."""

    driver: CommandDriver
    endpoints: str
    identity: Mapping[str, Any] = field(default_factory=dict)

    def acting_as(
        self, endpoints: str, credentials: Credentials | None = None, *, tls: bool = False
    ) -> "StockGrpcClient":
        """Return the same process for clients of this address, which sign with these keys and use TLS if asked to."""
        identity: dict[str, Any] = {"tls": tls}
        if credentials is not None:
            identity |= {"access_key": credentials.access_key, "secret_key": credentials.secret_key}
        return StockGrpcClient(self.driver, endpoints, identity)

    def _start(self, kind: str, arguments: Mapping[str, Any]) -> str:
        name = f"{kind}-{next(_NAMES)}"
        self.driver.call(f"{kind}.start", name=name, endpoints=self.endpoints, **self.identity, **arguments)
        return name

    @contextmanager
    def _running(self, kind: str, *, waits: bool = True, **arguments: Any) -> Iterator[str]:
        """Run one client during the block and yield its name; at its end wait for the client's, if ``waits``."""
        name = self._start(kind, arguments)
        try:
            yield name
        finally:
            if waits:
                self.driver.call(f"{kind}.stop", name=name)
            else:
                self.driver.start_call(f"{kind}.stop", name=name)

    @contextmanager
    def producer(
        self, *topics: str, transactions: bool = False, attempts: int = 3, waits: bool = True
    ) -> Iterator["GrpcProducer"]:
        """Run a producer that knows these topics from its start; with `transactions` it answers checks.

        Without `waits` it stops after the block has ended: the Java client waits without limit for all of its calls.
        """
        arguments = {"topics": topics, "transactions": transactions, "attempts": attempts}
        with self._running("producer", waits=waits, **arguments) as name:
            yield GrpcProducer(self.driver, name)

    @contextmanager
    def simple(
        self, group: str, topic: str, *, await_ms: int = AWAIT_MS, **expression: str
    ) -> Iterator["GrpcSimpleConsumer"]:
        """Run a simple consumer; the expression is `tags` or `sql`, without one it takes all messages."""
        arguments: dict[str, Any] = {
            "group": group,
            "subscriptions": [{"topic": topic, **expression}],
            "await_ms": await_ms,
        }
        with self._running("simple", **arguments) as name:
            yield GrpcSimpleConsumer(self.driver, name)

    @contextmanager
    def push(
        self, group: str, topic: str, *, failures: int = 0, **expression: str
    ) -> Iterator["GrpcPushConsumer"]:
        """Run a push consumer that fails the first deliveries of each message, all of them for -1.

        It stops behind the block's back: the client waits for its receive calls, which last 20 s.
        """
        arguments = {"group": group, "subscriptions": [{"topic": topic, **expression}], "failures": failures}
        name = self._start("push", arguments)
        try:
            yield GrpcPushConsumer(self.driver, name)
        finally:
            self.driver.start_call("push.stop", name=name)

    def call(
        self,
        method: str,
        *requests: Mapping[str, Any] | bytes,
        metadata: Mapping[str, str] | None = None,
        wanted: int | None = None,
        timeout_s: float = 10.0,
    ) -> "CallResult":
        """Call any method with requests as protobuf's JSON or as bytes.

        With `wanted` the stream of requests stays open until that many messages have come.
        """
        encoded = [
            base64.b64encode(request).decode() if isinstance(request, bytes) else request
            for request in requests
        ]
        answer = self.driver.call(
            "rpc",
            endpoints=self.endpoints,
            method=method,
            requests=encoded,
            metadata=dict(CLIENT_METADATA if metadata is None else metadata),
            open=wanted is not None,
            count=wanted or 0,
            timeout=int(timeout_s * 1000),
        )
        return CallResult(answer["status"], answer["text"], answer["answers"])


CLIENT_METADATA: Mapping[str, str] = {
    "x-mq-client-id": "compat-raw-client",
    "x-mq-client-version": "5.1.0",
    "x-mq-language": "JAVA",
    "x-mq-protocol": "v2",
}
"""Metadata that stock clients send with every call."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """gRPC's status of a call, its text, and the messages that came, as protobuf's JSON."""

    status: str
    text: str | None
    answers: Sequence[dict[str, Any]]

    @property
    def code(self) -> str:
        """The code of RocketMQ's own status in the first message that has one, for example "OK"; "" if none has."""
        codes = (answer["status"]["code"] for answer in self.answers if answer.get("status"))
        return str(next(codes, ""))


@dataclass(slots=True)
class GrpcProducer:
    driver: CommandDriver
    name: str

    def send(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        """Send messages (topic, body or size, tag, keys, group, delay_ms, properties); return their receipts."""
        receipts: list[dict[str, Any]] = self.driver.call("send", name=self.name, messages=list(messages))
        return receipts

    def send_half(self, message: dict[str, Any], end: str = "") -> dict[str, Any]:
        """Send a message in a transaction; `end` is commit, rollback, or "" to leave it open."""
        receipt: dict[str, Any] = self.driver.call(
            "transaction.send", name=self.name, message=message, end=end
        )
        return receipt

    def checks(self, count: int, timeout_s: float) -> list[dict[str, Any]]:
        """Return the messages checked so far, once there are `count` or the time is up."""
        return self.driver.wait_for("transaction.checks", self.name, count, timeout_s)

    def recall(self, topic: str, handle: str) -> str:
        """Recall a delayed message and return its id."""
        return str(self.driver.call("recall", name=self.name, topic=topic, handle=handle))


@dataclass(slots=True)
class GrpcSimpleConsumer:
    driver: CommandDriver
    name: str

    def receive(self, count: int = 32, invisible_s: float = 30.0) -> list[dict[str, Any]]:
        """Make one receive call, which asks one queue or broker, and return its messages."""
        messages: list[dict[str, Any]] = self.driver.call(
            "simple.receive", name=self.name, count=count, invisible_ms=int(invisible_s * 1000)
        )
        return messages

    def receive_until(
        self, is_complete: Callable[[list[dict[str, Any]]], bool], timeout_s: float
    ) -> list[dict[str, Any]]:
        """Receive and acknowledge messages until those so far are complete, and return them.

        Raises AssertionError after `timeout_s`.
        """
        messages: list[dict[str, Any]] = []

        def receive_more() -> bool:
            for message in self.receive():
                messages.append(message)
                self.ack(message)
            return is_complete(messages)

        eventually(receive_more, timeout_s)
        return messages

    def ack(self, message: Mapping[str, Any]) -> None:
        self.driver.call("simple.ack", name=self.name, index=message["index"])

    def change_invisible(self, message: Mapping[str, Any], seconds: float) -> None:
        """Let a received message become visible again after this time from now on."""
        self.driver.call(
            "simple.change", name=self.name, index=message["index"], invisible_ms=int(seconds * 1000)
        )


@dataclass(slots=True)
class GrpcPushConsumer:
    driver: CommandDriver
    name: str

    def received(self, count: int, timeout_s: float = 30.0) -> list[dict[str, Any]]:
        """Return all deliveries so far, once there are `count` of them or the time is up."""
        return self.driver.wait_for("push.received", self.name, count, timeout_s)
