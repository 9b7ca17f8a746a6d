"""Broker addresses as clients receive them."""

import pytest

from gateway.namesrv.addresses import address_for, join_address


@pytest.mark.parametrize(
    ("host", "joined"),
    [
        ("1.2.3.4", "1.2.3.4:10911"),
        ("broker.example", "broker.example:10911"),
        ("::1", "[::1]:10911"),
        ("[::1]", "[::1]:10911"),
        ("::ffff:1.2.3.4", "1.2.3.4:10911"),
        ("::ffff:1", "[::ffff:1]:10911"),
    ],
)
def test_join(host: str, joined: str) -> None:
    assert join_address(host, 10911) == joined


def test_only_auto_depends_on_the_asker() -> None:
    assert address_for("auto:10911", "10.0.0.1") == "10.0.0.1:10911"
    assert address_for("auto:10911", "fe80::1") == "[fe80::1]:10911"
    assert address_for("automatic.example:10911", "10.0.0.1") == "automatic.example:10911"
    assert address_for("9.9.9.9:1", "10.0.0.1") == "9.9.9.9:1"
