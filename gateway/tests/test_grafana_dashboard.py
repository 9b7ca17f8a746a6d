"""The Grafana dashboard asks for metrics and labels that a server exposes."""

import json
import re
from pathlib import Path

import trio

from gateway.process.tests.test_http_endpoint import fetch
from gateway.process.tests.test_server import address, served
from gateway.tests.cluster import message, pull
from remoting.client import open_client
from remoting.requests.offsets import UpdateConsumerOffset

DASHBOARD = Path(__file__).parents[2] / "conf" / "grafana" / "rocketmq-gateway.json"
SERIES = re.compile(r"((?:rocketmq|process)_\w+)(?:\{([^}]*)\})?")
GROUPED_BY = re.compile(r"by \(([^)]*)\)")


def expressions() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked += [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    return asked


def exposed(text: str) -> dict[str, set[str]]:
    """Return the labels of every series in an exposition, by its name."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("{")
            labels = set(re.findall(r'(\w+)="', rest.partition("}")[0])) if rest else set()
            found.setdefault(name.split(" ")[0], set()).update(labels)
    return found


def test_every_panel_shows_metrics_that_exist(tmp_path):
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
        async with open_client(*address(facts["brokers"][name])) as client:
            sent = message()
            await client.ask(sent)
            await client.ask(pull())
            await client.ask(
                UpdateConsumerOffset(consumer_group="g", topic=sent.topic, queue_id=0, commit_offset=1)
            )
            status, text = await trio.to_thread.run_sync(fetch, f"http://{facts['http']}/metrics", {})
        assert status == 200
        found = exposed(text)
        # Both appear with the first heartbeat of a client.
        clients = {"cluster", "node_id", "language", "consumer_group"}
        found |= {"rocketmq_producer_connections": clients, "rocketmq_consumer_connections": clients}
        for expression in expressions():
            used = SERIES.findall(expression)
            assert used, expression
            for metric, selector in used:
                assert metric in found, expression
                labels = set(re.findall(r"(\w+)=", selector))
                labels |= {each for group in GROUPED_BY.findall(expression) for each in group.split(", ")}
                assert labels <= found[metric], (expression, found[metric])

    served(tmp_path, test, http_port=0)


def test_the_dashboard_has_panels_of_every_area():
    titles = [each["title"] for each in json.loads(DASHBOARD.read_text())["panels"] if each["type"] == "row"]
    assert titles == ["Traffic", "Consumers", "Delays and transactions", "Store", "Process"]
