"""The control API over HTTP: every operation, its refusals, its OpenAPI document, and the process around it."""

import json
import signal
import urllib.error
import urllib.parse
import urllib.request

import pytest
import trio

from gateway.config.process import ProcessConfig
from gateway.config.sources import ConfigError, load_config
from gateway.runtime.stop_signals import StopSignals
from gateway.testing import control_server
from gateway.testing.control_api import OPERATIONS
from gateway.testing.control_server import ControlledServer, build_console, build_document, control_settings
from gateway.testing.faults import FaultTable
from gateway.testing.servers import open_servers
from gateway.testing.tests.clients import Client
from gateway.testing.tests.schemas import TYPES, find_mismatches
from remoting.errors import RequestError
from toolkit.settings import SettingsError

SERVE = ["memoryStore=true", "bindAddress=127.0.0.1", "namesrv.listenPort=0", "broker.listenPort=0"]
BY_NAME = {operation.name: operation for operation in OPERATIONS}


class Api:
    """A client of the API; it checks every answer against the schema of its operation."""

    def __init__(self, address, token=""):
        self.url = f"http://{address}"
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.called = set()

    def fetch(self, path, given=None, **query):
        url = self.url + path + ("?" + urllib.parse.urlencode(query) if query else "")
        data = None if given is None else json.dumps(given).encode()
        request = urllib.request.Request(url, data, self.headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def call(self, operation, given):
        if operation.method == "GET":
            return self.fetch(operation.path, **given)
        return self.fetch(operation.path, given)

    def ask(self, name, /, **given):
        operation = BY_NAME[name]
        self.called.add(name)
        if operation.method == "POST":
            assert find_mismatches(given, operation.takes) == []
        status, answer = self.call(operation, given)
        assert status == 200, answer
        assert find_mismatches(answer, operation.answers) == []
        return answer

    def refusal(self, name, /, **given):
        status, answer = self.call(BY_NAME[name], given)
        return status, answer["error"]

    @property
    def broker_address(self):
        """For `Client`."""
        return next(iter(self.ask("getAddresses")["brokers"].values()))


@pytest.fixture
def with_api():
    """Run a function with an `Api` in a worker thread, beside the servers."""

    def run(test, token=""):
        config = load_config("serve", sets=SERVE)

        async def main():
            async with open_servers(config, FaultTable()) as servers, trio.open_nursery() as nursery:
                settings = control_settings(ProcessConfig(control_port=0, control_token=token))
                console = build_console(settings, servers)
                host, port = await nursery.start(console.run)
                await trio.to_thread.run_sync(test, Api(f"{host}:{port}", token))
                nursery.cancel_scope.cancel()

        trio.run(main)

    return run


def test_every_operation_does_what_it_says(with_api):
    def test(api):
        api.ask("createTopic", topic="orders", queues=1, attributes={"message.type": "NORMAL"})
        with Client(api) as client:
            client.beat("c1")
            client.send("orders", b"now", tags="T", key="U1")
            client.send("orders", b"\xff", key="U2")
            client.send("orders", b"later", key="U3", properties={"DELAY": "3"})
            first, second = api.ask("listMessages", topic="orders")["messages"]
            assert (first["body"], first["body_base64"], first["tags"]) == ("now", "bm93", "T")
            assert (second["body"], second["body_base64"]) == (None, "/w==")
            api.ask("advance", seconds=10)
            assert len(api.ask("waitForMessages", topic="orders", count=3)["messages"]) == 3
            assert api.ask("getLag", group="GID") == {"lag": 3}
            client.commit(3)
            assert api.ask("waitUntilConsumed", group="GID", topic="orders", timeout_s=5) == {"lag": 0}
            fault = api.ask("addFault", action="error", request="send", times=2, remark="full")
            other = api.ask("addFault", action="latency", seconds=0.01, request=11)
            with pytest.raises(RequestError, match="full"):
                client.send()
            (found, _) = api.ask("listFaults")["faults"]
            assert (found["id"], found["hits"]) == (fault["id"], 1)
            assert api.ask("removeFault", id=fault["id"])["hits"] == 1
            assert [each["id"] for each in api.ask("clearFaults")["faults"]] == [other["id"]]
            assert api.ask("listFaults") == {"faults": []}
            client.send()
            api.ask("stopBroker", keep_route=True)
            assert client.is_closed_by_peer()
            assert api.ask("startBroker")["brokers"] == api.ask("getAddresses")["brokers"]
        api.ask("reset")
        assert api.ask("listMessages", topic="orders") == {"messages": []}
        assert api.called == BY_NAME.keys()

    with_api(test)


def test_refusals_say_what_is_wrong(with_api):
    def test(api):
        assert api.refusal("advance") == (400, "seconds is missing")
        assert api.refusal("advance", seconds="9") == (400, "seconds: '9' is not of type number")
        assert api.refusal("advance", seconds=True) == (400, "seconds: True is not of type number")
        assert api.refusal("advance", seconds=-1) == (400, "seconds: -1 is not within 0 to ∞")
        assert api.refusal("reset", hard=True) == (400, "unknown member hard; known: none")
        assert api.refusal("createTopic", topic="t", attributes={"a": 1}) == (
            400,
            "attributes: all values must be strings",
        )
        assert api.refusal("createTopic", topic="t", attributes={"a": "1"}) == (400, "unsupported key: a")
        assert api.refusal("waitForMessages", topic="t", count="x") == (400, "count: 'x' is not a number")
        assert api.refusal("waitForMessages", topic="t", timeout_s=0.01) == (
            504,
            "topic t has 0 of 1 messages after 0.01 s",
        )
        assert api.refusal("waitUntilConsumed", group="g", timeout_s=0) == (
            504,
            "group g has a lag of 0 messages after 0 s",
        )
        assert api.refusal("addFault", action="explode")[1].startswith("action: 'explode' is none of latency")
        assert api.refusal("addFault", action="error", request="sent")[0] == 400
        assert api.refusal("removeFault", id=7) == (404, "no fault has the id 7")
        assert api.refusal("stopBroker", name="b")[0] == 404
        assert api.refusal("startBroker")[0] == 404

    with_api(test)


def test_document_is_served_and_describes_every_operation(with_api):
    def test(api):
        status, document = api.fetch("/openapi.json")
        assert (status, document) == (200, build_document())

    with_api(test)
    document = build_document()
    assert document["openapi"] == "3.1.0"
    described = {
        (method.upper(), path): item
        for path, methods in document["paths"].items()
        for method, item in methods.items()
    }
    assert described.keys() == {(operation.method, operation.path) for operation in OPERATIONS}
    assert len({item["operationId"] for item in described.values()}) == len(OPERATIONS)
    for item in described.values():
        assert item["summary"].endswith(".")
        assert {"200", "400"} <= item["responses"].keys()
        schemas = [each["content"]["application/json"]["schema"] for each in item["responses"].values()]
        schemas += [each["schema"] for each in item.get("parameters", ())]
        if "requestBody" in item:
            schemas.append(item["requestBody"]["content"]["application/json"]["schema"])
        for schema in schemas:
            check_schema(schema)


def check_schema(schema):
    """Check that a schema is one, by the rules of JSON Schema that the API uses."""
    for each in schema.get("oneOf", ()):
        check_schema(each)
    if "oneOf" not in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert set(kinds) <= TYPES.keys()
    assert set(schema.get("required", ())) <= schema.get("properties", {}).keys()
    for each in schema.get("properties", {}).values():
        check_schema(each)
    if "items" in schema:
        check_schema(schema["items"])


def test_token_is_required_when_there_is_one(with_api):
    def test(api):
        api.ask("reset")
        api.headers = {}
        assert api.fetch("/v1/addresses")[0] == 401
        assert api.fetch("/healthz") == (200, {"ok": True})

    with_api(test, token="s3cret")
    with pytest.raises(
        SettingsError, match=r"controlAddress=0\.0\.0\.0 can be reached by others: set controlToken"
    ):
        control_settings(ProcessConfig(control_port=0, control_address="0.0.0.0"))


@pytest.mark.parametrize(
    "sets", [["controlPort=0"], ["controlPort=0", "memoryStore=true", "brokerProcesses=true"]]
)
def test_only_servers_in_memory_can_be_controlled(sets):
    with pytest.raises(ConfigError, match="--control"):
        load_config("serve", sets=sets)
    with pytest.raises(ConfigError, match="--control"):
        load_config("namesrv", sets=["controlPort=0", "memoryStore=true"])


def test_process_announces_its_addresses_and_stops_at_a_signal(tmp_path, capsys, monkeypatch):
    # These would change the process of the tests.
    monkeypatch.setattr(control_server, "tune_garbage_collector", lambda: None)
    monkeypatch.setattr(StopSignals, "install", lambda self: None)
    ready = tmp_path / "ready.json"
    config = load_config("serve", sets=[*SERVE, "controlPort=0", "httpPort=0", f"readyFile={ready}"])

    async def main():
        async with trio.open_nursery() as nursery:
            server = ControlledServer(config)
            nursery.start_soon(server.run)
            with trio.fail_after(30):
                while not ready.exists():
                    await trio.sleep(0.005)
            facts = json.loads(ready.read_text())
            assert facts.keys() == {"event", "pid", "namesrv", "brokers", "control", "http"}
            api = Api(facts["control"])
            assert await trio.to_thread.run_sync(api.ask, "getAddresses") == {
                "namesrv": facts["namesrv"],
                "brokers": facts["brokers"],
            }
            probe = Api(facts["http"])
            assert await trio.to_thread.run_sync(probe.fetch, "/readyz") == (200, {"ready": True})
            server._signals.record_signal(signal.SIGTERM)

    trio.run(main)
    assert '"event": "ready"' in capsys.readouterr().out
