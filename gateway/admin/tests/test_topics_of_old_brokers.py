"""Topics of brokers before 5.0, which know neither attributes nor all requests."""

from typing import Any

import pytest

from codec.constants import ResponseCode
from gateway.admin.errors import AdminError, Refused
from gateway.admin.topics import alter_topic, create_topic, read_config
from remoting.bodies.topics import TopicConfig, TopicConfigAndMappingSerializeWrapper
from remoting.requests.topics import GetAllTopicConfig, GetAllTopicConfigReply, UpdateAndCreateTopic


class OldBroker:
    """Answers as a client of a broker of 4.9 would see it."""

    masters = {"broker-a": "h:1"}  # noqa: RUF012 - a fake of one test

    def __init__(self) -> None:
        self.topics: dict[str, TopicConfig] = {}

    def map_brokers(self, brokers: Any, function: Any) -> list[Any]:
        return [function(each) for each in brokers]

    def ask_broker(self, broker: str, request: Any) -> Any:
        if isinstance(request, GetAllTopicConfig):
            data = TopicConfigAndMappingSerializeWrapper(topic_config_table=self.topics)
            return GetAllTopicConfigReply(data=data)
        if isinstance(request, UpdateAndCreateTopic):
            self.topics[request.topic] = TopicConfig(topic_name=request.topic, perm=request.perm)
            return None
        raise Refused("h:1", request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")


def test_settings_are_found_in_the_whole_table() -> None:
    client: Any = OldBroker()
    create_topic(client, TopicConfig(topic_name="t"), {}, ["broker-a"])
    config = read_config(client, "broker-a", "t")
    assert config is not None
    assert config.topic_name == "t"
    assert read_config(client, "broker-a", "u") is None


def test_ignored_attributes_are_told() -> None:
    client: Any = OldBroker()
    with pytest.raises(
        AdminError, match=r'"t" was created, but broker-a ignored message.type: brokers before 5.0'
    ):
        create_topic(client, TopicConfig(topic_name="t"), {"message.type": "FIFO"}, ["broker-a"])
    rows = alter_topic(client, "t", ["broker-a"], {"perm": 4}, {"message.type": "FIFO"}, [])
    assert rows == [
        {"broker": "broker-a", "setting": "perm", "before": 6, "now": 4},
        {"broker": "broker-a", "setting": "message.type", "before": None, "now": None},
    ]
