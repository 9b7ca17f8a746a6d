"""Checks at start that every configured file and directory can be written, and not when the first message flows."""

import os
import tempfile
from collections.abc import Iterator
from typing import Final

from gateway.runtime.state_file import absolute_path
from gateway.shadow.config import ShadowConfig
from toolkit.private_files import make_private_directories
from toolkit.settings import SettingsError

_PROBE_PREFIX: Final = ".rmq-gateway-probe-"
_HOLD_MESSAGES: Final = frozenset({"capture.directory", "mirroring.spill_dir"})


def check_writable_paths(config: ShadowConfig, ready_file: str = "") -> None:
    """Create what is missing and write a probe into each directory. Raises SettingsError for all that fail."""
    problems = [
        f"{setting}: cannot write to {path}: {reason}"
        for setting, path, is_directory in _configured_paths(config, ready_file)
        if path and (reason := _why_not_writable(setting, absolute_path(path), is_directory=is_directory))
    ]
    if problems:
        raise SettingsError(f"{'; '.join(problems)}. Name another path, or change its permissions")


def _configured_paths(config: ShadowConfig, ready_file: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the setting, the path, and whether it is a directory."""
    yield "capture.directory", config.capture.directory, True
    if config.mirroring.spill == "disk":
        yield "mirroring.spill_dir", config.mirroring.spill_dir, True
    yield "target.embedded.store", config.target.embedded.store, True
    yield "mirroring.state_file", config.mirroring.state_file, False
    yield "cutover.state_file", config.cutover.state_file, False
    yield "listen.ports_file", config.listen.ports_file, False
    yield "compare.noise_file", config.compare.noise_file, False
    yield "report.file", config.report.file, False
    yield "report.json_file", config.report.json_file, False
    yield "--ready-file", ready_file, False


def _why_not_writable(setting: str, path: str, *, is_directory: bool) -> str:
    """Return why files cannot be written in a directory, or a file cannot be replaced; "" if they can.

    A missing directory is created. A directory for messages is its owner's alone.
    """
    directory = path if is_directory else os.path.dirname(path)
    if not is_directory and os.path.isdir(path):
        return "it is a directory"
    try:
        if setting in _HOLD_MESSAGES:
            make_private_directories(directory)
        else:
            os.makedirs(directory, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=_PROBE_PREFIX, dir=directory) as probe:
            probe.write(b"\0")
            probe.flush()
        if os.path.exists(path) and not is_directory:
            with open(path, "ab"):
                pass
    except (FileExistsError, NotADirectoryError):
        return "a part of the path is a file, not a directory"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
