"""Settings of a connection: flags, environment, profiles, and their mistakes."""

from pathlib import Path

import pytest

from gateway.admin.errors import NotReached
from gateway.admin.settings import (
    ConnectionSettings,
    complete_address,
    load_credentials,
    load_settings,
)
from gateway.config.sources import values_of_environment
from toolkit.settings import SettingsError

PREFIX = "RMQ_GATEWAY_CLIENT_"


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    file = tmp_path / "profiles.toml"
    file.write_text(
        '[default]\nnamesrv = "default:1"\n'
        '[production]\nnamesrv = ["a:1", "b"]\ntimeout_s = 9\ntls_ca = "/ca.pem"\naccess_key = "ops"\n'
        'secret_key_file = "/no/such/secret"\n'
        '[plain]\nnamesrv = ["c:1"]\ntls = false\n'
        '[misspelt]\nnamesvr = ["c:1"]\n'
        "[typed]\ntimeout_s = 0\n"
    )
    return file


def test_defaults() -> None:
    settings = load_settings({}, {})
    assert (settings.find_namesrvs(), settings.timeout_s, settings.tls) == (("127.0.0.1:9876",), 5.0, False)


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ({}, {}, ["default:1"]),
        ({"profile": "plain"}, {}, ["c:1"]),
        ({}, {"PROFILE": "plain"}, ["c:1"]),
        ({"profile": "production"}, {"PROFILE": "plain"}, ["a:1", "b"]),
        ({}, {"NAMESRV": "e:1;e:2", "PROFILE": "plain"}, ["e:1", "e:2"]),
        ({"profile": "plain"}, {"NAMESRV": "e:1"}, ["c:1"]),
        ({"namesrv": ("f:1;f:2", "g:1"), "profile": "plain"}, {"NAMESRV": "e:1"}, ["f:1", "f:2", "g:1"]),
    ],
)
def test_the_most_specific_source_wins(
    profiles: Path, flags: dict[str, object], environment: dict[str, str], expected: list[str]
) -> None:
    variables = {PREFIX + name: value for name, value in environment.items()}
    assert load_settings({**flags, "profiles": str(profiles)}, variables).namesrv == expected


def test_the_official_variable_is_read_below_our_own() -> None:
    assert load_settings({}, {"NAMESRV_ADDR": "o:1;o:2"}).namesrv == ["o:1", "o:2"]
    assert load_settings({}, {"NAMESRV_ADDR": "o:1", f"{PREFIX}NAMESRV": "e:1"}).namesrv == ["e:1"]


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ({"address_server": "f"}, {"NAMESRV": "e:1"}, ("f", False)),
        ({"namesrv": ("f:1",)}, {"ADDRESS_SERVER": "e"}, ("", True)),
        ({}, {"ADDRESS_SERVER": "e"}, ("e", False)),
        ({"profile": "plain"}, {"ADDRESS_SERVER": "e"}, ("", True)),
    ],
)
def test_an_address_server_and_namesrvs_replace_one_another(
    profiles: Path, flags: dict[str, object], environment: dict[str, str], expected: tuple[str, bool]
) -> None:
    variables = {PREFIX + name: value for name, value in environment.items()}
    settings = load_settings({**flags, "profiles": str(profiles)}, variables)
    has_namesrvs = settings.namesrv != ["127.0.0.1:9876"]
    assert (settings.address_server, has_namesrvs) == expected


def test_our_own_variable_of_the_address_server_wins_over_the_official_one_of_namesrvs() -> None:
    variables = {"NAMESRV_ADDR": "o:1", f"{PREFIX}ADDRESS_SERVER": "e"}
    assert load_settings({}, variables).address_server == "e"


def test_one_source_sets_either_an_address_server_or_namesrvs() -> None:
    with pytest.raises(SettingsError, match="set either namesrv"):
        load_settings({"namesrv": ("f:1",), "address_server": "f"}, {})


