"""The settings of a connection to a cluster: from flags, the environment, and a profile in a small TOML file.

The most specific source wins: flags, then the profile named by --profile, then the environment, then the profile named
by the environment or called "default".
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.config.keys import CLIENT_ENVIRONMENT_PREFIX
from toolkit.secret_file import read_secret_file
from toolkit.settings import SettingsError, setting, settings_of
from toolkit.suggestions import suggest_name
from toolkit.toml_tables import load_table, parse_toml

if TYPE_CHECKING:
    from remoting.acl import Credentials

DEFAULT_NAMESRV_PORT: Final = 9876
DEFAULT_PROFILE: Final = "default"
OFFICIAL_NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"
ADDRESS_SERVER_VARIABLE: Final = f"{CLIENT_ENVIRONMENT_PREFIX}ADDRESS_SERVER"
PROFILE_VARIABLE: Final = f"{CLIENT_ENVIRONMENT_PREFIX}PROFILE"
PROFILES_VARIABLE: Final = f"{CLIENT_ENVIRONMENT_PREFIX}PROFILES"
SECRET_VARIABLE: Final = f"{CLIENT_ENVIRONMENT_PREFIX}SECRET_KEY"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """One table of the profiles file; `--namesrv` and the other flags have the same names."""

    namesrv: list[str] = setting(
        lambda: [f"127.0.0.1:{DEFAULT_NAMESRV_PORT}"],
        "addresses of the namesrvs; without a port it is 9876",
        example=["10.0.0.1:9876", "10.0.0.2:9876"],
    )
    address_server: str = setting(
        "",
        "address server that lists the namesrvs: host[:port] (8080 without a port), or http://host:port/path; "
        "it replaces namesrv",
    )
    timeout_s: float = setting(5.0, "maximum time for connecting and for each answer", low=0.01, high=3600)
    tls: bool = setting(False, "connect with TLS")
    tls_ca: str = setting(
        "",
        "PEM file of the authority that signs the servers' certificates; none: those of the system",
        is_path=True,
    )
    tls_cert: str = setting("", "PEM file of the client's own certificate", is_path=True)
    tls_key: str = setting(
        "", "PEM file of its private key; none: the key is in the certificate's file", is_path=True
    )
    tls_server_name: str = setting(
        "", "name that the servers' certificates must have; none: the host that is dialled"
    )
    tls_insecure: bool = setting(False, "accept any certificate, as stock clients do")
    access_key: str = setting("", "access key of the user; none: requests are not signed")
    secret_key_file: str = setting("", "file with the user's secret", is_path=True)
    secret_key: str = setting("", "the user's secret, if it is in no file", secret=True)
    security_token_file: str = setting(
        "", "file with a security token, for servers that require one", is_path=True
    )

    def find_namesrvs(self) -> tuple[str, ...]:
        """Return the namesrvs as host:port; an address server is asked for them. Raises SettingsError, NotReached."""
        if not self.address_server:
            return tuple(map(complete_address, self.namesrv))
        from gateway.admin.errors import NotReached
        from toolkit.address_server import AddressServerError, address_server_url, fetch_namesrv_list

        is_url = "://" in self.address_server
        url = self.address_server if is_url else address_server_url(self.address_server)
        try:
            namesrvs = split_addresses(fetch_namesrv_list(url, self.timeout_s))
        except AddressServerError as error:
            raise NotReached(f"{error}. Set another one with --address-server, or use --namesrv.") from error
        try:
            return tuple(map(complete_address, namesrvs))
        except SettingsError as error:
            raise NotReached(f"address server {url} lists no namesrv: {error}") from error


def complete_address(text: str) -> str:
    """Return host:port of an address that may lack its port. Raises SettingsError."""
    from toolkit.values import Addresses

    text = text.strip()
    if "://" in text:
        raise SettingsError(
            f'--namesrv: "{text}" is a URL; expected host:port, without "{text.partition("//")[0]}//"'
        )
    lacks_port = text.endswith("]") if text.startswith("[") else text.count(":") != 1
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"
    address = f"{text}:{DEFAULT_NAMESRV_PORT}" if lacks_port and text else text
    try:
        Addresses()(address)
    except ValueError as error:
        raise SettingsError(f"--namesrv: {error}") from None
    return address


def split_addresses(text: str) -> list[str]:
    """Return the addresses of a text with commas or semicolons between them."""
    return [part.strip() for part in text.replace(";", ",").split(",") if part.strip()]


def default_profiles_file() -> Path:
    """Return the file that is read unless --profiles names another one."""
    import click

    return Path(click.get_app_dir("rmq-gateway")) / "profiles.toml"


def read_profiles(file: Path) -> dict[str, Any]:
    """Return the tables of a profiles file by name. Raises SettingsError."""
    import tomllib

    try:
        tables = parse_toml(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"profiles file {file}: {error.strerror}. Name another one with --profiles."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"profiles file {file} is not TOML: {error}") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise SettingsError(
                f'profiles file {file}: "{name}" stands outside of a table such as [{DEFAULT_PROFILE}]'
            )
    return tables


def load_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> ConnectionSettings:
    """Return the settings of one command. ``flags`` without a value are None or empty. Raises SettingsError."""
    flag_values = {name: value for name, value in flags.items() if value not in (None, (), False)}
    named = flag_values.pop("profile", None)
    files = flag_values.pop("profiles", None)
    if "namesrv" in flag_values:
        flag_values["namesrv"] = [
            address for text in flag_values["namesrv"] for address in split_addresses(text)
        ]
    file = Path(files or environment.get(PROFILES_VARIABLE) or default_profiles_file())
    is_file_named = bool(files or environment.get(PROFILES_VARIABLE))
    from_environment = _values_of_environment(environment)
    name = named or environment.get(PROFILE_VARIABLE)
    table = _find_profile(file, name, is_file_named)
    location = f"{file}: [{name or DEFAULT_PROFILE}]"
    if table:
        _check_profile(table, location)
    layers = [from_environment, table] if named else [table, from_environment]
    merged: dict[str, Any] = {}
    for layer in (*layers, flag_values):
        if "secret_key" in layer or "secret_key_file" in layer:  # one of them replaces the other
            merged.pop("secret_key", None)
            merged.pop("secret_key_file", None)
        if layer.get("namesrv") and layer.get("address_server"):
            raise SettingsError("set either namesrv (--namesrv) or address_server (--address-server)")
        if "namesrv" in layer or "address_server" in layer:
            merged.pop("namesrv", None)
            merged.pop("address_server", None)
        merged |= layer
    _turn_tls_on(merged)
    settings = load_table(ConnectionSettings, merged)
    if not settings.namesrv:
        raise SettingsError("namesrv: no address is given")
    return settings


def _turn_tls_on(merged: dict[str, Any]) -> None:
    """Let any TLS setting imply TLS, unless a source says no."""
    if any(merged.get(name) for name in ("tls_ca", "tls_cert", "tls_server_name", "tls_insecure")):
        merged.setdefault("tls", True)


def _find_profile(file: Path, name: str | None, is_file_named: bool) -> dict[str, Any]:
    """Return the table of a profile; an empty one if no profile is named and there is no default."""
    if not name and not is_file_named and not file.exists():
        return {}
    profiles = read_profiles(file)
    profile = name or DEFAULT_PROFILE
    if profile in profiles:
        return dict(profiles[profile])
    if name:
        raise SettingsError(f'--profile: "{name}" is not in {file}{suggest_name(name, profiles)}')
    return {}


def _check_profile(table: dict[str, Any], location: str) -> None:
    """Check one table by itself, so that an error names the file. A text stands for a list of one address."""
    if isinstance(table.get("namesrv"), str):
        table["namesrv"] = split_addresses(table["namesrv"])
    try:
        load_table(ConnectionSettings, table)
    except SettingsError as error:
        raise SettingsError(f"{location} {error}") from None


def _values_of_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in the environment. Raises SettingsError, also for a variable without a setting."""
    names = {f"{CLIENT_ENVIRONMENT_PREFIX}{name.upper()}": name for name in settings_of(ConnectionSettings)}
    names[f"{CLIENT_ENVIRONMENT_PREFIX}TIMEOUT"] = "timeout_s"
    values: dict[str, Any] = {}
    official = environment.get(OFFICIAL_NAMESRV_VARIABLE)
    if official and not environment.get(ADDRESS_SERVER_VARIABLE):
        values["namesrv"] = split_addresses(official)
    for variable, text in sorted(environment.items()):
        if not variable.startswith(CLIENT_ENVIRONMENT_PREFIX) or not text:
            continue
        if variable in (PROFILE_VARIABLE, PROFILES_VARIABLE):
            continue
        name = names.get(variable)
        if name is None:
            raise SettingsError(f"environment {variable}: no such setting{suggest_name(variable, names)}")
        if name == "namesrv":
            values[name] = split_addresses(text)
        else:
            values[name] = settings_of(ConnectionSettings)[name].parse(text, f"environment {variable}")
    return values


def load_credentials(settings: ConnectionSettings) -> "Credentials | None":
    """Return the credentials to sign requests with; None if requests are not signed. Raises SettingsError."""
    from remoting.acl import Credentials

    if settings.secret_key and settings.secret_key_file:
        raise SettingsError("set either secret_key or secret_key_file")
    secret = settings.secret_key
    if settings.secret_key_file:
        secret = read_secret_file(settings.secret_key_file, "secret_key_file (--secret-key-file)")
    if not settings.access_key:
        if secret:
            raise SettingsError("a secret is set, but no access_key (--access-key)")
        return None
    if not secret:
        raise SettingsError(
            f'access_key "{settings.access_key}" has no secret: set secret_key_file (--secret-key-file) '
            f"or the environment variable {SECRET_VARIABLE}"
        )
    token = None
    if settings.security_token_file:
        token = read_secret_file(settings.security_token_file, "security_token_file (--security-token-file)")
    return Credentials(settings.access_key, secret, token)
