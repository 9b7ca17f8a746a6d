"""The configuration of a shadow gateway: a TOML file, and single settings from the command line.

Each part of the gateway declares its own table; `ShadowConfig` puts them together.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.shadow.capture.settings import CaptureSettings
from gateway.shadow.clusters.endpoints import PrimarySettings, TargetSettings
from gateway.shadow.compare.settings import CompareSettings
from gateway.shadow.console.settings import ConsoleSettings, ReportSettings
from gateway.shadow.cutover.settings import CutoverSettings
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from gateway.shadow.proxy.settings import ListenSettings
from gateway.shadow.replication.settings import ReplicationSettings
from toolkit.settings import SettingsError, setting
from toolkit.toml_tables import load_table


@dataclass(frozen=True, slots=True)
class ShadowConfig:
    """All tables; each is the settings of one part."""

    primary: PrimarySettings = setting(description="Where the primary is.")
    listen: ListenSettings = setting(ListenSettings, "Where clients reach the gateway.")
    target: TargetSettings = setting(TargetSettings, "Where traffic is mirrored to.")
    mirror: list[MirrorRule] = setting(
        list, "Rules of what is mirrored how, the first that matches wins; none given: everything, async."
    )
    mirroring: MirrorSettings = setting(MirrorSettings, "Limits of mirroring.")
    kept: ReplicationSettings = setting(
        ReplicationSettings,
        'How messages get to a target of kind "ours": at the queue offsets of the primary.',
    )
    capture: CaptureSettings = setting(CaptureSettings, "Traffic to files.")
    compare: CompareSettings = setting(CompareSettings, "What answers of both clusters are compared.")
    cutover: CutoverSettings = setting(CutoverSettings, "How topics and groups move to the target.")
    console: ConsoleSettings = setting(ConsoleSettings, "The gateway's HTTP port.")
    report: ReportSettings = setting(ReportSettings, "What is remembered for the report.")

    def __post_init__(self) -> None:
        MirrorRules(self.mirror)
        if self.mirror and not self.target.namesrv:
            raise SettingsError("[[mirror]] needs a target: target.namesrv must be given")
        if self.target.kind == "ours":
            for index, rule in enumerate(self.mirror):
                _check_whole_queues(rule, f"mirror[{index}]")


def _check_whole_queues(rule: MirrorRule, name: str) -> None:
    """Raises SettingsError for a rule that does not choose by queues."""
    wrong = ""
    if rule.sample < 1 and rule.sample_by == "key":
        wrong = 'sample_by must be "queue"'
    elif rule.clients != ["*"] or rule.codes:
        wrong = "clients and codes cannot choose among their messages"
    if wrong:
        raise SettingsError(f'{name}: a target of kind "ours" keeps whole queues: {wrong}')


def load_config(file: str | None, sets: Sequence[str] = ()) -> ShadowConfig:
    """Read a TOML file, if any, and replace one setting for each "table.key=value" of ``sets``.

    Raises SettingsError.
    """
    tables = _read_tables(file) if file else {}
    for text in sets:
        _replace_setting(tables, text)
    if not file and not sets:
        raise SettingsError(
            'No configuration. Pass one with -c shadow.toml; "rmq-gateway shadow example" prints a template.'
        )
    return load_table(ShadowConfig, tables)


def _read_tables(file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: {error}") from error


def _replace_setting(tables: dict[str, Any], text: str) -> None:
    name, equals, value = text.partition("=")
    *path, key = name.strip().split(".")
    if not equals:
        raise SettingsError(f"--set {text}: expected table.key=value")
    table: Any = tables
    for part in path:
        table = table.setdefault(part, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise SettingsError(f"--set {text}: {'.'.join(path)} is not a table")
    table[key] = _toml_or_text(value)


def _toml_or_text(text: str) -> Any:
    """Return a TOML value, or the text itself when it is not one: quotes would have to be escaped in shells."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
