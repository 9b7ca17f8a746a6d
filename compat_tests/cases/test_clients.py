"""Unmodified stock programs: each sends 10,000 messages and consumes each of them exactly once."""

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from compat_tests.clients import programs
from compat_tests.clients.typed import create_topic
from compat_tests.jars import Unavailable, java_command
from compat_tests.marks import case
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest, eventually

COUNT = 10_000
TIMEOUT_S = 150
EXPECTED = programs.ProgramResult(sent=COUNT, distinct=COUNT, deliveries=COUNT)
_QUICKSTART = "org.apache.rocketmq.example.quickstart"
_SENT = re.compile(r"sendStatus=SEND_OK, msgId=(\w+)")
_RECEIVED = re.compile(r"\bUNIQ_KEY=(\w+)")  # its msgId is the id with the offset


@case("clients", "Java client 4.9.8: 10,000 messages exactly once")
def test_java_49(server: ServerUnderTest) -> None:
    try:
        result = programs.run_java("client-4.9", server.namesrv, server.topic_name(), COUNT, TIMEOUT_S)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    assert result == EXPECTED


@case("clients", "Go rocketmq-client-go v2.1.2: 10,000 messages exactly once")
def test_go(server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 4)
    try:
        result = programs.run_go(server.namesrv, topic, COUNT, TIMEOUT_S)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    assert result == EXPECTED


@case("clients", "Node ali-ons 3.12.0: 10,000 messages exactly once")
def test_node(server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 4)  # this client does not create topics by sending
    try:
        result = programs.run_node(server.namesrv, topic, COUNT, TIMEOUT_S)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    assert result == EXPECTED


@case("clients", "official quickstart Producer and Consumer 5.5.0: 10,000 messages exactly once")
def test_quickstart(server: ServerUnderTest) -> None:
    """Run the program ten times, because it sends 1,000 messages; compare ids, because its topic is a constant."""
    try:
        jars = programs.java_classes()
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        common = {"heap": programs.HEAP, "properties": {"rocketmq.namesrv.addr": server.namesrv}}
        producer = java_command("client-5.5", "RepeatMain", home, classes=[jars], **common)
        program = [server.topic_name(), f"{_QUICKSTART}.Producer", str(COUNT // 1000)]
        printed = programs.run_command([*producer, *program], TIMEOUT_S)
        sent = set(_SENT.findall(printed))
        assert len(sent) == COUNT
        consumer = java_command("client-5.5", f"{_QUICKSTART}.Consumer", home, **common)
        received = _consume(consumer, home / "received.txt", sent)
    assert Counter(received) == Counter(sent)


def _consume(command: list[str], output: Path, wanted: set[str]) -> list[str]:
    """Run the example consumer, which never ends, until all wanted ids have come; return only those."""
    with output.open("w") as out, output.with_suffix(".err").open("w") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors)
        try:
            eventually(lambda: wanted <= set(_RECEIVED.findall(output.read_text())), 90, every_s=0.5)
        except AssertionError:
            missing = wanted - set(_RECEIVED.findall(output.read_text()))
            pytest.fail(f"{len(missing)} of {len(wanted)} messages did not come")
        finally:
            process.terminate()
            process.wait(20)
    return [found for found in _RECEIVED.findall(output.read_text()) if found in wanted]
