"""The configuration of a shadow gateway: a TOML file, and single settings from the command line.

Each part of the gateway declares its own table; `ShadowConfig` puts them together.
"""

import logging
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from codec.hosts import parse_host
from gateway.http_server.settings import ConsoleSettings
from gateway.shadow.capture.settings import CaptureSettings
from gateway.shadow.clusters.endpoints import PrimarySettings, TargetSettings
from gateway.shadow.compare.settings import CompareSettings
from gateway.shadow.cutover.settings import CutoverSettings
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from gateway.shadow.proxy.settings import ListenSettings
from gateway.shadow.replication.settings import QueueCopySettings
from gateway.shadow.report.settings import ReportSettings
from toolkit.settings import SettingsError, setting
from toolkit.toml_tables import find_old_path, load_table, move_renamed_settings, parse_toml

log = logging.getLogger(__name__)

RENAMED_SETTINGS: Final = {
    "kept": "replication",
    "listen.kept_bytes": "listen.buffered_bytes",
    "listen.kept_total_bytes": "listen.buffered_total_bytes",
    "compare.questions": "compare.repeated_reads",
    "compare.questions_per_s": "compare.repeated_reads_per_s",
}
"""Old paths of settings and tables, which are accepted with a warning in 0.1, and the present ones."""


@dataclass(frozen=True, slots=True)
class ShadowConfig:
    """All tables of a gateway's configuration."""

    primary: PrimarySettings = setting(description="The cluster that clients use.")
    listen: ListenSettings = setting(ListenSettings, "Addresses and limits of the ports for clients.")
    target: TargetSettings = setting(TargetSettings, "The cluster that traffic is mirrored to.")
    mirror: list[MirrorRule] = setting(
        list,
        "Rules that select requests and their mirror mode; the first match wins. Default: everything, async.",
    )
    mirroring: MirrorSettings = setting(MirrorSettings, "Limits of mirroring.")
    replication: QueueCopySettings = setting(
        QueueCopySettings,
        'Offset-preserving replication to a target of kind "ours".',
    )
    capture: CaptureSettings = setting(CaptureSettings, "Recording of traffic to files.")
    compare: CompareSettings = setting(CompareSettings, "Comparison of both clusters' answers.")
    cutover: CutoverSettings = setting(CutoverSettings, "Moving topics and groups to the target.")
    console: ConsoleSettings = setting(ConsoleSettings, "The gateway's HTTP port.")
    report: ReportSettings = setting(ReportSettings, "History recorded for the report, and its files.")

    def __post_init__(self) -> None:
        MirrorRules(self.mirror)
        if self.mirror and not self.target.namesrv:
            raise SettingsError("[[mirror]] needs a target: set target.namesrv")
        _check_different_clusters(self.primary.namesrv, self.target.namesrv)
        if self.listen.grpc_forward_to and self.target.namesrv:
            raise SettingsError(
                "listen.grpc_forward_to: calls that the primary's Proxy answers cannot be mirrored or moved to a "
                "target. Remove the target, or let another gateway forward them; or remove grpc_forward_to, and this "
                "gateway serves 5.x clients itself"
            )
        if self.target.kind == "ours":
            for index, rule in enumerate(self.mirror):
                _check_whole_queues(rule, f"mirror[{index}]")


def _check_different_clusters(primary: Sequence[str], target: Sequence[str]) -> None:
    """Raise SettingsError if the target has an address of the primary; aliases are found out at start."""
    for address in target:
        if _plain_address(address) in map(_plain_address, primary):
            raise SettingsError(
                f"target.namesrv: {address} is also in primary.namesrv: every message would be stored twice. "
                "Set the namesrv of another cluster"
            )


def _plain_address(address: str) -> tuple[str, int]:
    host, port = parse_host(address)
    return ("127.0.0.1" if host in ("localhost", "::1") else host.lower()), port


def _check_whole_queues(rule: MirrorRule, name: str) -> None:
    """Raise SettingsError for a rule that does not select whole queues."""
    wrong = ""
    if rule.sample < 1 and rule.sample_by == "key":
        wrong = 'sample_by must be "queue"'
    elif rule.clients != ["*"] or rule.codes:
        wrong = "clients and codes cannot select single messages"
    if wrong:
        raise SettingsError(f'{name}: a target of kind "ours" receives whole queues: {wrong}')


def log_old_name(old_path: str, new_path: str) -> None:
    """Log that the configuration has an old name of a setting."""
    log.warning("renamed setting", extra={"setting": old_path, "use": new_path})


def load_config(
    file: str | None, sets: Sequence[str] = (), warn_of_old_name: Callable[[str, str], None] = log_old_name
) -> ShadowConfig:
    """Read a TOML file, if any, and replace one setting for each "table.key=value" of ``sets``.

    ``warn_of_old_name`` is called once with the old and the new path of each setting that has its old name. Raises
    SettingsError.
    """
    tables = _read_tables(file) if file else {}
    # Old names of the file are replaced before the overrides: an override must find the setting that it overrides.
    old_paths = set(move_renamed_settings(tables, RENAMED_SETTINGS))
    for text in sets:
        old_path = find_old_path(text.partition("=")[0].strip(), RENAMED_SETTINGS)
        if old_path:
            old_paths.add(old_path)
            text = text.replace(old_path, RENAMED_SETTINGS[old_path], 1)
        _replace_setting(tables, text)
    # An override can replace a whole table, such as listen={kept_bytes=4096}.
    old_paths.update(move_renamed_settings(tables, RENAMED_SETTINGS))
    for old_path in sorted(old_paths):
        warn_of_old_name(old_path, RENAMED_SETTINGS[old_path])
    if not file and not sets:
        raise SettingsError(
            'No configuration. Pass one with -c shadow.toml; "rmq-gateway shadow example" prints a template.'
        )
    return load_table(ShadowConfig, tables)


def _read_tables(file: str) -> dict[str, Any]:
    try:
        return parse_toml(Path(file).read_text())
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
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
