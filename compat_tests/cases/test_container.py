"""The container image, run as its documents say. `containers.py` builds it."""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from compat_tests.cases.containers import ROOT
from compat_tests.clients.typed import connect, messages, pull, send
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually
from remoting.requests.admin import UpdateBrokerConfig
from remoting.requests.namesrv import GetRouteInfoByTopic

pytestmark = pytest.mark.ours_only

MAX_BYTES = 120_000_000
NAMESRV, BROKER, CONTROL = 9876, 10911, 9880


def docker(*words: str, timeout_s: float = 120.0) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"docker {' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


class Container:
    """A running container, and its addresses as this machine sees them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def inspect(self) -> dict[str, Any]:
        (found,) = json.loads(docker("inspect", self.name))
        return dict(found)

    def published(self, port: int) -> str:
        return f"127.0.0.1:{self.inspect()['NetworkSettings']['Ports'][f'{port}/tcp'][0]['HostPort']}"

    def logs(self) -> str:
        done = subprocess.run(["docker", "logs", self.name], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            assert self.inspect()["State"]["Running"], self.logs()
            return '"event": "ready"' in self.logs()

        eventually(is_ready, 60)


@contextmanager
def running(image: str, *options: str, command: tuple[str, ...] = ()) -> Iterator[Container]:
    """Run a container as the documents say: nobody's files but the volume's can be written."""
    words = ["run", "--detach", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    container = Container(docker(*words, *options, image, *command))
    try:
        container.wait_ready()
        yield container
    finally:
        subprocess.run(
            ["docker", "rm", "--force", "--volumes", container.name], capture_output=True, check=True
        )


def publish(host_port: int, port: int) -> tuple[str, str]:
    return "--publish", f"127.0.0.1:{host_port}:{port}"


def route_address(namesrv: str, topic: str) -> str:
    with connect(namesrv) as client:
        (broker,) = client.ask(GetRouteInfoByTopic(topic=topic)).data.broker_datas
    return str(broker.broker_addrs[0])


def test_image_is_small_and_nobody_is_root(image: str) -> None:
    (facts,) = json.loads(docker("inspect", image))
    assert facts["Size"] < MAX_BYTES
    assert facts["Config"]["User"] == "10001:10001"
    assert facts["Config"]["Volumes"] == {"/data": {}}


def test_clients_on_the_host_are_told_an_address_they_reach(image: str) -> None:
    namesrv, broker = find_server_ports()
    ports = (*publish(namesrv, namesrv), *publish(broker, broker))
    command = ("serve", "--port", str(namesrv), "--broker-port", str(broker))
    with running(image, *ports, command=command) as container:
        address = route_address(f"127.0.0.1:{namesrv}", "TBW102")
        assert address == f"127.0.0.1:{broker}"
        with connect(address) as client:
            send(client, "orders", b"through the published port")
            assert [bytes(each.body) for each in messages(pull(client, "orders", 0))] == [
                b"through the published port"
            ]
        health = "{{.State.Health.Status}}"
        eventually(lambda: docker("inspect", "--format", health, container.name) == "healthy", 60)
        user = docker("exec", container.name, "python3", "-c", "import os; print(os.getuid())")
        assert user == "10001"


def test_containers_are_told_the_container_s_own_address(image: str) -> None:
    ask = (
        "import sys; from remoting.blocking import BlockingClient; "
        "from remoting.requests.namesrv import GetRouteInfoByTopic; "
        "client = BlockingClient(sys.argv[1], 9876, timeout_s=20); "
        "print(client.ask(GetRouteInfoByTopic(topic='TBW102')).data.broker_datas[0].broker_addrs[0])"
    )
    with running(image, command=("serve", "--memory")) as container:
        own = container.inspect()["NetworkSettings"]["Networks"]["bridge"]["IPAddress"]
        neighbour = ("run", "--rm", "--read-only", "--entrypoint", "python3", image, "-c", ask, own)
        assert docker(*neighbour).splitlines()[-1] == f"{own}:{BROKER}"


def test_messages_survive_in_the_volume(image: str) -> None:
    namesrv, broker = find_server_ports()
    volume = docker("volume", "create")
    options = (*publish(namesrv, namesrv), *publish(broker, broker), "--volume", f"{volume}:/data")
    command = ("serve", "--port", str(namesrv), "--broker-port", str(broker))
    try:
        with running(image, *options, command=command) as container:
            with connect(f"127.0.0.1:{broker}") as client:
                send(client, "orders", b"kept")
            docker("stop", "--time", "30", container.name)
            assert container.inspect()["State"]["ExitCode"] == 0
            assert "stopping signal=SIGTERM" in container.logs()
        with running(image, *options, command=command), connect(f"127.0.0.1:{broker}") as client:
            assert [bytes(each.body) for each in messages(pull(client, "orders", 0))] == [b"kept"]
    finally:
        docker("volume", "rm", volume)


def test_any_published_port_works_once_the_broker_knows_it(image: str) -> None:
    """As with Testcontainers, which takes free ports of the host after the container has started."""
    with running(
        image, *publish(0, NAMESRV), *publish(0, BROKER), command=("serve", "--memory")
    ) as container:
        namesrv, broker = container.published(NAMESRV), container.published(BROKER)
        with connect(broker) as client:
            shown = f"brokerIP1=127.0.0.1\nadvertisedPort={broker.rpartition(':')[2]}"
            client.ask(UpdateBrokerConfig(body=shown.encode()))
        assert route_address(namesrv, "TBW102") == broker


def test_control_api_is_reached_with_its_token(image: str) -> None:
    environment = ("--env", "RMQ_GATEWAY_CONTROL_ADDRESS=0.0.0.0", "--env", "RMQ_GATEWAY_CONTROL_TOKEN=t0ken")
    command = ("serve", "--memory", "--control", str(CONTROL))
    with running(image, *environment, *publish(0, CONTROL), command=command) as container:
        request = urllib.request.Request(
            f"http://{container.published(CONTROL)}/v1/reset",
            b"{}",
            {"Authorization": "Bearer t0ken"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
        health = ("exec", container.name, "python3", "-m", "gateway.health_probe")
        docker(*health)


@pytest.mark.parametrize("name", ["compose.yaml", "kubernetes.yaml"])
def test_examples_run_the_image_without_rights(name: str) -> None:
    """They are read here; an engine for them is not at hand everywhere."""
    documents = list(yaml.safe_load_all((ROOT / "deploy" / name).read_text()))
    if name == "compose.yaml":
        service = documents[0]["services"]["rocketmq"]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert {port.rpartition(":")[2] for port in service["ports"]} == {str(NAMESRV), str(BROKER)}
        return
    (pod,) = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == "StatefulSet"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["readinessProbe"]["exec"]["command"] == ["python3", "-m", "gateway.health_probe"]
    assert container["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
