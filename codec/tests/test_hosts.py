import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.errors import MessageFormatError
from codec.hosts import format_host, pack_address, pack_host, parse_host, unpack_address, unpack_host


@given(st.ip_addresses(), st.integers(0, 65535))
def test_round_trip(address, port):
    packed = pack_host((str(address), port))
    assert packed == address.packed + port.to_bytes(4)
    assert unpack_host(packed) == unpack_host(memoryview(packed)) == (str(address), port)


def test_a_zone_is_dropped():
    assert unpack_address(pack_address("fe80::1%eth0")) == "fe80::1"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        "1.2.3",
        "1.2.3.4.5",
        "256.1.1.1",
        "1.2.3.x",
        ":::",
        "a:b",
        "1.2.3.1_0",
        "1.2.3. 4",
        "1.2.3.-4",
        "1.2.3." + "4" * 5000,
        "." * 10**6,
        "fe80::1%" + "x" * 10**6,
        "\ud800:",
    ],
)
def test_refuses_addresses_that_are_not_numeric(address):
    with pytest.raises(MessageFormatError):
        pack_address(address)


@pytest.mark.parametrize("port", [-1, 2**31])
def test_refuses_impossible_ports(port):
    with pytest.raises(MessageFormatError):
        pack_host(("1.2.3.4", port))


@pytest.mark.parametrize("size", [0, 3, 5, 9, 21])
def test_refuses_other_sizes(size):
    with pytest.raises(MessageFormatError):
        unpack_host(b"x" * size)


def test_no_long_address_is_kept():
    for number in range(5):
        with pytest.raises(MessageFormatError, match="characters") as refused:
            pack_address(f"fe80::{number}%" + "x" * 100_000)
        assert len(str(refused.value)) < 200


def test_format_host():
    assert format_host(("10.0.0.1", 1)) == "10.0.0.1:1"
    assert format_host(("::1", 1)) == "[::1]:1"


def test_parse_host():
    assert parse_host("[::1]:9876") == ("::1", 9876)
    with pytest.raises(ValueError, match="no-port"):
        parse_host("no-port")


@pytest.mark.parametrize(
    "address", ["no-port", "a:0", "a:65536", "a:-1", ":1", "a:1_0", "a:" + "9" * 5000, ""]
)
def test_addresses_without_a_usable_port(address):
    with pytest.raises(ValueError, match="is not host:port") as error:
        parse_host(address)
    assert len(str(error.value)) < 200
