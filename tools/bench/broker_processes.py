"""Measures how sending scales with broker processes: one broker, two in one process, two in processes of their own.

Run it with `python -m tools.bench.broker_processes`, on a machine that does nothing else and has a core for
each broker and one for the client.

The client must not be the bottleneck, so it sends frames that are encoded beforehand, keeps thousands of requests
outstanding, and only counts the answers. Each run starts a fresh server, and the servers take turns, so that other load
on the machine affects all alike. Where others use the machine as well, trust the processor time per message: it says
what the brokers would carry on cores of their own, and changes little with other load, while rates do.
"""

import os
import select
import socket
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from codec.command import encode_command
from compat_tests.clients.typed import connect, send_request, topic_request
from compat_tests.endpoints import exit_on_sigterm
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.server import split_address
from tools.bench.loads import Figures
from tools.bench.usage import UsageSnapshot, cpu_s, memory_mib

TOPIC: Final = "Flood"
CHUNK_MESSAGES: Final = 64
MAX_OUTSTANDING: Final = 4096
"""Messages on their way on one connection: 70 ms of work, so that no server waits for a client that had no core."""
CONNECTIONS_PER_RUN: Final = 2
"""As many for one broker as for two, so that the servers differ only in their brokers."""
BODY_BYTES: Final = 128
MIN_RATIO: Final = 1.5
"""The goal: two broker processes on two cores carry this many times the messages of one."""
FIGURES: Final = {
    "rate": "messages/s",
    "cpu_us": "server CPU µs/message",
    "client_us": "client CPU µs/message",
    "cores": "cores used by the server",
    "others_cores": "cores used by others",
    "start_ms": "start to ready, ms",
    "start_cpu_ms": "processor time of the start, ms",
    "private_mib": "private memory after the start, MiB",
}


@dataclass(frozen=True)
class Setup:
    """One way to run brokers."""

    name: str
    options: tuple[str, ...]


ONE = Setup("one broker", ())
TWO_IN_ONE = Setup("two brokers in one process", ("--brokers", "2"))
TWO_PROCESSES = Setup("two broker processes", ("--brokers", "2", "--processes"))
SETUPS: Final = (ONE, TWO_IN_ONE, TWO_PROCESSES)


class AnswerCounter:
    """Counts the answers in a stream by a text that each has once, wherever the stream is cut."""

    _MARK: Final = b'"opaque":'

    def __init__(self) -> None:
        self.count = 0
        self._tail = b""

    def feed(self, data: bytes) -> int:
        """Return the number of answers whose mark ends in this piece."""
        seen = self._tail + data
        found = seen.count(self._MARK)
        # Shorter than the mark, so that none is counted twice.
        self._tail = seen[-(len(self._MARK) - 1) :]
        self.count += found
        return found


class FloodConnection:
    """A connection that always has thousands of sends outstanding."""

    def __init__(self, address: str) -> None:
        self.socket = socket.create_connection(split_address(address))
        self.socket.setblocking(False)
        self._answers = AnswerCounter()
        self._chunk = encode_chunk()
        self._unsent = memoryview(b"")
        self._outstanding = 0

    def fill(self) -> None:
        """Send chunks until enough requests are outstanding, or the server takes no more for now.

        Call it again after `read_answers`.
        """
        with suppress(BlockingIOError):
            while self._unsent or self._outstanding <= MAX_OUTSTANDING - CHUNK_MESSAGES:
                if not self._unsent:
                    self._unsent = memoryview(self._chunk)
                    self._outstanding += CHUNK_MESSAGES
                self._unsent = self._unsent[self.socket.send(self._unsent) :]

    def read_answers(self) -> int:
        """Read what has arrived and return the number of answers. Raises ConnectionError when the server closed."""
        data = self.socket.recv(256 * 1024)
        if not data:
            raise ConnectionError("the server closed the connection")
        found = self._answers.feed(data)
        self._outstanding -= found
        return found


def encode_chunk() -> bytes:
    """Return the frames of some sends to four queues."""
    frames = []
    for number in range(CHUNK_MESSAGES):
        request = send_request(TOPIC, b"x" * BODY_BYTES, queue_id=number % 4)
        frames.append(encode_command(request.to_command(number)))
    return b"".join(frames)


