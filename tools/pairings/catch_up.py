"""Measures the rate at which a slave catches up that is many messages behind: ours beside an official one.

    python -m tools.pairings.catch_up --messages 1000000

The slave copies a first message and is killed. The master then gets the messages, and the slave is started again. Times
begin when the first of those messages has arrived, so a start of a JVM does not count. Official brokers run untuned.
"""

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from compat_tests.clients.typed import batch_request, connect, has_route, send, topic_request
from compat_tests.endpoints import exit_on_sigterm
from compat_tests.endpoints.official import FULL_SPEED
from compat_tests.endpoints.ports import find_ports
from compat_tests.server import eventually
from remoting.errors import REQUEST_FAILURES
from remoting.requests.offsets import GetMaxOffset
from tools.bench.usage import cpu_s, work_until_idle_s
from tools.pairings.cli import NAMES
from tools.pairings.members import (
    MASTER_ROLE,
    QUEUES,
    SLAVE_ROLE,
    TOPIC,
    BrokerKind,
    Machine,
    OfficialMember,
    PairMember,
    log_end,
    new_member,
)
from tools.processes import Gateway

BATCH: Final = 500
PIPELINED: Final = 8
BODY: Final = b"x" * 128
POLL_S: Final = 0.05
TIMEOUT_S: Final = 600.0
FILES: Final = {"mappedFileSizeCommitLog": str(1 << 30)}


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Times in which a slave got its master's log and built its queues, in seconds."""

    messages: int
    log_bytes: int
    copied_s: float
    readable_s: float
    copy_processor_s: float
    """Processor time of the slave until it had copied everything; ``processor_s`` is that until it had all queues."""
    processor_s: float


@click.command()
@click.option(
    "--messages", type=click.IntRange(1000), default=1_000_000, show_default=True, help="Messages behind."
)
@click.option(
    "--pair", "pairs", multiple=True, default=("ours/ours", "ours/5.4.0", "5.4.0/ours", "5.4.0/5.4.0"),
    show_default=True, help="Kinds of master and slave; repeatable.",
)  # fmt: skip
def main(messages: int, pairs: Sequence[str]) -> None:
    """Print a table of the rates at which slaves catch up."""
    exit_on_sigterm()
    click.echo(
        "| master → slave | copied, messages/s | MB/s | readable, messages/s | processor time, us a message |"
    )
    click.echo("|---|---|---|---|---|")
    for pair in pairs:
        master, _, slave = pair.partition("/")
        with tempfile.TemporaryDirectory(prefix="catch-up-") as folder, ExitStack() as stack:
            result = measure(NAMES[master], NAMES[slave], messages, Path(folder), stack)
        click.echo(
            f"| {NAMES[master].name} → {NAMES[slave].name} | {result.messages / result.copied_s:,.0f} "
            f"| {result.log_bytes / result.copied_s / 1e6:.0f} | {result.messages / result.readable_s:,.0f} "
            f"| {result.copy_processor_s / result.messages * 1e6:.1f} "
            f"| {result.processor_s / result.messages * 1e6:.1f} |"
        )


def measure(
    master: BrokerKind, slave: BrokerKind, messages: int, directory: Path, stack: ExitStack
) -> CatchUp:
    """Let a slave get behind, start it again, and wait until everything can be read from it."""
    port = find_ports(1)[0]
    stack.enter_context(Gateway(directory / "n", "--port", str(port), command="namesrv"))
    namesrv = f"127.0.0.1:{port}"
    brokers: list[PairMember] = []
    for kind, name in ((master, "m"), (slave, "s")):
        broker = new_member(kind, Machine("127.0.0.1", directory / name), namesrv)
        if isinstance(broker, OfficialMember):
            broker.use_jvm(FULL_SPEED)
        stack.callback(broker.kill)
        brokers.append(broker)
    first, second = brokers
    first.start({**MASTER_ROLE, **FILES, "brokerRole": "ASYNC_MASTER"})
    with connect(first.address) as client:
        client.ask(topic_request(TOPIC, QUEUES))
    with connect(namesrv) as client:
        eventually(lambda: has_route(client, TOPIC), 60)
    with connect(first.address) as client:
        send(client, TOPIC)
    second.start({**SLAVE_ROLE, **FILES})
    eventually(lambda: 0 < log_end(first.address) == log_end(second.address), 60)
    second.kill()
    before = log_end(first.address)
    fill(first.address, messages)
    work_until_idle_s(first.pids(), 60)
    end = log_end(first.address)
    second.start({**SLAVE_ROLE, **FILES})
    eventually(lambda: log_end(second.address) > before, 120, every_s=POLL_S / 5)
    begun_s, spent_s = time.monotonic(), cpu_s(second.pids())
    eventually(lambda: log_end(second.address) >= end, TIMEOUT_S, every_s=POLL_S)
    copied_s, copy_processor_s = time.monotonic() - begun_s, cpu_s(second.pids()) - spent_s
    eventually(lambda: readable_messages(second.address) > messages, TIMEOUT_S, every_s=POLL_S)
    readable_s = time.monotonic() - begun_s
    return CatchUp(
        messages, end - before, copied_s, readable_s, copy_processor_s, cpu_s(second.pids()) - spent_s
    )


def fill(address: str, messages: int) -> None:
    """Send messages in batches."""
    batches = -(-messages // BATCH)
    with connect(address, timeout_s=60) as client:
        for begin in range(0, batches, PIPELINED):
            requests = [
                batch_request(TOPIC, [(BODY, {})] * BATCH, queue_id=number % QUEUES)
                for number in range(begin, min(begin + PIPELINED, batches))
            ]
            client.pipeline(requests, timeout_s=60)


def readable_messages(address: str) -> int:
    """Return the number of messages in all queues, -1 while the broker does not say."""
    try:
        with connect(address) as client:
            return sum(
                client.ask(GetMaxOffset(topic=TOPIC, queue_id=queue_id)).offset for queue_id in range(QUEUES)
            )
    except REQUEST_FAILURES:
        return -1


if __name__ == "__main__":
    main()
