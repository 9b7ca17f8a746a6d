"""Timer messages whose broker stops, is killed, or is replaced by the other implementation; these cases run last."""

from collections.abc import Sequence

from compat_tests.cases.test_restart import read_all, restart
from compat_tests.cases.test_timer import CHECKPOINT, now_ms, send_later
from compat_tests.clients.typed import connect, create_topic
from compat_tests.endpoints import Endpoint
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.requests.offsets import GetMaxOffset
from remoting.requests.send import SendMessageReply
from remoting.requests.timers import GetTimerCheckPoint

SETTINGS = {"mappedFileSizeCommitLog": "1048576", "recallMessageEnable": "true"}


def send_over(
    broker: BlockingClient, topic: str, delays_ms: Sequence[int], prefix: str = ""
) -> list[SendMessageReply]:
    """Send one message per delay, counted from now; bodies are numbers after the prefix."""
    begin = now_ms()
    return [
        send_later(broker, topic, f"{prefix}{number}".encode(), {"TIMER_DELIVER_MS": begin + delay})
        for number, delay in enumerate(delays_ms)
    ]


def wait_for(broker: BlockingClient, topic: str, count: int) -> list[str]:
    """Wait until queue 0 has `count` messages, and return all bodies."""
    end = GetMaxOffset(topic=topic, queue_id=0)
    eventually(lambda: broker.ask(end).offset >= count, 120)
    return [body.decode() for body in read_all(broker, topic)]


def settle(broker: BlockingClient, delivered_ms: int, queue_offset: int) -> None:
    """Wait until the broker has persisted that it delivered up to a time and read its topic up to a message.

    A killed broker may repeat what it did after that.
    """

    def is_settled() -> bool:
        read_ms, _, read, *_ = CHECKPOINT.unpack(broker.ask(GetTimerCheckPoint()).body)
        return bool(read_ms >= delivered_ms and read > queue_offset)

    eventually(is_settled, 90)  # in tests the official broker persists it once a minute


@case("timer", "SIGKILL while messages wait: none is lost, and ours delivers none twice")
def test_crash(endpoint: Endpoint, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 1)
    with connect(server.broker) as broker:
        begin = now_ms()
        send_over(broker, topic, [1_500, 2_000, 2_500], "early")
        wait_for(broker, topic, 3)
        sent = send_over(broker, topic, [20_000, 25_000, 25_001, 30_000], "late")
        settle(broker, begin + 2_500, sent[-1].queue_offset)
    restart(endpoint, endpoint.crash)
    with connect(server.broker) as broker:
        send_over(broker, topic, [4_000], "new")
        expected = {"early0", "early1", "early2", "late0", "late1", "late2", "late3", "new0"}
        eventually(lambda: expected <= set(wait_for(broker, topic, len(expected))), 120)
        found = wait_for(broker, topic, len(expected))
    assert set(found) == expected
    if server.kind == "ours":  # the official broker may repeat deliveries
        assert len(found) == len(expected)


@case("timer", "orderly restart while messages wait: each is delivered once")
def test_stop(endpoint: Endpoint, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 1)
    with connect(server.broker) as broker:
        send_over(broker, topic, [3_000 + 1_000 * number for number in range(20)])
        wait_for(broker, topic, 2)
    restart(endpoint, endpoint.stop)
    with connect(server.broker) as broker:
        found = wait_for(broker, topic, 20)
    assert sorted(found, key=int) == [str(number) for number in range(20)]
