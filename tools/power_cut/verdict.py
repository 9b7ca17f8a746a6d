"""Reads a broker's queues back after a power cut, and compares them with what clients had noted."""

from contextlib import suppress
from dataclasses import dataclass

from codec.message import iter_messages
from compat_tests.endpoints.probe import Probe, ProbeRefused
from tools.power_cut.traffic import (
    QUEUES,
    READ_QUEUE,
    TOPIC,
    Acknowledged,
    Notes,
    committed_offset,
    pull,
)


@dataclass(slots=True)
class CutVerdict:
    """The result of one power cut.

    ``lost`` counts messages acknowledged before the cut, ``lost_after`` those acknowledged while the disk had failed
    already. ``offences`` against the laws of the store are texts; there are none if all hold.
    """

    acknowledged: int
    acknowledged_after: int
    lost: int
    lost_after: int
    offences: list[str]


def judge(broker: str, notes: Notes, cut_at_ns: int) -> CutVerdict:
    """Read everything back. Messages found are the only ones that ``notes`` holds as acknowledged afterwards."""
    offences: list[str] = []
    stored: dict[tuple[int, int], bytes] = {}
    with Probe(broker, timeout_s=30) as probe:
        ends = [probe.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES)]
        for queue_id, end in enumerate(ends):
            bodies = _read_queue(probe, queue_id, end)
            missing = [offset for offset in range(end) if offset not in bodies]
            if missing:
                offences.append(f"queue {queue_id} has holes: {len(missing)} of {end}, first {missing[0]}")
            stored |= {(queue_id, offset): body for offset, body in bodies.items()}
        committed = committed_offset(probe)
    if committed > ends[READ_QUEUE]:
        offences.append(f"the group's offset {committed} is beyond the end {ends[READ_QUEUE]} of its queue")
    notes.committed = min(committed, ends[READ_QUEUE])
    bodies_stored = list(stored.values())
    invented = sum(body not in notes.attempted for body in bodies_stored)
    if invented:
        offences.append(f"{invented} messages that nobody sent")
    if len(set(bodies_stored)) != len(bodies_stored):
        offences.append(f"{len(bodies_stored) - len(set(bodies_stored))} messages are stored twice")
    return _compare(notes, stored, cut_at_ns, offences)


def _compare(
    notes: Notes, stored: dict[tuple[int, int], bytes], cut_at_ns: int, offences: list[str]
) -> CutVerdict:
    survivors: list[Acknowledged] = []
    verdict = CutVerdict(len(notes.acknowledged), 0, 0, 0, offences)
    for message in notes.acknowledged:
        is_after = message.at_ns > cut_at_ns
        verdict.acknowledged_after += is_after
        if stored.get((message.queue_id, message.queue_offset)) == message.body:
            survivors.append(message._replace(at_ns=0))
        elif is_after:
            verdict.lost_after += 1
        else:
            verdict.lost += 1
    notes.acknowledged = survivors
    return verdict


def _read_queue(probe: Probe, queue_id: int, end: int) -> dict[int, bytes]:
    """Return the bodies of a queue by queue offset, from 0 to its end; those that cannot be read are left out."""
    bodies: dict[int, bytes] = {}
    offset = 0
    while offset < end:
        following = offset + 1
        with suppress(ProbeRefused):
            following, messages = pull(probe, queue_id, offset)
            bodies.update({message.queue_offset: bytes(message.body) for message in iter_messages(messages)})
        offset = max(following, offset + 1)
    return bodies
