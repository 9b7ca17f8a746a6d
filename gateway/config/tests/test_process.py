"""The declared keys as a whole: official names and defaults, and what follows from them."""

from operator import attrgetter

import pytest

from gateway.config.keys import keys_of
from gateway.config.process import TABLES, BrokerConfig, ListenerLimits, NamesrvConfig, ServeConfig
from gateway.config.unsupported import REASONS
from toolkit.values import plain_value

ALL = [(table, each) for table, kind in TABLES.items() for each in keys_of(kind).values()]


@pytest.mark.parametrize(("table", "declared"), ALL, ids=lambda each: getattr(each, "name", each))
def test_every_default_is_a_value_of_its_key(table: str, declared) -> None:
    setting = declared.setting
    assert setting.parse(plain_value(setting.default), "x") == setting.default_value
    assert setting.description
    assert "|" not in setting.description


def test_defaults_are_the_official_ones() -> None:
    config = BrokerConfig()
    official = {
        "autoCreateTopicEnable": True,
        "brokerClusterName": "DefaultCluster",
        "brokerPermission": 6,
        "channelExpiredTimeout": 120_000,
        "defaultTopicQueueNums": 8,
        "deleteWhen": "04",
        "fileReservedTime": 72,
        "flushDiskType": "ASYNC_FLUSH",
        "flushConsumerOffsetInterval": 5_000,
        "mappedFileSizeCommitLog": 1 << 30,
        "maxMessageSize": 4 << 20,
        "regionId": "DefaultRegion",
        "registerNameServerPeriod": 30_000,
        "shortPollingTimeMills": 1_000,
        "syncFlushTimeout": 5_000,
        "transactionTimeOut": 6_000,
    }
    declared = keys_of(BrokerConfig)
    assert {name: attrgetter(declared[name].attribute)(config) for name in official} == official


def test_a_key_is_supported_or_not_but_not_both() -> None:
    declared = {each.name for _, each in ALL}
    unsupported = [name for names in REASONS.values() for name in names.split()]
    assert len(unsupported) == len(set(unsupported))
    assert not declared & set(unsupported)


def test_environment_variables_are_unambiguous_within_a_table() -> None:
    for kind in TABLES.values():
        variables = [each.environment for each in keys_of(kind).values()]
        assert len(variables) == len(set(variables))


@pytest.mark.parametrize(("port", "vip"), [(10911, 10909), (3, 1), (2, None), (0, None)])
def test_the_vip_port_is_two_below(port: int, vip: int | None) -> None:
    assert BrokerConfig(listen_port=port).vip_port == vip


def test_the_ha_port_follows_the_listen_port() -> None:
    assert BrokerConfig(listen_port=20911).ha_address_port == 20912
    assert BrokerConfig(ha_listen_port=7).ha_address_port == 7


def test_limits_of_a_connection() -> None:
    limits = ListenerLimits(frame_bytes=4096, idle_close_s=7, json_values=2000).of_connection()
    assert (limits.max_frame_bytes, limits.idle_close_s, limits.max_json_values) == (4096, 7.0, 2000)


def test_a_process_has_a_namesrv_and_a_broker_by_default() -> None:
    config = ServeConfig()
    assert config.namesrv == NamesrvConfig()
    assert [each.broker_name for each in config.brokers] == ["broker-a"]
    assert (config.host, config.memory) == ("127.0.0.1", False)
