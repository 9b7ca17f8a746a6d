"""Popped messages whose broker is killed, stops, or is replaced by the other implementation; these cases run last."""

import itertools
import threading
from contextlib import suppress

from compat_tests.cases.test_restart import restart
from compat_tests.clients.popping import (
    POLLING_TIMEOUT,
    PoppedMessage,
    ack,
    pop,
    pop_messages,
    pop_until,
    send_each,
)
from compat_tests.clients.typed import connect, create_group, create_topic
from compat_tests.endpoints import Endpoint
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.bodies.pop import SetMessageRequestModeRequestBody
from remoting.errors import REQUEST_FAILURES
from remoting.requests.pop import GetAllMessageRequestMode, SetMessageRequestMode

AGAIN_S = 90
LONG_MS = 600_000


def collect(broker: BlockingClient, topic: str, group: str, wanted: set[bytes]) -> list[PoppedMessage]:
    """Pop and ack until all wanted messages have come, and return everything that came."""
    found: list[PoppedMessage] = []

    def look() -> bool:
        for each in pop_messages(broker, topic, group, invisible_time=LONG_MS):
            found.append(each)
            ack(broker, group, each)
        return wanted <= {each.body for each in found}

    eventually(look, AGAIN_S)
    return found


@case("pop", "SIGKILL between pop and ack: unacknowledged messages come again, nothing is lost")
def test_crash(endpoint: Endpoint, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 2)
    names = [f"{number:02d}".encode() for number in range(40)]
    acked: set[bytes] = set()
    with connect(server.broker) as broker:
        group = create_group(broker, server.unique_name("group"))
        for number, name in enumerate(names):
            send_each(broker, topic, [name], queue_id=number % 2)
        for _ in range(3):
            for number, each in enumerate(
                pop_messages(broker, topic, group, max_msg_nums=10, invisible_time=20_000)
            ):
                if number % 3:
                    ack(broker, group, each)
                    acked.add(each.body)
    restart(endpoint, endpoint.crash)
    with connect(server.broker) as broker:
        found = collect(broker, topic, group, set(names) - acked)
        assert acked | {each.body for each in found} == set(names)
        if server.kind == "ours":  # a killed official broker loses up to 5 s of consumer offsets
            left = pop_messages(broker, topic, group, poll_time=10_000, timeout_s=60)
            assert left == []
            assert sorted(each.body for each in found) == sorted(set(names) - acked)


@case("pop", "orderly restart: a queue popped in order stays blocked, and old receipt handles remain valid")
def test_order(endpoint: Endpoint, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 1)
    with connect(server.broker) as broker:
        group = create_group(broker, server.unique_name("group"))
        send_each(broker, topic, [b"0", b"1", b"2", b"3"])
        out = pop_until(broker, topic, group, 3, order=True, max_msg_nums=3, invisible_time=LONG_MS)
        ack(broker, group, out[0])
        mode = SetMessageRequestModeRequestBody(topic=topic, consumer_group=group, mode="POP")
        broker.ask(SetMessageRequestMode(data=mode))
    restart(endpoint, endpoint.stop)
    with connect(server.broker) as broker:
        assert pop(broker, topic, group, order=True).code == POLLING_TIMEOUT
        for each in out[1:]:
            ack(broker, group, each)
        assert [each.body for each in pop_messages(broker, topic, group, order=True)] == [b"3"]
        modes = broker.ask(GetAllMessageRequestMode()).data.message_request_mode_map
        assert modes[topic][group].mode == "POP"


class Consumption:
    """A thread that sends, pops and acks until its broker is gone, and records what it did."""

    def __init__(self, where: str, topic: str, group: str) -> None:
        self.sent: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.doubtful = b""
        self._thread = threading.Thread(target=self._run, args=(where, topic, group), daemon=True)
        self._thread.start()

    def _run(self, where: str, topic: str, group: str) -> None:
        with suppress(*REQUEST_FAILURES), connect(where) as broker:
            for serial in itertools.count():
                name = b"%06d" % serial
                send_each(broker, topic, [name], queue_id=serial % 2)
                self.sent.add(name)
                for each in pop_messages(broker, topic, group, max_msg_nums=2, invisible_time=15_000):
                    if serial % 4:  # the pops of every fourth round are left unacknowledged
                        self.doubtful = each.body
                        ack(broker, group, each)
                        self.acked.add(each.body)

    def join(self) -> None:
        self._thread.join(60)


@case("pop", "SIGKILL amid sends, pops and acks: nothing is lost")
def test_crash_at_work(endpoint: Endpoint, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 2)
    with connect(server.broker) as broker:
        group = create_group(broker, server.unique_name("group"))
    work = Consumption(server.broker, topic, group)
    eventually(lambda: len(work.acked) > 200, 60)
    restart(endpoint, endpoint.crash)
    work.join()
    with connect(server.broker) as broker:
        found = [
            each.body for each in collect(broker, topic, group, work.sent - work.acked - {work.doubtful})
        ]
        if server.kind == "ours":
            assert not (work.acked - {work.doubtful}) & set(found)
