"""The official Proxy as one process beside a running cluster: the server that 5.x clients reach over gRPC."""

import json
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from compat_tests.endpoints.official import QUICK_START_WITH_TLS
from compat_tests.endpoints.ports import find_ports
from compat_tests.endpoints.process import ChildProcess
from compat_tests.jars import java_command
from compat_tests.server import split_address

PROFILE: Final = "proxy-5.4"
HEAP: Final = "-Xms128m -Xmx512m -XX:MaxDirectMemorySize=512m"
START_TIMEOUT_S: Final = 90.0


class OfficialProxy:
    """An official Proxy in cluster mode; the constructor starts it and returns once it listens.

    `namesrv`: address ("host:port") of the cluster it serves, which must have a broker. `settings`: keys of
    rmq-proxy.json. `tls_mode`: disabled, permissive or enforcing, with a certificate that the Proxy makes itself.
    `keys`: user and secret with which the Proxy signs its own requests. `jvm`: further JVM options. `port`: its gRPC
    port, by default a free one. Raises Unavailable without Java or Maven, RuntimeError if the Proxy does not come up.
    """

    def __init__(
        self,
        namesrv: str,
        settings: Mapping[str, Any] | None = None,
        *,
        tls_mode: str = "permissive",
        keys: tuple[str, str] | None = None,
        jvm: str = QUICK_START_WITH_TLS,
        port: int | None = None,
    ) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="rocketmq-proxy-"))
        free_port, remoting_port = find_ports(2)
        port = free_port if port is None else port
        self.address = f"127.0.0.1:{port}"
        lines = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": namesrv,
            "grpcServerPort": port,
            "remotingListenPort": remoting_port,
            "localServeAddr": "127.0.0.1",
            "enableAclRpcHookForClusterMode": keys is not None,
            **(settings or {}),
        }
        home = self._directory / "home"
        (home / "conf").mkdir(parents=True)
        if keys is not None:
            (home / "conf" / "tools.yml").write_text(
                f"accessKey: {json.dumps(keys[0])}\nsecretKey: {json.dumps(keys[1])}\n"
            )
        self._start = partial(self._launch, lines, tls_mode, jvm)
        self._process = self._start()
        try:
            self._wait_until_listening()
        except BaseException:
            self.close()
            raise

    def _launch(self, lines: Mapping[str, Any], tls_mode: str, jvm: str) -> ChildProcess:
        home = self._directory / "home"
        conf = self._directory / "rmq-proxy.json"
        conf.write_text(json.dumps(lines))
        command = java_command(
            PROFILE,
            "org.apache.rocketmq.proxy.ProxyStartup",
            home,
            heap=f"{HEAP} {jvm}",
            # Its connections to namesrv and broker would have the mode of its own port.
            properties={"tls.server.mode": tls_mode, "tls.enable": "false"},
            log=self._directory / "proxy.log",
            log_level="INFO",
        )
        arguments = ["-pc", str(conf), "-pm", "cluster"]
        environment = {"ROCKETMQ_HOME": str(home), "RMQ_PROXY_HOME": str(home)}
        return ChildProcess(
            "proxy", [*command, *arguments], self._directory / "proxy-output.log", environment
        )

    def _wait_until_listening(self) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while not self._is_listening():
            code = self._process.exit_code()
            if code is not None or time.monotonic() > end:
                state = "did not listen in time" if code is None else f"ended with {code}"
                raise RuntimeError(f"the official Proxy {state}\n{self.logs()}")
            time.sleep(0.05)

    def _is_listening(self) -> bool:
        host, port = split_address(self.address)
        try:
            socket.create_connection((host, port), timeout=3).close()
        except OSError:
            return False
        return True

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        self._process.kill()

    def restart(self) -> None:
        """Start the process again, at the same address."""
        self._process = self._start()
        self._wait_until_listening()

    def logs(self) -> str:
        """Return the end of the Proxy's logs, for failure reports."""
        return "\n".join(path.read_text()[-4000:] for path in sorted(self._directory.glob("*.log")))

    def close(self) -> None:
        """Kill the Proxy, which has no state worth an orderly end, and delete its files."""
        self._process.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
