"""Tests of the blocking client against a scripted peer on a real socket."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from codec.command import Command, encode_command
from codec.frames import FrameSplitter
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.client import GetConsumerRunningInfo, NotifyConsumerIdsChanged
from remoting.requests.offsets import GetMaxOffset, GetMaxOffsetReply, UpdateConsumerOffset

ASK = GetMaxOffset(topic="T", queue_id=0)
WAIT_S = 5.0


class Peer:
    """The other end: a script runs in a thread with what it needs to read and write commands."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_S)
        self.port: int = self._listener.getsockname()[1]
        self.failure: BaseException | None = None
        self._splitter = FrameSplitter()
        self._arrived: list[Command] = []
        self._thread = threading.Thread()

    def play(self, script: Callable[["Peer"], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(script,), daemon=True)
        self._thread.start()

    def _run(self, script: Callable[["Peer"], None]) -> None:
        try:
            self.socket, _ = self._listener.accept()
            self.socket.settimeout(WAIT_S)
            with self.socket:
                script(self)
        except BaseException as error:  # noqa: BLE001 - reported by the fixture, in the test's thread
            self.failure = error

    def read(self) -> Command:
        while not self._arrived:
            self._arrived += self._splitter.feed(self.socket.recv(65536))
        return self._arrived.pop(0)

    def write(self, *commands: Command) -> None:
        self.socket.sendall(b"".join(map(encode_command, commands)))

    def hold(self) -> None:
        """Keep the connection open until the client closes it."""
        while self.socket.recv(65536):
            pass

    def end(self) -> None:
        self._thread.join(WAIT_S)
        self._listener.close()
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.end()


def answer(command: Command, offset: int) -> Command:
    return Command(0, command.opaque, 1, {"offset": str(offset)})


def open_client(peer: Peer, **options: bool) -> BlockingClient:
    return BlockingClient("127.0.0.1", peer.port, timeout_s=WAIT_S, **options)


@pytest.mark.parametrize("binary", [False, True])
def test_a_question_is_answered(peer: Peer, binary: bool) -> None:
    asked: list[Command] = []

    def script(peer: Peer) -> None:
        asked.append(peer.read())
        peer.write(answer(asked[0], 42))

    peer.play(script)
    with open_client(peer, binary=binary) as client:
        assert client.ask(ASK) == GetMaxOffsetReply(offset=42)
        assert client.remote == ("127.0.0.1", peer.port)
    assert (asked[0].code, asked[0].ext["topic"], asked[0].binary) == (30, "T", binary)


def test_a_refusal_is_raised(peer: Peer) -> None:
    peer.play(lambda peer: peer.write(Command(17, peer.read().opaque, 1, remark="no such topic")))
    with open_client(peer) as client, pytest.raises(RequestError) as caught:
        client.ask(ASK)
    assert (caught.value.code, caught.value.remark) == (17, "no such topic")


def test_answers_of_a_pipeline_are_matched_by_opaque(peer: Peer) -> None:
    def script(peer: Peer) -> None:
        asked = [peer.read() for _ in range(3)]
        peer.write(*(answer(command, int(command.ext["queueId"])) for command in reversed(asked)))

    peer.play(script)
    with open_client(peer) as client:
        replies = client.pipeline(GetMaxOffset(topic="T", queue_id=number) for number in range(3))
    assert [reply.offset for reply in replies] == [0, 1, 2]


def test_a_pipeline_is_sent_in_windows(peer: Peer) -> None:
    def script(peer: Peer) -> None:
        first = [peer.read() for _ in range(256)]
        peer.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            peer.read()
        peer.socket.settimeout(WAIT_S)
        peer.write(*(answer(command, 1) for command in first))
        peer.write(answer(peer.read(), 2))

    peer.play(script)
    with open_client(peer) as client:
        assert [reply.offset for reply in client.pipeline([ASK] * 257)] == [1] * 256 + [2]


def test_an_answer_that_comes_too_late_is_not_taken_for_another(peer: Peer) -> None:
    late: list[Command] = []

    def script(peer: Peer) -> None:
        late.append(peer.read())
        second = peer.read()
        peer.write(answer(late[0], 1), answer(second, 2))

    peer.play(script)
    with open_client(peer) as client:
        with pytest.raises(RemotingTimeout):
            client.ask(ASK, timeout_s=0.01)
        assert client.ask(ASK).offset == 2


def test_oneway_requests_are_not_waited_for(peer: Peer) -> None:
    seen: list[Command] = []
    peer.play(lambda peer: seen.append(peer.read()))
    with open_client(peer) as client:
        client.send_oneway(UpdateConsumerOffset(consumer_group="G", topic="T", queue_id=0, commit_offset=5))
        assert client.is_closed_by_peer()
    assert seen[0].is_oneway
    assert seen[0].ext["commitOffset"] == "5"


def test_requests_of_the_server_are_served_while_waiting(peer: Peer) -> None:
    answers: list[Command] = []

    def script(peer: Peer) -> None:
        asked = peer.read()
        peer.write(
            GetConsumerRunningInfo(consumer_group="G", client_id="C").to_command(900),
            GetConsumerRunningInfo(consumer_group="other", client_id="C").to_command(901),
            Command(40_000, 902),
            NotifyConsumerIdsChanged(consumer_group="G").to_command(903, oneway=True),
        )
        answers.extend(peer.read() for _ in range(3))
        peer.write(answer(asked, 1))
        peer.hold()

    def running_info(request: GetConsumerRunningInfo) -> None:
        if request.consumer_group != "G":
            raise RequestError(1, "not my group")

    changed: list[NotifyConsumerIdsChanged] = []
    peer.play(script)
    with open_client(peer) as client:
        client.serve_request(GetConsumerRunningInfo, running_info)
        client.serve_request(NotifyConsumerIdsChanged, changed.append)
        client.ask(ASK)
    assert [(command.opaque, command.code) for command in answers] == [(900, 0), (901, 1), (902, 3)]
    assert all(command.is_response for command in answers)
    assert answers[1].remark == "not my group"
    assert [request.consumer_group for request in changed] == ["G"]


def test_one_request_of_the_server_can_be_waited_for(peer: Peer) -> None:
    def script(peer: Peer) -> None:
        peer.write(NotifyConsumerIdsChanged(consumer_group="G").to_command(1, oneway=True))
        peer.hold()

    peer.play(script)
    with open_client(peer) as client:
        assert client.wait_for_request(NotifyConsumerIdsChanged).consumer_group == "G"
        with pytest.raises(RemotingTimeout):
            client.wait_for_request(NotifyConsumerIdsChanged, timeout_s=0.01)


def test_a_closed_connection_differs_from_silence(peer: Peer) -> None:
    peer.play(lambda peer: None)
    with open_client(peer) as client, pytest.raises(RemotingClosed):
        client.ask(ASK)


def test_silence_is_no_closed_connection(peer: Peer) -> None:
    peer.play(Peer.hold)
    with open_client(peer) as client:
        assert not client.is_closed_by_peer(timeout_s=0.01)


def test_bytes_go_and_come_as_they_are(peer: Peer) -> None:
    frame = encode_command(Command(105, 7))

    def script(peer: Peer) -> None:
        assert peer.read().opaque == 7
        peer.socket.sendall(frame)
        peer.read()
        peer.write(Command(0, 8, 1))

    peer.play(script)
    with open_client(peer) as client:
        client.send_bytes(frame[:3])
        client.send_bytes(frame[3:])
        assert client.receive_bytes() == frame
        client.send_bytes(frame)
        assert client.receive_command().opaque == 8


def test_a_refused_connection_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RemotingClosed, match=f"127.0.0.1:{port}"):
        BlockingClient("127.0.0.1", port, timeout_s=1)


def test_another_thread_ends_a_wait() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        with BlockingClient(host, port, timeout_s=60) as client:
            timer = threading.Timer(0.05, client.abort)
            timer.start()
            with pytest.raises(RemotingClosed):
                client.receive_command()
            timer.join()
            client.abort()  # does nothing more
