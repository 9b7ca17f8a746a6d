"""Documentation generated from the declared keys: the reference tables and the example files in conf/.

A test compares conf/ with this output.
"""

from dataclasses import replace

from gateway.config.keys import ENVIRONMENT_PREFIX, Key, controller_variable, keys_of
from gateway.config.process import TABLES
from gateway.config.properties_file import escape_value
from gateway.config.unsupported import UNUSED, UNUSED_REASON
from toolkit.settings_docs import choices_of, code_cell, description_of, markdown_table, range_of
from toolkit.values import ValueType, plain_value

TITLES = {
    "broker": "Broker (broker.conf)",
    "namesrv": "Namesrv (namesrv.conf)",
    "controller": "Controller (controller.conf or namesrv.conf)",
    "listener": "Connections (both files)",
    "tls": "TLS (both files)",
    "auth": "Access control (both files)",
    "process": "Process (both files)",
}
UNITS = "Times are milliseconds where neither key nor text says otherwise."
ORDER = (
    "Order, the later wins: defaults, files (-c), environment, --set, other flags.\n"
    "A key that both tables have belongs to the namesrv in a file whose name contains `namesrv`, and to the\n"
    "broker otherwise; `namesrv.listenPort` names it from anywhere.\n"
    f"{UNITS}\n"
)


def reference() -> str:
    """Return every key as Markdown tables."""
    parts = ["# Configuration\n\n" + ORDER]
    for table, title in TITLES.items():
        rows = [_row(table, key) for key in keys_of(TABLES[table]).values()]
        head = ("key", "default", "range", "environment", "meaning")
        parts.append(f"\n## {title}\n\n{markdown_table(head, rows)}")
    return "".join(parts)


def example_file(table: str) -> str:
    """Return a properties file with every key commented out at its default."""
    lines = [
        f"# {TITLES[table]}: official keys, and a few of our own.",
        f"# Every line shows a default. {UNITS}",
    ]
    lines += ["# Reference with ranges: rmq-gateway config", ""]
    for name in (table, "listener", "tls", "auth", "process"):
        if name != table:
            lines += [f"# --- {TITLES[name]}", ""]
        for key in keys_of(TABLES[name]).values():
            choices = choices_of(key.setting)
            lines += [
                f"# {_meaning(key)}{': ' if choices else ''}{choices}",
                f"#{key.name}={escape_value(plain_value(key.setting.default))}",
                "",
            ]
    return "\n".join(lines)


def environment_of(table: str, key: Key) -> str:
    """Return the environment variable of a key; those of namesrv and controller begin with its name."""
    if table == "namesrv":
        return key.environment.replace(ENVIRONMENT_PREFIX, f"{ENVIRONMENT_PREFIX}NAMESRV_", 1)
    return controller_variable(key) if table == "controller" else key.environment


def _row(table: str, key: Key) -> tuple[str, ...]:
    return (
        code_cell(key.name),
        code_cell(plain_value(key.setting.default)),
        _accepted_values(key),
        code_cell(environment_of(table, key)),
        _meaning(key),
    )


def _accepted_values(key: Key) -> str:
    value_type = key.setting.value_type
    return range_of(key.setting) or (value_type.summary if isinstance(value_type, ValueType) else "")


def _meaning(key: Key) -> str:
    """Return the description, with a note for keys that nothing reads yet."""
    tags = key.setting.tags + ((UNUSED_REASON,) if key.name in UNUSED else ())
    return description_of(replace(key.setting, tags=tags))
