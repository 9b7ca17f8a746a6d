"""The tables of a server: consumer offsets, and the settings of topics and groups."""

from pathlib import Path

from acceptance.interchange.kinds import Kind, Losses
from acceptance.interchange.plain_kinds import FIRST, PLAIN, QUEUES
from acceptance.workload import commit_request, committed_offset
from compat_tests.clients.typed import create_group, send, topic_request
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.errors import RequestError
from remoting.requests.groups import GetSubscriptionGroupConfig
from remoting.requests.topics import GetTopicConfig

CONSUMERS = "interchange_consumers"
"""Commits FIRST_OFFSET long before the end, and LAST_OFFSET right before it."""
FIRST_OFFSET, LAST_OFFSET = 321, FIRST // QUEUES
SAVE_WAIT_S = 30.0


def wait_for_text(file: Path, text: str) -> None:
    """Wait until a file contains a text: servers save their tables some time after a change."""
    eventually(lambda: file.exists() and text in file.read_text(), SAVE_WAIT_S)


class Offsets(Kind):
    """Consumer offsets: those that the last regular save wrote to the file, and later ones."""

    name = "consumer offsets"

    def __init__(self, store: Path) -> None:
        self._file = store / "config" / "consumerOffset.json"

    def fill(self, broker: BlockingClient) -> None:
        create_group(broker, CONSUMERS)
        broker.ask(commit_request(PLAIN, FIRST_OFFSET, 0, CONSUMERS))
        broker.ask(commit_request(PLAIN, 7, 1, CONSUMERS))
        wait_for_text(self._file, CONSUMERS)

    def finish(self, broker: BlockingClient) -> None:
        broker.ask(commit_request(PLAIN, LAST_OFFSET, 0, CONSUMERS))

    def check(self, broker: BlockingClient) -> Losses:
        assert committed_offset(broker, PLAIN, 1, CONSUMERS) == 7
        offset = committed_offset(broker, PLAIN, 0, CONSUMERS)
        assert FIRST_OFFSET <= offset <= LAST_OFFSET
        return {"offsets committed last": LAST_OFFSET - offset}


class Settings(Kind):
    """Settings of topics and groups."""

    name = "settings of topics and groups"

    def __init__(self, store: Path, attributes: dict[str, str]) -> None:
        """Topics get these attributes, which a 4.9 broker does not know."""
        self._config = store / "config"
        self._attributes = attributes

    def fill(self, broker: BlockingClient) -> None:
        attributes = ",".join(f"+{key}={value}" for key, value in self._attributes.items())
        broker.ask(topic_request("InterchangeSettings", 5, perm=4, attributes=attributes or None))
        create_group(
            broker,
            "interchange_settings",
            retry_max_times=3,
            retry_queue_nums=2,
            consume_broadcast_enable=False,
        )
        send(broker, "InterchangeCreated", b"x", default_topic_queue_nums=3)
        wait_for_text(self._config / "topics.json", "InterchangeCreated")
        wait_for_text(self._config / "subscriptionGroup.json", "interchange_settings")

    def finish(self, broker: BlockingClient) -> None:
        send(broker, "InterchangeLast", b"x", default_topic_queue_nums=2)

    def check(self, broker: BlockingClient) -> Losses:
        topic = broker.ask(GetTopicConfig(topic="InterchangeSettings")).data
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (5, 5, 4)
        assert topic.attributes == self._attributes
        assert broker.ask(GetTopicConfig(topic="InterchangeCreated")).data.write_queue_nums == 3
        group = broker.ask(GetSubscriptionGroupConfig(group="interchange_settings")).data
        assert (group.retry_max_times, group.retry_queue_nums) == (3, 2)
        assert not group.consume_broadcast_enable
        return {"topics created last": not _has_topic(broker, "InterchangeLast")}


def _has_topic(broker: BlockingClient, topic: str) -> bool:
    try:
        broker.ask(GetTopicConfig(topic=topic))
    except RequestError:
        return False
    return True
