"""Every mqadmin command prints for our servers what it prints for the official ones.

`compat_tests/mqadmin` lists the commands and holds what they printed, which
`pytest compat_tests/cases/test_mqadmin.py --endpoint official --record` renews.
"""

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from compat_tests.cases.conftest import java_client
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.typed import (
    connect,
    create_group,
    create_topic,
    has_route,
    restore_timer_engine,
    send_readable,
)
from compat_tests.marks import case
from compat_tests.mqadmin.commands import (
    COMMANDS,
    GROUP,
    MADE,
    MADE_GROUP,
    NOT_RUN,
    OTHER_GROUP,
    TOPIC,
    AdminCommand,
)
from compat_tests.mqadmin.printed_text import mask_output
from compat_tests.mqadmin.recording import Output, read_deviations, read_recording, write_recording
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.errors import RequestError
from remoting.requests.groups import DeleteSubscriptionGroup
from remoting.requests.namesrv import DeleteTopicInNamesrv
from remoting.requests.offsets import UpdateConsumerOffset
from remoting.requests.topics import DeleteTopicInBroker

LOST_CONNECTION = re.compile("RemotingSendRequestException|RemotingTimeoutException")


@pytest.fixture(scope="module")
def places(
    recorded_server: ServerUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The topics and groups that the commands are about, and the values of their placeholders."""
    server = recorded_server
    delete_all(server)
    folder = tmp_path_factory.mktemp("mqadmin")
    topics = [{"topicName": "mqadmin_listed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]
    (folder / "topics.json").write_text(json.dumps(topics))
    (folder / "groups.json").write_text(json.dumps([{"groupName": "mqadmin_listed_group"}]))
    create_topic(server, TOPIC, 4)
    key = uuid.uuid4().hex.upper()
    with connect(server.broker) as broker:
        create_group(broker, GROUP)
        create_group(broker, OTHER_GROUP)
        properties = {"KEYS": "k1", "TAGS": "t1", "UNIQ_KEY": key}
        first = send_readable(broker, TOPIC, b"hello", properties=properties)
        for queue in range(1, 4):
            send_readable(
                broker, TOPIC, b"hello", queue_id=queue, properties={"UNIQ_KEY": uuid.uuid4().hex.upper()}
            )
        commit(broker, GROUP)
        commit(broker, OTHER_GROUP)
    yield {
        "broker": server.broker,
        "namesrv": server.namesrv,
        "id": first.msg_id,
        "key": key,
        "dir": str(folder),
    }
    delete_all(server)


def commit(broker: BlockingClient, group: str) -> None:
    for queue in range(4):
        broker.ask(UpdateConsumerOffset(consumer_group=group, topic=TOPIC, queue_id=queue, commit_offset=0))


def is_unknown(namesrv: BlockingClient, topic: str) -> bool:
    return not has_route(namesrv, topic)


def delete_all(server: ServerUnderTest) -> None:
    """Delete what an earlier run left behind, or this one made."""
    with connect(server.broker) as broker, connect(server.namesrv) as namesrv:
        for topic in (TOPIC, MADE, "mqadmin_listed", "mqadmin_static"):
            with suppress(RequestError):
                broker.ask(DeleteTopicInBroker(topic=topic))
            namesrv.ask(DeleteTopicInNamesrv(topic=topic))
            eventually(partial(is_unknown, namesrv, topic), 20)
        for group in (GROUP, OTHER_GROUP, MADE_GROUP, "mqadmin_listed_group"):
            broker.ask(DeleteSubscriptionGroup(group_name=group, clean_offset=True))
        restore_timer_engine(broker)


@pytest.fixture(scope="module")
def printed(
    request: pytest.FixtureRequest,
    server: ServerUnderTest,
    drivers: dict[str, JavaDriver],
    places: dict[str, str],
) -> Output:
    """The output of all commands, run one after the other in one JVM; recorded with ``--record``."""
    java = java_client(server, drivers, "5.4.0").acting_as(server.namesrv)
    output = {}
    for command in COMMANDS:
        arguments = [argument.format(**places) for argument in command.arguments]
        text = java.run_mqadmin(command.name, *arguments)
        if LOST_CONNECTION.search(text):
            # On a busy machine a stock client closes a connection whose heartbeat is late, with all that it waits for.
            text = java.run_mqadmin(command.name, *arguments)
        output[command.id] = mask_output(text, command, places)
    if request.config.getoption("--record"):
        assert server.kind == "official", "only the official server is recorded"
        write_recording(output)
    return output


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.id.replace(" ", "-"))
@case("admin", "mqadmin: every command prints what it prints for the official servers")
def test_command(server: ServerUnderTest, printed: Output, command: AdminCommand) -> None:
    recorded = read_recording()[command.id]
    reason = read_deviations().get(command.id) if server.kind == "ours" else None
    if reason is None:
        assert printed[command.id] == recorded
    else:
        assert printed[command.id] != recorded, "no longer differs: remove it from deviations.toml"


@case("admin", "mqadmin: every command is compared, but two that never end")
def test_all_commands(server: ServerUnderTest, drivers: dict[str, JavaDriver]) -> None:
    java = java_client(server, drivers, "5.4.0")
    listed = re.findall(r"^   (\w+) ", java.driver.call("mqadmin", arguments=[]), re.M)
    assert {command.name for command in COMMANDS} | set(NOT_RUN) == set(listed)
