"""Times of accepted sends: the pauses of each client, and the order in which brokers accepted messages."""

import statistics
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from codec.ids import decode_message_id
from tools.pairings.history import SEND_OK, SendHistory

ANY: Final = ""
"""Stands for all clients."""


@dataclass(frozen=True, slots=True)
class AcceptedSend:
    """A send that was answered with SEND_OK, with the times of request and answer.

    `broker`: the broker that stored the message, "" if it is unknown.
    """

    client: str
    broker: str
    begun_s: float
    ended_s: float


class Timeline(SendHistory):
    """A history that also knows when each message was accepted. Producers are registered with `name_producer`."""

    def __init__(self) -> None:
        super().__init__()
        self._times_lock = threading.Lock()
        self._clients: dict[int, str] = {}
        self._begun_s: dict[int, float] = {}
        self._brokers: dict[int, str] = {}
        self._accepted: list[AcceptedSend] = []

    def name_producer(self, number: int, client: str) -> None:
        """Name the client that has a producer number."""
        self._clients[number] = client

    def note_broker(self, body: bytes, message_id: str) -> None:
        """Note which broker stored a message whose answer is noted next: a former master passes messages on."""
        host, port, _ = decode_message_id(message_id)
        self._brokers[_producer(body)] = f"{host}:{port}"

    def note_attempt(self, body: bytes, queue_id: int) -> None:
        super().note_attempt(body, queue_id)
        with self._times_lock:
            self._begun_s[_producer(body)] = time.monotonic()

    def note_answer(self, body: bytes, offset: int, code: int) -> None:
        super().note_answer(body, offset, code)
        if code == SEND_OK:
            producer = _producer(body)
            self.note_times(producer, self._begun_s[producer], time.monotonic())

    def note_times(self, producer: int, begun_s: float, ended_s: float) -> None:
        """Note that a send of a producer was accepted."""
        send = AcceptedSend(self._clients[producer], self._brokers.pop(producer, ""), begun_s, ended_s)
        with self._times_lock:
            self._accepted.append(send)

    def accepted(self, since_s: float = 0.0) -> list[AcceptedSend]:
        """Return the sends that were accepted since a moment, in the order of their answers."""
        with self._times_lock:
            return [send for send in self._accepted if send.ended_s >= since_s]

    def clients(self) -> list[str]:
        """Return the names of the clients."""
        return list(dict.fromkeys(self._clients.values()))


def _producer(body: bytes) -> int:
    return int(body.split(b"-", 1)[0])


def longest_pause_s(sends: Iterable[AcceptedSend], begin_s: float, end_s: float, client: str = ANY) -> float:
    """Return the longest time between `begin_s` and `end_s` without an accepted send of a client."""
    moments = [send.ended_s for send in sends if client in (ANY, send.client)]
    inside = [begin_s, *sorted(moment for moment in moments if begin_s < moment < end_s), end_s]
    return max(later - earlier for earlier, later in pairwise(inside))


def first_accept_s(sends: Iterable[AcceptedSend], begin_s: float, *, not_by: str = "") -> float | None:
    """Return the moment of the first accepted send of those that began after `begin_s`; None if there is none.

    `not_by`: a broker whose answers do not count, and then nothing counts whose broker is unknown.
    """
    moments = [
        send.ended_s
        for send in sends
        if send.begun_s >= begin_s and not (not_by and send.broker in ("", not_by))
    ]
    return min(moments, default=None)


def count_master_changes(sends: Iterable[AcceptedSend]) -> int:
    """Return how often another broker than before has accepted a send, at least.

    A change counts only if the later request began after the earlier answer. Under one master after the other there are
    at most as many changes as elections, while two masters at a time take turns.
    """
    changes, last = 0, AcceptedSend("", "", 0.0, 0.0)
    for send in sorted((send for send in sends if send.broker), key=lambda send: send.ended_s):
        if not last.broker:
            last = send
        elif send.broker == last.broker:
            # The earliest answer of a stretch leaves most room for a change after it.
            continue
        elif send.begun_s > last.ended_s:
            changes, last = changes + 1, send
    return changes


def medians(pauses: Iterable[Mapping[str, float]], client: str) -> tuple[float, float] | None:
    """Return median and maximum of a client's pauses; None if it had none."""
    values = [pause[client] for pause in pauses if client in pause]
    if not values:
        return None
    return statistics.median(values), max(values)
