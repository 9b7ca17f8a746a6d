"""`rmq-gateway debug bundle`: everything in it, nothing secret, and parts that fail do not hide the rest."""

import json
import socket
import stat
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.debug_bundle import Bundle, file_name, read_url
from gateway.admin.errors import NotReached
from gateway.admin.tests.local_server import LocalServer, run_server
from gateway.config.auth import AuthConfig
from toolkit.settings import REDACTED

SECRET = "do-not-print-me"


@pytest.fixture(scope="module")
def server_with_secrets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server whose settings hold secrets, without access control."""
    auth = AuthConfig(
        init_user=f'{{"username":"u","password":"{SECRET}"}}',
        inner_credentials=f'{{"accessKey":"u","secretKey":"{SECRET}"}}',
    )
    with run_server(tmp_path_factory.mktemp("secrets"), parts={"auth": auth}) as running:
        yield running


def read_tar(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        found = {}
        for entry in tar.getmembers():
            content = tar.extractfile(entry)
            assert content is not None
            found[entry.name.partition("/")[2]] = content.read()
    return found


@pytest.mark.usefixtures("lenient_umask")
def test_a_bundle_is_its_owners_alone_from_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "bundle.tar.gz", []
    write = tarfile.TarFile.addfile

    def look_and_write(*arguments: Any) -> None:
        seen.append(stat.S_IMODE(path.stat().st_mode))
        write(*arguments)

    monkeypatch.setattr(tarfile.TarFile, "addfile", look_and_write)
    Bundle(0).write(path)
    assert set(seen) == {0o600}


def test_the_bundle_of_a_cluster(server_with_secrets: LocalServer, tmp_path: Path) -> None:
    server = server_with_secrets
    server.run("topic", "create", "orders")
    server.run("produce", "orders", "value-of-a-message", "-k", "key-of-a-message")
    path = tmp_path / "bundle.tar.gz"
    text = server.run("debug", "bundle", str(path), "--metrics", "file:///etc/passwd")
    assert text.startswith(f"Wrote {path} (")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files = read_tar(path)
    values: dict[str, Any] = {
        name: json.loads(data) for name, data in files.items() if name.endswith(".json")
    }
    assert [each["broker"] for each in values["cluster.json"]] == ["broker-a"]
    assert all(each["passed"] for each in values["health.json"])
    assert "orders" in [each["topic"] for each in values["topics.json"]]
    assert "TOOLS_CONSUMER" in [each["group"] for each in values["groups.json"]]
    assert values["config/broker-broker-a.json"]["brokerName"] == "broker-a"
    assert values["runtime/broker-broker-a.json"]["brokerVersionDesc"] == "V5_4_0"
    assert set(values["versions.json"]) == {"rmq-gateway", "python", "platform"}
    assert values["errors.json"] == {
        "metrics/file____etc_passwd.txt": "file:///etc/passwd is not an http address"
    }
    assert b"config/" in files["README.txt"]
    everything = b"\n".join(files.values())
    for hidden in (SECRET, "value-of-a-message", "key-of-a-message"):
        assert hidden.encode() not in everything
    assert REDACTED.encode() in everything


def test_no_file_is_overwritten(server: LocalServer, tmp_path: Path) -> None:
    path = tmp_path / "present.tar.gz"
    path.write_text("precious")
    result = server.invoke("debug", "bundle", str(path))
    assert result.exit_code == 1
    assert "File exists. Name another FILE." in result.stderr
    assert path.read_text() == "precious"


def test_a_part_that_fails_is_noted(tmp_path: Path) -> None:
    def fail() -> None:
        raise NotReached("broker-b does not answer")

    bundle = Bundle(1_700_000_000_000)
    bundle.add("one.json", lambda: {"a": 1})
    bundle.add("two.json", fail)
    bundle.add("three.txt", lambda: b"text")
    bundle.write(tmp_path / "b.tar.gz")
    files = read_tar(tmp_path / "b.tar.gz")
    assert sorted(files) == ["README.txt", "errors.json", "one.json", "three.txt"]
    assert json.loads(files["errors.json"]) == {"two.json": "broker-b does not answer"}
    assert files["three.txt"] == b"text"


def test_names_of_files() -> None:
    assert file_name("http://h:1/metrics") == "http___h_1_metrics"
    assert file_name("../x") == ".._x"


def test_a_metrics_address_that_is_no_http_server_is_an_error_of_its_part() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"\0\0\0\x10no http\n")

        thread = threading.Thread(target=answer)
        thread.start()
        bundle = Bundle(1_700_000_000_000)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        bundle.add("metrics/one.txt", lambda: read_url(url, 30))
        thread.join()
    assert bundle.errors == {"metrics/one.txt": f"{url} did not answer with HTTP: BadStatusLine"}
    assert not bundle.files
