"""The official image `apache/rocketmq:<version>`, or one that is built like it, in one container.

It runs through testcontainers and a Docker engine.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from compat_tests.endpoints.base import BlockEndpoint, ServesOnPorts
from compat_tests.endpoints.official import BROKER_SETTINGS, IDLE_SETTINGS
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.endpoints.probe import wait_for_route
from compat_tests.jars import Unavailable

VERSION = os.environ.get("ROCKETMQ_COMPAT_IMAGE_VERSION", "5.4.0")
OFFICIAL_REPOSITORY: Final = "apache/rocketmq"
# The image's own defaults are 4 and 8 GiB; its scripts append these options, which take precedence.
_HEAP = "-Xms256m -Xmx768m -Xmn128m -XX:MaxDirectMemorySize=512m"
# Clients must reach the broker at the address it registers, so container ports are published unchanged.
# Both servers share one container, where the broker reaches the namesrv at 127.0.0.1 in any network.
_COMMAND = (
    'printf %s "$NAMESRV_CONF" > /tmp/namesrv.conf; printf %s "$BROKER_CONF" > /tmp/broker.conf; '
    "./mqnamesrv -c /tmp/namesrv.conf & exec ./mqbroker -c /tmp/broker.conf"
)


def image_name(text: str) -> str:
    """Return the full name of an image: of a version ("5.4.0"), of a full name ("apache/rocketmq:5.4.0"), or of "".

    Raises ValueError for a name without a tag, whose meaning changes with time.
    """
    if "/" not in text and ":" not in text:
        return f"{OFFICIAL_REPOSITORY}:{text or VERSION}"
    repository, _, tag = text.rpartition(":")
    if not repository or not tag or "/" in tag:
        raise ValueError(
            f"the image {text!r} has no tag: give its full name, e.g. {OFFICIAL_REPOSITORY}:{VERSION}"
        )
    return text


class ImageEndpoint(BlockEndpoint, ServesOnPorts):
    """The official server in a container; `name` is that of an image, with a tag, that the engine has or can pull."""

    kind = "image"
    start_timeout_s = 120.0

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        name: str = f"{OFFICIAL_REPOSITORY}:{VERSION}",
    ) -> None:
        self.name = f"image:{name.removeprefix(f'{OFFICIAL_REPOSITORY}:')}"
        self.settings = dict(settings or {})
        self._image = name
        self.host = _engine_host()
        self.namesrv_port, self.broker_port = find_server_ports()
        self._container: Any = None

    def fetch(self) -> None:
        """Let the engine pull the image unless it has it. Raises Unavailable if that fails."""
        import docker
        from docker.errors import DockerException, ImageNotFound

        with closing(docker.from_env()) as engine:
            try:
                engine.images.get(self._image)
            except ImageNotFound:
                try:
                    engine.images.pull(self._image)
                except DockerException as error:
                    raise Unavailable(
                        f"the engine has no image {self._image} and cannot pull it ({_explanation(error)}): check the "
                        "name, or load the image (docker load); `docker image ls` lists those that are there"
                    ) from error

    def pids(self) -> list[int]:
        if self._container is None:
            return []
        table = self._container.get_wrapped_container().top()
        column = table["Titles"].index("PID")
        return [int(row[column]) for row in table["Processes"]]

    def logs(self) -> str:
        if self._container is None:
            return ""
        text: bytes = self._container.get_wrapped_container().logs(tail=60)
        return text.decode(errors="replace")

    def start(self) -> None:
        if self._container is None:
            self._create()
        else:
            self._container.get_wrapped_container().start()
        try:
            wait_for_route(self.namesrv, self.broker_port, self.start_timeout_s, self._check_alive)
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        if self._container is not None:
            self._container.get_wrapped_container().stop(timeout=60)

    def crash(self) -> None:
        if self._container is not None:
            self._container.get_wrapped_container().kill("KILL")

    def close(self) -> None:
        if self._container is not None:
            self._container.stop()
            self._container = None

    def _create(self) -> None:
        from docker.errors import DockerException
        from testcontainers.core.container import DockerContainer

        places = {"listenPort": str(self.broker_port), "namesrvAddr": f"127.0.0.1:{self.namesrv_port}"}
        places |= {"brokerIP1": self.host, "brokerIP2": self.host}
        container = DockerContainer(self._image)
        container.with_command(["sh", "-c", _COMMAND]).with_env("JAVA_OPT_EXT", _HEAP)
        container.with_env("NAMESRV_CONF", f"listenPort={self.namesrv_port}\n")
        container.with_env(
            "BROKER_CONF", _lines({**BROKER_SETTINGS, **IDLE_SETTINGS, **places, **self.settings})
        )
        for port in (self.namesrv_port, self.broker_port - 2, self.broker_port, self.broker_port + 1):
            container.with_bind_ports(port, port)
        self._container = container
        try:
            container.start()
        except DockerException as error:
            self.close()
            raise Unavailable(f"cannot run {self._image}: {_explanation(error)}") from error

    def _check_alive(self) -> None:
        wrapped = self._container.get_wrapped_container()
        wrapped.reload()
        if wrapped.status not in ("created", "running", "restarting"):
            raise RuntimeError(f"{self.name} is {wrapped.status}\n{self.logs()}")


def _lines(settings: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _explanation(error: Exception) -> str:
    """Return what the engine said, without the address of its own interface, which is of no use to a reader."""
    return str(getattr(error, "explanation", None) or error)


def _no_engine(error: Exception, address: str | None = None) -> str:
    where = f" at {address}" if address else ""
    return (
        f"no Docker engine answers{where} ({error}): start Docker, or set DOCKER_HOST to the address of an engine; "
        "--official VERSION tests the same server without Docker"
    )


def _engine_host() -> str:
    """Return the host at which published ports can be reached. Raises Unavailable if no engine answers."""
    try:
        import docker
        from docker.errors import DockerException
        from testcontainers.core.docker_client import DockerClient
    except ImportError as error:
        raise Unavailable(f"{error.name} is not installed, which runs the official image") from error
    _check_socket(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    try:
        with closing(docker.from_env()) as engine:
            engine.ping()
            host: str = DockerClient().host()
    except (DockerException, OSError) as error:
        raise Unavailable(_no_engine(error)) from error
    return "127.0.0.1" if host == "localhost" else host


def _check_socket(engine: str) -> None:
    # Docker's library leaks a socket if nothing listens, and the resource warning would fail the next test.
    if engine.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(engine.removeprefix("unix://"))
            except OSError as error:
                raise Unavailable(_no_engine(error, engine)) from error
