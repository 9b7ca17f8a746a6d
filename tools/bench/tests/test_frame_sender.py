"""The client with many outstanding messages, against a broker that is played by a socket."""

import socket
import threading

import pytest

from codec.command import decode_frame, encode_response
from remoting.requests.send import SendMessageV2
from tools.bench.frame_sender import PreparedSender, encode_frames
from tools.bench.pipelined_sender import SendRefused


def test_frames_have_equal_sizes_and_take_turns_with_the_queues() -> None:
    frames = encode_frames("Topic", 4, b"x" * 128, 10)
    assert len({len(frame) for frame in frames}) == 1
    requests = [decode_frame(frame, 4, len(frame)) for frame in frames]
    assert {request.code for request in requests} == {SendMessageV2.code}
    assert [request.ext["e"] for request in requests] == list("0123012301")
    assert len({request.ext["i"] for request in requests}) == 10
    assert {request.body for request in requests} == {b"x" * 128}


class Broker:
    """Answers requests one by one; ``code`` may be changed."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.code = 0

    def serve(self, count: int) -> None:
        peer, _ = self.listener.accept()
        with peer, peer.makefile("rb") as stream:
            for _ in range(count):
                size = int.from_bytes(stream.read(4), "big")
                request = decode_frame(stream.read(size), 0, size)
                answer = encode_response(request.opaque, self.code, {"queueOffset": "0"}, b"", None)
                # In two parts, as a read may end anywhere.
                peer.sendall(answer[:11])
                peer.sendall(answer[11:])


@pytest.fixture
def broker():
    broker = Broker()
    yield broker
    broker.listener.close()


def test_answers_are_counted_wherever_a_read_ends(broker: Broker) -> None:
    thread = threading.Thread(target=broker.serve, args=(30,))
    thread.start()
    connection = PreparedSender(broker.listener.getsockname(), encode_frames("T", 1, b"x", 8), 5, 8)
    answers = 0
    while answers < 8:
        answers += connection.take_answers()
    for _ in range(22):
        connection.send(1)
        while not (count := connection.take_answers()):
            pass
        answers += count
    thread.join()
    assert answers == 30
    connection.socket.close()


def test_a_refusal_ends_the_run(broker: Broker) -> None:
    broker.code = 1
    thread = threading.Thread(target=broker.serve, args=(1,))
    thread.start()
    connection = PreparedSender(broker.listener.getsockname(), encode_frames("T", 1, b"x", 8), 0, 1)
    thread.join()  # Everything has arrived then.
    with pytest.raises(SendRefused, match='"code":1'):
        connection.take_answers()
    with pytest.raises(ConnectionError):
        connection.take_answers()
    connection.socket.close()
