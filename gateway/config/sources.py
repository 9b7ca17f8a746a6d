"""Where configuration comes from, and how it becomes one checked ServeConfig.

One order, the later wins: defaults < files (-c, in the order given) < environment < flags (--set before the
named flags). It does not declare keys (gateway.config.process does) and starts nothing.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from gateway.config.keys import Key, Value, keys_of, parse_value, upper_snake, with_values
from gateway.config.process import (
    TABLES,
    BrokerConfig,
    ListenerLimits,
    NamesrvConfig,
    ProcessConfig,
    ServeConfig,
)
from gateway.config.properties_file import PropertiesError, decode_text, parse_properties
from gateway.config.unsupported import REASONS, UNUSED, UNUSED_REASON, reason_for

Role = Literal["serve", "namesrv", "broker"]

ENVIRONMENT_PREFIX = "RMQ_GATEWAY_"
PORTS_BETWEEN_BROKERS = 10
_SEARCH = {
    "namesrv": ("namesrv", "listener", "process", "broker"),
    "broker": ("broker", "listener", "process", "namesrv"),
}


class ConfigError(ValueError):
    """Configuration that cannot be used; the message is for the person who wrote it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value given somewhere: `origin` says where, for messages; `scope` is namesrv or broker."""

    name: str
    text: str
    origin: str
    scope: str = "broker"


def load_config(
    role: Role,
    files: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    sets: Iterable[str] = (),
    flags: Iterable[Setting] = (),
) -> ServeConfig:
    """The configuration of a process of this role. Raises ConfigError."""
    scope = "namesrv" if role == "namesrv" else "broker"
    settings: list[Setting] = []
    for path in files:
        settings += settings_of_file(path, "namesrv" if "namesrv" in os.path.basename(path) else scope)
    settings += settings_of_environment(environment or {}, role)
    settings += [_setting_of_flag(text, scope) for text in sets]
    settings += flags
    return assemble(role, settings)


def settings_of_file(path: str, scope: str) -> list[Setting]:
    """Every property of a file in official syntax. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            text = decode_text(file.read())
        entries = parse_properties(text)
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}") from problem
    except PropertiesError as problem:
        raise ConfigError(f"{path}:{problem.line}: {problem.reason}") from problem
    return [Setting(each.key, each.value, f"{path}:{each.line}", scope) for each in entries]


def settings_of_environment(environment: Mapping[str, str], role: Role) -> list[Setting]:
    """Variables RMQ_GATEWAY_<KEY>, RMQ_GATEWAY_NAMESRV_<KEY> for the namesrv's where both have one.

    A broker on its own also takes the official NAMESRV_ADDR, below RMQ_GATEWAY_NAMESRV_ADDR.
    """
    names = {each.environment: ("broker", name) for name, each in keys_of(BrokerConfig).items()}
    for table in (ListenerLimits, ProcessConfig):
        names |= {each.environment: ("broker", name) for name, each in keys_of(table).items()}
    for name in keys_of(NamesrvConfig):
        names[f"{ENVIRONMENT_PREFIX}NAMESRV_{upper_snake(name)}"] = ("namesrv", name)
        names.setdefault(ENVIRONMENT_PREFIX + upper_snake(name), ("namesrv", name))
    settings = []
    if role == "broker" and environment.get("NAMESRV_ADDR"):
        settings.append(Setting("namesrvAddr", environment["NAMESRV_ADDR"], "environment NAMESRV_ADDR"))
    for variable, text in sorted(environment.items()):
        if variable.startswith(ENVIRONMENT_PREFIX):
            scope, name = names.get(variable, ("broker", variable))
            settings.append(Setting(name, text, f"environment {variable}", scope))
    return settings


def _setting_of_flag(text: str, scope: str) -> Setting:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise ConfigError(f"--set {text}: must be key=value")
    return Setting(name.strip(), value, f"--set {name.strip()}", scope)


def resolve(name: str, scope: str) -> tuple[str, Key] | None:
    """The table and declaration of a key as seen from a scope; `namesrv.x` and `broker.x` name the table."""
    table, dot, rest = name.partition(".")
    if dot and table in TABLES and rest in keys_of(TABLES[table]):
        return table, keys_of(TABLES[table])[rest]
    for table in _SEARCH[scope]:
        declared = keys_of(TABLES[table]).get(name)
        if declared is not None:
            return table, declared
    return None


