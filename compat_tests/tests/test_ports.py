"""The search for free ports."""

import socket

from compat_tests.endpoints.ports import find_ports, find_server_ports, is_free


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert not is_free(taken.getsockname()[1])


def test_several_ports_differ_and_are_free() -> None:
    ports = find_ports(3)
    assert len(set(ports)) == 3
    assert all(map(is_free, ports))


def test_ports_leave_room_for_vip_and_ha_below_the_ephemeral_range() -> None:
    namesrv, broker = find_server_ports()
    assert namesrv not in range(broker - 2, broker + 2)
    assert 1024 < namesrv < broker + 1 < 32768
    assert is_free(broker - 2)


def test_ports_of_more_brokers_are_free_as_well() -> None:
    _, broker = find_server_ports(brokers=3)
    assert all(is_free(broker + 10 * number + beside) for number in range(3) for beside in (-2, 0, 1))
