"""Keys of configuration dataclasses: names, environment variables, values out and in."""

from dataclasses import dataclass, field

import pytest

from gateway.config.keys import Key, key, keys_of, upper_snake, values_of, with_values
from toolkit.settings import Setting
from toolkit.values import WholeNumber


@dataclass(frozen=True, slots=True)
class Part:
    count: int = key("partCount", 1, "a count")


@dataclass(frozen=True, slots=True)
class Sample:
    part: Part = field(default_factory=Part)
    size: int = key("sampleSize", 5, "a size", low=1, high=10, live=True)
    ratio: float = key("sampleRatio", 0.5, "a ratio", low=0, high=1)
    on: bool = key("sampleOn", False, "a switch")
    mode: str = key("sampleMode", "FAST", "a mode", choices=("FAST", "SAFE"))
    when: str = key("sampleWhen", "04", "two digits", pattern="[0-9]{2}")
    where: str = key("sampleWhere", "", "a place", path=True, unofficial=True)
    home: str = key("sampleHome", "~/sample", "a place", path=True)
    other: int = 3


KEYS = keys_of(Sample)


@pytest.fixture(autouse=True)
def _nowhere_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test depend on what a home folder holds."""
    monkeypatch.setenv("HOME", "/nowhere")


def parse(name: str, text: str) -> object:
    return KEYS[name].setting.parse(text, name)


def test_only_declared_fields_are_keys() -> None:
    assert list(KEYS) == [
        "partCount", "sampleSize", "sampleRatio", "sampleOn", "sampleMode", "sampleWhen", "sampleWhere", "sampleHome",
    ]  # fmt: skip
    assert KEYS["sampleSize"].attribute == "size"
    assert KEYS["partCount"].attribute == "part.count"
    assert Sample().size == 5
    assert KEYS["sampleSize"].is_live
    assert not KEYS["sampleWhere"].is_live


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
    parsed = parse(name, text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("sampleSize", "0", "expected a whole number from 1 to 10"),
        ("sampleSize", "11", "expected a whole number from 1 to 10"),
        ("sampleSize", "1.5", "expected a whole number"),
        ("sampleSize", "0x10", "expected a whole number"),
        ("sampleSize", "1_0", "expected a whole number"),
        ("sampleSize", "", "expected a whole number"),
        ("partCount", "9223372036854775808", "expected a whole number of 64 bits"),
        ("sampleRatio", "1.01", "expected a number from 0 to 1"),
        ("sampleRatio", "nan", "expected a number from 0 to 1"),
        ("sampleRatio", "inf", "expected a number from 0 to 1"),
        ("sampleRatio", "half", "expected a number from 0 to 1"),
        ("sampleOn", "yes", "expected true or false"),
        ("sampleMode", "SLOW", 'expected "FAST" or "SAFE"'),
        ("sampleWhen", "4", "expected two digits"),
    ],
)
def test_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f'{name}: invalid value "{text}" .{reason}'):
        parse(name, text)


def test_a_path_may_begin_with_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert parse("sampleWhere", "~/store") == "/somewhere/store"
    assert parse("sampleWhen", "04") == "04"


def test_a_default_in_the_home_directory_is_computed_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for home in ("/first", "/second"):
        monkeypatch.setenv("HOME", home)
        assert Sample().home == f"{home}/sample"


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


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("com.rocketmq.remoting.frameMax", "RMQ_GATEWAY_FRAME_MAX"),
        ("tls.server.keyPath", "RMQ_GATEWAY_TLS_SERVER_KEY_PATH"),
    ],
)
def test_a_dotted_key_keeps_its_parts_but_a_java_package_in_the_environment(name: str, variable: str) -> None:
    declared = Setting(name, WholeNumber(), 1, "")
    assert Key(declared, "x").environment == variable


def test_values_go_out_and_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    changed = with_values(Sample(), {"sampleSize": 9, "sampleOn": True, "partCount": 2})
    assert (changed.size, changed.on, changed.other, changed.part) == (9, True, 3, Part(2))
    written = values_of(changed)
    assert written["sampleOn"] == "true"
    assert {name: parse(name, text) for name, text in written.items()} == {
        "partCount": 2,
        "sampleSize": 9,
        "sampleRatio": 0.5,
        "sampleOn": True,
        "sampleMode": "FAST",
        "sampleWhen": "04",
        "sampleWhere": "",
        "sampleHome": "/somewhere/sample",
    }