@pytest.mark.parametrize(
    ("setting", "url"),
    [
        ("lists", "http://lists:8080/rocketmq/nsaddr"),
        ("lists:80", "http://lists:80/rocketmq/nsaddr"),
        ("http://lists/rocketmq/nsaddr-unit", "http://lists/rocketmq/nsaddr-unit"),
    ],
)
def test_the_address_server_is_asked_for_the_namesrvs(
    setting: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def answer(asked: str, timeout_s: float) -> str:
        requests.append((asked, timeout_s))
        return "a:1; b"

    monkeypatch.setattr("toolkit.address_server.fetch_namesrv_list", answer)
    settings = load_settings({"address_server": setting, "timeout_s": 2.0}, {})
    assert requests == []
    assert settings.find_namesrvs() == ("a:1", "b:9876")
    assert requests == [(url, 2.0)]


def test_an_address_server_that_lists_no_namesrv_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings({"address_server": "127.0.0.1:1"}, {})
    with pytest.raises(NotReached, match=r"http://127.0.0.1:1/rocketmq/nsaddr: .*--address-server"):
        settings.find_namesrvs()
    monkeypatch.setattr("toolkit.address_server.fetch_namesrv_list", lambda *_: "a:x")
    with pytest.raises(NotReached, match="lists no namesrv"):
        settings.find_namesrvs()


def test_settings_of_a_profile(profiles: Path) -> None:
    settings = load_settings({"profile": "production", "profiles": str(profiles)}, {})
    assert settings.find_namesrvs() == ("a:1", "b:9876")
    assert (settings.timeout_s, settings.tls_ca, settings.access_key) == (9.0, "/ca.pem", "ops")
    assert settings.tls, "an authority implies TLS"


@pytest.mark.parametrize(
    ("flags", "environment", "text"),
    [
        ({"profile": "plan"}, {}, 'profiles.toml; did you mean "plain"?'),
        ({"profile": "misspelt"}, {}, 'unknown setting "namesvr"; did you mean "namesrv"?'),
        (
            {"profile": "typed"},
            {},
            "[typed] timeout_s: invalid value 0 (expected a number of seconds from 0.01",
        ),
        ({"profiles": "/no/such/file"}, {}, "Name another one with --profiles"),
        ({}, {f"{PREFIX}TIMEOUT": "soon"}, f'{PREFIX}TIMEOUT: invalid value "soon"'),
        ({}, {f"{PREFIX}NAMESVR": "a:1"}, f'did you mean "{PREFIX}NAMESRV"?'),
        ({"namesrv": (";",)}, {}, "no address is given"),
    ],
)
def test_mistakes(profiles: Path, flags: dict[str, object], environment: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings({"profiles": str(profiles), **flags}, environment)
    assert text in str(error.value)


@pytest.mark.parametrize("content", ["namesrv = ['a:1']", "[", "\xff"])
def test_a_file_that_is_no_profiles_file_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "p.toml"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(SettingsError, match=r"p\.toml"):
        load_settings({"profiles": str(file)}, {})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host", "host:9876"),
        ("host:1", "host:1"),
        ("::1", "[::1]:9876"),
        ("[::1]", "[::1]:9876"),
        ("[::1]:5", "[::1]:5"),
    ],
)
def test_a_port_may_be_left_out(text: str, address: str) -> None:
    assert complete_address(text) == address


@pytest.mark.parametrize("text", ["", "host:", "host:http", "host:70000"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(SettingsError, match="--namesrv"):
        complete_address(text)


def test_credentials(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s3cret\n")
    found = load_credentials(ConnectionSettings(access_key="ops", secret_key_file=str(file)))
    assert found is not None
    assert (found.access_key, found.secret_key, found.security_token) == ("ops", "s3cret", None)
    from_environment = load_settings({"access_key": "ops"}, {f"{PREFIX}SECRET_KEY": "other"})
    assert "other" not in repr(from_environment)
    found = load_credentials(from_environment)
    assert found is not None
    assert found.secret_key == "other"
    assert load_credentials(ConnectionSettings()) is None


def test_a_secret_file_replaces_a_secret_of_a_source_below(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("of-file")
    settings = load_settings(
        {"access_key": "ops", "secret_key_file": str(file)}, {f"{PREFIX}SECRET_KEY": "other"}
    )
    found = load_credentials(settings)
    assert found is not None
    assert found.secret_key == "of-file"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"access_key": "ops"}, 'access_key "ops" has no secret: set secret_key_file'),
        ({"secret_key": "s"}, "no access_key"),
        ({"access_key": "a", "secret_key": "s", "secret_key_file": "f"}, "either"),
        ({"access_key": "a", "secret_key_file": "/no/such"}, "secret_key_file (--secret-key-file) /no/such"),
    ],
)
def test_credentials_that_are_incomplete(settings: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_credentials(ConnectionSettings(**settings))
    assert text in str(error.value)


def test_servers_ignore_the_variables_of_commands() -> None:
    assert values_of_environment({f"{PREFIX}NAMESRV": "a:1", f"{PREFIX}TLS": "true"}, "broker") == []
