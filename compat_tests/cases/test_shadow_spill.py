"""What waits for a target that is down outlives a gateway that is killed: real processes, an official primary."""

from collections.abc import Iterator

import pytest

from compat_tests.cases.load import read_queue
from compat_tests.cases.moving import Shadow
from compat_tests.clients.typed import connect, send_request, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import Official
from compat_tests.endpoints.ours import Ours
from compat_tests.plugin import unavailable
from compat_tests.server import Server, eventually

pytestmark = [pytest.mark.ours_only, pytest.mark.both_servers]

QUEUES = 4
LATER = 400
OUTAGE = 2_400
ARRIVES_S = 120.0


class Setting:
    """A primary, a target that gives offsets of its own, and the gateway with little memory and much disk."""

    def __init__(self, primary: Official, target: Ours, shadow: Shadow) -> None:
        self.primary, self.target, self.shadow = primary, target, shadow
        self.sent = 0

    def send(self, topic: str, count: int) -> None:
        """Through the gateway, to the queues in turn."""
        with connect(self.shadow.broker) as broker:
            for number in range(self.sent, self.sent + count):
                properties = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"k{number}"}
                body = b"%d " % number * (1 + number % 50)
                broker.ask(send_request(topic, body, queue_id=number % QUEUES, properties=properties))
        self.sent += count

    def stream(self) -> dict[str, int]:
        """The figures of the one stream that mirrors sends; none before the first."""
        rows = self.shadow.get("/mirror")["streams"]
        return dict(next((row for row in rows if row["name"] == "primary-broker-a-0"), {}))

    def until_on_disk(self, count: int) -> None:
        """Until so many exchanges wait, each of them in a file."""
        eventually(lambda: self.stream().get("on_disk") == self.stream().get("queued") == count, ARRIVES_S)

    def restart(self) -> None:
        self.shadow.kill()
        self.shadow.start()


def held(where: Official | Ours, topic: str) -> list[list[bytes]]:
    """The bodies of each queue, in order."""
    with connect(where.broker) as broker:
        return [[each.body for each in read_queue(broker, topic, queue)] for queue in range(QUEUES)]


@pytest.fixture(scope="module")
def setting(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
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
            Official({}, here / "primary") as primary,
            Ours({}, here / "target") as target,
            Shadow(here / "gateway", primary.namesrv, target.namesrv, kind="any", more=more) as shadow,
        ):
            yield Setting(primary, target, shadow)
    except Unavailable as missing:
        unavailable(str(missing))


def test_a_gateway_killed_while_the_target_is_down_loses_nothing_and_repeats_nothing(
    setting: Setting, server: Server
) -> None:
    topic, shadow = server.topic_name("spilled"), setting.shadow
    with connect(setting.primary.broker) as broker:
        broker.ask(topic_request(topic, QUEUES))
    setting.send(topic, LATER)
    eventually(lambda: held(setting.target, topic) == held(setting.primary, topic), ARRIVES_S, every_s=0.5)

    setting.target.crash()
    setting.send(topic, OUTAGE)
    setting.until_on_disk(OUTAGE)
    assert setting.stream()["spilled"] > OUTAGE // 2
    setting.restart()
    assert setting.stream()["resumed"] == OUTAGE
    setting.send(topic, LATER)
    setting.until_on_disk(OUTAGE + LATER)

    setting.target.start()
    for _ in range(2):  # the gateway is killed in the middle of its go
        eventually(lambda: setting.stream().get("mirrored", 0) > 300, ARRIVES_S, every_s=0.005)
        setting.restart()
        assert setting.stream()["resumed"] > 0
    shadow.quiet()
    setting.send(topic, LATER)
    shadow.quiet()

    assert held(setting.target, topic) == held(setting.primary, topic)
    assert there(setting, topic) == setting.sent
    assert shadow.get("/mirror")["diverged"] == []
    shadow.command("parity", "-t", topic)
    assert not list((shadow.directory.parent / "spill").rglob("*.spill"))


def there(setting: Setting, topic: str) -> int:
    return sum(map(len, held(setting.target, topic)))


def test_what_is_for_another_configuration_is_set_aside_and_told(setting: Setting, server: Server) -> None:
    topic, shadow = server.topic_name("aside"), setting.shadow
    with connect(setting.primary.broker) as broker:
        broker.ask(topic_request(topic, QUEUES))
    setting.target.crash()
    first = setting.sent
    setting.send(topic, LATER)
    setting.until_on_disk(LATER)
    shadow.kill()
    text = shadow.file.read_text()
    shadow.file.write_text(text.replace('topics = ["rmqgw*", "*"]', 'topics = ["*"]'))
    shadow.start()
    (aside,) = eventually(lambda: shadow.get("/mirror")["aside"], ARRIVES_S)
    assert aside["exchanges"] == LATER
    assert sum(mark["count"] for mark in shadow.get("/mirror")["diverged"]) == LATER
    setting.target.start()
    setting.send(topic, LATER)
    shadow.quiet()
    assert sum(map(len, held(setting.target, topic))) == LATER
    assert setting.sent == first + 2 * LATER
    shadow.file.write_text(text)
