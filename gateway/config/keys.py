"""Official configuration keys: settings declared as dataclass fields under the names of broker.conf and namesrv.conf.

A configuration dataclass may hold others, one per concern (`BrokerConfig.store`, `.flow`, `.pop`, `.limits`); their
keys are flat all the same, because official files are. The keys themselves are declared in `process.py`, `broker.py`
and the modules of the concerns; `sources.py` reads their values.
"""

import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar, cast

from toolkit.settings import REDACTED, Setting, SettingsError, setting, settings_of
from toolkit.values import WholeNumber, plain_value

Value = bool | int | float | str
T = TypeVar("T", bool, int, float, str)
C = TypeVar("C")

LIVE, OURS = "live", "ours"
ENVIRONMENT_PREFIX = "RMQ_GATEWAY_"
CLIENT_ENVIRONMENT_PREFIX = "RMQ_GATEWAY_CLIENT_"
"""Variables of the commands that ask servers (`gateway.admin`); servers ignore them."""
CONSOLE_ENVIRONMENT_PREFIX = "RMQ_GATEWAY_CONSOLE_"
"""Variables of the commands that ask a shadow gateway's console; servers ignore them, too."""
JAVA_PACKAGE = "com.rocketmq.remoting."
"""Prefix of official keys that are system properties."""
_LISTS = frozenset({"namesrvAddr", "deleteWhen", "addressServerList", "controllerAddr"})
"""Keys with several values between semicolons."""
_EXACT = frozenset(
    (
        *(
            "listenPort",
            "haListenPort",
            "grpcServerPort",
            "brokerId",
            "brokerPermission",
            "defaultTopicQueueNums",
        ),
        *("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "mappedFileSizeTimerLog"),
        *("maxHashSlotNum", "maxIndexNum", "stagedMaxBytes", "stagedReservedHours"),
    )
)
"""Numbers that are not replaced by the nearest accepted one: ports, ids, and sizes of files."""
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def key(
    name: str,
    default: T,
    description: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    pattern: str = "",
    path: bool = False,
    live: bool = False,
    unofficial: bool = False,
    secret: bool = False,
) -> T:
    """Declare a dataclass field that is read from the key `name`.

    `pattern` must match the whole text; `description` explains it to users. `path`: a leading ~ is the home directory.
    `live`: may be changed while the server runs. `unofficial`: the official server does not have the key. `secret`:
    never printed.
    """
    tags = [tag for tag, applies in ((OURS, unofficial), (LIVE, live)) if applies]
    field: Any = setting(
        default,
        description,
        name=name,
        low=low,
        high=high,
        choices=choices,
        pattern=pattern,
        is_path=path,
        secret=secret,
        tags=tuple(tags),
    )
    return field  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Key:
    """One declared key; `attribute` is the dotted path of its field: `flow.send_quota_bytes`."""

    setting: Setting
    attribute: str

    @property
    def name(self) -> str:
        return self.setting.name

    @property
    def is_live(self) -> bool:
        """True if the key may be changed while the server runs."""
        return LIVE in self.setting.tags

    @property
    def is_clamped(self) -> bool:
        """True if a number out of range is replaced by the nearest accepted one.

        The official server accepts any number for its keys, and clamps some of them where it reads them.
        """
        is_number = isinstance(self.setting.value_type, WholeNumber)
        return is_number and OURS not in self.setting.tags and self.name not in _EXACT

    @property
    def accepts_empty(self) -> bool:
        """True if an empty text is a value of the key."""
        try:
            self.setting.parse("", self.name)
        except SettingsError:
            return False
        return self.setting.default == "" or not cast(Any, self.setting.value_type).is_path

    def parse(self, text: str, label: str) -> Any:
        """Return the value of a text as the official server reads it: without surrounding blanks, and clamped.

        Raises SettingsError, in which ``label`` names the setting.
        """
        text = text if self.setting.secret else text.strip()
        if self.name in _LISTS:
            text = ";".join(part.strip() for part in text.split(";") if part.strip())
        value_type = self.setting.value_type
        if not self.is_clamped or not isinstance(value_type, WholeNumber):
            return self.setting.parse(text, label)
        try:
            number = WholeNumber()(text)
        except ValueError:
            return self.setting.parse(text, label)
        return self.setting.check(value_type.clamp(number), label)

    @property
    def environment(self) -> str:
        """The environment variable: RMQ_GATEWAY_ and the key in upper snake case, without a Java package."""
        name = self.name.removeprefix(JAVA_PACKAGE)
        return ENVIRONMENT_PREFIX + "_".join(map(upper_snake, name.split(".")))


def controller_variable(key: Key) -> str:
    """Return the environment variable of a controller's key, which begins with RMQ_GATEWAY_CONTROLLER_."""
    own = f"{ENVIRONMENT_PREFIX}CONTROLLER_"
    variable = key.environment
    return variable if variable.startswith(own) else variable.replace(ENVIRONMENT_PREFIX, own, 1)


_KNOWN_KEYS: dict[type[Any], dict[str, Key]] = {}


def keys_of(table: type[Any]) -> Mapping[str, Key]:
    """Return the keys of a configuration dataclass and of those it holds, by name, in order of declaration."""
    if table not in _KNOWN_KEYS:
        _KNOWN_KEYS[table] = {key.name: key for key in _keys_below(table, "")}
    return _KNOWN_KEYS[table]


def _keys_below(table: type[Any], path: str) -> Iterator[Key]:
    hints, declared = typing.get_type_hints(table), settings_of(table)
    for field in fields(table):
        if field.name in declared:
            yield Key(declared[field.name], path + field.name)
        elif is_dataclass(hints[field.name]):
            yield from _keys_below(hints[field.name], f"{path}{field.name}.")


def upper_snake(name: str) -> str:
    """Return a camel-case name in upper snake case: brokerIP1 -> BROKER_IP1."""
    return _WORD_STARTS.sub("_", name).upper()


def values_of(config: Any) -> dict[str, str]:
    """Return every key of a configuration with its present value as text; secrets are redacted."""
    return {
        name: REDACTED if key.setting.secret else plain_value(attrgetter(key.attribute)(config))
        for name, key in keys_of(type(config)).items()
    }


def with_values(config: C, values: Mapping[str, Value]) -> C:
    """Return a copy of `config` with these values by official name, which must have been checked before."""
    table = keys_of(type(config))
    changes: dict[str, dict[str, Value]] = {}
    for name, value in values.items():
        part, _, attribute = table[name].attribute.rpartition(".")
        changes.setdefault(part, {})[attribute] = value
    own_changes: dict[str, Any] = dict(changes.pop("", {}))
    own_changes |= {part: replace(getattr(config, part), **changed) for part, changed in changes.items()}
    return cast(C, replace(cast(Any, config), **own_changes))
