"""Which addresses of brokers a front connects to: rules, the default, names that are resolved."""

from types import SimpleNamespace

import pytest
from trio.testing import trio_test

from gateway.grpc_front.broker_addresses import (
    MAX_LOGGED_REFUSALS,
    BrokerAddresses,
    guarded_opener,
    parse_rules,
)

NAMESRV = ("namesrv.example", 9876)
PORT = 10911


def find_refusal(text, host, address=None, port=PORT):
    return BrokerAddresses(parse_rules(text)).find_refusal(host, address or host, port)


@pytest.mark.parametrize(
    ("rules", "host", "address", "port"),
    [
        ("10.0.0.7", "10.0.0.7", "10.0.0.7", PORT),
        ("10.0.0.0/8", "10.9.8.7", "10.9.8.7", PORT),
        ("10.0.0.0/8", "broker-1", "10.9.8.7", PORT),
        ("10.0.0.0/8", "::ffff:10.9.8.7", "::ffff:10.9.8.7", PORT),
        ("192.168.0.1; 10.0.0.7:10911", "10.0.0.7", "10.0.0.7", PORT),
        ("10.0.0.0/8:10911", "10.0.0.7", "10.0.0.7", PORT),
        ("2001:db8::/32", "2001:db8::7", "2001:db8::7", PORT),
        ("[2001:db8::7]:10911", "2001:db8::7", "2001:db8::7", PORT),
        ("::1", "::1", "::1", PORT),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1", PORT),
        ("169.254.0.0/16", "169.254.1.1", "169.254.1.1", PORT),
        ("fe80::/10", "fe80::1%eth0", "fe80::1%eth0", PORT),
        ("broker-1", "Broker-1", "10.0.0.7", PORT),
        ("*.mq.svc:10911", "broker-1.mq.svc", "10.0.0.7", PORT),
        ("", "10.0.0.7", "10.0.0.7", 22),
        ("", "broker-1", "8.8.8.8", PORT),
    ],
)
def test_permitted_addresses(rules, host, address, port):
    assert find_refusal(rules, host, address, port) is None


@pytest.mark.parametrize(
    ("rules", "host", "address", "reason"),
    [
        ("10.0.0.7", "10.0.0.8", "10.0.0.8", "10.0.0.8:10911 is not listed in grpcBrokerAddresses"),
        ("10.0.0.7:10912", "10.0.0.7", "10.0.0.7", "is not listed"),
        ("10.0.0.0/8", "2001:db8::7", "2001:db8::7", r"\[2001:db8::7\]:10911 is not listed"),
        ("broker-1", "10.0.0.7", "10.0.0.7", "is not listed"),
        ("*.mq.svc", "mq.svc.example", "10.0.0.7", "is not listed"),
        ("10.0.0.0/8", "127.0.0.1", "127.0.0.1", "is not listed"),
        ("", "127.0.0.1", "127.0.0.1", "no namesrv is on this machine; list it in grpcBrokerAddresses"),
        ("", "broker-1", "127.9.9.9", "a loopback address"),
        ("", "::1", "::1", "a loopback address"),
        ("", "::ffff:127.0.0.1", "::ffff:127.0.0.1", "a loopback address"),
        ("", "169.254.169.254", "169.254.169.254", "is a link-local address; list it in grpcBrokerAddresses"),
        ("", "fe80::1%eth0", "fe80::1%eth0", "a link-local address"),
        ("", "0.0.0.0", "0.0.0.0", "not an address of a machine"),
        ("", "::", "::", "not an address of a machine"),
        ("", "224.0.0.1", "224.0.0.1", "not an address of a machine"),
        ("", "odd", "odd", "odd is not an address"),
    ],
)
def test_refused_addresses(rules, host, address, reason):
    refusal = find_refusal(rules, host, address)
    assert refusal is not None
    with pytest.raises(OSError, match=reason):
        raise OSError(refusal)


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.0/33",
        "10.0.0.300",
        "10.0.0",
        "10.*",
        "10.0.0.*:10911",
        "10.0.0.7:0",
        "broker:65536",
        "[broker",
        "2001:db8::7::",
        "a/b",
        ":10911",
    ],
)
def test_rules_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match=r"neither an address|a port is a number"):
        parse_rules(text)


