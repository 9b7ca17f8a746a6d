"""Stock producers through the gateway: a target that is another server gets the same messages in the same queues."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.cases.both_sides import Held, held_by_both
from compat_tests.cases.conftest import warm_up
from compat_tests.clients.driver import Driver
from compat_tests.clients.java_api import Java
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import Official
from compat_tests.endpoints.ours import Ours
from compat_tests.endpoints.shadow import Shadow
from compat_tests.plugin import unavailable
from compat_tests.server import Server

pytestmark = [pytest.mark.ours_only, pytest.mark.both_servers]


class Setting:
    """An official broker with the gateway in front, and ours as the target."""

    def __init__(self, shadow: Shadow, target: Ours, java: Java) -> None:
        self.shadow, self.target, self.java = shadow, target, java

    def same(self, topic: str, count: int, *, in_order: bool = True) -> Held:
        """What both hold, queue by queue, once the primary has `count` messages."""
        primary, target = self.shadow.primary.broker, self.target.broker
        here, there = held_by_both(primary, target, topic, count, in_order=in_order)
        assert there == here
        return here


@pytest.fixture(scope="module")
def setting(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    if server.kind != "ours":
        pytest.skip("starts both servers itself: run once")
    here: Path = tmp_path_factory.mktemp("mirror")
    try:
        primary = Official({}, here / "primary")
        target = Ours({}, here / "target")
        with target:
            extra = (
                *("--set", f"target.namesrv={json.dumps([target.namesrv])}"),
                # On a busy machine an answer may come long after those to later messages.
                *("--set", "mirroring.order_ms=10000"),
                *("--set", f"mirroring.state_file={json.dumps(str(here / 'mirror.state'))}"),
            )
            with Shadow(primary, extra) as shadow:
                driver = Driver("server-5.4", shadow.namesrv, admin=True)
                try:
                    java = Java(driver, "5.4.0")
                    warm_up(java)
                    yield Setting(shadow, target, java)
                finally:
                    driver.close()
    except Unavailable as missing:
        unavailable(str(missing))


def test_plain_ordered_batched_and_delayed_messages(setting: Setting, server: Server) -> None:
    topic = server.topic_name()
    with setting.java.producer("mirror_plain") as producer:
        producer.bodies(topic, 60, tags="T", keys="k", flag=3, properties={"mine": "grüße"})
        producer.send(*[{"topic": topic, "body": f"async {n}"} for n in range(100)], mode="async")
        for key in range(3):
            ordered = [{"topic": topic, "body": f"{key}: {n}"} for n in range(20)]
            producer.send(*ordered, mode="selector", arg=key)
        producer.send(*[{"topic": topic, "body": f"batch {n}"} for n in range(16)], mode="batch")
        producer.send(*[{"topic": topic, "body": f"later {n}", "delay": 1} for n in range(4)])
    held = setting.same(topic, 60 + 100 + 60 + 16 + 4)
    assert {each["properties"].get("mine") for queue in held for each in queue} == {None, "grüße"}


def test_transactions(setting: Setting, server: Server) -> None:
    topic = server.topic_name()
    with setting.java.producer("mirror_plain") as plain:
        plain.bodies(topic, 1)
    states = ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "COMMIT_MESSAGE"] * 5
    halves = [
        {"topic": topic, "body": f"{state} {number}", "properties": {"local": state}}
        for number, state in enumerate(states)
    ]
    with setting.java.transactions("mirror_tx") as producer:
        producer.send(*halves)
    # A producer does not wait for its ends, and brokers carry them out side by side: their order is chance.
    held = setting.same(topic, 11, in_order=False)
    bodies = [each["body"].decode() for queue in held for each in queue]
    assert len(bodies) == 11
    assert not [body for body in bodies if body.startswith("ROLLBACK")]
