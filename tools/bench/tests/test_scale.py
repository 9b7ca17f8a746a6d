"""The scale benchmark's client and table, with a fake server."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tools.bench.figure_table import figure_table, is_met
from tools.bench.pipelined_sender import PipelinedSender, SendRefused
from tools.bench.scale import BARS, ScaleWork


class FakeBroker:
    """Answers each send once `hold` of them are outstanding, or the client has sent `total`."""

    def __init__(self, total: int, hold: int = 1, code: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._total, self._hold, self._code = total, hold, code
        self.headers: list[dict[str, Any]] = []
        self.most_outstanding = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer, peer.makefile("rb") as stream:
            waiting: list[int] = []
            while len(self.headers) < self._total:
                head = stream.read(4)
                if not head:
                    return
                frame = stream.read(int.from_bytes(head, "big"))
                size = int.from_bytes(frame[:4], "big")
                header = json.loads(frame[4 : 4 + size])
                self.headers.append(header)
                waiting.append(header["opaque"])
                self.most_outstanding = max(self.most_outstanding, len(waiting))
                if len(waiting) >= self._hold or len(self.headers) == self._total:
                    peer.sendall(b"".join(self._answer(opaque) for opaque in waiting))
                    waiting.clear()
            stream.read()

    def _answer(self, opaque: int) -> bytes:
        head = json.dumps({"code": self._code, "flag": 1, "opaque": opaque, "remark": "no room"}).encode()
        return struct.pack(">II", 4 + len(head), len(head)) + head

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


@pytest.fixture
def brokers() -> Iterator[list[FakeBroker]]:
    opened: list[FakeBroker] = []
    yield opened
    for broker in opened:
        broker.close()


def test_a_bounded_number_of_sends_is_outstanding_and_each_is_timed(brokers: list[FakeBroker]) -> None:
    brokers.append(FakeBroker(total=100, hold=8))
    work = ScaleWork(topics=25, queues=4, messages=20)
    with PipelinedSender(brokers[0].address, depth=8) as sender:
        took_s = sender.send_all(work.all_queues(), b"x", keys="k")
    sent = [(header["extFields"]["b"], header["extFields"]["e"]) for header in brokers[0].headers]
    assert len(took_s) == len(set(sent)) == 100
    assert min(took_s) > 0
    assert brokers[0].most_outstanding <= 8


def test_a_refused_send_ends_the_measurement(brokers: list[FakeBroker]) -> None:
    brokers.append(FakeBroker(total=1, code=14))
    with PipelinedSender(brokers[0].address, depth=1) as sender, pytest.raises(SendRefused, match="no room"):
        sender.send_all([("t", 0)], b"x")


def test_the_table_judges_the_first_server_only() -> None:
    ours = {bar.figure: bar.limit or 1.0 for bar in BARS}
    theirs = {bar.figure: 1e6 for bar in BARS}
    text = figure_table(BARS, ["ours", "official"], [ours, theirs])
    assert "**no**" not in text
    assert text.count("| yes |") == len([bar for bar in BARS if bar.limit is not None])
    slow = {**ours, "clean_start_s": 5.1}
    assert figure_table(BARS, ["ours"], [slow]).count("**no**") == 1
    assert {is_met(bar, slow) for bar in BARS if bar.figure == "clean_start_s"} == {False}
