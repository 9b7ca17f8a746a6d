"""The command `rmq-gateway shadow`, and that other commands do not load it."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from gateway.commands.cli import main
from gateway.shadow.config_docs import example_file
from remoting.blocking import BlockingClient
from remoting.requests.namesrv import GetBrokerClusterInfo


def test_servers_start_without_the_gateway():
    code = "import sys, gateway.commands.cli, gateway.process.server; print([m for m in sys.modules if 'shadow' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_shadow_is_a_command():
    printed = CliRunner().invoke(main, ["--help"]).output
    assert "shadow" in printed
    assert "serve" in printed


def test_example_file():
    assert CliRunner().invoke(main, ["shadow", "example"]).output == example_file()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "No configuration. Pass one with -c shadow.toml"),
        (["-c", "/no/such/file"], "/no/such/file"),
        (["--set", "x"], "table.key=value"),
    ],
)
def test_mistakes_are_reported(arguments, reason):
    done = CliRunner().invoke(main, ["shadow", *arguments])
    assert done.exit_code == 2
    assert reason in done.output


@contextmanager
def start_gateway(*arguments):
    """Start a process of this project; yield it and the content of its ready line."""
    command = [sys.executable, "-m", "gateway.commands.cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def test_gateway_forwards_until_sigterm(tmp_path):
    ready_file = tmp_path / "ready"
    primary = ["serve", "--memory", "--port", "0", "--broker-port", "0"]
    with start_gateway(*primary) as (_, ready):
        tables = {
            "primary.namesrv": json.dumps([ready["namesrv"]]),
            "listen.namesrv_port": 0,
            "listen.broker_port": 0,
            "console.enabled": "false",
        }
        sets = [word for key, value in tables.items() for word in ("--set", f"{key}={value}")]
        with start_gateway("shadow", *sets, "--ready-file", str(ready_file)) as (process, gateway):
            assert json.loads(ready_file.read_text()) == gateway
            assert gateway["brokers"].keys() == ready["brokers"].keys()
            host, port = gateway["namesrv"].split(":")
            with BlockingClient(host, int(port)) as client:
                (data,) = client.ask(GetBrokerClusterInfo()).data.broker_addr_table.values()
            assert data.broker_addrs[0] == gateway["brokers"]["broker-a"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert "stopped" in process.stderr.read().splitlines()[-1]


def test_a_command_warns_of_an_old_name_of_a_setting():
    sets = ["--set", "primary.namesrv=['127.0.0.1:1']", "--set", "kept.queues=7"]
    printed = CliRunner().invoke(main, ["shadow", *sets, "parity"]).output
    assert printed.count("Warning: setting kept has been renamed to replication") == 1
