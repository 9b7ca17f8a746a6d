"""Pop requests and replies in short form, for tests on a simulated cluster."""

import base64
from collections.abc import Callable, Iterable
from typing import Any

from codec.message import Message, iter_messages
from gateway.tests.cluster import EPOCH_MS, Cluster, Node, message
from remoting.bodies.pop import BatchAck, BatchAckMessageRequestBody
from remoting.requests.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeMessageInvisibletime,
    ChangeMessageInvisibletimeReply,
    Notification,
    PopMessage,
    PopMessageReply,
)

RETRY = "%RETRY%GID_orders"
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


def pop_request(topic: str = "orders", group: str = "GID", **more: Any) -> PopMessage:
    """Build a pop of all queues that does not wait, from the beginning of each."""
    return PopMessage(
        **{
            "consumer_group": group, "topic": topic, "queue_id": -1, "max_msg_nums": 32, "invisible_time": 10_000,
            "poll_time": 0, "born_time": 0, "init_mode": 0, **more,
        }
    )  # fmt: skip


def notification(topic: str = "orders", group: str = "GID", **more: Any) -> Notification:
    values = {"queue_id": -1, "poll_time": 0, "born_time": 0, **more}
    return Notification(consumer_group=group, topic=topic, **values)


class Got:
    """A popped message."""

    def __init__(self, message: Message, receipt: str, topic: str) -> None:
        self.message = message
        self.receipt = receipt
        self.topic = topic

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def times(self) -> int:
        return self.message.reconsume_times

    def request(self, kind: Callable[..., Any], group: str, **more: Any) -> Any:
        return kind(
            consumer_group=group, topic=self.topic, queue_id=self.message.queue_id, extra_info=self.receipt,
            offset=self.message.queue_offset, **more,
        )  # fmt: skip


def popped_messages(reply: PopMessageReply, broker: str, topic: str, group: str) -> list[Got]:
    """Return the messages of a reply with the receipts that a client makes of it."""
    starts: dict[str, str] = dict(
        part.rsplit(" ", 1) for part in (reply.start_offset_info or "").split(";") if part
    )
    found = []
    for each in iter_messages(reply.body) if reply.body else ():
        receipt = each.properties.get("POP_CK") or (
            f"{starts[f'0 {each.queue_id}']} {reply.pop_time} {reply.invisible_time} {reply.revive_qid} 0 "
            f"{broker} {each.queue_id} {each.queue_offset}"
        )
        marks = {"0": topic, "1": f"%RETRY%{group}_{topic}", "2": f"%RETRY%{group}+{topic}"}
        found.append(Got(each, receipt, marks[receipt.split(" ")[4]]))
    return found


class Client:
    """A consumer that pops over one connection."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.cluster = cluster
        self.node = node
        self.connection = cluster.dial(node.address)

    async def send(self, *bodies: bytes, queue_id: int = 0, **more: Any) -> None:
        for body in bodies:
            await self.connection.ask(message(body=body, queue_id=queue_id, **more))

    async def reply(self, **more: Any) -> PopMessageReply:
        """Return the reply to a pop."""
        return await self.connection.ask(pop_request(**more), timeout_s=100)

    async def pop(self, **more: Any) -> list[Got]:
        """Return popped messages as `Got`."""
        reply = await self.reply(**more)
        return popped_messages(reply, "broker-a", more.get("topic", "orders"), more.get("group", "GID"))

    async def ack(self, *popped: Got, group: str = "GID") -> None:
        for each in popped:
            await self.connection.ask(each.request(AckMessage, group))

    async def change(
        self, popped: Got, invisible_ms: int, group: str = "GID"
    ) -> ChangeMessageInvisibletimeReply:
        request = popped.request(ChangeMessageInvisibletime, group, invisible_time=invisible_ms)
        reply = await self.connection.ask(request)
        parts = popped.receipt.split(" ")
        parts[:4] = [parts[7], str(reply.pop_time), str(reply.invisible_time), str(reply.revive_qid)]
        popped.receipt = " ".join(parts)
        return reply

    async def batch_ack(self, *popped: Got, topic: str = "orders", group: str = "GID") -> None:
        acks = []
        for each in popped:
            start, pop_time, invisible, revive, kind, _, queue, offset = each.receipt.split(" ")
            bits = base64.b64encode((1 << int(offset) - int(start)).to_bytes(8, "little")).decode()
            acks.append(
                BatchAck(
                    consumer_group=group, topic=topic, retry=kind, start_offset=int(start), queue_id=int(queue),
                    revive_queue_id=int(revive), pop_time=int(pop_time), invisible_time=int(invisible), bit_set=bits,
                )
            )  # fmt: skip
        body = BatchAckMessageRequestBody(broker_name="broker-a", acks=acks)
        await self.connection.ask(BatchAckMessage(data=body))


def bodies(popped: Iterable[Got]) -> list[bytes]:
    return sorted(each.body for each in popped)


def now(cluster: Cluster) -> int:
    """Return virtual milliseconds since the start."""
    return cluster.clock.now_ms() - EPOCH_MS
