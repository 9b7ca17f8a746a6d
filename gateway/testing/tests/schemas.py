"""Checks values against the JSON schemas that the control API declares."""

from typing import Any

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
KNOWN = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "oneOf", "description", "default",
    "minimum", "maximum", "exclusiveMinimum",
}  # fmt: skip
"""Members of a schema that the API may use: those that `find_mismatches` and OpenAPI 3.1 know."""


def find_mismatches(value: Any, schema: dict[str, Any], at: str = "$") -> list[str]:
    """Return where a value is not what its schema says; nothing if it is."""
    assert schema.keys() <= KNOWN, f"{at}: unknown members {schema.keys() - KNOWN}"
    if "oneOf" in schema:
        fits = [each for each in schema["oneOf"] if not find_mismatches(value, each, at)]
        return [] if len(fits) == 1 else [f"{at}: fits {len(fits)} of the alternatives"]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(
        isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
        for kind in kinds
    ):
        return [f"{at}: {value!r} is not {kinds}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at}: {value!r} is none of {schema['enum']}"]
    if isinstance(value, list):
        return [
            found
            for index, item in enumerate(value)
            for found in find_mismatches(item, schema["items"], f"{at}[{index}]")
        ]
    return _object_mismatches(value, schema, at) if isinstance(value, dict) else []


def _object_mismatches(value: dict[str, Any], schema: dict[str, Any], at: str) -> list[str]:
    properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    found = [f"{at}: {name} is missing" for name in schema.get("required", ()) if name not in value]
    for name, member in value.items():
        if name in properties:
            found += find_mismatches(member, properties[name], f"{at}.{name}")
        elif more is False:
            found.append(f"{at}: {name} is not declared")
        elif isinstance(more, dict):
            found += find_mismatches(member, more, f"{at}.{name}")
    return found
