"""The examples of three machines: their settings exist, and name each other's addresses."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from gateway.config.process import ServeConfig
from gateway.config.sources import load_config

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COUNT = 3
COMPOSE, KUBERNETES = "compose-ha.yaml", "kubernetes-ha.yaml"
HOSTS = {
    COMPOSE: [f"namesrv-{index}" for index in range(COUNT)],
    KUBERNETES: [f"rocketmq-{index}.rocketmq" for index in range(COUNT)],
}
"""Names at which namesrvs and controllers are reached."""
ETCD_HOSTS = {
    COMPOSE: [f"etcd-{index}" for index in range(COUNT)],
    KUBERNETES: [f"etcd-{index}.etcd" for index in range(COUNT)],
}


def environments(file: str, part: str) -> list[dict[str, str]]:
    """Return the variables of the three containers of a part: namesrv, broker or etcd."""
    if file == COMPOSE:
        services = yaml.safe_load((DEPLOY / file).read_text())["services"]
        return [dict(services[f"{part}-{index}"]["environment"]) for index in range(COUNT)]
    documents = list(yaml.safe_load_all((DEPLOY / file).read_text()))
    (container,) = [
        container
        for document in documents
        if document["kind"] == "StatefulSet"
        for container in document["spec"]["template"]["spec"]["containers"]
        if container["name"] == part
    ]
    return [
        _expand(container["env"], "etcd" if part == "etcd" else "rocketmq", index) for index in range(COUNT)
    ]


def _expand(entries: list[Mapping[str, Any]], name: str, index: int) -> dict[str, str]:
    """Return variables as Kubernetes sets them in the pod with an index."""
    fields = {
        "metadata.name": f"{name}-{index}",
        "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
    }
    values: dict[str, str] = {}
    for entry in entries:
        if "valueFrom" in entry:
            values[entry["name"]] = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            # A reference needs a variable that stands before it.
            values[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], entry["value"])
    return values


def settings(file: str, part: Literal["namesrv", "broker"]) -> list[ServeConfig]:
    configs = [load_config(part, environment=values) for values in environments(file, part)]
    assert not [notice for config in configs for notice in config.notices]
    return configs


@pytest.mark.parametrize("file", [COMPOSE, KUBERNETES])
def test_controllers_know_each_other_and_etcd(file: str) -> None:
    for index, config in enumerate(settings(file, "namesrv")):
        controller = config.controller
        assert controller is not None
        peers = [(peer.member_id, peer.host, peer.port) for peer in controller.all_peers()]
        assert peers == [(f"n{number}", host, 9878) for number, host in enumerate(HOSTS[file])]
        own = controller.own_peer()
        assert own is not None
        assert own.host == HOSTS[file][index]
        assert controller.etcd_urls() == [f"http://{host}:2379" for host in ETCD_HOSTS[file]]


@pytest.mark.parametrize("file", [COMPOSE, KUBERNETES])
def test_brokers_have_one_name_and_know_all_controllers_and_namesrvs(file: str) -> None:
    configs = settings(file, "broker")
    brokers = [config.brokers[0] for config in configs]
    assert {broker.broker_name for broker in brokers} == {"broker-a"}
    assert len({broker.broker_ip for broker in brokers}) == COUNT
    for config, broker in zip(configs, brokers, strict=True):
        assert broker.namesrv_addr == ";".join(f"{host}:9876" for host in HOSTS[file])
        replication = broker.replication
        assert replication.enable_controller_mode
        assert replication.all_ack_in_sync_state_set
        assert replication.controller_addr == ";".join(f"{host}:9878" for host in HOSTS[file])
        # Stock clients ask for routes every 30 s, and messages are passed on until then.
        assert config.limits.drain_s >= 45


@pytest.mark.parametrize("file", [COMPOSE, KUBERNETES])
def test_members_of_etcd_know_each_other(file: str) -> None:
    for index, values in enumerate(environments(file, "etcd")):
        host = ETCD_HOSTS[file][index]
        assert values["ETCD_NAME"] == f"etcd-{index}"
        assert values["ETCD_INITIAL_CLUSTER"] == ",".join(
            f"etcd-{number}=http://{other}:2380" for number, other in enumerate(ETCD_HOSTS[file])
        )
        assert values["ETCD_INITIAL_ADVERTISE_PEER_URLS"] == f"http://{host}:2380"
        assert values["ETCD_ADVERTISE_CLIENT_URLS"] == f"http://{host}:2379"


def test_containers_get_the_time_that_brokers_may_take_to_stop() -> None:
    drain_s = settings(KUBERNETES, "broker")[0].limits.drain_s
    documents = list(yaml.safe_load_all((DEPLOY / KUBERNETES).read_text()))
    (pod,) = [
        document["spec"]["template"]["spec"]
        for document in documents
        if (document["kind"], document["metadata"]["name"]) == ("StatefulSet", "rocketmq")
    ]
    assert pod["terminationGracePeriodSeconds"] > drain_s
    services = yaml.safe_load((DEPLOY / COMPOSE).read_text())["services"]
    for index in range(COUNT):
        assert int(services[f"broker-{index}"]["stop_grace_period"].rstrip("s")) > drain_s


def test_processes_of_one_pod_use_different_ports() -> None:
    documents = list(yaml.safe_load_all((DEPLOY / KUBERNETES).read_text()))
    for document in documents:
        if document["kind"] == "StatefulSet":
            containers = document["spec"]["template"]["spec"]["containers"]
            ports = [port["containerPort"] for container in containers for port in container["ports"]]
            assert len(set(ports)) == len(ports)
    http_ports = {
        environments(KUBERNETES, part)[0].get("RMQ_GATEWAY_HTTP_PORT", "9870")
        for part in ("namesrv", "broker")
    }
    assert len(http_ports) == 2