class World:
    """Connections that are only noted. ``hosts`` is what DNS answers, ``refusing`` are addresses without a server."""

    def __init__(self, rules="", *, local="10.0.0.1", hosts=None, refusing=()):
        self.hosts = {"namesrv.example": ["10.0.0.2"], **(hosts or {})}
        self.refusing = refusing
        self.addresses = []
        self._local = local
        self.open = guarded_opener(
            BrokerAddresses(parse_rules(rules)), [NAMESRV], self._open_plain, self._resolve
        )

    async def _open_plain(self, host, port):
        self.addresses.append((host, port))
        if host in self.refusing:
            raise ConnectionRefusedError(f"{host} refuses")
        address = self.hosts.get(host, [host])[0]
        return SimpleNamespace(local=(self._local, 40000), remote=(address, port))

    async def _resolve(self, host):
        if "\0" in host:
            raise UnicodeError("label empty or too long")
        return self.hosts.get(host, [host])


@trio_test
async def test_a_namesrv_is_reached_by_its_name_whatever_the_rules_say():
    world = World("10.9.0.0/16")
    await world.open(*NAMESRV)
    assert world.addresses == [NAMESRV]
    with pytest.raises(OSError, match="not listed"):
        await world.open(NAMESRV[0], PORT)


@pytest.mark.parametrize(("local", "namesrv"), [("10.0.0.2", "10.0.0.2"), ("127.0.0.1", "127.0.1.1")])
@trio_test
async def test_loopback_addresses_are_those_of_brokers_if_the_namesrv_is_on_this_machine(local, namesrv):
    world = World(local=local, hosts={"namesrv.example": [namesrv]})
    with pytest.raises(OSError, match="no namesrv is on this machine"):
        await world.open("127.0.0.1", PORT)
    await world.open(*NAMESRV)
    await world.open("127.0.0.1", PORT)
    assert world.addresses == [NAMESRV, ("127.0.0.1", PORT)]


@trio_test
async def test_a_namesrv_elsewhere_names_no_ports_of_this_machine(caplog):
    world = World()
    await world.open(*NAMESRV)
    for _ in range(2):
        with pytest.raises(OSError, match="a loopback address"):
            await world.open("127.0.0.1", 22)
    assert world.addresses == [NAMESRV]
    assert [record.message for record in caplog.records] == ["address of a broker is not permitted"]


@trio_test
async def test_refusals_are_logged_for_so_many_addresses_only(caplog):
    world = World("10.0.0.1")
    for port in range(1, MAX_LOGGED_REFUSALS + 10):
        with pytest.raises(OSError, match="not listed"):
            await world.open("10.0.0.2", port)
    assert len(caplog.records) == MAX_LOGGED_REFUSALS


@trio_test
async def test_the_address_that_was_checked_is_connected_to():
    world = World(
        "10.0.0.0/8", hosts={"broker-1": ["192.168.0.1", "10.0.0.7", "10.0.0.8"]}, refusing=("10.0.0.7",)
    )
    transport = await world.open("broker-1", PORT)
    assert world.addresses == [("10.0.0.7", PORT), ("10.0.0.8", PORT)]
    assert transport.remote == ("10.0.0.8", PORT)


@pytest.mark.parametrize(
    ("hosts", "refusing", "reason"),
    [
        ({"broker-1": ["10.0.0.7"]}, ("10.0.0.7",), "10.0.0.7 refuses"),
        ({"broker-1": []}, (), "broker-1 has no address"),
        ({"broker-1": ["192.168.0.1"]}, (), "192.168.0.1:10911 is not listed"),
    ],
)
@trio_test
async def test_a_broker_that_cannot_be_reached(hosts, refusing, reason):
    world = World("10.0.0.0/8", hosts=hosts, refusing=refusing)
    with pytest.raises(OSError, match=reason):
        await world.open("broker-1", PORT)


@trio_test
async def test_a_name_that_is_none_is_an_error_of_its_connection():
    with pytest.raises(OSError, match="is not a host name"):
        await World().open("a\0b", PORT)
