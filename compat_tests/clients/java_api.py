"""A Python interface to the Java driver's operations: producers, push, lite pull and pull consumers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compat_tests.clients.driver import JavaClientError, JavaDriver
from compat_tests.server import eventually
from remoting.acl import Credentials


@dataclass(slots=True)
class JavaClient:
    """A stock Java client in a driven JVM; `version` is its release, e.g. "5.4.0".

    `identity` holds arguments of every client that it starts, see `acting_as`.
    """

    driver: JavaDriver
    version: str
    identity: Mapping[str, Any] = field(default_factory=dict)

    def acting_as(self, namesrv: str, credentials: Credentials | None = None) -> "JavaClient":
        """Return the same JVM for clients of this namesrv, who sign with these keys; without keys they do not sign."""
        identity = {"namesrv": namesrv}
        if credentials is not None:
            identity |= {"access_key": credentials.access_key, "secret_key": credentials.secret_key}
        return JavaClient(self.driver, self.version, identity)

    def use_tls(
        self, *, trust: Path | None = None, certificate: Path | None = None, key: Path | None = None
    ) -> None:
        """Make the clients that this JVM starts from now on use TLS; without `trust` they accept any certificate."""
        self._set_tls(
            tlsEnable=True,
            tlsTestModeEnable=False,
            tlsClientAuthServer=trust is not None,
            tlsClientTrustCertPath=str(trust or ""),
            tlsClientCertPath=str(certificate or ""),
            tlsClientKeyPath=str(key or ""),
        )

    def use_plain_connections(self) -> None:
        """Make the clients that this JVM starts from now on use no TLS."""
        self._set_tls(tlsEnable=False)

    def _set_tls(self, **fields: bool | str) -> None:
        self.driver.call("tls", fields=fields)

    def run_mqadmin(self, *arguments: str) -> str:
        """Run a command of the official admin tool and return what it prints. Client 5.x only."""
        printed: str = self.driver.call(
            "mqadmin", arguments=[*arguments, "-n", self.identity["namesrv"]], **self.identity
        )
        return printed

    @contextmanager
    def producer(self, group: str, *, trace: bool = False, **settings: Any) -> Iterator["JavaProducer"]:
        """Run a producer during the block; settings are the setters of DefaultMQProducer without "set"."""
        self.driver.call(
            "producer.start", name=group, group=group, trace=trace, settings=settings, **self.identity
        )
        try:
            yield JavaProducer(self.driver, group)
        finally:
            self.driver.call("producer.stop", name=group)

    @contextmanager
    def transactions(
        self, group: str, *, name: str = "", **settings: Any
    ) -> Iterator["JavaTransactionProducer"]:
        """Run a transactional producer with a connection of its own during the block."""
        name = name or group
        self.driver.call("transaction.start", name=name, group=group, settings=settings, **self.identity)
        try:
            yield JavaTransactionProducer(self.driver, name)
        finally:
            self.driver.call("transaction.stop", name=name)

    @contextmanager
    def push(
        self, group: str, *topics: str, name: str = "", wait_stop: bool = False, **options: Any
    ) -> Iterator["JavaPushConsumer"]:
        """Run a push consumer during the block.

        Options: orderly, failures (deliveries of each message to fail; -1: all), delay_level, reply, trace, settings,
        subscriptions ([{"topic", "tags" or "sql"}], default: all of `topics`).

        Client 5.x sometimes takes 3 s to stop. `wait_stop` waits for that and puts all deliveries into `delivered`.
        """
        name = name or group
        options.setdefault("subscriptions", [{"topic": topic} for topic in topics])
        self.driver.call("push.start", name=name, group=group, **self.identity, **options)
        consumer = JavaPushConsumer(self.driver, name)
        try:
            yield consumer
        finally:
            stopped = self.driver.start_call("push.stop", name=name)
            if wait_stop:
                consumer.delivered = stopped.result(60)

    @contextmanager
    def lite(
        self, group: str, topic: str, *, name: str = "", **options: Any
    ) -> Iterator["JavaLitePullConsumer"]:
        """Run a lite pull consumer during the block, subscribed to the topic or with `assign` (queues)."""
        name = name or group
        self.driver.call("lite.start", name=name, group=group, topic=topic, **self.identity, **options)
        try:
            yield JavaLitePullConsumer(self.driver, name)
        finally:
            self.driver.call("lite.stop", name=name)

    @contextmanager
    def pull(self, group: str, **settings: Any) -> Iterator["JavaPullConsumer"]:
        self.driver.call("pull.start", name=group, group=group, settings=settings, **self.identity)
        try:
            yield JavaPullConsumer(self.driver, group)
        finally:
            self.driver.call("pull.stop", name=group)


@dataclass(slots=True)
class JavaProducer:
    driver: JavaDriver
    name: str

    def send(self, *messages: dict[str, Any], mode: str = "sync", **options: Any) -> list[dict[str, Any]]:
        """Send messages. Modes: sync, async, oneway, batch, queue (option queue), selector and hash (option arg)."""
        result: list[dict[str, Any]] = self.driver.call(
            "send", name=self.name, messages=list(messages), mode=mode, **options
        )
        return result

    def send_numbered(self, topic: str, count: int, **fields: Any) -> list[dict[str, Any]]:
        """Send `count` messages with the bodies "0", "1", … and return the results."""
        return self.send(*[{"topic": topic, "body": str(number), **fields} for number in range(count)])

    def queues(self, topic: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.driver.call("queues", name=self.name, topic=topic)
        return sorted(result, key=lambda queue: (queue["broker"], queue["queue"]))

    def queues_of_new_topic(self, topic: str) -> list[dict[str, Any]]:
        """Return the queues of a topic that a send has just created.

        A 4.9 broker answers the send before the namesrv knows the topic.
        """

        def known() -> list[dict[str, Any]]:
            try:
                return self.queues(topic)
            except JavaClientError:
                return []

        return eventually(known, 20)

    def query(self, topic: str, key: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.driver.call("query", name=self.name, topic=topic, key=key)
        return result

    def view(self, topic: str, message_id: str) -> dict[str, Any]:
        result: dict[str, Any] = self.driver.call("view", name=self.name, topic=topic, msg_id=message_id)
        return result

    def recall(self, topic: str, handle: str) -> str:
        """Recall a timer message and return its unique key. Client 5.3.2 and later."""
        return str(self.driver.call("recall", name=self.name, topic=topic, handle=handle))

    def request(self, message: dict[str, Any], timeout_s: float) -> str:
        return str(
            self.driver.call("request", name=self.name, message=message, timeout=int(timeout_s * 1000))
        )


@dataclass(slots=True)
class JavaTransactionProducer:
    driver: JavaDriver
    name: str

    def send(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        """Send half messages, each ended as its property "local" says (COMMIT_MESSAGE, ROLLBACK_MESSAGE)."""
        result: list[dict[str, Any]] = self.driver.call(
            "transaction.send", name=self.name, messages=list(messages)
        )
        return result

    def checks(self, count: int, timeout_s: float) -> list[dict[str, Any]]:
        """Return all check-backs so far, once there are `count` or the time is up; property "check" answers them."""
        return self.driver.wait_for("transaction.checks", self.name, count, timeout_s)


@dataclass(slots=True)
class JavaPushConsumer:
    driver: JavaDriver
    name: str
    delivered: list[dict[str, Any]] = field(default_factory=list)

    def received(self, count: int, timeout_s: float = 20.0) -> list[dict[str, Any]]:
        """Return all deliveries so far, once there are `count` of them or the time is up."""
        return self.driver.wait_for("push.received", self.name, count, timeout_s)

    def take(self, limit: int) -> list[dict[str, Any]]:
        """Return at most `limit` of the oldest deliveries; the client forgets them."""
        result: list[dict[str, Any]] = self.driver.call("push.take", name=self.name, limit=limit)
        return result

    def queues(self) -> list[dict[str, Any]]:
        """Return the queues assigned to this consumer."""
        result: list[dict[str, Any]] = self.driver.call("push.queues", name=self.name)
        return result

    def suspend(self) -> None:
        """Pause consumption until `resume`."""
        self.driver.call("push.suspend", name=self.name)

    def resume(self) -> None:
        self.driver.call("push.suspend", name=self.name, resume=True)


@dataclass(slots=True)
class JavaLitePullConsumer:
    driver: JavaDriver
    name: str

    def poll(self, count: int, timeout_s: float = 20.0) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.driver.call(
            "lite.poll", name=self.name, count=count, timeout=int(timeout_s * 1000)
        )
        return result

    def call(self, operation: str, **arguments: Any) -> Any:
        """Run commit, committed(queue) or seek(queue, offset | end)."""
        return self.driver.call(f"lite.{operation}", name=self.name, **arguments)


@dataclass(slots=True)
class JavaPullConsumer:
    driver: JavaDriver
    name: str

    def pull(self, queue: dict[str, Any], offset: int, **options: Any) -> dict[str, Any]:
        """Pull from a queue. Options: tags, count, block."""
        result: dict[str, Any] = self.driver.call(
            "pull", name=self.name, queue=queue, offset=offset, timeout_s=90.0, **options
        )
        return result

    def offsets(self, queue: dict[str, Any], timestamp_ms: int = 0) -> dict[str, int]:
        result: dict[str, int] = self.driver.call(
            "pull.offsets", name=self.name, queue=queue, timestamp=timestamp_ms
        )
        return result

    def commit(self, queue: dict[str, Any], offset: int) -> None:
        self.driver.call("pull.commit", name=self.name, queue=queue, offset=offset)
