"""Spill queue: exchanges that wait for a target that is down survive a kill of the gateway."""

from collections.abc import Iterator

import pytest

from acceptance.moving import ShadowProcess
from acceptance.workload import read_queue
from compat_tests.clients.typed import connect, send_request, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest, eventually

pytestmark = pytest.mark.both_servers

QUEUES = 4
LATER = 400
OUTAGE = 2_400
ARRIVES_S = 120.0


class Clusters:
    """A primary, a target that assigns its own offsets, and a gateway with a small memory limit and a spill queue."""

    def __init__(self, primary: OfficialEndpoint, target: OursEndpoint, shadow: ShadowProcess) -> None:
        self.primary, self.target, self.shadow = primary, target, shadow
        self.sent = 0

    def send(self, topic: str, count: int) -> None:
        """Send numbered messages through the gateway, to the queues in turn."""
        with connect(self.shadow.broker) as broker:
            for number in range(self.sent, self.sent + count):
                properties = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"k{number}"}
                body = b"%d " % number * (1 + number % 50)
                broker.ask(send_request(topic, body, queue_id=number % QUEUES, properties=properties))
        self.sent += count

    def stream(self) -> dict[str, int]:
        """Return the figures of the stream that mirrors sends; {} before the first send."""
        rows = self.shadow.get_json("/mirror")["streams"]
        return dict(next((row for row in rows if row["name"] == "primary-broker-a-0"), {}))

    def until_on_disk(self, count: int) -> None:
        """Wait until `count` exchanges are queued, all of them on disk."""
        eventually(lambda: self.stream().get("on_disk") == self.stream().get("queued") == count, ARRIVES_S)

    def restart(self) -> None:
        self.shadow.kill()
        self.shadow.start()


def read_bodies(where: OfficialEndpoint | OursEndpoint, topic: str) -> list[list[bytes]]:
    """Return the bodies of each queue, in order."""
    with connect(where.broker) as broker:
        return [[each.body for each in read_queue(broker, topic, queue)] for queue in range(QUEUES)]


@pytest.fixture(scope="module")
def clusters(server: ServerUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    if server.kind != "ours":
        pytest.skip("starts both servers itself: run once")
    here = tmp_path_factory.mktemp("spill")
    more = f"""
        [mirroring]
        queue_messages = 300
        spill = "disk"
        spill_dir = "{here / "spill"}"
        spill_file_bytes = 65536
        state_file = "{here / "state.json"}"
        breaker_backoff_max_ms = 500
        [[mirror]]
        topics = ["rmqgw*", "*"]
    """
    try:
        with (
            OfficialEndpoint({}, here / "primary") as primary,
            OursEndpoint({}, here / "target") as target,
            ShadowProcess(here / "gateway", primary.namesrv, target.namesrv, kind="any", more=more) as shadow,
        ):
            yield Clusters(primary, target, shadow)
    except Unavailable as missing:
        skip_or_fail(str(missing))


def test_a_gateway_killed_while_the_target_is_down_loses_nothing_and_repeats_nothing(
    clusters: Clusters, server: ServerUnderTest
) -> None:
    topic, shadow = server.topic_name("spilled"), clusters.shadow
    with connect(clusters.primary.broker) as broker:
        broker.ask(topic_request(topic, QUEUES))
    clusters.send(topic, LATER)
    eventually(
        lambda: read_bodies(clusters.target, topic) == read_bodies(clusters.primary, topic),
        ARRIVES_S,
        every_s=0.5,
    )

    clusters.target.crash()
    clusters.send(topic, OUTAGE)
    clusters.until_on_disk(OUTAGE)
    assert clusters.stream()["spilled"] > OUTAGE // 2
    clusters.restart()
    assert clusters.stream()["resumed"] == OUTAGE
    clusters.send(topic, LATER)
    clusters.until_on_disk(OUTAGE + LATER)

    clusters.target.start()
    for _ in range(2):  # the gateway is killed while it mirrors the backlog
        eventually(lambda: clusters.stream().get("mirrored", 0) > 300, ARRIVES_S, every_s=0.005)
        clusters.restart()
        assert clusters.stream()["resumed"] > 0
    shadow.wait_until_mirrored()
    clusters.send(topic, LATER)
    shadow.wait_until_mirrored()

    assert read_bodies(clusters.target, topic) == read_bodies(clusters.primary, topic)
    assert there(clusters, topic) == clusters.sent
    assert shadow.get_json("/mirror")["diverged"] == []
    shadow.run_command("parity", "-t", topic)
    assert not list((shadow.directory.parent / "spill").rglob("*.spill"))


def there(clusters: Clusters, topic: str) -> int:
    return sum(map(len, read_bodies(clusters.target, topic)))


def test_what_is_for_another_configuration_is_set_aside_and_told(
    clusters: Clusters, server: ServerUnderTest
) -> None:
    topic, shadow = server.topic_name("aside"), clusters.shadow
    with connect(clusters.primary.broker) as broker:
        broker.ask(topic_request(topic, QUEUES))
    clusters.target.crash()
    first = clusters.sent
    clusters.send(topic, LATER)
    clusters.until_on_disk(LATER)
    shadow.kill()
    text = shadow.file.read_text()
    shadow.file.write_text(text.replace('topics = ["rmqgw*", "*"]', 'topics = ["*"]'))
    shadow.start()
    (aside,) = eventually(lambda: shadow.get_json("/mirror")["set_aside"], ARRIVES_S)
    assert aside["exchanges"] == LATER
    assert sum(mark["count"] for mark in shadow.get_json("/mirror")["diverged"]) == LATER
    clusters.target.start()
    clusters.send(topic, LATER)
    shadow.wait_until_mirrored()
    assert sum(map(len, read_bodies(clusters.target, topic))) == LATER
    assert clusters.sent == first + 2 * LATER
    shadow.file.write_text(text)
