"""A target cluster that fails in one way, as a process: `python -m tools.bench.faulty_target FAULT`.

Its one broker, broker-a, fails every request; its namesrv works. The ready line contains the namesrv's address.
"""

import json
import os
from collections.abc import Callable
from typing import Any, Final

import click
import trio

from codec.command import Command, encode_response
from codec.constants import ResponseCode
from remoting.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from remoting.connection import Connection, Handler
from remoting.declare import REQUESTS
from remoting.handler_table import HandlerTable
from remoting.requests.namesrv import (
    GetBrokerClusterInfo,
    GetBrokerClusterInfoReply,
    GetRouteInfoByTopic,
    GetRouteInfoByTopicReply,
)
from remoting.server import RemotingServer, open_listeners

BROKER, CLUSTER = "broker-a", "DefaultCluster"
ANSWER_DELAY_S: Final = 0.2
GARBAGE: Final = b"HTTP/1.1 400 Bad Request\r\n\r\n"


def never_answer(connection: Connection, command: Command) -> None:
    """Ignore the request."""


async def _answer_late(connection: Connection, opaque: int) -> None:
    await trio.sleep(ANSWER_DELAY_S)
    connection.write(_refusal(opaque, ResponseCode.SYSTEM_BUSY, "[TIMEOUT_CLEAN_QUEUE]broker busy"))


def answer_garbage(connection: Connection, command: Command) -> bytes:
    """Answer with bytes that are no frame."""
    return GARBAGE


def refuse_permission(connection: Connection, command: Command) -> bytes:
    """Refuse the request as a broker with ACL does."""
    return _refusal(command.opaque, ResponseCode.NO_PERMISSION, "no permission")


def refuse_full_disk(connection: Connection, command: Command) -> bytes:
    """Refuse the request as a broker with a full disk does."""
    return _refusal(command.opaque, ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now.")


def _refusal(opaque: int, code: int, remark: str) -> bytes:
    return encode_response(opaque, code, None, b"", remark)


def make_slow_handler(nursery: trio.Nursery) -> Handler:
    """Return a handler that answers "broker busy" after a delay."""

    def handler(connection: Connection, command: Command) -> None:
        nursery.start_soon(_answer_late, connection, command.opaque)

    return handler


IMMEDIATE_FAULTS: Final[dict[str, Handler]] = {
    "stalled": never_answer,
    "garbage": answer_garbage,
    "refusing": refuse_permission,
    "full": refuse_full_disk,
}
FAULTS: Final = (*IMMEDIATE_FAULTS, "slow", "gone")
_namesrv_handlers: HandlerTable[str] = HandlerTable()


@GetBrokerClusterInfo.on(_namesrv_handlers)
def answer_cluster_info(broker: str, request: GetBrokerClusterInfo) -> GetBrokerClusterInfoReply:
    """Return a cluster of one broker."""
    table = {BROKER: _broker_data(broker)}
    return GetBrokerClusterInfoReply(
        data=ClusterInfo(broker_addr_table=table, cluster_addr_table={CLUSTER: [BROKER]})
    )


@GetRouteInfoByTopic.on(_namesrv_handlers)
def answer_route(broker: str, request: GetRouteInfoByTopic) -> GetRouteInfoByTopicReply:
    """Return a route with four queues for any topic."""
    queues = QueueData(broker_name=BROKER, read_queue_nums=4, write_queue_nums=4, perm=6)
    return GetRouteInfoByTopicReply(
        data=TopicRouteData(queue_datas=[queues], broker_datas=[_broker_data(broker)])
    )


def _broker_data(address: str) -> BrokerData:
    return BrokerData(cluster=CLUSTER, broker_name=BROKER, broker_addrs={0: address})


async def serve(fault: str, ready: Callable[[dict[str, Any]], None]) -> None:
    """Run namesrv and broker until cancelled."""
    async with trio.open_nursery() as nursery:
        handler = make_slow_handler(nursery) if fault == "slow" else IMMEDIATE_FAULTS.get(fault)
        broker = _serve_on_free_port(nursery, dict.fromkeys(REQUESTS, handler) if handler else None)
        ready(
            {
                "namesrv": _serve_on_free_port(nursery, _namesrv_handlers.bind(broker)),
                "brokers": {BROKER: broker},
            }
        )


def _serve_on_free_port(nursery: trio.Nursery, handlers: dict[int, Handler] | None) -> str:
    """Serve on a free port and return its address; without handlers, nothing listens there."""
    listeners = open_listeners("127.0.0.1", 0)
    port = listeners[0].getsockname()[1]
    if handlers is None:
        for listener in listeners:
            listener.close()
    else:
        nursery.start_soon(RemotingServer(handlers).serve, listeners)
    return f"127.0.0.1:{port}"


@click.command()
@click.argument("fault", type=click.Choice(FAULTS))
def main(fault: str) -> None:
    """Run a target cluster that fails in one way."""

    def ready(facts: dict[str, Any]) -> None:
        print(json.dumps({"event": "ready", "pid": os.getpid(), **facts}), flush=True)

    trio.run(serve, fault, ready)


if __name__ == "__main__":
    main()
