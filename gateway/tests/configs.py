"""Broker configurations of tests, from flat field names: `broker_config(broker_name="b", file_reserved_hours=1)`."""

from dataclasses import fields, replace
from typing import Any

from gateway.config.process import BrokerConfig

PARTS = {
    field.name: part
    for part in ("store", "flow", "pop", "limits", "namesrv_list", "replication")
    for field in fields(getattr(BrokerConfig(), part))
}


def change_config(config: BrokerConfig, **changes: Any) -> BrokerConfig:
    """Return a copy of a broker's configuration with some fields changed, also those of its parts."""
    own: dict[str, Any] = {name: value for name, value in changes.items() if name not in PARTS}
    for part in {PARTS[name] for name in changes if name in PARTS}:
        changed = {name: value for name, value in changes.items() if PARTS.get(name) == part}
        own[part] = replace(getattr(config, part), **changed)
    return replace(config, **own)


def broker_config(**settings: Any) -> BrokerConfig:
    """Return the default configuration with some fields changed."""
    return change_config(BrokerConfig(), **settings)