def assemble(role: Role, settings: Iterable[Setting]) -> ServeConfig:
    """Checks the settings, later ones winning, and shapes them into one process. Raises ConfigError."""
    values: dict[str, dict[str, Value]] = {table: {} for table in TABLES}
    notices: dict[str, None] = {}
    for setting in settings:
        found = resolve(setting.name, setting.scope)
        if found is None:
            notices[_notice(setting)] = None
        else:
            value = values[found[0]][found[1].name] = _checked(found[1], setting)
            if found[1].name in UNUSED and value != found[1].default:
                notices[f"{setting.origin}: {setting.name} {UNUSED_REASON}"] = None
    broker = with_values(BrokerConfig(), values["broker"])
    process = with_values(ProcessConfig(), values["process"])
    namesrv = None if role == "broker" else with_values(NamesrvConfig(), values["namesrv"])
    brokers = () if role == "namesrv" else tuple(_brokers(broker, process))
    _check_ports(namesrv, brokers)
    limits = with_values(ListenerLimits(), values["listener"])
    if role == "broker" and not broker.namesrv_addr:
        notices["namesrvAddr is empty: no namesrv tells clients about this broker"] = None
    return ServeConfig(process, limits, namesrv, brokers, tuple(notices))


def _checked(declared: Key, setting: Setting) -> Value:
    try:
        return parse_value(declared, setting.text)
    except ValueError as problem:
        raise ConfigError(f"{setting.origin}: {declared.name}={setting.text!r} {problem}") from problem


def _notice(setting: Setting) -> str:
    reason = reason_for(setting.name)
    if reason is not None:
        return f"{setting.origin}: {setting.name} {reason}"
    near = nearest(setting.name)
    return f"{setting.origin}: unknown key {setting.name}" + (f"; did you mean {near}?" if near else "")


def nearest(name: str) -> str | None:
    """The known key that looks most like `name`."""
    import difflib

    known = {each: each for table in TABLES.values() for each in keys_of(table)}
    known |= {official: official for names in REASONS.values() for official in names.split()}
    if name.startswith(ENVIRONMENT_PREFIX):
        known = {
            ENVIRONMENT_PREFIX + upper_snake(each): ENVIRONMENT_PREFIX + upper_snake(each) for each in known
        }
    folded = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.7)
    return folded[close[0]] if close else None


def _brokers(first: BrokerConfig, process: ProcessConfig) -> list[BrokerConfig]:
    """The brokers of one process: names -a, -b, …, ports 10 apart, each its own directory below the root."""
    if process.brokers == 1:
        return [first]
    root = first.store_path_root_dir
    if not process.memory and os.path.isdir(os.path.join(root, "commitlog")):
        raise ConfigError(
            f"{root} holds the store of a single broker; name another directory for {process.brokers}"
        )
    base = first.broker_name.removesuffix("-a")
    names = [f"{base}-{chr(ord('a') + index)}" for index in range(process.brokers)]
    return [_nth_broker(first, index, name, root) for index, name in enumerate(names)]


def _nth_broker(first: BrokerConfig, index: int, name: str, root: str) -> BrokerConfig:
    def moved(port: int) -> int:
        return port + index * PORTS_BETWEEN_BROKERS if port else 0

    changes: dict[str, Any] = {"broker_name": name, "store_path_root_dir": os.path.join(root, name)}
    changes |= {"listen_port": moved(first.listen_port), "ha_listen_port": moved(first.ha_listen_port)}
    return replace(first, **changes)


def _check_ports(namesrv: NamesrvConfig | None, brokers: tuple[BrokerConfig, ...]) -> None:
    taken: dict[int, str] = {}
    wanted = [("the namesrv", namesrv.listen_port)] if namesrv else []
    for broker in brokers:
        wanted.append((broker.broker_name, broker.listen_port))
        wanted.append((f"{broker.broker_name} (listenPort - 2)", broker.vip_port or 0))
    for owner, port in wanted:
        if port > 65535:
            raise ConfigError(f"port {port} of {owner} is above 65535")
        if port and taken.setdefault(port, owner) != owner:
            raise ConfigError(f"port {port} is wanted by both {taken[port]} and {owner}")
