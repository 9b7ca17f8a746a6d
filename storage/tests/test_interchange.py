"""The official broker opens and continues a store written by this one, and the other way about."""

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from codec.command import Command, decode_frame, encode_command
from codec.message import iter_messages
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.store import MessageStore

LIB = os.environ.get("ROCKETMQ_OFFICIAL_LIB", "")
pytestmark = pytest.mark.skipif(
    not LIB or not shutil.which("java"),
    reason="needs java and ROCKETMQ_OFFICIAL_LIB, the folder with the official broker's jars",
)
OPENED = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.nio", "java.util", "java.io", "sun.nio.ch", "jdk.internal.misc")
] + [f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in ("jdk.internal.ref", "sun.nio.ch")]
QUICK_START = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dtls.server.mode=disabled"]
COUNT = 6000


def settings(root: Path) -> StoreConfig:
    return StoreConfig(root=str(root), commit_log_file_bytes=1 << 20)


def write(store: MessageStore, start: int) -> None:
    for number in range(start, start + COUNT):
        store.append(NewMessage("Ours", 0, b"%d" % number, b"KEYS\x01k%d\x02TAGS\x01t\x02" % number))


def read_all(store: MessageStore) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < store.max_offset("Ours", 0):
        result = store.read("Ours", 0, len(bodies), 32)
        bodies += [bytes(message.body) for message in iter_messages(b"".join(result.chunks))]
    return bodies


def free_port() -> int:
    """Return a port that is free together with P-2 and P+1, below the ephemeral range."""
    while True:
        port = random.randrange(12_000, 32_000)
        try:
            for number in (port - 2, port, port + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        return port


class Client:
    """One request at a time over a plain socket: the store's tests use no network code of this project."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._file = self._socket.makefile("rb")

    def send_command(self, command: Command) -> Command:
        self._socket.sendall(encode_command(command))
        frame = self._file.read(int.from_bytes(self._file.read(4)))
        return decode_frame(frame, 0, len(frame))

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class OfficialBroker:
    """One official broker process over a store; it serves its files without a namesrv."""

    def __init__(self, root: Path, home: Path) -> None:
        self.port = free_port()
        home.mkdir(exist_ok=True)
        conf = home / "broker.conf"
        # On a busy machine the official broker would refuse requests that waited 200 ms and appends after a second;
        # for the last of these intervals it keeps a core busy after its start.
        conf.write_text(
            "brokerFastFailureEnable=false\nosPageCacheBusyTimeOutMills=10000\ntransactionMetricFlushInterval=200\n"
            f"brokerName=broker-a\nbrokerId=0\nbrokerIP1=127.0.0.1\nlistenPort={self.port}\n"
            f"storePathRootDir={root}\nstorePathCommitLog={root}/commitlog\nmappedFileSizeCommitLog=1048576\n"
            f"haListenPort={free_port()}\nnamesrvAddr=127.0.0.1:1\ndiskMaxUsedSpaceRatio=99\n"
        )
        self.process = subprocess.Popen(
            ["java", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", *QUICK_START, *OPENED, f"-Duser.home={home}",
             f"-Drocketmq.home.dir={home}", "-cp", f"{LIB}/*", "org.apache.rocketmq.broker.BrokerStartup",
             "-c", str(conf)],
            env={**os.environ, "ROCKETMQ_HOME": str(home)},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def client(self) -> "Client":
        deadline = time.monotonic() + 90
        while True:
            assert self.process.poll() is None, "the official broker ended"
            try:
                return Client(self.port)
            except OSError:
                assert time.monotonic() < deadline, "the official broker did not open its port"
                time.sleep(0.2)

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(timeout=60)


def send(client: Client, number: int) -> Command:
    ext = {"a": "group", "b": "Ours", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0"}
    ext |= {"i": f"KEYS\x01k{number}\x02", "j": "0", "k": "false", "m": "false"}
    return client.send_command(Command(310, ext=ext, body=b"%d" % number))


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_official_broker_and_ours_take_turns(tmp_path: Path, ending: signal.Signals) -> None:
    root = tmp_path / "store"
    store = MessageStore.open(settings(root))
    write(store, 0)
    store.close()
    broker = OfficialBroker(root, tmp_path / "home")
    try:
        client = broker.client()
        assert client.send_command(Command(30, ext={"topic": "Ours", "queueId": "0"})).ext["offset"] == str(
            COUNT
        )
        query = {
            "topic": "Ours",
            "key": "k77",
            "maxNum": "9",
            "beginTimestamp": "0",
            "endTimestamp": str(1 << 60),
        }
        answer = client.send_command(Command(12, ext=query))
        assert [bytes(message.body) for message in iter_messages(answer.body)] == [b"77"]
        for number in range(COUNT, COUNT + 100):
            assert send(client, number).ext["queueOffset"] == str(number)
        client.close()
    finally:
        broker.end(ending)
    store = MessageStore.open(settings(root))
    assert read_all(store) == [b"%d" % number for number in range(COUNT + 100)]
    (physical_offset,) = store.query_by_key("Ours", f"k{COUNT + 50}", 9, 0, 1 << 60)
    assert physical_offset == store.physical_offset_at("Ours", 0, COUNT + 50)
    write(store, COUNT + 100)
    store.close()
    again = MessageStore.open(settings(root))
    assert again.max_offset("Ours", 0) == 2 * COUNT + 100
    again.close()


def source_store(root: Path) -> MessageStore:
    """Create another broker's store with a queue to copy from its middle on."""
    store = MessageStore.open(settings(root))
    write(store, 0)
    return store


def pull(client: Client, offset: int) -> Command:
    ext = {"consumerGroup": "TOOLS_CONSUMER", "topic": "Ours", "queueId": "0", "queueOffset": str(offset)}
    ext |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    return client.send_command(Command(11, ext=ext | {"subscription": "*", "subVersion": "0"}))


def test_official_broker_continues_a_queue_with_preserved_offsets(tmp_path: Path) -> None:
    """A queue that begins in its middle is readable from there on, and not before."""
    source, root, begin = source_store(tmp_path / "source"), tmp_path / "store", 1234
    config = StoreConfig(root=str(root), commit_log_file_bytes=1 << 20, start_at_second_file=True)
    store = MessageStore.open(config)
    for offset in range(begin, COUNT):
        (chunk,) = source.read("Ours", 0, offset, 1).chunks
        store.append_preserving_offsets("Ours", 0, offset, chunk, reset=offset == begin)
    store.close()
    broker = OfficialBroker(root, tmp_path / "home")
    try:
        client = broker.client()
        for code, offset in ((30, COUNT), (31, begin)):
            answer = client.send_command(Command(code, ext={"topic": "Ours", "queueId": "0"}))
            assert answer.ext["offset"] == str(offset)
        assert send(client, COUNT).ext["queueOffset"] == str(COUNT)  # which makes the topic as well
        assert pull(client, begin - 1).ext["nextBeginOffset"] == str(begin)
        bodies, position = [], begin
        while position <= COUNT:
            answer = pull(client, position)
            bodies += [bytes(message.body) for message in iter_messages(answer.body)]
            position = int(answer.ext["nextBeginOffset"])
        assert bodies == [b"%d" % number for number in range(begin, COUNT + 1)]
        client.close()
    finally:
        broker.end(signal.SIGKILL)
    again = MessageStore.open(config)
    assert (again.min_offset("Ours", 0), again.max_offset("Ours", 0)) == (begin, COUNT + 1)
    again.close()
