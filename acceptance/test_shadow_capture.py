"""Capture of stock clients' traffic by a gateway that is killed, and replay to a new server: same content and order."""

import itertools
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from codec.capture import CaptureRecord, Damage, scan_records
from codec.message import Message
from compat_tests.cases.conftest import stock_client
from compat_tests.clients.java_api import JavaClient, JavaProducer
from compat_tests.clients.typed import messages, pull, send_many, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually, split_address
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RemotingTimeout
from tools.processes import Gateway, environment

pytestmark = pytest.mark.both_servers

PLAIN, ORDERED, TIMED, ENDED, CUT = TOPICS = ("plain", "ordered", "timed", "ended", "cut")
COMMIT, ROLLBACK = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE"
QUEUES = 2
SEND, SEND_BATCH, END_TRANSACTION = 310, 320, 37
ENDS = 6
SENDS = 20 + 20 + 10 + 3 + ENDS
WAIT_S = 90.0


@pytest.fixture(scope="module")
def primary() -> Iterator[OfficialEndpoint]:
    """An official server behind the gateway."""
    try:
        official = OfficialEndpoint()
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with official:
        yield official


def read_all(broker: BlockingClient, topic: str, queue_id: int) -> list[Message]:
    found: list[Message] = []
    while (reply := pull(broker, topic, len(found), queue_id=queue_id)).code == 0:
        found += messages(reply)
    return found


def content(where: str, topic: str) -> list[list[tuple[bytes, str | None, str | None]]]:
    """Return body, unique key and keys of each message, queue by queue, in order."""
    with BlockingClient(*split_address(where), timeout_s=15) as client:
        return [
            [
                (each.body, each.unique_key, each.properties.get("KEYS"))
                for each in read_all(client, topic, queue)
            ]
            for queue in range(QUEUES)
        ]


def command(*arguments: str, directory: Path) -> tuple[int, str]:
    """Run an `rmq-gateway` command and return its exit code and standard output."""
    line = [sys.executable, "-m", "gateway.commands.cli", *arguments]
    variables = {**os.environ, **environment(directory)}
    done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def captured(captures: Path) -> list[CaptureRecord | Damage]:
    """Return the records in the capture files so far; a block that is still being written appears as damage."""
    return [found for path in sorted(captures.glob("*.rmqcap")) for found in scan_records(path.read_bytes())]


def all_captured(captures: Path) -> bool:
    codes = Counter(each.code for each in captured(captures) if isinstance(each, CaptureRecord))
    return codes[SEND] + codes[SEND_BATCH] >= SENDS and codes[END_TRANSACTION] == ENDS


def traffic(java: JavaClient) -> None:
    """Send plain, ordered, batched, delayed and transactional messages."""
    with java.producer("capture_producers") as producer:
        eventually(lambda: ready(producer), WAIT_S)
        producer.send_numbered(PLAIN, 20, keys="k")
        for number in range(20):
            producer.send({"topic": ORDERED, "body": str(number)}, mode="selector", arg=number % QUEUES)
        batch = [{"topic": PLAIN, "body": f"batch {number}"} for number in range(30)]
        for start in range(0, 30, 3):
            producer.send(*batch[start : start + 3], mode="batch")
        producer.send({"topic": TIMED, "body": "level", "delay": 1})
        producer.send({"topic": TIMED, "body": "in", "delay_ms": 1500})
        producer.send({"topic": TIMED, "body": "now"})
    with java.transactions("capture_transactions") as producer:
        for number in range(ENDS):
            decision = ROLLBACK if number % 3 == 1 else COMMIT
            producer.send({"topic": ENDED, "body": str(number), "properties": {"local": decision}})


def ready(producer: JavaProducer) -> bool:
    try:
        return all(len(producer.queues(topic)) == QUEUES for topic in TOPICS)
    except Exception:  # noqa: BLE001 - no route yet, or no answer in time
        return False


def cut_off(gateway: Gateway, captures: Path) -> None:
    """Kill the gateway while a client sends without a pause."""
    bodies = map(str, itertools.count())

    def send() -> None:
        with (
            suppress(OSError, RemotingClosed, RemotingTimeout),
            BlockingClient(*split_address(gateway.broker), timeout_s=15) as client,
        ):
            while True:
                send_many(client, CUT, [next(bodies).encode() for _ in range(20)])

    before = size_of(captures)
    sending = threading.Thread(target=send)
    sending.start()
    try:
        eventually(lambda: size_of(captures) > before + 20_000, WAIT_S)
    finally:
        gateway.kill()
        sending.join()


def size_of(captures: Path) -> int:
    return sum(path.stat().st_size for path in captures.iterdir())


def test_captured_killed_and_replayed(primary: OfficialEndpoint, tmp_path: Path) -> None:
    captures = tmp_path / "captures"
    captures.mkdir()
    with BlockingClient(*split_address(primary.broker), timeout_s=15) as client:
        for topic in TOPICS:
            client.ask(topic_request(topic, QUEUES))
    sets = {
        "primary.namesrv": json.dumps([primary.namesrv]),
        "capture.directory": json.dumps(str(captures)),
        "capture.block_interval_ms": "50",
        "capture.reserve_bytes": "0",
        "console.enabled": "false",
    }
    options = [text for key, value in sets.items() for text in ("--set", f"{key}={value}")]
    with Gateway(tmp_path / "gateway", *options, command="shadow") as gateway:
        with stock_client(gateway.namesrv) as java:
            traffic(java)
        eventually(lambda: all_captured(captures), WAIT_S)
        cut_off(gateway, captures)
    _, output = command("capture", "info", "--json", str(captures), directory=tmp_path)
    facts = json.loads(output)
    assert not facts["closed"]
    assert facts["records"] == sum(isinstance(each, CaptureRecord) for each in captured(captures))
    with Gateway(tmp_path / "target", "--memory") as target:
        replay(tmp_path, captures, target)
        compare(primary.broker, target.broker)


def replay(directory: Path, captures: Path, target: Gateway) -> None:
    """Replay everything at full speed, and assert that nothing is refused."""
    arguments = ("replay", str(captures), "--to", target.namesrv, "--speed", "max", "--json")
    code, output = command(*arguments, directory=directory)
    result = json.loads(output)
    assert (code, result["refused"], result["failure"]) == (0, [], None), output
    assert result["finished"] == result["steps"]
    assert result["ok"][str(END_TRANSACTION)] == ENDS


def compare(primary: str, target: str) -> None:
    """Assert that both brokers hold the same messages, queue by queue.

    Delayed and transactional messages enter their queues later, in an order that is arbitrary even at the primary.
    """
    for topic in (PLAIN, ORDERED):
        here = content(primary, topic)
        assert sum(map(len, here)) == (50 if topic == PLAIN else 20)
        assert content(target, topic) == here
    for topic, count in ((TIMED, 3), (ENDED, 4)):
        for side in (primary, target):
            eventually(lambda: count_of(side, topic) == count, WAIT_S)  # noqa: B023 - called in this iteration
        assert [sorted(each) for each in content(target, topic)] == [
            sorted(each) for each in content(primary, topic)
        ]
    # Messages the killed gateway had not written are missing; the rest is in order. Each broker assigns its own keys.
    for stored, replayed in zip(content(primary, CUT), content(target, CUT), strict=True):
        remaining = iter([body for body, _, _ in stored])
        assert all(body in remaining for body, _, _ in replayed)
    assert 0 < count_of(target, CUT) <= count_of(primary, CUT)


def count_of(where: str, topic: str) -> int:
    return sum(map(len, content(where, topic)))
