"""The control API: what `RocketMQ` offers to Python, over HTTP for tests in any language.

Each operation is declared once, with the schemas of what it takes and answers; the routes and the OpenAPI document
(`control_server.py`) are made from these declarations.
"""

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from codec.message import Message
from gateway.http_server.errors import ConsoleError
from gateway.testing import contents
from gateway.testing.contents import DEFAULT_TIMEOUT_S
from gateway.testing.faults import REQUESTS, FaultAction
from gateway.testing.servers import InMemoryServers, UnknownBroker

Schema = dict[str, Any]
Arguments = dict[str, Any]

HTTP_NOT_FOUND: Final = 404
HTTP_TOO_LATE: Final = 504
"""The end of a wait in vain. Not 408, which some HTTP clients answer by asking again."""
MAX_TIMEOUT_S: Final = 300.0

TEXT: Final[Schema] = {"type": "string"}
WHOLE: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
TEXTS: Final[Schema] = {"type": "object", "additionalProperties": TEXT}


def record(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    """Return the schema of an object with exactly these members."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def listed(item: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item}


NOTHING: Final = record({})
MESSAGE: Final = record(
    {
        "topic": TEXT,
        "body": {"type": ["string", "null"], "description": "the body as text; null if it is not UTF-8"},
        "body_base64": TEXT,
        "tags": {"type": ["string", "null"]},
        "keys": listed(TEXT),
        "properties": TEXTS,
        "queue_id": WHOLE,
        "queue_offset": WHOLE,
        "message_id": TEXT,
        "unique_key": {"type": ["string", "null"]},
        "born_timestamp": WHOLE,
        "store_timestamp": WHOLE,
        "reconsume_times": WHOLE,
    }
)
MESSAGES: Final = record({"messages": listed(MESSAGE)})
FAULT_OPTIONS: Final[Mapping[str, Schema]] = {
    "request": {
        "description": f"one of {', '.join(REQUESTS)}, or a request code",
        "oneOf": [{"type": "string", "enum": list(REQUESTS)}, WHOLE],
    },
    "topic": TEXT,
    "group": TEXT,
    "client": {**TEXT, "description": "client id, or address of the client with or without port"},
    "times": {**WHOLE, "minimum": 1, "description": "number of hits after which the fault ends"},
    "probability": {**NUMBER, "exclusiveMinimum": 0, "maximum": 1},
    "seed": WHOLE,
    "seconds": {**NUMBER, "minimum": 0, "description": "of a latency"},
    "code": {**WHOLE, "description": "response code of an error"},
    "remark": {**TEXT, "description": "remark of an error"},
    "queues": {**WHOLE, "description": "number of queues in a changed route"},
    "permission": {**WHOLE, "description": "permission in a changed route: 4 read, 2 write"},
    "address": {**TEXT, "description": "broker address in a changed route"},
}
ACTION: Final[Schema] = {"type": "string", "enum": [action.value for action in FaultAction]}
FAULT: Final = record({"action": ACTION}, **FAULT_OPTIONS)
ACTIVE_FAULT: Final = record({"id": WHOLE, "hits": WHOLE, "action": ACTION}, **FAULT_OPTIONS)
ADDRESSES: Final = record(
    {"namesrv": TEXT, "brokers": TEXTS},
    grpc={**TEXT, "description": "the port for 5.x clients, if --grpc-port opened one"},
)
TIMEOUT: Final[Schema] = {
    "type": "number",
    "minimum": 0,
    "maximum": MAX_TIMEOUT_S,
    "default": DEFAULT_TIMEOUT_S,
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. A GET takes its members from the query, a POST from a JSON object."""

    name: str
    method: str
    path: str
    summary: str
    takes: Schema
    answers: Schema
    work: Callable[["ControlApi", Arguments], Arguments | Awaitable[Arguments]] = field(repr=False)


class ControlApi:
    """Carries out the operations on servers. Each takes and returns JSON objects, and raises ConsoleError."""

    def __init__(self, servers: InMemoryServers) -> None:
        self._servers = servers

    def bind(self, operation: Operation) -> Callable[[Arguments], Any]:
        """Return the route of an operation: it checks what is given against the operation's schema."""

        def route(arguments: Arguments) -> Any:
            return operation.work(
                self, checked(arguments, operation.takes, from_query=operation.method == "GET")
            )

        return route

    def get_addresses(self, _: Arguments) -> Arguments:
        addresses: Arguments = {
            "namesrv": self._servers.namesrv_address,
            "brokers": self._servers.broker_addresses,
        }
        if self._servers.grpc_address:
            addresses["grpc"] = self._servers.grpc_address
        return addresses

    async def reset(self, _: Arguments) -> Arguments:
        await self._servers.reset()
        return {}

    async def advance(self, arguments: Arguments) -> Arguments:
        try:
            await self._servers.advance(arguments["seconds"])
        except ValueError as error:
            raise ConsoleError(str(error)) from error
        return {}

    def create_topic(self, arguments: Arguments) -> Arguments:
        try:
            contents.create_topic(
                self._servers.brokers,
                arguments["topic"],
                arguments.get("queues", 4),
                arguments.get("ordered", False),
                arguments.get("attributes", {}),
            )
        except ValueError as error:
            raise ConsoleError(str(error)) from error
        return {}

    def list_messages(self, arguments: Arguments) -> Arguments:
        return _describe(contents.read_messages(self._servers.brokers, arguments["topic"]))

    async def wait_for_messages(self, arguments: Arguments) -> Arguments:
        timeout_s = arguments.get("timeout_s", DEFAULT_TIMEOUT_S)
        try:
            messages = await contents.wait_for_messages(
                self._running, arguments["topic"], arguments.get("count", 1), timeout_s
            )
        except contents.WaitTimeout as error:
            raise ConsoleError(str(error), HTTP_TOO_LATE) from error
        return _describe(messages)

    def get_lag(self, arguments: Arguments) -> Arguments:
        return {
            "lag": contents.consumer_lag(self._servers.brokers, arguments["group"], arguments.get("topic"))
        }

    async def wait_until_consumed(self, arguments: Arguments) -> Arguments:
        timeout_s = arguments.get("timeout_s", DEFAULT_TIMEOUT_S)
        try:
            await contents.wait_until_consumed(
                self._running, arguments["group"], arguments.get("topic"), timeout_s
            )
        except contents.WaitTimeout as error:
            raise ConsoleError(str(error), HTTP_TOO_LATE) from error
        return {"lag": 0}

    def add_fault(self, arguments: Arguments) -> Arguments:
        options = dict(arguments)
        try:
            return self._servers.faults.add(options.pop("action"), **options).to_json()
        except ValueError as error:
            raise ConsoleError(str(error)) from error

    def list_faults(self, _: Arguments) -> Arguments:
        return {"faults": [fault.to_json() for fault in self._servers.faults.active]}

    def remove_fault(self, arguments: Arguments) -> Arguments:
        for fault in self._servers.faults.active:
            if fault.id == arguments["id"]:
                self._servers.faults.remove(fault)
                return fault.to_json()
        raise ConsoleError(f"no fault has the id {arguments['id']}", HTTP_NOT_FOUND)

    def clear_faults(self, _: Arguments) -> Arguments:
        ended = self.list_faults({})
        self._servers.faults.clear()
        return ended

    async def stop_broker(self, arguments: Arguments) -> Arguments:
        try:
            keep_route = arguments.get("keep_route", False)
            await self._servers.stop_broker(arguments.get("name"), keep_route=keep_route)
        except UnknownBroker as error:
            raise ConsoleError(str(error), HTTP_NOT_FOUND) from error
        return {}

    async def start_broker(self, arguments: Arguments) -> Arguments:
        try:
            await self._servers.start_broker(arguments.get("name"))
        except UnknownBroker as error:
            raise ConsoleError(str(error), HTTP_NOT_FOUND) from error
        return self.get_addresses({})

    def _running(self) -> list[Any]:
        return self._servers.brokers


OPERATIONS: Final = (
    Operation(
        "getAddresses",
        "GET",
        "/v1/addresses",
        "Return the addresses of namesrv and brokers.",
        NOTHING,
        ADDRESSES,
        ControlApi.get_addresses,
    ),
    Operation(
        "reset",
        "POST",
        "/v1/reset",
        "Forget messages, topics, groups, offsets, faults and moved time; addresses stay, connections close.",
        NOTHING,
        NOTHING,
        ControlApi.reset,
    ),
    Operation(
        "advance",
        "POST",
        "/v1/advance",
        "Move the time ahead, and answer when all that became due is delivered.",
        record({"seconds": {**NUMBER, "minimum": 0}}),
        NOTHING,
        ControlApi.advance,
    ),
    Operation(
        "createTopic",
        "POST",
        "/v1/topics",
        "Create or change a topic on every broker.",
        record({"topic": TEXT}, queues={**WHOLE, "minimum": 1, "default": 4}, ordered=FLAG, attributes=TEXTS),
        NOTHING,
        ControlApi.create_topic,
    ),
    Operation(
        "listMessages",
        "GET",
        "/v1/messages",
        "Return all messages of a topic, oldest first.",
        record({"topic": TEXT}),
        MESSAGES,
        ControlApi.list_messages,
    ),
    Operation(
        "waitForMessages",
        "GET",
        "/v1/messages/wait",
        "Wait until a topic has that many messages, and return them.",
        record({"topic": TEXT}, count={**WHOLE, "minimum": 0, "default": 1}, timeout_s=TIMEOUT),
        MESSAGES,
        ControlApi.wait_for_messages,
    ),
    Operation(
        "getLag",
        "GET",
        "/v1/lag",
        "Return the number of messages that a group has not consumed.",
        record({"group": TEXT}, topic=TEXT),
        record({"lag": WHOLE}),
        ControlApi.get_lag,
    ),
    Operation(
        "waitUntilConsumed",
        "GET",
        "/v1/lag/wait",
        "Wait until a group has consumed every message.",
        record({"group": TEXT}, topic=TEXT, timeout_s=TIMEOUT),
        record({"lag": WHOLE}),
        ControlApi.wait_until_consumed,
    ),
    Operation(
        "listFaults",
        "GET",
        "/v1/faults",
        "Return the faults in force with the number of their hits.",
        NOTHING,
        record({"faults": listed(ACTIVE_FAULT)}),
        ControlApi.list_faults,
    ),
    Operation(
        "addFault",
        "POST",
        "/v1/faults",
        "Put a fault in force. All conditions that are given must hold.",
        FAULT,
        ACTIVE_FAULT,
        ControlApi.add_fault,
    ),
    Operation(
        "removeFault",
        "POST",
        "/v1/faults/remove",
        "End one fault, and return it with the number of its hits.",
        record({"id": WHOLE}),
        ACTIVE_FAULT,
        ControlApi.remove_fault,
    ),
    Operation(
        "clearFaults",
        "POST",
        "/v1/faults/clear",
        "End all faults, and return them with the numbers of their hits.",
        NOTHING,
        record({"faults": listed(ACTIVE_FAULT)}),
        ControlApi.clear_faults,
    ),
    Operation(
        "stopBroker",
        "POST",
        "/v1/brokers/stop",
        "Stop a broker as if its machine went away; with keep_route the namesrv does not notice.",
        record({}, name=TEXT, keep_route=FLAG),
        NOTHING,
        ControlApi.stop_broker,
    ),
    Operation(
        "startBroker",
        "POST",
        "/v1/brokers/start",
        "Start a stopped broker on its former port, with the messages it had.",
        record({}, name=TEXT),
        ADDRESSES,
        ControlApi.start_broker,
    ),
)


def checked(arguments: Arguments, takes: Schema, *, from_query: bool) -> Arguments:
    """Return what is given, converted from the texts of a query if need be. Raises ConsoleError naming the member."""
    properties = takes["properties"]
    if missing := [name for name in takes["required"] if name not in arguments]:
        raise ConsoleError(f"{missing[0]} is missing")
    values = {}
    for name, value in arguments.items():
        if name not in properties:
            raise ConsoleError(f"unknown member {name}; known: {', '.join(properties) or 'none'}")
        values[name] = _checked_value(name, value, properties[name], from_query=from_query)
    return values


def _checked_value(name: str, value: Any, schema: Schema, *, from_query: bool) -> Any:
    if "oneOf" in schema:
        schema = WHOLE if isinstance(value, int) else TEXT
    kind = schema["type"]
    if from_query and kind in ("integer", "number"):
        try:
            value = int(value) if kind == "integer" else float(value)
        except ValueError:
            raise ConsoleError(f"{name}: {value!r} is not a number") from None
    types: dict[str, Any] = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "object": dict,
    }
    if not isinstance(value, types[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise ConsoleError(f"{name}: {value!r} is not of type {kind}")
    if kind == "object" and not all(isinstance(item, str) for item in value.values()):
        raise ConsoleError(f"{name}: all values must be strings")
    if kind in ("integer", "number") and not schema.get("minimum", value) <= value <= schema.get(
        "maximum", value
    ):
        limits = f"{schema.get('minimum', '-∞')} to {schema.get('maximum', '∞')}"
        raise ConsoleError(f"{name}: {value} is not within {limits}")
    return value


def _describe(messages: list[Message]) -> Arguments:
    return {"messages": [describe_message(message) for message in messages]}


def describe_message(message: Message) -> Arguments:
    """Return a message as the API shows it."""
    body = bytes(message.body)
    try:
        text: str | None = body.decode()
    except UnicodeDecodeError:
        text = None
    return {
        "topic": message.topic,
        "body": text,
        "body_base64": base64.b64encode(body).decode(),
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.msg_id,
        "unique_key": message.unique_key,
        "born_timestamp": message.born_timestamp,
        "store_timestamp": message.store_timestamp,
        "reconsume_times": message.reconsume_times,
    }
