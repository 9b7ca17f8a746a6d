"""Status codes of calls that stock clients never make: illegal names, sizes, times and handles, and broken requests.

Errors are answered in RocketMQ's own status, with gRPC's status OK; only calls that cannot be read, or are not served,
fail in gRPC.
"""

import base64
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from compat_tests.clients.grpc_api import CLIENT_METADATA, CallResult, StockGrpcClient
from compat_tests.clients.typed import connect, create_group, has_route, send, topic_request
from compat_tests.marks import case, differs
from compat_tests.server import ServerUnderTest, eventually, split_address
from remoting.blocking import BlockingClient

ILLEGAL = "bad name!"
BODY_LIMIT = 4 * 1024 * 1024
_MESSAGE_NUMBERS = itertools.count(1)
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """A server with topics for each type of message and a consumer group."""

    client: StockGrpcClient
    topics: Mapping[str, str]
    group: str

    @property
    def endpoints(self) -> Fields:
        host, port = split_address(self.client.endpoints)
        return {"scheme": "IPv4", "addresses": [{"host": host, "port": port}]}

    def topic(self, name: str = "NORMAL") -> Fields:
        """Return the topic for a type of message; any other name as it is."""
        return {"name": self.topics.get(name, name)}

    def queue(self, **fields: Any) -> Fields:
        broker = {"name": "broker-a", "id": 0, "endpoints": self.endpoints}
        return {"topic": self.topic(), "id": -1, "permission": "READ_WRITE", "broker": broker, **fields}

    def start_consumer(self) -> None:
        """Tell the server the settings of a simple consumer, without which it gets no messages."""
        subscription = {"topic": self.topic(), "expression": {"type": "TAG", "expression": "*"}}
        settings = {
            "clientType": "SIMPLE_CONSUMER",
            "accessPoint": self.endpoints,
            "subscription": {"group": {"name": self.group}, "subscriptions": [subscription]},
        }
        assert self.client.call("Telemetry", {"settings": settings}, wanted=1).code == "OK"

    def receive(self, **fields: Any) -> CallResult:
        request = {
            "group": {"name": self.group},
            "messageQueue": self.queue(),
            "filterExpression": {"type": "TAG", "expression": "*"},
            "batchSize": 1,
            "invisibleDuration": "30s",
            "longPollingTimeout": "5s",
            **fields,
        }
        return self.client.call("ReceiveMessage", request, timeout_s=25)


