"""A gateway that cannot start says so in one line: address, key and remedy."""

import faulthandler

import pytest

from gateway.runtime import process
from gateway.shadow.server import run
from gateway.shadow.tests.served_gateway import gateway_config, without_signals
from remoting.server import open_listeners


@pytest.fixture(autouse=True)
def untouched_process(monkeypatch):
    without_signals(monkeypatch)
    for name in ("give_back_large_blocks", "raise_file_limit", "tune_garbage_collector"):
        monkeypatch.setattr(process, name, lambda: None)
    monkeypatch.setattr(faulthandler, "enable", lambda: None)


@pytest.mark.parametrize("key", ["listen.namesrv_port", "console.port"])
def test_a_busy_port_is_named_with_its_key_and_a_remedy(key, capsys):
    """It said "Exceptions from Trio nursery (1 sub-exception)"."""
    (taken,) = open_listeners("127.0.0.1", 0)
    with taken:
        port = taken.getsockname()[1]
        code = run(gateway_config("primary.namesrv=['127.0.0.1:1']", f"{key}={port}"))
    assert code == 1
    assert capsys.readouterr().err == (
        f"Error: cannot listen on 127.0.0.1:{port} ({key}): address already in use. "
        "Use another port, or 0 for a free one.\n"
    )


def test_a_target_that_is_the_primary_is_a_wrong_configuration(capsys):
    port = 29_876
    config = gateway_config(
        "primary.namesrv=['127.0.0.1:1']", f"listen.namesrv_port={port}", f"target.namesrv=['127.0.0.1:{port}']"
    )  # fmt: skip
    assert run(config) == 2
    assert f"Error: target.namesrv: 127.0.0.1:{port} is a port of this gateway" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "0.0.0.0", "::ffff:127.0.0.1"])
def test_a_primary_that_is_the_gateway_itself_is_refused(host, capsys):
    """It connected to itself until no file descriptor was left: 2,147 in 8 s."""
    port = 29_877
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    config = gateway_config(f"primary.namesrv=['{address}']", f"listen.namesrv_port={port}")
    assert run(config) == 2
    error = capsys.readouterr().err
    assert f"Error: primary.namesrv: {address} is a port of this gateway" in error


def test_a_primary_that_is_the_gateway_itself_is_refused_with_a_name_to_listen_on(capsys):
    """The name was compared with numeric addresses."""
    address = "127.0.0.1:29880"
    config = gateway_config(
        f"primary.namesrv=['{address}']", "listen.host=localhost", "listen.namesrv_port=29880"
    )
    assert run(config) == 2
    assert f"Error: primary.namesrv: {address} is a port of this gateway" in capsys.readouterr().err


def test_a_second_namesrv_that_is_a_port_of_the_gateway_is_refused(capsys):
    """Also the second namesrv of a list, at the port that its own listener gets."""
    config = gateway_config("primary.namesrv=['127.0.0.1:1', '127.0.0.1:29879']", "listen.namesrv_port=29878")
    assert run(config) == 2
    assert "Error: primary.namesrv: 127.0.0.1:29879 is a port of this gateway" in capsys.readouterr().err
