"""Values of every type: what is accepted, what is refused, and how they are written."""

from dataclasses import dataclass

import pytest

from gateway.config.keys import (
    Key,
    format_value,
    key,
    keys_of,
    parse_value,
    upper_snake,
    values_of,
    with_values,
)


@dataclass(frozen=True, slots=True)
class Sample:
    size: int = key("sampleSize", 5, "a size", low=1, high=10, live=True)
    ratio: float = key("sampleRatio", 0.5, "a ratio", low=0, high=1)
    on: bool = key("sampleOn", False, "a switch")
    mode: str = key("sampleMode", "FAST", "a mode", choices=("FAST", "SAFE"))
    when: str = key("sampleWhen", "04", "two digits", pattern="[0-9]{2}")
    where: str = key("sampleWhere", "", "a place", path=True, ours=True)
    other: int = 3


KEYS = keys_of(Sample)


def test_only_declared_fields_are_keys() -> None:
    assert list(KEYS) == ["sampleSize", "sampleRatio", "sampleOn", "sampleMode", "sampleWhen", "sampleWhere"]
    assert KEYS["sampleSize"].attribute == "size"
    assert Sample().size == 5


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("sampleSize", " 7 ", 7),
        ("sampleSize", "+10", 10),
        ("sampleRatio", "1", 1.0),
        ("sampleRatio", "2.5e-1", 0.25),
        ("sampleOn", "TRUE", True),
        ("sampleOn", "false ", False),
        ("sampleMode", "safe", "SAFE"),
        ("sampleWhen", "23", "23"),
        ("sampleWhere", " x ", " x "),
    ],
)
def test_accepted(name: str, text: str, value: object) -> None:
    parsed = parse_value(KEYS[name], text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("sampleSize", "0", r"must be in 1\.\.10"),
        ("sampleSize", "11", r"must be in 1\.\.10"),
        ("sampleSize", "1.5", "must be a whole number"),
        ("sampleSize", "0x10", "must be a whole number"),
        ("sampleSize", "", "must be a whole number"),
        ("sampleSize", "9223372036854775808", "must fit in 64 bits"),
        ("sampleRatio", "1.01", r"must be in 0\.\.1"),
        ("sampleRatio", "nan", "must be a finite number"),
        ("sampleRatio", "inf", "must be a finite number"),
        ("sampleRatio", "half", "must be a number"),
        ("sampleOn", "yes", "must be true or false"),
        ("sampleMode", "SLOW", "must be one of FAST, SAFE"),
        ("sampleWhen", "4", "does not fit: two digits"),
    ],
)
def test_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_value(KEYS[name], text)


def test_a_path_may_begin_with_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert parse_value(KEYS["sampleWhere"], "~/store") == "/somewhere/store"
    assert parse_value(KEYS["sampleWhen"], "04") == "04"


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("brokerIP1", "BROKER_IP1"),
        ("listenPort", "LISTEN_PORT"),
        ("useTLS", "USE_TLS"),
        ("haListenPort", "HA_LISTEN_PORT"),
        ("checkCRCOnRecover", "CHECK_CRC_ON_RECOVER"),
    ],
)
def test_environment_names(name: str, snake: str) -> None:
    assert upper_snake(name) == snake


def test_a_dotted_key_gives_its_last_part_to_the_environment() -> None:
    assert Key("com.rocketmq.frameMax", 1, "").environment == "RMQ_GATEWAY_FRAME_MAX"


def test_values_go_out_and_in() -> None:
    changed = with_values(Sample(), {"sampleSize": 9, "sampleOn": True})
    assert (changed.size, changed.on, changed.other) == (9, True, 3)
    written = values_of(changed)
    assert written["sampleOn"] == "true"
    assert {name: parse_value(KEYS[name], text) for name, text in written.items()} == {
        "sampleSize": 9,
        "sampleRatio": 0.5,
        "sampleOn": True,
        "sampleMode": "FAST",
        "sampleWhen": "04",
        "sampleWhere": "",
    }


def test_whole_floats_are_written_short() -> None:
    assert [format_value(each) for each in (1.0, 0.5, 3, False)] == ["1", "0.5", "3", "false"]
