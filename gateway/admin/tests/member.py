"""A member of a consumer group as brokers see one: a connection to each, heartbeats, and answers about its state."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from gateway.admin.tests.local_server import LocalServer
from gateway.broker.consumers.client_protocol import GRPC, PROTOCOL_FIELD
from remoting.blocking import BlockingClient
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.bodies.queues import MessageQueue
from remoting.bodies.running import ConsumerRunningInfo, ProcessQueueInfo
from remoting.errors import RemotingClosed, RemotingTimeout
from remoting.requests.client import (
    GetConsumerRunningInfo,
    GetConsumerRunningInfoReply,
    HeartBeat,
)
from toolkit.block_threads import run_threads

_POLL_S = 0.02


@contextmanager
def connect_member(
    server: LocalServer,
    client_id: str,
    group: str,
    subscriptions: Mapping[str, str],
    *,
    owns: tuple[tuple[str, str, int], ...] = (),
    answers: bool = True,
    speaks_grpc: bool = False,
) -> Iterator[None]:
    """Connect a member to every broker while a block is open; ``answers=False``: it tells nothing about its state.

    With ``speaks_grpc`` the connections are those of a front elsewhere.
    """
    data = [
        SubscriptionData(topic=topic, sub_string=tags, sub_version=number)
        for number, (topic, tags) in enumerate(subscriptions.items(), 1)
    ]
    queues = {
        MessageQueue(topic=topic, broker_name=broker, queue_id=queue): ProcessQueueInfo()
        for topic, broker, queue in owns
    }
    consumer = ConsumerData(
        group_name=group,
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=data,
    )

    def describe(request: GetConsumerRunningInfo) -> GetConsumerRunningInfoReply:
        return GetConsumerRunningInfoReply(data=ConsumerRunningInfo(subscription_set=data, mq_table=queues))

    with ExitStack() as stack:
        clients = [stack.enter_context(closing(server.connect(broker))) for broker in server.brokers]
        for client in clients:
            if answers:
                client.serve_request(GetConsumerRunningInfo, describe)
            beat = HeartBeat(data=HeartbeatData(client_id=client_id, consumer_data_set=[consumer]))
            command = beat.to_command()
            if speaks_grpc:
                command.ext[PROTOCOL_FIELD] = GRPC
            beat.read_reply(client.send_command(command))
        stack.enter_context(run_threads(partial(_serve, client) for client in clients))
        yield


def _serve(client: BlockingClient, stopped: threading.Event) -> None:
    while not stopped.is_set():
        try:
            client.serve_until(stopped.is_set, timeout_s=_POLL_S)
        except RemotingTimeout:
            continue
        except RemotingClosed:
            return
