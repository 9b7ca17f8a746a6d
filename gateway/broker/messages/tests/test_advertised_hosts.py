import socket

import pytest

from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6
from gateway.broker.messages.advertised_hosts import (
    AdvertisedHosts,
    HostView,
    resolve_numeric,
    resolve_or_loopback,
)
from gateway.tests.broker_fakes import FakeConnection


def test_with_auto_each_peer_sees_the_address_it_dialled():
    hosts = AdvertisedHosts("auto", lambda: 10911)
    near = FakeConnection(remote=("10.0.0.7", 5), local=("10.0.0.1", 10909))
    far = FakeConnection(remote=("192.168.1.7", 6), local=("192.168.1.1", 10911))
    assert hosts.address_for(near) == ("10.0.0.1", 10911), "never the VIP channel's port"
    assert hosts.view_of(far).store_host == bytes((192, 168, 1, 1, 0, 0, 0x2A, 0x9F))
    assert hosts.view_of(far).born_host == bytes((192, 168, 1, 7, 0, 0, 0, 6))
    assert hosts.view_of(near).message_id(0xAB) == "0A00000100002A9F00000000000000AB"
    assert hosts.view_of(near) is hosts.view_of(near)
    assert hosts.own_address() == ("127.0.0.1", 10911)


def test_an_advertised_address_is_shown_to_all():
    hosts = AdvertisedHosts("10.9.9.9", lambda: 4000)
    connection = FakeConnection()
    assert hosts.address_for(connection) == hosts.own_address() == ("10.9.9.9", 4000)
    assert hosts.view_of(connection).store_host[:4] == bytes((10, 9, 9, 9))


def test_an_advertised_name_is_shown_as_it_is_and_stored_as_its_address(monkeypatch):
    monkeypatch.setattr(socket, "gethostbyname", {"broker.example": "10.1.2.3"}.__getitem__)
    hosts = AdvertisedHosts("broker.example", lambda: 4000)
    connection = FakeConnection()
    assert hosts.address_for(connection) == ("broker.example", 4000)
    assert hosts.own_address() == ("10.1.2.3", 4000)
    assert hosts.view_of(connection).store_host[:4] == bytes((10, 1, 2, 3))


def test_a_name_nobody_knows_is_loopback_and_said_so(monkeypatch, caplog):
    def unknown(name):
        raise OSError("no such name")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    assert resolve_or_loopback("nowhere.example") == "127.0.0.1"
    assert "advertised host name cannot be resolved" in caplog.text
    assert resolve_numeric("::1") == "::1"


@pytest.mark.parametrize(
    ("remote", "local", "flags"),
    [
        ("10.0.0.1", "10.0.0.2", 0),
        ("::1", "10.0.0.2", BORN_HOST_V6),
        ("10.0.0.1", "fe80::1%eth0", STORE_HOST_V6),
        ("::1", "::2", BORN_HOST_V6 | STORE_HOST_V6),
    ],
)
def test_flags_tell_the_size_of_each_host(remote, local, flags):
    view = HostView((remote, 1), (local, 2))
    assert view.sys_flag == flags
    assert len(view.message_id(0)) == (56 if flags & STORE_HOST_V6 else 32)


def test_peers_without_a_numeric_address_count_as_loopback():
    assert HostView(("memory", 7), ("", 8)).born_host == bytes((127, 0, 0, 1, 0, 0, 0, 7))


def test_connected_clients_see_an_address_that_changes():
    hosts = AdvertisedHosts("auto", lambda: 10911)
    connection = FakeConnection(local=("10.0.0.1", 10911))
    view = hosts.view_of(connection)
    hosts.advertise("::9", "::9")
    assert (view.message_id(0)[:32], view.sys_flag) == ("0" * 31 + "9", STORE_HOST_V6)
    hosts.advertise("broker.example", "10.1.2.3")
    assert (view.store_host[:4], view.sys_flag) == (bytes((10, 1, 2, 3)), 0)
    assert hosts.address_for(connection) == ("broker.example", 10911)
    assert hosts.own_address() == ("10.1.2.3", 10911)
    hosts.advertise("auto", "auto")
    assert view.store_host[:4] == bytes((10, 0, 0, 1))


def test_port_that_leads_to_the_broker_is_shown():
    hosts = AdvertisedHosts("10.1.1.1", lambda: 10911, 32_768)
    connection = FakeConnection(local=("10.0.0.1", 10911))
    view = hosts.view_of(connection)
    assert hosts.address_for(connection) == hosts.own_address() == ("10.1.1.1", 32_768)
    hosts.advertise("10.1.1.1", None, 40_000)
    assert view.store_host == bytes((10, 1, 1, 1)) + (40_000).to_bytes(4, "big")
    hosts.advertise("10.1.1.1", None)
    assert hosts.address_for(connection) == ("10.1.1.1", 10911)
