"""Paths that cannot be written are refused at start, with their setting."""

import faulthandler
import os
import stat

import pytest

from gateway.runtime import process
from gateway.shadow.config import load_config
from gateway.shadow.server import check_writable_paths, run
from gateway.shadow.tests.served_gateway import without_signals
from toolkit.settings import SettingsError

FILES = (
    "mirroring.state_file",
    "cutover.state_file",
    "listen.ports_file",
    "compare.noise_file",
    "report.file",
    "report.json_file",
)
DIRECTORIES = ("capture.directory", "mirroring.spill_dir", "target.embedded.store")


def configured(setting, path, *more):
    return load_config(None, ["primary.namesrv=['127.0.0.1:1']", f"{setting}={path}", *more])


@pytest.mark.parametrize("setting", [*FILES, *DIRECTORIES])
def test_a_path_below_a_file_is_refused(setting, tmp_path):
    (tmp_path / "file").write_text("")
    config = configured(
        setting, tmp_path / "file" / "x", "mirroring.spill=disk", f"mirroring.spill_dir={tmp_path}"
    )
    if setting == "mirroring.spill_dir":
        config = configured("mirroring.spill", "disk", f"mirroring.spill_dir={tmp_path / 'file' / 'x'}")
    with pytest.raises(
        SettingsError, match=rf"{setting}: cannot write to .*/file/x: a part of the path is a file"
    ):
        check_writable_paths(config)


@pytest.mark.parametrize("setting", FILES)
def test_a_directory_in_place_of_a_file_is_refused(setting, tmp_path):
    with pytest.raises(SettingsError, match=f"{setting}: cannot write to .*: it is a directory"):
        check_writable_paths(configured(setting, tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
@pytest.mark.parametrize("setting", [*FILES, "capture.directory"])
def test_a_directory_without_permission_is_refused(setting, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(SettingsError, match=f"{setting}: cannot write to .*: permission denied"):
        check_writable_paths(configured(setting, tmp_path / "x" / "y"))


@pytest.mark.parametrize("setting", [*FILES, "capture.directory"])
def test_what_is_missing_is_created_and_nothing_is_left(setting, tmp_path):
    check_writable_paths(configured(setting, tmp_path / "a" / "b"))
    assert (tmp_path / "a").is_dir()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.usefixtures("lenient_umask")
@pytest.mark.parametrize("setting", ["capture.directory", "mirroring.spill_dir"])
def test_directories_for_messages_are_private(setting, tmp_path):
    check_writable_paths(
        load_config(
            None,
            [
                "primary.namesrv=['127.0.0.1:1']",
                f"mirroring={{ spill = 'disk', spill_dir = '{tmp_path}/there' }}",
                f"{setting}={tmp_path}/a/b",
            ],
        )
    )
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_an_existing_file_is_not_changed(tmp_path):
    (tmp_path / "moves.json").write_text("{}")
    check_writable_paths(configured("cutover.state_file", tmp_path / "moves.json"))
    assert (tmp_path / "moves.json").read_text() == "{}"


def test_the_gateway_does_not_start(tmp_path, monkeypatch, capsys):
    """It started, and the capture failed when traffic flowed."""
    without_signals(monkeypatch)
    for name in ("give_back_large_blocks", "raise_file_limit"):
        monkeypatch.setattr(process, name, lambda: None)
    monkeypatch.setattr(faulthandler, "enable", lambda: None)
    (tmp_path / "file").write_text("")
    assert run(configured("capture.directory", tmp_path / "file")) == 2
    said = capsys.readouterr().err
    assert said == (
        f"Error: capture.directory: cannot write to {tmp_path}/file: a part of the path is a file, not a directory. "
        "Name another path, or change its permissions\n"
    )
