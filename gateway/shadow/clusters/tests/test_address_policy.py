"""Route data cannot make the gateway dial addresses that no broker of the cluster has."""

import socket

import pytest
import trio

from gateway.shadow.clusters.address_policy import AddressPolicy, AddressRefused, parse_networks
from remoting.tests.virtual import virtual
from toolkit.settings import SettingsError

REMOTE, LOCAL = ["10.0.0.1:9876"], ["127.0.0.1:9876"]


async def is_allowed(policy, host):
    try:
        return await policy.resolve(host, 10911) == (host, 10911)
    except AddressRefused:
        return False


@virtual
@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "0.0.0.0", "0.1.2.3", "::",
        "::ffff:0.0.0.0", "224.0.0.1", "ff02::1", "255.255.255.255", "127.0.0.1", "127.8.8.8", "::1",
        "::ffff:127.0.0.1", "64:ff9b::7f00:1",
    ],
)  # fmt: skip
async def test_addresses_where_no_broker_is_are_refused(host):
    assert not await is_allowed(AddressPolicy(REMOTE), host)


@virtual
@pytest.mark.parametrize(
    "host", ["10.0.0.1", "192.168.1.1", "172.16.0.9", "100.64.0.1", "8.8.8.8", "fd12::1"]
)
async def test_private_and_public_addresses_are_allowed(host):
    assert await is_allowed(AddressPolicy(REMOTE), host)


@virtual
async def test_loopback_is_allowed_where_the_namesrv_is_on_loopback():
    policy = AddressPolicy([*REMOTE, *LOCAL])
    assert await is_allowed(policy, "127.0.0.1")
    assert await is_allowed(policy, "::1")
    assert not await is_allowed(policy, "169.254.169.254")


@virtual
async def test_listed_networks_replace_the_default():
    policy = AddressPolicy(REMOTE, ["10.1.0.0/16", "169.254.7.0/24"])
    assert await is_allowed(policy, "10.1.255.1")
    assert await is_allowed(policy, "169.254.7.7")
    for other in ("10.2.0.1", "169.254.169.254", "8.8.8.8", "::ffff:10.2.0.1"):
        assert not await is_allowed(policy, other)
    with pytest.raises(AddressRefused, match=r"target\.broker_networks"):
        await AddressPolicy(REMOTE, ["10.1.0.0/16"], "target.broker_networks").resolve("10.2.0.1", 1)


def test_networks_are_checked_at_start():
    with pytest.raises(SettingsError, match="primary"):
        parse_networks(["10.0.0.0/99"], "primary.broker_networks")


def named(monkeypatch, **hosts):
    def getaddrinfo(host, port, type):
        if host not in hosts:
            raise socket.gaierror(f"unknown {host}")
        return [(socket.AF_INET, type, 6, "", (each, 0)) for each in hosts[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_the_address_of_a_name_is_checked(monkeypatch):
    async def main():
        named(monkeypatch, broker=["169.254.169.254", "10.1.0.7"], evil=["169.254.169.254"], ns=["127.0.1.1"])
        policy = AddressPolicy(["ns:9876"])
        assert await policy.resolve("broker", 10911) == ("10.1.0.7", 10911)
        with pytest.raises(AddressRefused, match=r"evil \(169.254.169.254\)"):
            await policy.resolve("evil", 80)
        with pytest.raises(OSError, match="unknown"):
            await policy.resolve("nobody", 80)
        assert await policy.resolve("127.0.0.1", 1) == ("127.0.0.1", 1)

    trio.run(main)


def test_a_pinned_name_is_dialed_at_the_address_that_was_checked(monkeypatch):
    async def main():
        dialed = []

        async def open_plain(host, port):
            dialed.append((host, port))

        policy = AddressPolicy(REMOTE)
        opener = policy.guard_opener(open_plain)
        named(monkeypatch, broker=["10.1.0.7"])
        await policy.pin("broker", 1)
        named(monkeypatch, broker=["10.66.6.6"])
        await opener("broker", 1)
        policy.forget_pin("broker", 1)
        await opener("broker", 1)
        await opener("10.0.0.1", 9876)
        with pytest.raises(AddressRefused):
            await opener("169.254.169.254", 80)
        assert dialed == [("10.1.0.7", 1), ("10.66.6.6", 1), ("10.0.0.1", 9876)]

    trio.run(main)


@virtual
async def test_hostile_names_are_refused():
    for host in ("a" * 100_000, "\udc80", "..", "é" * 70, "\0"):
        with pytest.raises(OSError, match=r"."):
            await AddressPolicy(REMOTE).resolve(host, 1)
