"""A primary with a replica behind the gateway: clients find both, and go on when the master is killed."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from compat_tests.clients.driver import ClientError, Driver
from compat_tests.clients.java_api import Java, Producer
from compat_tests.clients.typed import connect
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import Official, Replica
from compat_tests.endpoints.ports import server_ports
from compat_tests.endpoints.shadow import Shadow
from compat_tests.plugin import unavailable
from compat_tests.server import eventually
from remoting.errors import RequestError
from remoting.requests.namesrv import GetBrokerClusterInfo, GetRouteInfoByTopic
from remoting.requests.offsets import GetMaxOffset
from remoting.requests.topics import GetTopicConfig

pytestmark = [pytest.mark.ours_only, pytest.mark.both_servers]

NAME = "broker-a"
# How often a client looks for routes, and tells brokers of itself.
OFTEN = {"pollNameServerInterval": 1000, "heartbeatBrokerInterval": 1000}
# Without it a slave sends its readers back to the master.
READABLE = {"slaveReadEnable": "true"}
SLAVE = {"brokerId": "1", "brokerRole": "SLAVE", **READABLE}
TAKES_OVER_S = 90
# Settings of topics are copied each 10 s.
COPIES_S = 60


@dataclass
class Setting:
    """A master with a replica, the gateway in front of both, a stock client."""

    primary: Official
    replica: Replica
    gateway: Shadow
    java: Java

    def kill_master(self) -> None:
        """The namesrv stays."""
        self.primary.children.pop().kill()

    def copied(self, topic: str, count: int) -> bool:
        """Whether the replica has all messages of a topic, and knows the topic; raises as long as it does not."""
        with connect(self.replica.broker) as broker:
            broker.ask(GetTopicConfig(topic=topic))
            ends = [broker.ask(GetMaxOffset(topic=topic, queue_id=queue)).offset for queue in range(4)]
        return sum(ends) == count


def addresses(namesrv: str) -> dict[int, str]:
    """Brokers of our name by their id, as a namesrv tells."""
    with connect(namesrv) as client:
        table = client.ask(GetBrokerClusterInfo()).data.broker_addr_table or {}
    return dict(table[NAME].broker_addrs) if NAME in table else {}


def route(namesrv: str, topic: str) -> dict[int, str]:
    """The same in a topic's route."""
    with connect(namesrv) as client:
        (data,) = client.ask(GetRouteInfoByTopic(topic=topic)).data.broker_datas
    return dict(data.broker_addrs)


@contextmanager
def running(
    here: Path, master: dict[str, str], replica: dict[str, str], namesrv_settings: dict[str, str]
) -> Iterator[Setting]:
    try:
        primary = Official(master, here / "primary", namesrv_settings=namesrv_settings)
    except Unavailable as missing:
        unavailable(str(missing))
    with ExitStack() as stack:
        # Often enough that the test need not wait for it.
        gateway = stack.enter_context(Shadow(primary, ("--set", "listen.refresh_s=1")))
        second = Replica(
            replica, here / "replica", primary.namesrv, lambda at: at in addresses(primary.namesrv).values()
        )
        stack.enter_context(second)
        driver = stack.enter_context(closing(Driver("server-5.4", gateway.namesrv)))
        yield Setting(primary, second, gateway, Java(driver, "5.4.0"))


def go_on(producer: Producer, topic: str, count: int) -> None:
    """Sends again until the first one is taken."""

    def taken() -> bool:
        try:
            producer.bodies(topic, 1)
        except ClientError:
            return False
        return True

    eventually(taken, TAKES_OVER_S)
    producer.bodies(topic, count)


def test_consumers_read_from_the_slave_while_the_master_is_gone(tmp_path: Path) -> None:
    topic = "slaves"
    with (
        running(tmp_path, READABLE, SLAVE, {}) as setting,
        setting.java.push("readers", topic, settings=OFTEN) as consumer,
    ):
        with setting.java.producer("slaves") as producer:
            producer.bodies(topic, 8)
            assert len(consumer.received(8, TAKES_OVER_S)) == 8
            consumer.suspend()
            producer.bodies(topic, 40)
        theirs, ours = addresses(setting.primary.namesrv), both(setting)
        assert theirs == {0: setting.primary.broker, 1: setting.replica.broker}
        assert not set(ours.values()) & set(theirs.values())
        assert route(setting.gateway.namesrv, topic) == ours
        all_copied(setting, topic, 48)
        setting.kill_master()
        eventually(lambda: route(setting.gateway.namesrv, topic) == {1: ours[1]}, TAKES_OVER_S)
        consumer.resume()
        assert len({each["body"] for each in consumer.received(48, TAKES_OVER_S)}) == 40


def test_clients_follow_a_master_that_the_controller_elects(tmp_path: Path) -> None:
    controller = f"127.0.0.1:{server_ports()[0]}"
    in_namesrv = {
        "enableControllerInNamesrv": "true",
        "controllerDLegerGroup": "group1",
        "controllerDLegerPeers": f"n0-{controller}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": str(tmp_path / "controller"),
        "scanNotActiveBrokerInterval": "1000",
    }
    member = {
        "enableControllerMode": "true",
        "controllerAddr": controller,
        "brokerId": "-1",
        "brokerRole": "SLAVE",
        "controllerHeartBeatTimeoutMills": "3000",
    }
    with running(tmp_path, member, member, in_namesrv) as setting:
        before = both(setting)
        with (
            setting.java.producer("elected") as producer,
            setting.java.push("readers", "elected") as consumer,
        ):
            producer.bodies("elected", 40)
            assert len(consumer.received(40, TAKES_OVER_S)) == 40
            all_copied(setting, "elected", 40)
            setting.kill_master()
            go_on(producer, "elected", 20)
            assert route(setting.gateway.namesrv, "elected")[0] == before[2]
            assert len(consumer.received(61, TAKES_OVER_S)) >= 61


def both(setting: Setting) -> dict[int, str]:
    """Both brokers by their id, once the gateway's namesrv tells of them."""

    def found() -> dict[int, str]:
        known = addresses(setting.gateway.namesrv)
        return known if len(known) == 2 else {}

    return eventually(found, TAKES_OVER_S)


def all_copied(setting: Setting, topic: str, count: int) -> None:
    """Waits for it."""

    def copied() -> bool:
        try:
            return setting.copied(topic, count)
        except RequestError:
            return False

    eventually(copied, COPIES_S)
