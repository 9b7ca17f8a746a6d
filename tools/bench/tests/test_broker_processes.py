"""The benchmark of broker processes: its cheap client counts right, and its report says what was met."""

import socket
import threading
from random import Random

import pytest

from codec.command import encode_response
from codec.frames import FrameSplitter
from compat_tests.server import eventually
from tools.bench.broker_processes import (
    CHUNK_MESSAGES,
    FIGURES,
    MAX_OUTSTANDING,
    ONE,
    SETUPS,
    TWO_PROCESSES,
    AnswerCounter,
    FloodConnection,
    encode_chunk,
    medians,
    report,
)


def answers(count: int) -> bytes:
    fields = {"queueId": "1", "queueOffset": "7", "msgId": "ABC"}
    return b"".join(encode_response(number, 0, fields, b"", None) for number in range(count))


def test_answers_are_counted_wherever_the_stream_is_cut() -> None:
    chance = Random(5)
    counter, data = AnswerCounter(), answers(500)
    while data:
        size = chance.randrange(1, 400)
        counter.feed(data[:size])
        data = data[size:]
    assert counter.count == 500


def test_a_chunk_holds_whole_requests() -> None:
    commands = FrameSplitter().feed(encode_chunk())
    assert len(commands) == CHUNK_MESSAGES
    assert {each.code for each in commands} == {310}


def test_the_client_keeps_its_requests_outstanding_and_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        connection = FloodConnection(f"{host}:{port}")
        server, _ = listener.accept()
        received = bytearray()

        def read_all() -> None:
            while data := server.recv(1 << 20):
                received.extend(data)

        reader = threading.Thread(target=read_all)
        reader.start()
        whole = len(encode_chunk()) * (MAX_OUTSTANDING // CHUNK_MESSAGES)

        def is_filled() -> bool:
            connection.fill()
            return len(received) == whole

        eventually(is_filled, 30, every_s=0.001)
        server.sendall(answers(CHUNK_MESSAGES))
        connection.socket.setblocking(True)
        answered = 0
        while answered < CHUNK_MESSAGES:
            answered += connection.read_answers()
        assert len(received) == whole
        connection.fill()
        connection.socket.close()
        reader.join()
        server.close()
        assert len(received) == whole + len(encode_chunk())


def figures(rate: float, cpu_us: float) -> dict[str, float]:
    return {name: 1.0 for name in FIGURES} | {"rate": rate, "cpu_us": cpu_us}


def test_medians() -> None:
    assert medians([figures(1, 9), figures(5, 7), figures(3, 8)]) == figures(3, 8)


@pytest.mark.parametrize(
    ("rate", "word"), [(160_000, "1.60x the messages (goal: 1.5x, met)"), (90_000, "not met")]
)
def test_the_report_compares_by_rate_and_by_processor_time(rate: float, word: str) -> None:
    measured = {setup.name: [figures(100_000, 10)] for setup in SETUPS}
    measured[TWO_PROCESSES.name] = [figures(rate, 11)]
    text = report(measured)
    assert word in text
    assert "would carry 1.82x" in text
    assert ONE.name in text.splitlines()[0]