def flood(addresses: Sequence[str], pids: Sequence[int], warm_up_s: float, window_s: float) -> Figures:
    """Send to brokers as fast as they answer, and return the figures of the window after the warm-up."""
    connections = [
        FloodConnection(addresses[number % len(addresses)]) for number in range(CONNECTIONS_PER_RUN)
    ]
    by_fileno = {each.socket.fileno(): each for each in connections}
    poll = select.epoll()
    for fileno, connection in by_fileno.items():
        poll.register(fileno, select.EPOLLIN)
        connection.fill()

    def send_for(seconds: float) -> int:
        answered, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            for fileno, _ in poll.poll(1.0):
                answered += by_fileno[fileno].read_answers()
                by_fileno[fileno].fill()
        return answered

    send_for(warm_up_s)
    begin, client_s = UsageSnapshot.take(pids), time.process_time()
    answered = send_for(window_s)
    end, client_s = UsageSnapshot.take(pids), time.process_time() - client_s
    for each in connections:
        each.socket.close()
    lasted_s = end.at_s - begin.at_s
    server_s = end.server_s - begin.server_s
    return {
        "rate": answered / lasted_s,
        "cpu_us": server_s / answered * 1e6,
        "client_us": client_s / answered * 1e6,
        "cores": server_s / lasted_s,
        "others_cores": max(0.0, begin.others_cores(end) - client_s / lasted_s),
    }


def prefer_session(pid: int, nice: int) -> None:
    """Give the session of a process a share of the cores as with this nice value. Raises OSError.

    Linux shares the cores among sessions first (autogroup), and every server that we start is a session: beside other
    busy sessions, two broker processes get no more than one broker.
    """
    Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def measure(setup: Setup, warm_up_s: float, window_s: float, nice: int | None = None) -> Figures:
    """Start a server, flood it once, and return the figures."""
    begin = time.monotonic()
    with OursEndpoint(extra=setup.options) as server:
        pids = server.pids()
        started = {
            "start_ms": (time.monotonic() - begin) * 1000,
            "start_cpu_ms": cpu_s(pids) * 1000,
            "private_mib": memory_mib(pids, "RssAnon"),
        }
        addresses = list(server.ready["brokers"].values())
        for address in addresses:
            with connect(address) as client:
                client.ask(topic_request(TOPIC))
        if nice is not None:
            prefer_session(pids[0], nice)
        return {**flood(addresses, pids, warm_up_s, window_s), **started}


def medians(runs: Iterable[Figures]) -> Figures:
    """Return the median of each figure."""
    all_runs = list(runs)
    return {name: statistics.median(run[name] for run in all_runs) for name in FIGURES}


def report(measured: dict[str, list[Figures]]) -> str:
    """Return the table of medians, and both comparisons of two broker processes with one broker."""
    middle = {name: medians(runs) for name, runs in measured.items()}
    lines = [f"| median | {' | '.join(middle)} |", f"| --- |{' ---: |' * len(middle)}"]
    for figure, title in FIGURES.items():
        values = " | ".join(f"{figures[figure]:,.4g}" for figures in middle.values())
        lines.append(f"| {title} | {values} |")
    one, two = middle[ONE.name], middle[TWO_PROCESSES.name]
    by_rate = two["rate"] / one["rate"]
    by_cpu = 2 * one["cpu_us"] / two["cpu_us"]
    met = "met" if by_rate >= MIN_RATIO else "not met"
    lines += [
        "",
        f"two broker processes against one broker: {by_rate:.2f}x the messages (goal: {MIN_RATIO}x, {met});",
        f"by processor time per message two cores of their own would carry {by_cpu:.2f}x",
    ]
    return "\n".join(lines)


@click.command()
@click.option(
    "--rounds", type=click.IntRange(1), default=5, show_default=True, help="Number of runs of each server."
)
@click.option(
    "--warm-up", default=1.0, show_default=True, help="Seconds of load before each run's figures begin."
)
@click.option("--window", default=4.0, show_default=True, help="Seconds that each run measures.")
@click.option(
    "--session-nice",
    type=click.IntRange(-20, 19),
    help="Nice value for the sessions of client and servers (/proc/PID/autogroup), where others use the machine.",
)
def main(rounds: int, warm_up: float, window: float, session_nice: int | None) -> None:
    """Measure one broker, two in one process, and two broker processes, in turns."""
    exit_on_sigterm()
    if session_nice is not None:
        prefer_session(os.getpid(), session_nice)
    measured: dict[str, list[Figures]] = {setup.name: [] for setup in SETUPS}
    for number in range(rounds):
        # The order alternates, because a machine that others use, or that gets warm, changes within a round.
        for setup in SETUPS if number % 2 == 0 else SETUPS[::-1]:
            figures = measure(setup, warm_up, window, session_nice)
            measured[setup.name].append(figures)
            shown = "  ".join(f"{name} {figures[name]:.4g}" for name in FIGURES)
            click.echo(f"round {number + 1}  {setup.name:28} {shown}", err=True)
    click.echo(report(measured))


if __name__ == "__main__":
    main()
