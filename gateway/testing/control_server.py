"""`rmq-gateway serve --memory --control PORT`: servers for tests in a process of their own, controlled over HTTP."""

import logging
from collections.abc import Iterator
from typing import Any, Final

import trio

from codec.hosts import format_host
from gateway.config.process import ProcessConfig, ServeConfig
from gateway.http_server.server import Console
from gateway.http_server.settings import ConsoleSettings, is_loopback
from gateway.process.http_endpoint import METRIC_PREFIX, Readiness, build_http_endpoint
from gateway.runtime.metrics import MetricRegistry
from gateway.runtime.process import announce_ready, run_process, tune_garbage_collector
from gateway.runtime.stop_signals import StopSignals
from gateway.runtime.supervise import TaskSupervisor
from gateway.testing.control_api import OPERATIONS, ControlApi, Operation, Schema, record
from gateway.testing.faults import FaultTable
from gateway.testing.servers import InMemoryServers, open_servers
from toolkit.settings import SettingsError

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 256
"""Requests of tests that wait at the same time, each until something happens."""


def run(config: ServeConfig) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status of the process."""
    return run_process(lambda: ControlledServer(config))


class ControlledServer:
    """Namesrv and brokers in memory with the control API."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._signals = StopSignals()
        self._settings = control_settings(config.process)

    async def run(self) -> None:
        """Open everything, announce that it is ready, and serve until a signal. Clients are not waited for."""
        self._signals.install()
        async with open_servers(self._config, FaultTable()) as servers, trio.open_nursery() as nursery:
            facts = {"namesrv": servers.namesrv_address, "brokers": servers.broker_addresses}
            if self._config.process.grpc_port >= 0:
                facts["grpc"] = await servers.open_grpc()
            console = build_console(self._settings, servers)
            facts["control"] = format_host(await nursery.start(console.run))
            readiness = Readiness(lambda: _supervisors(servers))
            endpoint = build_http_endpoint(
                self._config.process, self._config.tls, MetricRegistry(), readiness
            )
            if endpoint is not None:
                facts["http"] = format_host(await nursery.start(endpoint.run))
            tune_garbage_collector()
            announce_ready(facts, self._config.process.ready_file)
            await self._signals.first.wait()
            nursery.cancel_scope.cancel()
        log.info("stopped")


def _supervisors(servers: InMemoryServers) -> Iterator[TaskSupervisor]:
    for service in servers.broker_services:
        yield service.tasks


def control_settings(config: ProcessConfig) -> ConsoleSettings:
    """Return the settings of the API's port. Raises SettingsError when others can reach it and no token is set."""
    if not config.control_token and not is_loopback(config.control_address):
        raise SettingsError(
            f"controlAddress={config.control_address} can be reached by others: set controlToken, which the API then "
            "requires (Authorization: Bearer TOKEN)"
        )
    return ConsoleSettings(
        host=config.control_address,
        port=config.control_port,
        token=config.control_token,
        plain_http=True,
        max_connections=MAX_CONNECTIONS,
    )


def build_console(settings: ConsoleSettings, servers: InMemoryServers) -> Console:
    """Return the HTTP server of the control API."""
    console = Console(
        settings, MetricRegistry(), METRIC_PREFIX, port_setting="controlPort", needs_action_header=False
    )
    api = ControlApi(servers)
    for operation in OPERATIONS:
        register = console.get if operation.method == "GET" else console.post
        register(operation.path, api.bind(operation))
    console.get("/openapi.json", lambda _: build_document())
    return console


OPENAPI_VERSION: Final = "3.1.0"
API_VERSION: Final = "1"
ERROR: Final = record({"error": {"type": "string"}})
FAILURES: Final = {
    "400": "What was given is not allowed.",
    "401": "The token is missing or wrong.",
    "404": "No such broker or fault.",
    "504": "What the operation waits for did not happen in time.",
}


def build_document() -> dict[str, Any]:
    """Return the OpenAPI document of the control API, made from the declarations in `control_api.py`."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe_operation(operation)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "RocketMQ in memory: control of time, faults and contents, for tests",
            "version": API_VERSION,
        },
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _describe_operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {
            "200": _response("Done.", operation.answers),
            **{status: _response(text, ERROR) for status, text in FAILURES.items()},
        },
    }
    if operation.method == "GET":
        takes = operation.takes
        described["parameters"] = [
            {"name": name, "in": "query", "required": name in takes["required"], "schema": schema}
            for name, schema in takes["properties"].items()
        ]
    else:
        described["requestBody"] = {
            "required": bool(operation.takes["required"]),
            "content": {"application/json": {"schema": operation.takes}},
        }
    return described


def _response(text: str, schema: Schema) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
