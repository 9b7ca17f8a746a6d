"""Reads and changes settings of running brokers and namesrvs, and masks their secrets."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from gateway.admin.errors import AdminError
from gateway.config.properties_file import PropertiesError, decode_text, format_properties, parse_properties
from remoting.requests.admin import GetBrokerConfig, UpdateBrokerConfig
from remoting.requests.namesrv import GetNamesrvConfig, UpdateNamesrvConfig
from toolkit.settings import REDACTED

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

_SECRET_NAME: Final = re.compile(
    r"password|passwd|secret|token|credential|initAuthenticationUser|privateKey", re.IGNORECASE
)
_NO_SECRET_NAME: Final = re.compile(r"(Path|File|Provider|Strategy|Enable|Enabled|Ms|Seconds|Size|Count)$")


def is_secret(name: str) -> bool:
    """Return True if the value of a setting has to be hidden, judged by its name: keys differ between versions."""
    return bool(_SECRET_NAME.search(name)) and not _NO_SECRET_NAME.search(name)


def mask_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """Return settings with the values of secrets replaced; empty ones stay empty."""
    return {name: REDACTED if value and is_secret(name) else value for name, value in values.items()}


def parse_config(body: bytes, address: str) -> dict[str, str]:
    """Return the settings of an answer in order of their names. Raises AdminError if it is not properties text."""
    try:
        lines = parse_properties(decode_text(body))
    except PropertiesError as error:
        raise AdminError(f"{address} answered with settings that cannot be read: {error}") from error
    return dict(sorted((line.key, line.value) for line in lines))


def read_broker_config(client: "AdminClient", broker: str) -> dict[str, str]:
    """Return the settings of a broker, secrets included."""
    return parse_config(client.ask_broker(broker, GetBrokerConfig()).body, client.master(broker))


def read_namesrv_config(client: "AdminClient", address: str) -> dict[str, str]:
    """Return the settings of a namesrv, secrets included."""
    return parse_config(client.ask(address, GetNamesrvConfig()).body, address)


def update_broker_config(client: "AdminClient", broker: str, values: Mapping[str, str]) -> None:
    """Change settings of a broker."""
    request = UpdateBrokerConfig()
    request.body = format_properties(dict(values)).encode()
    client.ask_broker(broker, request)


def update_namesrv_config(client: "AdminClient", address: str, values: Mapping[str, str]) -> None:
    """Change settings of a namesrv."""
    request = UpdateNamesrvConfig()
    request.body = format_properties(dict(values)).encode()
    client.ask(address, request)


def rows_of_config(server: str, values: Mapping[str, str], pattern: str) -> list[dict[str, Any]]:
    """Return a row for each setting whose name matches a shell pattern, in any case; secrets are masked."""
    return [
        {"server": server, "key": name, "value": value}
        for name, value in mask_secrets(values).items()
        if fnmatchcase(name.lower(), pattern.lower())
    ]


def compare_config(
    server: str, before: Mapping[str, str], after: Mapping[str, str], changes: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return a row for each changed setting: its value before and now, because servers ignore unknown keys."""
    old, new = mask_secrets(before), mask_secrets(after)
    return [
        {
            "server": server,
            "key": name,
            "before": old.get(name),
            "now": new.get(name),
            "applied": after.get(name) == value,
        }
        for name, value in changes.items()
    ]
