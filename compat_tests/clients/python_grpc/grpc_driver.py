"""Drives the stock Python client that speaks gRPC by commands: the operations of ``java/grpc`` but raw calls.

Runs as a script, with the client's packages and none of ours. Versions before 5.0.9 have no push consumer.
"""

import threading
import time
from typing import Any, Final

import rocketmq
from command_loop import Collected, Command, run
from rocketmq.grpc_protocol import FilterType

CLIENTS: dict[str, Any] = {}
SETTINGS_TIMEOUT_S: Final = 50.0
"""Longest wait for the server's answer to a consumer's settings; below the time that a command may take."""
RESOLUTIONS = {
    "COMMIT": rocketmq.TransactionResolution.COMMIT,
    "ROLLBACK": rocketmq.TransactionResolution.ROLLBACK,
}


def configuration(command: Command) -> Any:
    keys = rocketmq.Credentials(command.get("access_key"), command.get("secret_key"))
    return rocketmq.ClientConfiguration(command["endpoints"], keys)


def subscriptions(command: Command) -> dict[str, Any]:
    return {
        subscription["topic"]: rocketmq.FilterExpression(subscription["sql"], FilterType.SQL)
        if "sql" in subscription
        else rocketmq.FilterExpression(subscription.get("tags", "*"))
        for subscription in command["subscriptions"]
    }


def make_message(fields: Command) -> Any:
    message = rocketmq.Message()
    message.topic = fields["topic"]
    message.body = bytes(fields["size"]) if "size" in fields else fields["body"].encode()
    for key in fields.get("keys", ()):
        message.keys = key  # Adds one.
    for name, value in fields.get("properties", {}).items():
        message.add_property(name, value)
    if "tag" in fields:
        message.tag = fields["tag"]
    if "group" in fields:
        message.message_group = fields["group"]
    if "delay_ms" in fields:
        message.delivery_timestamp = int(time.time() + fields["delay_ms"] / 1000)  # In seconds.
    return message


def describe(message: Any) -> Command:
    return {
        "id": message.message_id,
        "topic": message.topic,
        "body": message.body.decode() if len(message.body) <= 1000 else "",
        "size": len(message.body),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "group": message.message_group,
        "properties": dict(message.properties),
        "attempt": message.delivery_attempt,
        "received_ms": int(time.time() * 1000),
    }


def stop(command: Command) -> None:
    CLIENTS.pop(command["name"]).client.shutdown()


def start(session: Any, command: Command) -> None:
    session.client.startup()
    CLIENTS[command["name"]] = session


# -- producers ----------------------------------------------------------------------------------------------------


class Checker(rocketmq.TransactionChecker):  # type: ignore[misc]
    """Answers a check as the message's property "check" says, and records it."""

    def __init__(self) -> None:
        self.checked = Collected()

    def check(self, message: Any) -> Any:
        self.checked.add(describe(message))
        return RESOLUTIONS[message.properties["check"]]


class ProducerSession:
    def __init__(self, command: Command) -> None:
        self.checker = Checker() if command["transactions"] else None
        self.client = rocketmq.Producer(
            configuration(command), command["topics"], self.checker, tls_enable=command.get("tls", False)
        )


def describe_receipt(receipt: Any) -> Command:
    return {"id": receipt.message_id, "recall_handle": getattr(receipt, "recall_handle", None)}


def send(command: Command) -> list[Command]:
    producer = CLIENTS[command["name"]].client
    return [describe_receipt(producer.send(make_message(fields))) for fields in command["messages"]]


def send_half(command: Command) -> Command:
    producer = CLIENTS[command["name"]].client
    transaction = producer.begin_transaction()
    receipt = producer.send(make_message(command["message"]), transaction)
    if command["end"]:
        getattr(transaction, command["end"])()
    return describe_receipt(receipt)


# -- consumers ----------------------------------------------------------------------------------------------------


class ConfirmedSimpleConsumer(rocketmq.SimpleConsumer):  # type: ignore[misc]
    """A simple consumer whose start ends when the server has its settings, as it does in the other stock clients.

    Python's sends the settings at its start and waits for their answer in push consumers only. Until the official Proxy
    has them it answers a receive with an internal error, because it does not expect their absence.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._is_confirmed = threading.Event()
        super().__init__(*arguments, **options)

    def reset_setting(self, settings: Any) -> None:
        """Take the server's answer; the client's thread calls it."""
        super().reset_setting(settings)
        self._is_confirmed.set()

    def startup(self) -> None:
        super().startup()
        if not self._is_confirmed.wait(SETTINGS_TIMEOUT_S):
            self.shutdown()
            raise TimeoutError(f"no answer to the consumer's settings in {SETTINGS_TIMEOUT_S:.0f} s")


class SimpleSession:
    def __init__(self, command: Command) -> None:
        # Older versions have no option for TLS here.
        options = {"tls_enable": True} if command.get("tls") else {}
        self.received: list[Any] = []
        self.client = ConfirmedSimpleConsumer(
            configuration(command),
            command["group"],
            subscriptions(command),
            await_duration=command["await_ms"] // 1000,
            **options,
        )


def receive(command: Command) -> list[Command]:
    session = CLIENTS[command["name"]]
    descriptions = []
    for message in session.client.receive(command["count"], command["invisible_ms"] // 1000) or ():
        descriptions.append({**describe(message), "index": len(session.received)})
        session.received.append(message)
    return descriptions


def ack(command: Command) -> None:
    session = CLIENTS[command["name"]]
    session.client.ack(session.received[command["index"]])


def change_invisible(command: Command) -> None:
    session = CLIENTS[command["name"]]
    session.client.change_invisible_duration(
        session.received[command["index"]], command["invisible_ms"] // 1000
    )


def make_listener(failures: int, received: Collected) -> Any:
    """Return a listener that fails the first deliveries of a message, all of them for -1."""

    class Listener(rocketmq.MessageListener):  # type: ignore[misc]
        def consume(self, message: Any) -> Any:
            received.add(describe(message))
            good = failures >= 0 and message.delivery_attempt > failures
            return rocketmq.ConsumeResult.SUCCESS if good else rocketmq.ConsumeResult.FAILURE

    return Listener()


class PushSession:
    def __init__(self, command: Command) -> None:
        self.received = Collected()
        self.client = rocketmq.PushConsumer(
            configuration(command),
            command["group"],
            make_listener(command["failures"], self.received),
            subscriptions(command),
            tls_enable=command.get("tls", False),
        )


if __name__ == "__main__":
    run(
        {
            "hello": lambda command: "ready",
            "producer.start": lambda command: start(ProducerSession(command), command),
            "producer.stop": stop,
            "send": send,
            "transaction.send": send_half,
            "transaction.checks": lambda command: CLIENTS[command["name"]].checker.checked.wait(command),
            "recall": lambda command: CLIENTS[command["name"]].client.recall_message(
                command["topic"], command["handle"]
            ),
            "simple.start": lambda command: start(SimpleSession(command), command),
            "simple.stop": stop,
            "simple.receive": receive,
            "simple.ack": ack,
            "simple.change": change_invisible,
            "push.start": lambda command: start(PushSession(command), command),
            "push.stop": stop,
            "push.received": lambda command: CLIENTS[command["name"]].received.wait(command),
        }
    )
