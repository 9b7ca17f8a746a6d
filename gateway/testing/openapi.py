"""The OpenAPI document of the control API, made from the declarations in `control_api.py`."""

from typing import Any, Final

from gateway.testing.control_api import OPERATIONS, Operation, Schema, record

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
    """Return the OpenAPI document."""
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
