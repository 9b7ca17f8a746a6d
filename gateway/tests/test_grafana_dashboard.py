"""The Grafana dashboard and its alerts ask for metrics and labels that a server exposes."""

import json
import re
from pathlib import Path
from typing import Any

import trio
import yaml

from gateway.config.controller import ControllerConfig
from gateway.process.tests.test_http_endpoint import fetch
from gateway.process.tests.test_server import address, served
from gateway.tests.cluster import message, pull
from remoting.client import open_client
from remoting.requests.controller import ControllerApplyBrokerId, ControllerGetMetadataInfo
from remoting.requests.offsets import UpdateConsumerOffset

FOLDER = Path(__file__).parents[2] / "conf" / "grafana"
DASHBOARD = FOLDER / "rocketmq-gateway.json"
ALERTS = FOLDER / "alerts.yaml"
SERIES = re.compile(r"((?:rocketmq|process)_\w+)(?:\{([^}]*)\})?")
GROUPED_BY = re.compile(r"by \(([^)]*)\)")


def expressions() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked += [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    return asked + [rule["data"][0]["model"]["expr"] for rule in alert_rules()]


def alert_rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def exposed(text: str) -> dict[str, set[str]]:
    """Return the labels of every series in an exposition, by its name."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("{")
            labels = set(re.findall(r'(\w+)="', rest.partition("}")[0])) if rest else set()
            found.setdefault(name.split(" ")[0], set()).update(labels)
    return found


def test_every_panel_and_alert_uses_metrics_that_exist(tmp_path):
    found: dict[str, set[str]] = {}

    async def slave(facts, server, nursery):
        status, text = await trio.to_thread.run_sync(fetch, f"http://{facts['http']}/metrics", {})
        assert status == 200
        found.update(exposed(text))

    async def test(facts, server, nursery):
        (name,) = facts["brokers"]
        broker = server._brokers.services[0].broker
        broker.stats.dead_letters["g", "t"].count_messages(1, 0)  # appears after a message was given up
        broker.stats.committed["t"].count_messages(1, 0)  # these appear with the first of their kind
        broker.stats.revived["g", "t"].count_messages(1, 0)
        broker.stats.rolled_back["t"].count_messages(1, 0)
        broker.stats.commit_latencies_s["t"].record(1)
        broker.stats.timers_scheduled["t"].count_messages(1, 0)
        broker.stats.timers_delivered["t"].count_messages(1, 0)
        broker.groups.find_or_create("g")
        broker.timer_delivery.metrics.adjust_count("t", 1, 0)  # appears with the first timer message
        async with open_client(*address(facts["controller"])) as client:
            while not (await client.ask(ControllerGetMetadataInfo())).is_leader:
                await trio.sleep(0.01)
            applied = {"cluster_name": "c", "broker_name": "b", "register_check_code": "h:1;1"}
            await client.ask(ControllerApplyBrokerId(applied_broker_id=1, **applied))
        async with open_client(*address(facts["brokers"][name])) as client:
            sent = message()
            await client.ask(sent)
            await client.ask(pull())
            await client.ask(
                UpdateConsumerOffset(consumer_group="g", topic=sent.topic, queue_id=0, commit_offset=1)
            )
            status, text = await trio.to_thread.run_sync(fetch, f"http://{facts['http']}/metrics", {})
        assert status == 200
        for name, labels in exposed(text).items():
            found.setdefault(name, set()).update(labels)
        # Those of slaves appear with the first one.
        found["rocketmq_gateway_replication_behind_bytes"].add("slave")
        # Both appear with the first heartbeat of a client.
        clients = {"cluster", "node_id", "language", "consumer_group"}
        found.update({"rocketmq_producer_connections": clients, "rocketmq_consumer_connections": clients})
        for expression in expressions():
            used = SERIES.findall(expression)
            assert used, expression
            for metric, selector in used:
                assert metric in found, expression
                labels = set(re.findall(r"(\w+)=", selector))
                labels |= {each for group in GROUPED_BY.findall(expression) for each in group.split(", ")}
                assert labels <= found[metric], (expression, found[metric])

    served(tmp_path, slave, http_port=0, broker_role="SLAVE", broker_id=1)
    peers = ControllerConfig(peers="n0-127.0.0.1:0")
    served(tmp_path, test, http_port=0, controller=peers)


def test_every_alert_says_what_it_means_and_belongs_to_a_panel():
    dashboard = json.loads(DASHBOARD.read_text())
    panels = {str(each["id"]): each for each in dashboard["panels"]}
    rules = alert_rules()
    assert len({rule["uid"] for rule in rules}) == len(rules) >= 10
    runbook = (FOLDER.parents[1] / "docs" / "how-to" / "high-availability.md").read_text()
    for rule in rules:
        query, threshold = rule["data"]
        assert rule["condition"] == threshold["refId"] == "B"
        assert threshold["model"]["expression"] == query["refId"] == "A"
        (condition,) = threshold["model"]["conditions"]
        assert condition["evaluator"]["type"] in ("gt", "lt")
        assert rule["labels"]["severity"] in ("critical", "warning")
        notes = rule["annotations"]
        assert notes["summary"]
        assert notes["description"]
        assert "$labels" not in re.sub(r"\$\$labels", "", notes["summary"]), (
            "a single $ is a variable of Grafana"
        )
        assert notes["__dashboardUid__"] == dashboard["uid"]
        shown = " ".join(target["expr"] for target in panels[notes["__panelId__"]]["targets"])
        metrics = {metric for metric, _ in SERIES.findall(query["model"]["expr"])}
        assert any(metric in shown for metric in metrics) or rule["uid"] in SHOWN_ELSEWHERE, rule["uid"]
        assert f"| {rule['title']} |" in runbook, "each alert has a row in the runbook"


SHOWN_ELSEWHERE = {"rocketmq-store-failing", "rocketmq-leader-changes", "rocketmq-unclean-election"}
"""Alerts whose panel shows something related, and not their own metric."""


def test_the_dashboard_has_panels_of_every_area():
    titles = [each["title"] for each in json.loads(DASHBOARD.read_text())["panels"] if each["type"] == "row"]
    assert titles == ["Traffic", "Consumers", "Delays and transactions", "Store", "Replication", "Process"]
