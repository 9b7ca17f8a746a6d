"""Threads that send and commit until they are stopped, and note what the broker acknowledged.

They use the suite's minimal client, which shares no code with the server's.
"""

import random
import threading
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from compat_tests.endpoints.probe import SEND_MESSAGE, Probe, ProbeRefused
from toolkit.block_threads import run_threads

TOPIC: Final = "PowerCut"
GROUP: Final = "power-cut-readers"
QUEUES: Final = 4
READ_QUEUE: Final = 0
MAX_BODY_BYTES: Final = 3000
ANSWER_TIMEOUT_S: Final = 10.0
IDLE_S: Final = 0.002
PULL_MESSAGE, QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET = 11, 14, 15
PULL_NOT_FOUND: Final = 19
_HAS_SUBSCRIPTION: Final = 4


class Acknowledged(NamedTuple):
    """A message that was answered with SEND_OK: its place, its body, and when its answer came (monotonic, ns)."""

    queue_id: int
    queue_offset: int
    body: bytes
    at_ns: int


@dataclass(slots=True)
class Notes:
    """Everything that clients know, over all rounds: bodies they tried to send, and acknowledged messages."""

    attempted: set[bytes] = field(default_factory=set)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    refused: int = 0
    committed: int = 0


def run_traffic(
    broker: str, notes: Notes, senders: int, name: str, seed: int
) -> AbstractContextManager[None]:
    """Run senders and one committing reader while a block is open; they end with the connection, too."""
    sending = [
        partial(_send, broker, notes, number, f"{name}-{number}", seed + number) for number in range(senders)
    ]
    return run_threads([*sending, partial(_read_and_commit, broker, notes)])


def _send(broker: str, notes: Notes, number: int, name: str, seed: int, stopped: threading.Event) -> None:
    rng = random.Random(seed)
    queue_id, count = number % QUEUES, 0
    with suppress(OSError), Probe(broker, ANSWER_TIMEOUT_S) as probe:
        while not stopped.is_set():
            count += 1
            body = f"{name}-{count}:".encode()
            body += rng.randbytes(rng.randint(0, MAX_BODY_BYTES))
            notes.attempted.add(body)
            try:
                answer, _ = probe.ask(SEND_MESSAGE, _send_fields(queue_id), body)
            except ProbeRefused:
                notes.refused += 1
                continue
            position = int(answer["queueId"]), int(answer["queueOffset"])
            notes.acknowledged.append(Acknowledged(*position, body, time.monotonic_ns()))


def _read_and_commit(broker: str, notes: Notes, stopped: threading.Event) -> None:
    """Commit whatever a reader was given, so that the group is at the end of its queue when power fails."""
    offset = notes.committed
    with suppress(OSError), Probe(broker, ANSWER_TIMEOUT_S) as probe:
        while not stopped.is_set():
            try:
                offset = pull(probe, READ_QUEUE, offset)[0]
                fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(READ_QUEUE)}
                probe.ask(UPDATE_CONSUMER_OFFSET, fields | {"commitOffset": str(offset)})
            except ProbeRefused:
                time.sleep(IDLE_S)


def pull(probe: Probe, queue_id: int, offset: int) -> tuple[int, bytes]:
    """Return the next offset and the messages from an offset on. Raises ProbeRefused (code 19) at the end."""
    fields = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": str(_HAS_SUBSCRIPTION), "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    answer, body = probe.ask(PULL_MESSAGE, fields)
    return int(answer["nextBeginOffset"]), body


def committed_offset(probe: Probe) -> int:
    """Return the group's offset in the queue it reads; 0 if the broker knows none."""
    try:
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(READ_QUEUE)}
        answer, _ = probe.ask(QUERY_CONSUMER_OFFSET, fields)
    except ProbeRefused:
        return 0
    return int(answer["offset"])


def _send_fields(queue_id: int) -> dict[str, str]:
    return {
        "producerGroup": "power-cut", "topic": TOPIC, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": str(QUEUES), "queueId": str(queue_id), "sysFlag": "0",
        "bornTimestamp": str(time.time_ns() // 1_000_000), "flag": "0", "properties": "", "reconsumeTimes": "0",
        "unitMode": "false", "batch": "false",
    }  # fmt: skip