@pytest.fixture(scope="module")
def place(grpc_java: StockGrpcClient, server: ServerUnderTest) -> Place:
    topics = {kind: server.topic_name(kind.lower()) for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")}
    with connect(server.broker) as broker, connect(server.namesrv) as namesrv:
        for kind, topic in topics.items():
            broker.ask(topic_request(topic, 4, attributes=f"+message.type={kind}"))
        for topic in topics.values():
            eventually(lambda: has_route(namesrv, topic), 20)  # noqa: B023 - called at once
        group = create_group(broker, server.unique_name("group"))
    return Place(grpc_java, topics, group)


@pytest.fixture
def handle(place: Place, broker: BlockingClient) -> Fields:
    """The id and the receipt handle of a received message."""
    return receive_handle(place, broker)


def receive_handle(place: Place, broker: BlockingClient) -> Fields:
    """Send a message to the broker and receive it; return its id and its receipt handle."""
    place.start_consumer()
    number = next(_MESSAGE_NUMBERS)
    send(broker, place.topics["NORMAL"], b"x", properties={"UNIQ_KEY": f"7F0000010001{number:020}"})

    def receive() -> list[Any]:
        return [answer["message"] for answer in place.receive().answers if answer.get("message")]

    properties = eventually(receive, 20)[0]["systemProperties"]
    return {"messageId": properties["messageId"], "receiptHandle": properties["receiptHandle"]}


def message(place: Place, topic: str = "NORMAL", **fields: Any) -> Fields:
    """Return a message; `body_size` stands for a body of that many bytes, `delay_s` for a delivery from now on."""
    body_size = fields.pop("body_size", 1)
    user = fields.pop("user", {})
    if "delay_s" in fields:
        moment = datetime.now(UTC) + timedelta(seconds=fields.pop("delay_s"))
        fields["deliveryTimestamp"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    system = {
        "messageId": f"7F0000010002{next(_MESSAGE_NUMBERS):020}",
        "messageType": "NORMAL",
        "bodyEncoding": "IDENTITY",
        "bornTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "bornHost": "compat",
        **fields,
    }
    body = base64.b64encode(bytes(body_size)).decode()
    return {"topic": place.topic(topic), "body": body, "systemProperties": system, "userProperties": user}


def send_messages(place: Place, *messages: Fields) -> str:
    return place.client.call("SendMessage", {"messages": list(messages)}).code


# -- sending ----------------------------------------------------------------------------------------------------


@case("grpc", "codes of sends: topics, sizes, message groups, times, tags, keys, properties")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "OK"),
        ({"topic": ILLEGAL}, "ILLEGAL_TOPIC"),
        ({"topic": ""}, "ILLEGAL_TOPIC"),
        ({"topic": "x" * 128}, "ILLEGAL_TOPIC"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "ILLEGAL_TOPIC"),
        ({"body_size": 0}, "MESSAGE_BODY_EMPTY"),
        ({"body_size": BODY_LIMIT}, "OK"),
        ({"body_size": BODY_LIMIT + 1}, "MESSAGE_BODY_TOO_LARGE"),
        ({"messageId": ""}, "ILLEGAL_MESSAGE_ID"),
        ({"messageId": "any text"}, "OK"),
        ({"messageGroup": "g", "messageType": "FIFO"}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"topic": "FIFO", "messageType": "FIFO", "messageGroup": "g"}, "OK"),
        ({"topic": "FIFO", "messageType": "FIFO"}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"topic": "FIFO", "messageType": "FIFO", "messageGroup": "g" * 65}, "ILLEGAL_MESSAGE_GROUP"),
        ({"topic": "FIFO", "messageType": "FIFO", "messageGroup": " "}, "ILLEGAL_MESSAGE_GROUP"),
        ({"delay_s": 60, "messageType": "DELAY"}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"topic": "DELAY", "messageType": "DELAY", "delay_s": 60}, "OK"),
        ({"topic": "DELAY", "messageType": "DELAY", "delay_s": -60}, "OK"),
        ({"topic": "DELAY", "messageType": "DELAY", "delay_s": 2 * 86_400}, "ILLEGAL_DELIVERY_TIME"),
        ({"topic": "DELAY", "messageType": "DELAY"}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"topic": "TRANSACTION"}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"messageType": "TRANSACTION"}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"messageType": "MESSAGE_TYPE_UNSPECIFIED"}, "OK"),
        ({"tag": "a|b"}, "ILLEGAL_MESSAGE_TAG"),
        ({"tag": " "}, "ILLEGAL_MESSAGE_TAG"),
        ({"tag": "a\u0001"}, "ILLEGAL_MESSAGE_TAG"),
        ({"tag": ""}, "OK"),
        ({"keys": [" "]}, "ILLEGAL_MESSAGE_KEY"),
        ({"keys": ["\u0001"]}, "ILLEGAL_MESSAGE_KEY"),
        ({"keys": ["a b"]}, "OK"),
        ({"user": {"KEYS": "x"}}, "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        ({"user": {"a\u0001": "x"}}, "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        ({"user": {str(number): "x" for number in range(128)}}, "OK"),
        ({"user": {str(number): "x" for number in range(129)}}, "MESSAGE_PROPERTIES_TOO_LARGE"),
        ({"user": {"a": "x" * 16_383}}, "OK"),
        ({"user": {"a": "x" * 16_384}}, "MESSAGE_PROPERTIES_TOO_LARGE"),
    ],
)
def test_send(place: Place, fields: dict[str, Any], code: str) -> None:
    assert send_messages(place, message(place, **fields)) == code


