"""Official controllers, brokers in controller mode, and a namesrv, as processes for cases about controllers."""

import json
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from compat_tests.clients.typed import connect
from compat_tests.endpoints.official import NAMESRV_HEAP, QUICK_START, OfficialEndpoint
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.endpoints.process import ChildProcess
from compat_tests.jars import fetch_jars, java_command
from compat_tests.server import eventually
from remoting.bodies.ha import ReplicasInfo
from remoting.errors import REQUEST_FAILURES
from remoting.requests.controller import ControllerGetMetadataInfo, ControllerGetSyncStateData

OFFICIAL_SERVER = "server-5.4"
CONTROLLER_HEAP = "-Xms64m -Xmx256m -XX:MaxDirectMemorySize=256m"
START_TIMEOUT_S = 90.0
CONTROLLER_MODE = {
    "enableControllerMode": "true",
    "brokerId": "-1",
    "brokerRole": "SLAVE",
    "allAckInSyncStateSet": "true",
    "timerWheelEnable": "false",
    "mappedFileSizeCommitLog": str(1 << 20),
}
"""Settings of an official broker whose role a controller decides."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    return find_server_ports()[0]


def launch_controller(
    directory: Path,
    peers: str,
    member_id: str,
    settings: Mapping[str, str] | None = None,
    prefix: tuple[str, ...] = (),
    profile: str = OFFICIAL_SERVER,
) -> ChildProcess:
    """Start an official controller, which is the member `member_id` of `peers`, on the state in the directory."""
    fetch_jars(profile)
    directory.mkdir(parents=True, exist_ok=True)
    lines = {
        "controllerDLegerGroup": "group",
        "controllerDLegerPeers": peers,
        "controllerDLegerSelfId": member_id,
        "controllerStorePath": str(directory / "controller"),
        "mappedFileSize": str(1 << 20),
        **(settings or {}),
    }
    conf = directory / "controller.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    home = directory / "home"
    home.mkdir(exist_ok=True)
    command = java_command(
        profile,
        "org.apache.rocketmq.controller.ControllerStartup",
        home,
        heap=f"{CONTROLLER_HEAP} {QUICK_START}",
        log=directory / "controller.log",
    )
    output = directory / "controller-output.log"
    return ChildProcess(
        "controller", [*prefix, *command, "-c", str(conf)], output, {"ROCKETMQ_HOME": str(home)}
    )


def launch_namesrv(directory: Path, host: str, port: int) -> ChildProcess:
    """Start an official namesrv, and return when its port is open."""
    fetch_jars(OFFICIAL_SERVER)
    home = directory / "home"
    home.mkdir(parents=True, exist_ok=True)
    conf = directory / "namesrv.conf"
    lines = {"listenPort": port, "bindAddress": "0.0.0.0", "kvConfigPath": directory / "kvConfig.json"}
    conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    command = java_command(
        OFFICIAL_SERVER,
        "org.apache.rocketmq.namesrv.NamesrvStartup",
        home,
        heap=f"{NAMESRV_HEAP} {QUICK_START}",
        log=directory / "namesrv-java.log",
    )
    output = directory / "namesrv-output.log"
    child = ChildProcess("namesrv", [*command, "-c", str(conf)], output, {"ROCKETMQ_HOME": str(home)})
    eventually(lambda: is_open(host, port), START_TIMEOUT_S)
    return child


def is_open(host: str, port: int) -> bool:
    """Tell whether a port accepts connections."""
    with closing(socket.socket()) as sock:
        sock.settimeout(1)
        return sock.connect_ex((host, port)) == 0


class OfficialController:
    """One official controller, with DLedger, that leads itself."""

    def __init__(
        self, directory: Path, settings: Mapping[str, str] | None = None, *, profile: str = OFFICIAL_SERVER
    ) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.child = launch_controller(directory, f"n0-{self.address}", "n0", settings, profile=profile)

    def __enter__(self) -> Self:
        eventually(lambda: leads(self.address), START_TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.kill()


def read_replicas(controllers: Iterable[str], broker: str, *, timeout_s: float = 3.0) -> ReplicasInfo:
    """Return the replicas of a broker name as the leading controller knows them; nothing while none leads."""
    request = ControllerGetSyncStateData()
    request.body = json.dumps([broker]).encode()
    for address in controllers:
        try:
            with connect(address, timeout_s=timeout_s) as controller:
                table = controller.ask(request).data.replicas_info_table
        except REQUEST_FAILURES:
            continue  # it does not lead
        if broker in table:
            return table[broker]
    return ReplicasInfo()


def leads(address: str) -> bool:
    """Tell whether a controller answers and leads its group."""
    try:
        with connect(address, timeout_s=5) as controller:
            return controller.ask(ControllerGetMetadataInfo()).is_leader
    except REQUEST_FAILURES:
        return False


class UndecidedBroker(OfficialEndpoint):
    """An official broker whose role is decided after its start, which does not wait for it."""

    def __init__(
        self,
        directory: Path,
        namesrv: str,
        settings: Mapping[str, str],
        *,
        host: str = "127.0.0.1",
        jvm: str = QUICK_START,
        prefix: tuple[str, ...] = (),
        profile: str = OFFICIAL_SERVER,
    ) -> None:
        super().__init__(settings, directory, namesrv=namesrv, jvm=jvm, prefix=prefix, profile=profile)
        self.host = host

    def start(self) -> None:
        """Start the process, and return when its port is open."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.start_children()
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            if is_open(self.host, self.broker_port):
                return
            if self.children[-1].exit_code() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"the official broker did not listen\n{self.logs()}")


class ControlledBroker(UndecidedBroker):
    """An official broker in controller mode."""

    def __init__(
        self,
        directory: Path,
        namesrv: str,
        controllers: str,
        settings: Mapping[str, str],
        *,
        host: str = "127.0.0.1",
        jvm: str = QUICK_START,
        prefix: tuple[str, ...] = (),
        profile: str = OFFICIAL_SERVER,
    ) -> None:
        merged = {**CONTROLLER_MODE, "controllerAddr": controllers, **settings}
        super().__init__(directory, namesrv, merged, host=host, jvm=jvm, prefix=prefix, profile=profile)
