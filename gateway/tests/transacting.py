"""A transactional producer for tests on a simulated cluster, and short forms of their queries."""

import contextlib
from collections.abc import Awaitable, Coroutine
from typing import Any, Self

import pytest
import trio

from codec.command import Command
from codec.message import Message, decode_message
from codec.topics import TRANS_GROUP, TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from gateway.tests.cluster import EPOCH_MS, Cluster, Node, message
from remoting.bodies.heartbeat import HeartbeatData, ProducerData
from remoting.connection import Connection
from remoting.errors import RemotingClosed, RequestError
from remoting.requests.client import HeartBeat
from remoting.requests.send import SendMessageReply, SendMessageV2
from remoting.requests.transaction import CheckTransactionState, EndTransaction

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
ERROR, ILLEGAL, FORBIDDEN, LATE, UNAVAILABLE = 1, 13, 16, 604, 14
UNSET = "not set any response code"


class Producer:
    """A transactional producer that records check-backs and answers them as `decide` says."""

    def __init__(
        self, cluster: Cluster, node: Node, group: str = "PID", decide: int | None = UNKNOWN
    ) -> None:
        self._clock = cluster.clock
        self.group = group
        self.decide = decide
        self.questions: list[tuple[int, CheckTransactionState, Message]] = []
        self.connection = cluster.dial(node.address, {CheckTransactionState.code: self._asked})
        cluster.nursery.start_soon(self._keep_alive)

    async def _keep_alive(self) -> None:
        with contextlib.suppress(RemotingClosed):
            while True:
                await trio.sleep(30)
                await self.beat()

    async def beat(self) -> Self:
        data = HeartbeatData(
            client_id=f"c-{self.group}", producer_data_set=[ProducerData(group_name=self.group)]
        )
        await self.connection.ask(HeartBeat(data=data))
        return self

    def half(
        self,
        body: bytes = b"hello",
        *,
        key: str | None = "U1",
        queue_id: int = 2,
        properties: dict[str, str] | None = None,
        sys_flag: int = 4,
        **more: Any,
    ) -> Coroutine[Any, Any, SendMessageReply]:
        given = {"TRAN_MSG": "true", "PGROUP": self.group, **(properties or {})}
        more.setdefault("born_timestamp", self._clock.now_ms())
        request = message(body=body, key=key, queue_id=queue_id, properties=given, sys_flag=sys_flag, **more)
        return self.connection.ask(request)

    def end(self, sent: SendMessageReply, decision: int = COMMIT, **changes: Any) -> Coroutine[Any, Any, Any]:
        return self.connection.ask(self.end_request(sent, decision, **changes))

    def end_request(self, sent: SendMessageReply, decision: int = COMMIT, **changes: Any) -> EndTransaction:
        fields = {
            "producer_group": self.group, "tran_state_table_offset": sent.queue_offset,
            "commit_log_offset": int(sent.msg_id[-16:], 16), "commit_or_rollback": decision,
            "msg_id": sent.transaction_id, **changes,
        }  # fmt: skip
        return EndTransaction(**fields)

    def _asked(self, connection: Connection, command: Command) -> None:
        question = CheckTransactionState.from_command(command)
        asked_ms = self._clock.now_ms() - EPOCH_MS
        self.questions.append((asked_ms, question, decode_message(question.body)))
        if self.decide is not None:
            connection.send_oneway(
                EndTransaction(
                    producer_group=self.group,
                    tran_state_table_offset=question.tran_state_table_offset,
                    commit_log_offset=question.commit_log_offset,
                    commit_or_rollback=self.decide,
                    from_transaction_check=True,
                    msg_id=question.msg_id,
                )
            )

    def times(self) -> list[int]:
        return [at for at, _, _ in self.questions]


def half_message(key: str, born_ms: int, body: bytes) -> SendMessageV2:
    """Return the send of a half message to topic t, as the producer group p sends it."""
    request = SendMessageV2(
        producer_group="p",
        topic="t",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=4,
        born_timestamp=born_ms,
        flag=0,
        properties=f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02",
    )
    request.body = body
    return request


async def started(cluster: Cluster, decide: int | None = UNKNOWN, **settings: Any) -> tuple[Node, Producer]:
    node = await cluster.add_broker(**settings)
    return node, await Producer(cluster, node, decide=decide).beat()


def queue(node: Node, topic: str, queue_id: int = 0) -> list[Message]:
    """Return every message of a queue as stored."""
    store = node.broker.store
    ends = range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
    return [decode_message(store.read(topic, queue_id, offset, 1).chunks[0]) for offset in ends]


def orders(node: Node) -> list[Message]:
    return queue(node, "orders", 2)


def progress(node: Node) -> tuple[int, int]:
    """Return the offsets up to which half and op messages are settled."""
    offsets = node.broker.offsets
    return offsets.query_offset(TRANS_GROUP, TRANS_HALF_TOPIC, 0), offsets.query_offset(
        TRANS_GROUP, TRANS_OP_TOPIC, 0
    )


async def refused(request: Awaitable[Any]) -> tuple[int, str | None]:
    with pytest.raises(RequestError) as problem:
        await request
    return problem.value.code, problem.value.remark
