"""A fake broker and name server for answers that real ones rarely give."""

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from codec.command import Command, encode_response
from codec.frames import FrameSplitter
from remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from remoting.requests.pull import PullMessage
from spark.endpoint import ClusterEndpoint
from spark.pull.read_spec import OffsetRange

TOPIC, BROKER = "t", "broker-a"


@dataclass
class FakeBroker:
    """Holds stored messages by offset; `most` limits a pull, `looks_at` the messages a filter scans."""

    messages: dict[int, bytes]
    most: int = 32
    looks_at: int = 800
    matches: Callable[[int], bool] | None = None
    mischief: Callable[["FakeBroker", PullMessage], tuple[int, dict[str, int], bytes, str] | None] | None = (
        None
    )
    shuffle: bool = False
    leaves_after: int = 0
    port: int = 0
    asked: list[PullMessage] = field(default_factory=list)
    connections: int = 0

    def range(self, start: int, end: int) -> OffsetRange:
        return OffsetRange(TOPIC, BROKER, ("127.0.0.1", self.port), 0, start, end)

    def endpoint(self) -> ClusterEndpoint:
        return ClusterEndpoint((("127.0.0.1", self.port),), timeout_s=20, retries=3, retry_interval_s=0.001)

    @property
    def bounds(self) -> tuple[int, int]:
        return (min(self.messages), max(self.messages) + 1) if self.messages else (0, 0)

    # -- answers ----------------------------------------------------------------------------------------------------

    def answer(self, command: Command) -> bytes:
        if command.code == PullMessage.code:
            return self._pull(command)
        host = f"127.0.0.1:{self.port}"
        route = TopicRouteData(
            queue_datas=[QueueData(broker_name=BROKER, read_queue_nums=1, write_queue_nums=1, perm=6)],
            broker_datas=[BrokerData(cluster="c", broker_name=BROKER, broker_addrs={0: host})],
        )
        return encode_response(command.opaque, 0, None, route.to_json(), None)

    def _pull(self, command: Command) -> bytes:
        pull = PullMessage.from_command(command)
        assert pull.sys_flag == 4, "a pull that commits or waits"
        assert pull.consumer_group == "TOOLS_CONSUMER"
        self.asked.append(pull)
        code, fields, body, remark = (self.mischief and self.mischief(self, pull)) or self.read(pull)
        low, high = self.bounds
        ext = {"nextBeginOffset": 0, "minOffset": low, "maxOffset": high, "suggestWhichBrokerId": 0, **fields}
        texts = {name: str(value) for name, value in ext.items()}
        return encode_response(command.opaque, code, texts, body, remark)

    def read(self, pull: PullMessage) -> tuple[int, dict[str, int], bytes, str]:
        """Return code, header, body and remark of a correct answer."""
        low, high = self.bounds
        at = pull.queue_offset
        if not low <= at < high:
            moved = low if at < low else high
            code = 19 if at == high else 21
            return code, {"nextBeginOffset": moved}, b"", "OFFSET"
        found: list[bytes] = []
        end = min(at + self.looks_at, high)
        while at < end and len(found) < min(self.most, pull.max_msg_nums):
            if at in self.messages and (self.matches is None or self.matches(at)):
                found.append(self.messages[at])
            at += 1
        return (0 if found else 20), {"nextBeginOffset": at}, b"".join(found), "FOUND"

    # -- serving ----------------------------------------------------------------------------------------------------

    @contextmanager
    def serving(self) -> Iterator["FakeBroker"]:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        try:
            yield self
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        splitter, remaining, rng = FrameSplitter(), self.leaves_after or 1 << 60, random.Random(1)
        with peer:
            while data := self._receive(peer):
                commands = splitter.feed(data)
                self.connections += any(
                    command.code == PullMessage.code for command in commands
                ) and remaining >= (self.leaves_after or 1 << 60)
                if self.shuffle:
                    rng.shuffle(commands)
                for command in commands:
                    if command.code == PullMessage.code:
                        remaining -= 1
                        if remaining < 0:
                            return
                    try:
                        peer.sendall(self.answer(command))
                    except OSError:
                        return

    @staticmethod
    def _receive(peer: socket.socket) -> bytes:
        try:
            return peer.recv(65536)
        except OSError:
            return b""
