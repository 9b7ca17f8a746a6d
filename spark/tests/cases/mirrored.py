"""Traffic that a shadow gateway mirrored from an official primary, some of it wrong at the target, and captured.

    with mirrored(directory) as traffic:
        traffic.primary.namesrv, traffic.target.namesrv, traffic.kept.namesrv, traffic.captures

`Orders` has the planted faults of `traffic.planted`, `Bills` none, `Mixed` has batches, delays and transactions and is
right as well. `target` (kind "any") stores what the gateway sends again, `kept` (kind "ours") follows the primary's
queues at their own offsets. Everything has arrived, and the capture files are closed, when the traffic is handed over.
"""

import json
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from codec.message import Message
from codec.sysflag import (
    COMPRESSED,
    COMPRESSION_ZLIB,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from compat_tests.clients.typed import (
    batch_request,
    connect,
    has_route,
    iter_queue,
    send,
    send_request,
    topic_request,
)
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.requests.send import SendMessageV2
from remoting.requests.transaction import EndTransaction
from spark.tests.cases.relay import Plan, Relay
from tools.processes import Gateway

ORDERS, BILLS, MIXED = TOPICS = ("Orders", "Bills", "Mixed")
QUEUES, KEYS, ROUNDS = 4, 5, 12
ARRIVES_S = 180.0
LATE_MS = 2000
"""Minimum delay of messages planted as late, relative to the primary."""


@dataclass
class Planted:
    """Unique keys of the messages of `Orders` with faults at the target."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    changed_body: list[str] = field(default_factory=list)
    changed_properties: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    decompressed: list[str] = field(default_factory=list)
    """Messages stored without compression at the target, which is not a fault."""


@dataclass
class Mirrored:
    """The prepared clusters and captures; see the module."""

    primary: OfficialEndpoint
    target: OursEndpoint
    kept: OursEndpoint
    captures: Path
    planted: Planted

    def stored(self, where: str, topic: str) -> list[Message]:
        """Return every message of a topic at a broker ("host:port"), queue by queue."""
        with connect(where, timeout_s=30) as broker:
            return [each for queue in range(QUEUES) for each in iter_queue(broker, topic, queue)]

    def count(self, where: str, topic: str) -> int:
        """Return the number of messages of a topic at a broker."""
        return len(self.stored(where, topic))


def unique_key(topic: str, queue: int, key: int, number: int) -> str:
    """Return a unique key of stock length; keys ascend in the order of sends."""
    return f"7F000001{TOPICS.index(topic):04X}{queue:04X}{key:04X}{number:012X}"


def body(topic: str, queue: int, key: int, number: int) -> bytes:
    """Return a JSON body; every fourth is long enough to be compressed."""
    order = {"topic": topic, "customer": f"{queue}-{key}", "number": number, "amount": number * 1.5}
    if number % 4 == 3:
        order["remark"] = "as discussed " * 40
    return json.dumps(order).encode()


def plan() -> tuple[Plan, Planted]:
    """Choose the messages of `Orders` that get faults, at most one each."""
    planted = Planted(
        lost=[unique_key(ORDERS, queue, 0, number) for queue in range(QUEUES) for number in (2, 5)],
        duplicated=[unique_key(ORDERS, queue, 1, 4) for queue in range(3)],
        reordered=[unique_key(ORDERS, queue, 2, 1) for queue in range(QUEUES)]
        + [unique_key(ORDERS, 0, 2, 8)],
        changed_body=[unique_key(ORDERS, 1, 3, number) for number in (0, 1, 2)],
        changed_properties=[unique_key(ORDERS, 2, 3, number) for number in (4, 6)],
        extra=[f"EEEE{number:028X}" for number in range(6)],
        late=[unique_key(ORDERS, queue, 4, ROUNDS - 1) for queue in (0, 3)],
        decompressed=[unique_key(ORDERS, 3, 3, 3)],
    )
    wrong = Plan(
        lost=set(planted.lost),
        again=set(planted.duplicated),
        bodies={key: b"something else" for key in planted.changed_body},
        behind={
            # four places behind, one place behind
            **{key: unique_key(ORDERS, queue, 2, 5) for queue, key in enumerate(planted.reordered[:QUEUES])},
            planted.reordered[-1]: unique_key(ORDERS, 0, 2, 9),
        },
        held=set(planted.late),
        extra={
            unique_key(ORDERS, number % QUEUES, 3, 7 + number // QUEUES): extra
            for number, extra in enumerate(planted.extra)
        },
    )
    changes: list[dict[str, str | None]] = [{"region": "elsewhere"}, {"region": None, "added": "1"}]
    for key, values in zip(planted.changed_properties, changes, strict=True):
        wrong.properties[key] = values
    for key in planted.decompressed:
        wrong.bodies[key], wrong.flags[key] = body(ORDERS, 3, 3, 3), 0
    return wrong, planted


@contextmanager
def mirrored(directory: Path) -> Iterator[Mirrored]:
    """Start everything, send, and wait for arrival. Raises Unavailable if something is missing."""
    wrong, planted = plan()
    captures = directory / "captures"
    captures.mkdir(parents=True)
    with (
        OfficialEndpoint({}, directory / "primary") as primary,
        OursEndpoint({}, directory / "target") as target,
        OursEndpoint({"mirrorTarget": "true"}, directory / "kept") as kept,
        Relay(target.namesrv, target.broker) as relay,
        Gateway(directory / "follower", *_follower(primary, kept), command="shadow"),
        Gateway(directory / "gateway", *_gateway(primary, relay, captures), command="shadow") as gateway,
    ):
        relay.plan = wrong
        traffic = Mirrored(primary, target, kept, captures, planted)
        send_everything(primary, gateway.broker)
        _until_arrived(traffic, relay)
        gateway.child.terminate(60)
        try:
            yield traffic
        finally:
            primary.crash()  # an orderly end takes it 20 s


def _gateway(primary: OfficialEndpoint, relay: Relay, captures: Path) -> list[str]:
    """The gateway that producers send through."""
    return _sets(
        {
            "primary.namesrv": json.dumps([primary.namesrv]),
            "target.namesrv": json.dumps([relay.namesrv]),
            # Nothing is sent twice because a busy machine takes its time.
            "mirroring.order_ms": "10000",
            "mirroring.deadline_ms": "120000",
            "capture.directory": json.dumps(str(captures)),
            "capture.block_interval_ms": "50",
            "capture.reserve_bytes": "0",
            "console.enabled": "false",
        }
    )


def _follower(primary: OfficialEndpoint, kept: OursEndpoint) -> list[str]:
    """A second gateway without clients, which reads the primary's queues."""
    return _sets(
        {
            "primary.namesrv": json.dumps([primary.namesrv]),
            "target.namesrv": json.dumps([kept.namesrv]),
            "target.kind": '"ours"',
            "replication.discover_ms": "500",
            "console.enabled": "false",
        }
    )


def _sets(tables: dict[str, str]) -> list[str]:
    return [word for key, value in tables.items() for word in ("--set", f"{key}={value}")]


# -- traffic ------------------------------------------------------------------------------------------------------


def send_everything(primary: OfficialEndpoint, through: str) -> None:
    """Send all three topics through the gateway, each key's messages in order."""
    with connect(primary.broker, timeout_s=60) as broker:
        for topic in TOPICS:
            broker.ask(topic_request(topic, QUEUES))
    with connect(primary.namesrv, timeout_s=60) as namesrv:
        eventually(lambda: all(has_route(namesrv, topic) for topic in TOPICS), ARRIVES_S)
    with connect(through, timeout_s=60) as producer:
        for topic in (ORDERS, BILLS):
            for number in range(ROUNDS):
                for key in range(KEYS):
                    producer.pipeline([_order(topic, queue, key, number) for queue in range(QUEUES)])
        _send_mixed(producer)


def _order(topic: str, queue: int, key: int, number: int) -> SendMessageV2:
    content, flag = body(topic, queue, key, number), 0
    if number % 4 == 3:
        content, flag = zlib.compress(content), COMPRESSED | COMPRESSION_ZLIB
    properties = {
        "UNIQ_KEY": unique_key(topic, queue, key, number),
        "KEYS": f"{topic}-{queue}-{key}-{number}",
        "TAGS": ("paid", "open")[number % 2],
        "WAIT": "true",
        "__SHARDINGKEY": f"{queue}-{key}",
        "region": "north",
    }
    return send_request(topic, content, queue_id=queue, properties=properties, sys_flag=flag)


def _send_mixed(producer: BlockingClient) -> None:
    """Eight messages in a batch, four with a delay of a second, four in transactions of which two are committed."""
    batch = [(b"batch %d" % number, {"UNIQ_KEY": unique_key(MIXED, 0, 0, number)}) for number in range(8)]
    producer.ask(batch_request(MIXED, batch))
    for number in range(4):
        properties = {"UNIQ_KEY": unique_key(MIXED, 1, 1, number), "DELAY": "1"}
        send(producer, MIXED, b"later %d" % number, queue_id=1, properties=properties)
    for number in range(4):
        key = unique_key(MIXED, 2, 2, number)
        properties = {"UNIQ_KEY": key, "WAIT": "true", "TRAN_MSG": "true", "PGROUP": "mixed_tx"}
        half = send(
            producer,
            MIXED,
            b"transaction %d" % number,
            queue_id=2,
            sys_flag=TRANSACTION_PREPARED,
            properties=properties,
            producer_group="mixed_tx",
        )
        producer.ask(
            EndTransaction(
                producer_group="mixed_tx",
                tran_state_table_offset=half.queue_offset,
                commit_log_offset=int(half.msg_id[-16:], 16),
                commit_or_rollback=(TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)[number % 2],
                msg_id=half.transaction_id,
            )
        )


def _until_arrived(traffic: Mirrored, relay: Relay) -> None:
    planted = traffic.planted
    sent = QUEUES * KEYS * ROUNDS
    mixed = 8 + 4 + 2
    other = len(planted.duplicated) + len(planted.extra) - len(planted.lost)
    primary, target, kept = (each.broker for each in (traffic.primary, traffic.target, traffic.kept))
    eventually(lambda: traffic.count(primary, MIXED) == mixed, ARRIVES_S, every_s=0.5)
    eventually(
        lambda: traffic.count(target, ORDERS) == sent + other - len(planted.late), ARRIVES_S, every_s=0.5
    )
    due_ms = max(each.store_timestamp for each in traffic.stored(primary, ORDERS)) + LATE_MS
    eventually(lambda: time.time() * 1000 > due_ms + 100, ARRIVES_S)
    relay.release()
    wanted = {(target, ORDERS): sent + other, (target, BILLS): sent, (target, MIXED): mixed}
    wanted |= {(kept, ORDERS): sent, (kept, BILLS): sent, (kept, MIXED): mixed}
    for (where, topic), count in wanted.items():
        eventually(
            lambda: traffic.count(where, topic) == count,  # noqa: B023 - called in this iteration
            ARRIVES_S,
            every_s=0.5,
        )