@case("grpc", "codes of sends: an unknown topic is TOPIC_NOT_FOUND")
@differs("the official Proxy says that the type of the message does not fit the topic")
def test_send_to_an_unknown_topic(place: Place) -> None:
    assert send_messages(place, message(place, "compat-no-such-topic")) == "TOPIC_NOT_FOUND"


@case("grpc", "codes of sends: the time after which an open transaction is asked about")
@pytest.mark.parametrize(("duration", "code"), [("-1s", "OK"), ("3600s", "OK"), ("7201s", "BAD_REQUEST")])
def test_recovery_time(place: Place, duration: str, code: str) -> None:
    fields = {"messageType": "TRANSACTION", "orphanedTransactionRecoveryDuration": duration}
    assert send_messages(place, message(place, "TRANSACTION", **fields)) == code


@case("grpc", "codes of sends: no message, messages of two topics")
def test_send_other_than_one(place: Place) -> None:
    assert send_messages(place) == "MESSAGE_CORRUPTED"
    assert send_messages(place, message(place), message(place, "DELAY", delay_s=5)) == "MESSAGE_CORRUPTED"


# -- routes -----------------------------------------------------------------------------------------------------


@case("grpc", "a route names queues, endpoints of the listener, and the type of message")
@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY", "TRANSACTION"])
def test_route(place: Place, kind: str) -> None:
    answer = place.client.call("QueryRoute", {"topic": place.topic(kind), "endpoints": place.endpoints})
    queues = answer.answers[0]["messageQueues"]
    assert sorted(queue["id"] for queue in queues) == [0, 1, 2, 3]
    for queue in queues:
        assert queue["acceptMessageTypes"] == [kind]
        assert queue["permission"] == "READ_WRITE"
        assert queue["broker"]["endpoints"] == place.endpoints


@case("grpc", "codes of routes and assignments")
@pytest.mark.parametrize("method", ["QueryRoute", "QueryAssignment"])
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("compat-no-such-topic", "TOPIC_NOT_FOUND"),
        (ILLEGAL, "ILLEGAL_TOPIC"),
        ("", "ILLEGAL_TOPIC"),
        ("x" * 128, "ILLEGAL_TOPIC"),
        ("TBW102", "ILLEGAL_TOPIC"),
    ],
)
def test_unknown_topics(place: Place, method: str, name: str, code: str) -> None:
    request: dict[str, Any] = {"topic": {"name": name}, "endpoints": place.endpoints}
    if method == "QueryAssignment":
        request["group"] = {"name": place.group}
    assert place.client.call(method, request).code == code


@case("grpc", "an assignment is one entry for all queues of the broker")
def test_assignment(place: Place) -> None:
    request = {"topic": place.topic(), "group": {"name": place.group}, "endpoints": place.endpoints}
    (assignment,) = place.client.call("QueryAssignment", request).answers[0]["assignments"]
    assert assignment["messageQueue"]["id"] == -1
    assert assignment["messageQueue"]["broker"]["endpoints"] == place.endpoints
    refused = place.client.call("QueryAssignment", {**request, "group": {"name": ILLEGAL}})
    assert refused.code == "ILLEGAL_CONSUMER_GROUP"


# -- receiving --------------------------------------------------------------------------------------------------


@case("grpc", "codes of receives: topics, groups, invisible times, expressions")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"invisibleDuration": "-1s"}, "ILLEGAL_INVISIBLE_TIME"),
        ({"invisibleDuration": "0s"}, "ILLEGAL_INVISIBLE_TIME"),
        ({"invisibleDuration": "9s"}, "ILLEGAL_INVISIBLE_TIME"),
        ({"invisibleDuration": "43201s"}, "ILLEGAL_INVISIBLE_TIME"),
        ({"group": {"name": ILLEGAL}}, "ILLEGAL_CONSUMER_GROUP"),
        ({"group": {"name": ""}}, "ILLEGAL_CONSUMER_GROUP"),
        ({"messageQueue": {"topic": {"name": ILLEGAL}}}, "ILLEGAL_TOPIC"),
        ({"messageQueue": {}}, "ILLEGAL_TOPIC"),
        ({"messageQueue": {"topic": {"name": "compat-no-such-topic"}}}, "TOPIC_NOT_FOUND"),
    ],
)
def test_receive(place: Place, fields: dict[str, Any], code: str) -> None:
    place.start_consumer()
    result = place.receive(**fields)
    assert (result.status, result.code) == ("OK", code)


