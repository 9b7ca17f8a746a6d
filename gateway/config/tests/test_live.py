"""Changes of configuration by request."""

import pytest

from gateway.config.live import ForbiddenKey, listing, updated
from gateway.config.process import BrokerConfig, NamesrvConfig
from gateway.config.properties_file import PropertiesError, parse_properties


def test_live_keys_change_and_others_are_named() -> None:
    text = "fileReservedTime=48\nlistenPort=1\nfoo=bar\nautoCreateTopicEnable=false\n"
    change = updated(BrokerConfig(), text, set())
    assert change.config == BrokerConfig(file_reserved_hours=48, auto_create_topic_enable=False)
    assert change.without_effect == ("listenPort", "foo")


def test_a_forbidden_key_stops_everything() -> None:
    with pytest.raises(ForbiddenKey):
        updated(NamesrvConfig(), "enableTopicList=false\nkvConfigPath=/x", {"kvConfigPath"})


def test_a_value_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="brokerPermission='9' must be in"):
        updated(BrokerConfig(), "brokerPermission=9", set())
    with pytest.raises(PropertiesError):
        updated(BrokerConfig(), "a=\\u1", set())


def test_the_listing_is_properties_text_of_everything() -> None:
    entries = {each.key: each.value for each in parse_properties(listing(NamesrvConfig(listen_port=5)))}
    assert entries["listenPort"] == "5"
    assert entries["configBlackList"] == "configBlackList;configStorePath;kvConfigPath"
    assert list(entries) == sorted(entries)
