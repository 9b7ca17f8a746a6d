"""The container image, run as its documents say. `containers.py` builds it."""

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from acceptance.containers import ROOT
from codec.native import native_module
from compat_tests.cases.conftest import stock_client, warm_up
from compat_tests.cases.grpc_fixtures import start_grpc_driver
from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.programs import run_mqadmin
from compat_tests.clients.typed import connect, messages, pull, send, topic_request
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually
from remoting.requests.admin import UpdateBrokerConfig
from remoting.requests.namesrv import GetRouteInfoByTopic

MAX_BYTES = 120_000_000
NAMESRV, BROKER, CONTROL, GRPC = 9876, 10911, 9880, 8081
DEPLOY = ROOT / "deploy"
KUBERNETES_VERSION = "1.31"
ASK_ROUTE = (
    "import sys; from remoting.blocking import BlockingClient; "
    "from remoting.requests.namesrv import GetRouteInfoByTopic; "
    "client = BlockingClient(sys.argv[1], int(sys.argv[2]), timeout_s=20); "
    "print(client.ask(GetRouteInfoByTopic(topic='TBW102')).data.broker_datas[0].broker_addrs[0])"
)
"""A program that prints the address of the broker which the namesrv of its arguments tells it."""


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
    with running(image, command=("serve", "--memory")) as container:
        own = container.inspect()["NetworkSettings"]["Networks"]["bridge"]["IPAddress"]
        neighbour = (
            "run",
            "--rm",
            "--read-only",
            "--entrypoint",
            "python3",
            image,
            "-c",
            ASK_ROUTE,
            own,
            str(NAMESRV),
        )
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
            if native_module() is not None:  # there is a compiler, so the image has the extension, too
                assert "native sends brokers=broker-a state=on" in container.logs()
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


def test_mqadmin_tells_a_started_broker_its_address(image: str, tmp_path: Path) -> None:
    """As container classes written for the official image do it, Brave's among them: settings after the start."""
    with running(
        image, *publish(0, NAMESRV), *publish(0, BROKER), command=("serve", "--memory")
    ) as container:
        namesrv, broker = container.published(NAMESRV), container.published(BROKER)
        changes = {
            "brokerIP1": "localhost",
            "listenPort": broker.rpartition(":")[2],
            "autoCreateTopicEnable": "true",
        }
        for key, value in changes.items():
            words = ("updateBrokerConfig", "-b", broker, "-k", key, "-v", value)
            printed = run_mqadmin(tmp_path / "admin", *words)
            assert "update broker config success" in printed, printed
        assert route_address(namesrv, "TBW102") == f"localhost:{changes['listenPort']}"
        with stock_client(namesrv) as java:
            warm_up(java)
            with java.producer("shop") as producer:
                assert producer.send_numbered("orders", 3)[0]["status"] == "SEND_OK"
                with java.push("packing", "orders") as consumer:
                    assert {message["body"] for message in consumer.received(3, 60)} == {"0", "1", "2"}


def test_grpc_clients_are_told_the_published_port_that_they_dialled(image: str) -> None:
    """The image's own command, with ports of the host that the server knows nothing about."""
    with running(image, *publish(0, BROKER), *publish(0, GRPC)) as container:
        with connect(container.published(BROKER)) as client:
            client.ask(topic_request("orders", 1))
        address = container.published(GRPC)
        driver = start_grpc_driver(address)
        try:
            java = StockGrpcClient(driver, address)
            with java.producer("orders") as producer:
                producer.send({"topic": "orders", "body": "through the published port"})
            with java.push("packing", "orders") as consumer:
                assert [each["body"] for each in consumer.received(1)] == ["through the published port"]
        finally:
            driver.close()


def test_commands_run_inside(image: str) -> None:
    """The first commands of docs/how-to/containers.md."""
    with running(image) as container:
        command = ("exec", container.name, "rmq-gateway")
        docker(*command, "topic", "create", "orders")
        docker(*command, "produce", "orders", "hello")
        assert docker(*command, "consume", "orders") == "hello"


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
        health = ("exec", container.name, "python3", "-m", "gateway.process.health_probe")
        docker(*health)


