import os
import stat

import pytest
from click.testing import CliRunner

from gateway.commands.cli import main
from gateway.config.sources import load_config
from gateway.runtime.server_tls import build_acceptor


def run(*arguments):
    return CliRunner().invoke(main, ["cert", *map(str, arguments)])


def test_the_printed_settings_start_a_server_that_verifies_its_clients(tmp_path):
    directory = tmp_path / "certificates"
    server, client = run(directory), run(directory, "--client", "--name", "orders")
    assert server.exit_code == client.exit_code == 0
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    file = tmp_path / "tls.properties"
    file.write_text(server.output + client.output)
    config = load_config("serve", [str(file)])
    assert not config.notices
    assert (config.tls.mode, config.tls.client_certificates) == ("enforcing", "require")
    assert build_acceptor(config.tls, 1.0) is not None


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_only_the_owner_reads_the_keys_whatever_the_umask_is(tmp_path, umask):
    before = os.umask(umask)
    try:
        assert run(tmp_path / "made").exit_code == 0
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "made").iterdir()}
    certificates = 0o644 & ~umask
    assert modes == {"ca.key": 0o600, "server.key": 0o600, "ca.pem": certificates, "server.pem": certificates}
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700


def test_nothing_is_overwritten(tmp_path):
    assert run(tmp_path).exit_code == 0
    again = run(tmp_path)
    assert again.exit_code == 1
    assert "server.pem exists. Choose another --name" in again.output


def test_a_client_has_no_hosts(tmp_path):
    assert "leave it out with --client" in run(tmp_path, "--client", "--host", "here").output


def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    refused = run(tmp_path / "file" / "below")
    assert refused.exit_code == 1
    assert "file" in refused.output
