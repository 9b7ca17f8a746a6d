"""Changes of configuration by request."""

import pytest

from gateway.config.auth import AuthConfig
from gateway.config.live import ForbiddenKey, apply_update, list_values
from gateway.config.process import BrokerConfig, NamesrvConfig
from gateway.config.properties_file import PropertiesError, parse_properties
from gateway.tests.configs import broker_config


def test_live_keys_change_and_others_are_named() -> None:
    text = "fileReservedTime=48\nlistenPort=1\nfoo=bar\nautoCreateTopicEnable=false\n"
    change = apply_update(BrokerConfig(), text, set())
    assert change.config == broker_config(file_reserved_hours=48, auto_create_topic_enable=False)
    assert change.without_effect == ("listenPort", "foo")


def test_a_forbidden_key_stops_everything() -> None:
    with pytest.raises(ForbiddenKey):
        apply_update(NamesrvConfig(), "enableTopicList=false\nkvConfigPath=/x", {"kvConfigPath"})


def test_a_value_that_does_not_fit() -> None:
    with pytest.raises(
        ValueError, match=r'brokerPermission: invalid value "9" .expected a whole number from 0 to 7'
    ):
        apply_update(BrokerConfig(), "brokerPermission=9", set())
    with pytest.raises(PropertiesError):
        apply_update(BrokerConfig(), "a=\\u1", set())


def test_the_listing_is_properties_text_of_everything() -> None:
    entries = {each.key: each.value for each in parse_properties(list_values(NamesrvConfig(listen_port=5)))}
    assert entries["listenPort"] == "5"
    assert entries["configBlackList"] == "configBlackList;configStorePath;kvConfigPath"
    assert list(entries) == sorted(entries)


def test_a_text_that_is_too_long_is_not_parsed() -> None:
    with pytest.raises(ValueError, match="at most 65536"):
        apply_update(NamesrvConfig(), "a=b\\\n" * 20_000, set())


def test_a_listed_secret_that_is_sent_back_does_not_replace_the_secret() -> None:
    config = AuthConfig(init_user='{"username":"root","password":"secret"}')
    listed = list_values(config)
    assert "secret" not in listed
    assert apply_update(config, listed, set()).config == config