def find_compose() -> list[str]:
    """Return the command of Compose: the plugin of `docker`, or the program of its own."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        if subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0:
            return command
    pytest.skip("neither `docker compose` nor docker-compose is installed")


def test_compose_file_starts_and_its_services_reach_the_broker(image: str, tmp_path: Path) -> None:
    """The example with free ports, and with a second service as its comment shows."""
    namesrv, broker = find_server_ports()
    example = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    example["services"]["rocketmq"] |= {
        "image": image,
        "ports": [f"127.0.0.1:{port}:{port}" for port in (namesrv, broker)],
        "command": ["serve", "--port", str(namesrv), "--broker-port", str(broker)],
    }
    example["services"]["shop"] = {
        "image": image,
        "entrypoint": ["python3", "-c", ASK_ROUTE, "rocketmq", str(namesrv)],
        "depends_on": {"rocketmq": {"condition": "service_healthy"}},
    }
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(example))
    compose = [*find_compose(), "--project-name", f"case-{namesrv}", "--file", str(tmp_path / "compose.yaml")]
    try:
        started = subprocess.run([*compose, "up", "-d"], capture_output=True, text=True, check=False)
        assert started.returncode == 0, started.stderr
        assert route_address(f"127.0.0.1:{namesrv}", "TBW102") == f"127.0.0.1:{broker}"
        server, shop = (find_container(f"case-{namesrv}.{service}") for service in ("rocketmq", "shop"))
        assert docker("wait", shop.name) == "0", shop.logs()
        (own,) = server.inspect()["NetworkSettings"]["Networks"].values()
        assert shop.logs().strip() == f"{own['IPAddress']}:{broker}"
    finally:
        ended = subprocess.run([*compose, "down", "--volumes"], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr


def replica_rows(container: Container) -> list[dict[str, Any]]:
    """Return the rows of `cluster replicas`; nothing while there is no master."""
    words = ["docker", "exec", container.name, "rmq-gateway", "cluster", "replicas", "--json"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    return list(json.loads(result.stdout)) if result.returncode == 0 else []


def test_replicas_of_the_compose_file_replace_a_killed_master(
    image: str, etcd_image: str, tmp_path: Path
) -> None:
    """Of deploy/compose-ha.yaml: three brokers, three namesrvs with controllers, three members of etcd."""
    example = yaml.safe_load((DEPLOY / "compose-ha.yaml").read_text())
    for name, service in example["services"].items():
        service["image"] = etcd_image if name.startswith("etcd") else image
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(example))
    project = f"case-ha-{os.getpid()}"
    compose = [*find_compose(), "--project-name", project, "--file", str(tmp_path / "compose.yaml")]
    try:
        start = subprocess.run([*compose, "up", "-d"], capture_output=True, text=True, check=False)
        assert start.returncode == 0, start.stderr
        brokers = {name: find_container(f"{project}.{name}") for name in ("broker-0", "broker-1", "broker-2")}

        def masters_in_sync(container: Container, count: int) -> list[str]:
            rows = replica_rows(container)
            if sum(row["inSync"] for row in rows) < count:
                return []
            return [row["address"].partition(":")[0] for row in rows if row["role"] == "master"]

        (old,) = eventually(lambda: masters_in_sync(brokers["broker-0"], 3), 120, every_s=1)
        witness = next(container for name, container in brokers.items() if name != old)
        command = ("exec", witness.name, "rmq-gateway")
        docker(*command, "topic", "create", "orders")
        docker(*command, "produce", "orders", "before")
        docker("kill", brokers[old].name)
        (new,) = eventually(
            lambda: [name for name in masters_in_sync(witness, 2) if name != old], 60, every_s=1
        )
        docker(*command, "produce", "orders", "after")
        assert sorted(docker(*command, "consume", "orders").splitlines()) == ["after", "before"]
        docker("start", brokers[old].name)
        eventually(lambda: masters_in_sync(witness, 3) == [new], 120, every_s=1)
        for container in brokers.values():
            assert "Traceback" not in container.logs()
    finally:
        end = subprocess.run([*compose, "down", "--volumes"], capture_output=True, text=True, check=False)
        assert end.returncode == 0, end.stderr


def find_container(name: str) -> Container:
    (found,) = docker("ps", "--all", "--quiet", "--filter", f"name={name}").splitlines()
    return Container(found)


def kubernetes_documents(name: str) -> list[dict[str, Any]]:
    """Return the documents of a file that are valid by the schemas of the API; a cluster is not at hand."""
    schemas = pytest.importorskip("kubernetes_validate")
    documents = list(yaml.safe_load_all((DEPLOY / name).read_text()))
    for each in documents:
        schemas.validate(each, KUBERNETES_VERSION, strict=True)
    return documents


def specs_of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Return the specifications of all manifests of a kind, by name."""
    return {
        manifest["metadata"]["name"]: manifest["spec"] for manifest in documents if manifest["kind"] == kind
    }


def test_kubernetes_file_is_valid_and_runs_the_image_without_rights() -> None:
    (spec,) = specs_of_kind(kubernetes_documents("kubernetes.yaml"), "StatefulSet").values()
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["readinessProbe"]["exec"]["command"] == ["python3", "-m", "gateway.process.health_probe"]
    assert container["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]


def test_kubernetes_file_of_three_machines_is_valid_and_spreads_replicas() -> None:
    documents = kubernetes_documents("kubernetes-ha.yaml")
    sets = specs_of_kind(documents, "StatefulSet")
    assert set(sets) == {"etcd", "rocketmq"}
    budgets, services = specs_of_kind(documents, "PodDisruptionBudget"), specs_of_kind(documents, "Service")
    assert set(budgets) == set(services) == set(sets)
    for name, spec in sets.items():
        pod, labels = spec["template"]["spec"], {"app": name}
        assert (spec["replicas"], spec["podManagementPolicy"]) == (3, "Parallel")
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"] == labels
        assert services[spec["serviceName"]]["selector"] == labels
        # Pods are found by their names, before they are ready as well.
        assert services[name]["clusterIP"] == "None"
        assert services[name]["publishNotReadyAddresses"] is True
        (spread,) = pod["topologySpreadConstraints"]
        assert spread["topologyKey"] == "kubernetes.io/hostname"
        assert spread["whenUnsatisfiable"] == "DoNotSchedule"
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] is True
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert "readinessProbe" in container
            (mount,) = container["volumeMounts"]
            assert mount["mountPath"] == "/data"
    namesrv, broker = sets["rocketmq"]["template"]["spec"]["containers"]
    assert (namesrv["name"], broker["name"]) == ("namesrv", "broker")
    probe = ["python3", "-m", "gateway.process.health_probe"]
    # An update waits for a slave to be in sync, and nothing restarts it meanwhile.
    assert broker["readinessProbe"]["exec"]["command"] == probe
    assert broker["startupProbe"]["exec"]["command"] == [*probe, "--exclude", "in-sync"]
