import pytest
import trio

from gateway.broker.assembly.namesrv_lookup import (
    NamesrvLookup,
    fetch_in_thread,
    resolve_host,
    split_addresses,
)
from gateway.tests.configs import broker_config
from toolkit.address_server import AddressServerError


def test_addresses():
    assert split_addresses("") == []
    assert split_addresses("a:1; 10.0.0.1:2;;[::1]:3 ") == [("a", 1), ("10.0.0.1", 2), ("::1", 3)]


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:x", "a:1;b"])
def test_addresses_that_are_none_are_named(text):
    with pytest.raises(ValueError, match="is not host:port"):
        split_addresses(text)


def test_a_configured_list_is_not_looked_up():
    lookup = NamesrvLookup(broker_config(namesrv_addr="a:1;b:2"))
    assert lookup.initial == [("a", 1), ("b", 2)]
    assert not lookup.may_change


def test_dns_without_names_has_nothing_to_look_up():
    assert not NamesrvLookup(broker_config(uses_dns=True)).may_change


def test_the_periods_are_those_of_the_settings():
    settings = {"fetch_interval_ms": 7_000, "dns_period_ms": 9_000}
    assert NamesrvLookup(broker_config(uses_address_server=True, **settings)).period_s == 7
    assert NamesrvLookup(broker_config(namesrv_addr="a:1", uses_dns=True, **settings)).period_s == 9


def test_hosts_are_resolved_without_repetitions():
    assert trio.run(resolve_host, "127.0.0.1") == ["127.0.0.1"]


def test_an_address_of_two_hosts_is_listed_once():
    async def resolve(host):
        return ["10.0.0.1", "10.0.0.2"] if host == "a" else ["10.0.0.1"]

    lookup = NamesrvLookup(broker_config(namesrv_addr="a:1;b:1", uses_dns=True), resolve=resolve)
    assert trio.run(lookup.look_up) == [("10.0.0.1", 1), ("10.0.0.2", 1)]


def test_an_address_server_is_asked_in_a_thread():
    with pytest.raises(AddressServerError, match=r"address server http://127.0.0.1:1/rocketmq/nsaddr: "):
        trio.run(fetch_in_thread, "http://127.0.0.1:1/rocketmq/nsaddr")