@case("grpc", "a receive that finds nothing waits at least 5 s and says MESSAGE_NOT_FOUND")
def test_nothing_to_receive(place: Place) -> None:
    place.start_consumer()
    begin_s = time.monotonic()
    result = place.receive(
        longPollingTimeout="0s", filterExpression={"type": "TAG", "expression": "no-such-tag"}
    )
    assert result.code == "MESSAGE_NOT_FOUND"
    assert 3 < time.monotonic() - begin_s < 15


# -- acks -------------------------------------------------------------------------------------------------------


@case("grpc", "an ack may be repeated, and one good of two entries is MULTIPLE_RESULTS")
def test_ack(place: Place, handle: Fields) -> None:
    def ack(*entries: Fields, **fields: Any) -> str:
        request = {"group": {"name": place.group}, "topic": place.topic(), "entries": entries, **fields}
        return place.client.call("AckMessage", request).code

    assert ack(handle) == "OK"
    assert ack(handle) == "OK"
    assert ack(handle, {**handle, "receiptHandle": "none"}) == "MULTIPLE_RESULTS"
    assert ack(handle, topic={"name": ILLEGAL}) == "ILLEGAL_TOPIC"
    assert ack(handle, group={"name": ILLEGAL}) == "ILLEGAL_CONSUMER_GROUP"
    assert ack(handle, group={"name": ""}) == "ILLEGAL_CONSUMER_GROUP"


@case("grpc", "codes of changed invisible times")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"invisibleDuration": "20s"}, "OK"),
        ({"invisibleDuration": "0s"}, "OK"),
        ({"invisibleDuration": "-1s"}, "ILLEGAL_INVISIBLE_TIME"),
        ({"invisibleDuration": "43201s"}, "ILLEGAL_INVISIBLE_TIME"),
        ({"topic": {"name": ILLEGAL}}, "ILLEGAL_TOPIC"),
        ({"group": {"name": ILLEGAL}}, "ILLEGAL_CONSUMER_GROUP"),
    ],
)
def test_change_invisible_time(place: Place, handle: Fields, fields: dict[str, Any], code: str) -> None:
    request = {"group": {"name": place.group}, "topic": place.topic(), "invisibleDuration": "20s", **handle}
    assert place.client.call("ChangeInvisibleDuration", {**request, **fields}).code == code


@case("grpc", "a receipt handle that is none is INVALID_RECEIPT_HANDLE")
@differs("the official Proxy answers INTERNAL_SERVER_ERROR, as if the fault were its own")
@pytest.mark.parametrize(
    "method", ["AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"]
)
def test_bad_handle(place: Place, method: str) -> None:
    request: dict[str, Any] = {"group": {"name": place.group}, "topic": place.topic()}
    if method == "ChangeInvisibleDuration":
        request["invisibleDuration"] = "20s"
    for text in ("", "none", "a b c d e f g h"):
        handle = {"messageId": "x", "receiptHandle": text}
        fields = {"entries": [handle]} if method == "AckMessage" else handle
        assert place.client.call(method, {**request, **fields}).code == "INVALID_RECEIPT_HANDLE"


# -- transactions and clients -----------------------------------------------------------------------------------


@case("grpc", "codes of ends of transactions that are not open")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "INTERNAL_SERVER_ERROR"),
        ({"transactionId": ""}, "INVALID_TRANSACTION_ID"),
        ({"topic": {"name": ILLEGAL}}, "ILLEGAL_TOPIC"),
    ],
)
def test_end_transaction(place: Place, fields: dict[str, Any], code: str) -> None:
    request = {
        "topic": place.topic("TRANSACTION"),
        "messageId": "x",
        "transactionId": "y",
        "resolution": "COMMIT",
        "source": "SOURCE_CLIENT",
    }
    assert place.client.call("EndTransaction", {**request, **fields}).code == code


