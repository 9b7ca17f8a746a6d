"""The unit for systemd: its keys, that systemd reads them, and that the command in it starts a server."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.commands import cli
from gateway.config.process import ServeConfig
from toolkit.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "rmq-gateway.service"
STORE = "/var/lib/rmq-gateway"


def keys() -> dict[str, str]:
    """Return the values of the unit by section and key."""
    values, section = {}, ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            assert f"{section}.{name}" not in values
            values[f"{section}.{name}"] = value
    return values


def test_the_unit_stops_cleanly_and_starts_again_after_a_crash_only() -> None:
    unit = keys()
    assert (unit["Service.KillSignal"], unit["Service.KillMode"]) == ("SIGTERM", "mixed")
    assert float(unit["Service.TimeoutStopSec"]) > ServeConfig().limits.drain_s
    assert unit["Service.Restart"] == "on-failure"
    assert int(unit["Service.RestartPreventExitStatus"]) == ExitCode.USAGE
    assert int(unit["Unit.StartLimitBurst"]) > 0
    assert unit["Install.WantedBy"] == "multi-user.target"


def test_nothing_but_the_store_can_be_written() -> None:
    unit = keys()
    assert unit["Service.User"] == unit["Service.Group"] == "rocketmq"
    assert f"/var/lib/{unit['Service.StateDirectory']}" == STORE
    assert (unit["Service.StateDirectoryMode"], unit["Service.UMask"]) == ("0700", "0077")
    assert (unit["Service.ProtectSystem"], unit["Service.ProtectHome"]) == ("strict", "true")
    assert unit["Service.NoNewPrivileges"] == "true"
    assert "Service.ReadWritePaths" not in unit


def test_its_command_serves_the_store_of_the_unit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unit, started = keys(), []
    monkeypatch.setattr(cli, "run_configuration", started.append)
    name, _, value = unit["Service.Environment"].partition("=")
    monkeypatch.setenv(name, value)
    program, *words = shlex.split(unit["Service.ExecStart"])
    assert program == "/opt/rmq-gateway/bin/rmq-gateway"
    conf = tmp_path / "broker.conf"
    conf.write_text("storePathRootDir=/elsewhere\nbrokerName=mine\n")
    assert words[-1] == "/etc/rmq-gateway/broker.conf"
    result = CliRunner().invoke(cli.main, [*words[:-1], str(conf)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (broker,) = started[0].brokers
    assert (broker.store.store_path_root_dir, broker.broker_name) == (STORE, "mine")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_reads_it(tmp_path: Path) -> None:
    """The program and the user exist on the reader's machine only, so those of this one stand in."""
    copy = tmp_path / UNIT.name
    text = UNIT.read_text().replace("/opt/rmq-gateway/bin/rmq-gateway", "/bin/true")
    copy.write_text(text.replace("=rocketmq\n", "=root\n"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, complaints) == (0, [])


def test_the_page_installs_where_the_unit_expects_it() -> None:
    page = (ROOT / "docs" / "how-to" / "upgrade.md").read_text()
    for path in ("/opt/rmq-gateway", "/etc/rmq-gateway", STORE, "deploy/rmq-gateway.service", "rocketmq"):
        assert path in page
