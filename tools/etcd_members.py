"""Members of an etcd cluster as processes, for tests that need a real one."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from remoting.tls import client_context

START_TIMEOUT_S = 60.0


def etcd_program() -> str | None:
    """Return the etcd on PATH; None if there is none."""
    return shutil.which("etcd")


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM files of members that demand the certificates of their clients, which an authority has signed."""

    authority: Path
    certificate: Path
    key: Path

    def client_context(self) -> ssl.SSLContext:
        """Return the context of a client; it shows the certificate of the members."""
        return client_context(ca_file=self.authority, certificate_file=self.certificate, key_file=self.key)


class EtcdMembers:
    """A running cluster of some members; each can be killed, stopped for a while, and started again.

    They run on loopback, or each on the machine that has the address of `hosts` and runs programs with the words of
    `prefixes`. Clients use TLS if there are files for it; members use none among each other.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        hosts: Sequence[str] = (),
        prefixes: Sequence[tuple[str, ...]] = (),
        tls: EtcdTls | None = None,
    ) -> None:
        ports = free_ports(2 * count)
        hosts = hosts or ["127.0.0.1"] * count
        scheme = "http" if tls is None else "https"
        self._tls = tls
        self._context = None if tls is None else tls.client_context()
        self.urls = [f"{scheme}://{host}:{port}" for host, port in zip(hosts, ports[:count], strict=True)]
        self._peers = [f"http://{host}:{port}" for host, port in zip(hosts, ports[count:], strict=True)]
        self._prefixes = prefixes or [()] * count
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for index in range(count):
            self.start(index)

    def start(self, index: int) -> None:
        """Start one member on its directory."""
        program = etcd_program()
        assert program is not None
        cluster = ",".join(f"m{number}={peer}" for number, peer in enumerate(self._peers))
        command = [*self._prefixes[index], program, "--name", f"m{index}"]
        command += ["--data-dir", str(self._directory / f"m{index}")]
        for flag, value in (
            ("--listen-client-urls", self.urls[index]),
            ("--advertise-client-urls", self.urls[index]),
            ("--listen-peer-urls", self._peers[index]),
            ("--initial-advertise-peer-urls", self._peers[index]),
            ("--initial-cluster", cluster),
            ("--log-level", "error"),
        ):
            command += [flag, value]
        if self._tls is not None:
            command += ["--cert-file", str(self._tls.certificate), "--key-file", str(self._tls.key)]
            command += ["--trusted-ca-file", str(self._tls.authority), "--client-cert-auth"]
        with (self._directory / f"m{index}.log").open("ab") as log:
            self._processes[index] = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_ready(self) -> None:
        """Wait until every running member says that it is healthy."""
        end = time.monotonic() + START_TIMEOUT_S
        for index in self._processes:
            while not self._is_healthy(index):
                if time.monotonic() > end:
                    log = (self._directory / f"m{index}.log").read_text()
                    raise RuntimeError(f"etcd member {index} is not healthy\n{log[-2000:]}")
                time.sleep(0.1)

    def _is_healthy(self, index: int) -> bool:
        try:
            with urllib.request.urlopen(
                f"{self.urls[index]}/health", timeout=2, context=self._context
            ) as answer:
                return str(json.load(answer)["health"]) == "true"
        except (OSError, ValueError):
            return False

    def leader(self) -> int | None:
        """Return the number of the member that leads; None while none does."""
        for index, url in enumerate(self.urls):
            request = urllib.request.Request(f"{url}/v3/maintenance/status", data=b"{}")
            try:
                with urllib.request.urlopen(request, timeout=2, context=self._context) as answer:
                    status = json.load(answer)
                if status["leader"] == status["header"]["member_id"]:
                    return index
            except (OSError, ValueError, KeyError):
                continue
        return None

    def kill(self, index: int) -> None:
        """Kill one member."""
        process = self._processes.pop(index)
        process.kill()
        process.wait()

    def stop(self, index: int) -> None:
        """Let one member hang."""
        os.kill(self._processes[index].pid, signal.SIGSTOP)

    def resume(self, index: int) -> None:
        """Let one member go on."""
        os.kill(self._processes[index].pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for index in list(self._processes):
            self.kill(index)
