"""Log lines are for people and programs: constant events, and data without the looks of Python objects."""

import ast
import io
import logging
import re
import socket
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import trio

from gateway.auth.audit import AuditLog
from gateway.process.tests.test_server import address, served
from gateway.runtime.logs import CountingHandler, JsonFormatter, KeyValueFormatter
from gateway.tests.cluster import Cluster, Node, simulated
from gateway.tests.test_extreme_requests import (
    ALL_CODES,
    SETTINGS,
    answer_of,
    commands_of,
    usual_commands,
)
from remoting.declare import REQUESTS
from remoting.errors import RemotingClosed, RemotingTimeout

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("codec", "remoting", "storage", "toolkit", "gateway")
LEVELS = {"debug", "info", "warning", "error", "exception", "log"}
PYTHON_LOOKS = re.compile(
    r"""\{'|\['|\('|[\s=(,"]b['"]|<[\w.]+ object at|\b(?:None|True|False)\b|datetime\.|\w\(\w+=""",
)
WRAPPERS = {"message", "event", "text"}
"""Names of parameters with an event, in functions that add data to it."""
EXTREMES_PER_COMMAND = 8


def events_in(path: Path) -> Iterator[tuple[int, ast.expr, int]]:
    """Yield line, event and number of further positional arguments of each log call."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if ast.unparse(node.func.value) == "log" and node.func.attr in LEVELS:
            first = 1 if node.func.attr == "log" else 0
            yield node.lineno, node.args[first], len(node.args) - first - 1


def test_events_are_constant() -> None:
    """A person who searches for an event, and what counts repeated events, need its name to be the same each time."""
    found = 0
    for package in SOURCES:
        for path in (ROOT / package).rglob("*.py"):
            if "tests" in path.parts:
                continue
            for line, event, further in events_in(path):
                found += 1
                is_constant = isinstance(event, ast.Constant) and "%" not in str(event.value)
                is_passed_on = isinstance(event, ast.Name) and (event.id in WRAPPERS or event.id.isupper())
                place = f"{path.relative_to(ROOT)}:{line}"
                assert is_constant or is_passed_on, place
                assert further == 0, place
    assert found > 150


class Lines:
    """Everything that is logged from level info on, as text and as JSON."""

    def __init__(self) -> None:
        self._streams = [io.StringIO(), io.StringIO()]
        self._handlers = [CountingHandler(stream) for stream in self._streams]
        self._handlers[0].setFormatter(KeyValueFormatter("broker-a"))
        self._handlers[1].setFormatter(JsonFormatter("broker-a"))

    def __enter__(self) -> "Lines":
        for handler in self._handlers:
            logging.getLogger().addHandler(handler)
        return self

    def __exit__(self, *_: object) -> None:
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()

    @property
    def all(self) -> list[str]:
        return [line for stream in self._streams for line in stream.getvalue().splitlines()]

    @property
    def events(self) -> set[str]:
        return {
            line.split('"event": "')[1].split('"')[0] for line in self._streams[1].getvalue().splitlines()
        }


def check_looks(lines: list[str]) -> None:
    assert [line for line in lines if PYTHON_LOOKS.search(line)] == []


@simulated
async def test_requests_of_all_kinds_leave_plain_lines(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Lines() as lines:
        for code in ALL_CODES:
            node = await cluster.add_broker(guard=AuditLog("broker-a").guard(), **SETTINGS)
            await send_some(cluster, node, code)
            await trio.sleep(30)
            await node.stop()
    assert len(lines.events) >= 10, lines.events
    check_looks(lines.all)


async def send_some(cluster: Cluster, node: Node, code: int) -> None:
    for usual in await usual_commands(cluster, node, code):
        client = cluster.dial(node.address)
        for _, command in islice(commands_of(usual, REQUESTS[code]), EXTREMES_PER_COMMAND):
            try:
                await answer_of(client, command)
            except (RemotingTimeout, RemotingClosed):
                client = cluster.dial(node.address)


GARBAGE = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\xff" * 64,
    bytes(64),
    bytes.fromhex("16030100c8010000c40303") + bytes(194),
)


def test_peers_that_send_no_frames_leave_plain_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def send_garbage(where: tuple[str, int]) -> None:
        for data in GARBAGE:
            with socket.create_connection(where, 10) as peer:
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(4096):
                    pass

    async def test(facts, server, nursery):
        for text in (facts["namesrv"], *facts["brokers"].values()):
            await trio.to_thread.run_sync(send_garbage, address(text))

    with Lines() as lines:
        served(tmp_path, test)
    assert {
        "connection closed: bad frame",
        "connection closed: the peer speaks another protocol",
    } <= lines.events
    check_looks(lines.all)
