"""A member of a consumer group as brokers see one: a connection to each, heartbeats, and answers about its state."""

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from gateway.admin.tests.local_server import LocalServer
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

_POLL_S = 0.02


class Member:
    """Connected for a block; ``answers=False``: it tells nothing about its state."""

    def __init__(
        self,
        server: LocalServer,
        client_id: str,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        owns: tuple[tuple[str, str, int], ...] = (),
        answers: bool = True,
    ) -> None:
        self._data = [
            SubscriptionData(topic=topic, sub_string=tags, sub_version=number)
            for number, (topic, tags) in enumerate(subscriptions.items(), 1)
        ]
        self._owns = owns
        self._done = threading.Event()
        self._clients = []
        self._threads = []
        consumer = ConsumerData(
            group_name=group,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=self._data,
        )
        self.heartbeat = HeartBeat(data=HeartbeatData(client_id=client_id, consumer_data_set=[consumer]))
        for broker in server.brokers:
            client = server.connect(broker)
            if answers:
                client.serve_request(GetConsumerRunningInfo, self._describe)
            client.ask(self.heartbeat)
            self._clients.append(client)
            self._threads.append(threading.Thread(target=self._serve, args=(client,)))

    def _describe(self, request: GetConsumerRunningInfo) -> GetConsumerRunningInfoReply:
        queues = {
            MessageQueue(topic=topic, broker_name=broker, queue_id=queue): ProcessQueueInfo()
            for topic, broker, queue in self._owns
        }
        return GetConsumerRunningInfoReply(
            data=ConsumerRunningInfo(subscription_set=self._data, mq_table=queues)
        )

    def _serve(self, client: BlockingClient) -> None:
        while not self._done.is_set():
            try:
                client.serve_until(self._done.is_set, timeout_s=_POLL_S)
            except RemotingTimeout:
                continue
            except RemotingClosed:
                return

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
        for client in self._clients:
            client.close()