@case("grpc", "heartbeats and goodbyes need settings that came before")
def test_strangers(place: Place) -> None:
    stranger = {**CLIENT_METADATA, "x-mq-client-id": "compat-stranger"}
    for request in (
        {"clientType": "PRODUCER"},
        {"clientType": "PUSH_CONSUMER", "group": {"name": place.group}},
    ):
        code = place.client.call("Heartbeat", request, metadata=stranger).code
        assert code == "UNRECOGNIZED_CLIENT_TYPE"
    goodbye = place.client.call("NotifyClientTermination", {}, metadata=stranger)
    assert goodbye.code == "UNRECOGNIZED_CLIENT_TYPE"


@case("grpc", "calls without a client id are refused with CLIENT_ID_REQUIRED")
@pytest.mark.parametrize("method", ["QueryRoute", "SendMessage", "Heartbeat", "AckMessage", "ReceiveMessage"])
def test_no_client_id(place: Place, method: str) -> None:
    assert place.client.call(method, {}, metadata={}).code == "CLIENT_ID_REQUIRED"


@case("grpc", "telemetry without a client id is answered with CLIENT_ID_REQUIRED and ends")
def test_telemetry_without_client_id(place: Place) -> None:
    settings = {"clientType": "PRODUCER", "publishing": {"topics": [place.topic()]}}
    result = place.client.call("Telemetry", {"settings": settings}, metadata={})
    assert (result.status, result.code) == ("OK", "CLIENT_ID_REQUIRED")


@case("grpc", "telemetry: settings of consumers and producers, with the server's limits and back-off")
def test_settings(place: Place) -> None:
    group = {"group": {"name": place.group}, "subscriptions": []}
    (answer,) = place.client.call(
        "Telemetry", {"settings": {"clientType": "PUSH_CONSUMER", "subscription": group}}, wanted=1
    ).answers
    settings = answer["settings"]
    assert settings["backoffPolicy"]["maxAttempts"] == 17
    assert settings["backoffPolicy"]["customizedBackoff"]["next"][:3] == ["1s", "5s", "10s"]
    assert settings["subscription"]["longPollingTimeout"] == "20s"
    publishing = {"topics": [place.topic()]}
    (answer,) = place.client.call(
        "Telemetry", {"settings": {"clientType": "PRODUCER", "publishing": publishing}}, wanted=1
    ).answers
    settings = answer["settings"]
    assert settings["publishing"]["maxBodySize"] == BODY_LIMIT
    assert settings["publishing"]["validateMessageType"] is True
    assert settings["backoffPolicy"]["maxAttempts"] == 3


@case(
    "grpc",
    "telemetry: settings that say nothing, or name an illegal topic, end the stream with INVALID_ARGUMENT",
)
@pytest.mark.parametrize(
    "settings", [{}, {"clientType": "PRODUCER", "publishing": {"topics": [{"name": ILLEGAL}]}}]
)
def test_bad_settings(place: Place, settings: dict[str, Any]) -> None:
    assert place.client.call("Telemetry", {"settings": settings}, wanted=1).status == "INVALID_ARGUMENT"


# -- calls that gRPC itself refuses -----------------------------------------------------------------------------


@case("grpc", "unknown methods, and those that the official server leaves out, are UNIMPLEMENTED")
@pytest.mark.parametrize(
    "method", ["NoSuchMethod", "PullMessage", "GetOffset", "QueryOffset", "UpdateOffset"]
)
def test_not_served(place: Place, method: str) -> None:
    assert place.client.call(method, b"").status == "UNIMPLEMENTED"


@case("grpc", "a call without a request fails with INTERNAL")
def test_no_request(place: Place) -> None:
    assert place.client.call("SendMessage").status == "INTERNAL"


@case("grpc", "a request that cannot be decoded fails, and the connection goes on")
def test_garbage(place: Place) -> None:
    assert place.client.call("SendMessage", b"\xff\xff\xff").status in ("INTERNAL", "UNKNOWN")
    assert send_messages(place, message(place)) == "OK"
