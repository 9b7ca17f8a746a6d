"""The documentation that follows from the declared keys: the reference table and the example files in conf/.

It declares nothing; a test holds conf/ to what is printed here.
"""

from gateway.config.keys import Key, format_value, keys_of
from gateway.config.process import TABLES
from gateway.config.properties_file import escape_value
from gateway.config.store import DEFAULT_STORE
from gateway.config.unsupported import UNUSED, UNUSED_REASON

TITLES = {
    "broker": "Broker (broker.conf)",
    "namesrv": "Namesrv (namesrv.conf)",
    "listener": "Connections (both files)",
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
    """Every key as Markdown tables."""
    parts = ["# Configuration\n\n" + ORDER]
    for table, title in TITLES.items():
        rows = [_row(table, each) for each in keys_of(TABLES[table]).values()]
        head = "| key | default | range | environment | meaning |\n|---|---|---|---|---|\n"
        parts.append(f"\n## {title}\n\n{head}{''.join(rows)}")
    return "".join(parts)


def example_file(table: str) -> str:
    """A properties file with every key commented out at its default."""
    lines = [
        f"# {TITLES[table]}: official keys, and a few of ours.",
        f"# Every line shows a default. {UNITS}",
    ]
    lines += ["# Reference with ranges: rmq-gateway config", ""]
    for name in (table, "listener", "process"):
        if name != table:
            lines += [f"# --- {TITLES[name]}", ""]
        for each in keys_of(TABLES[name]).values():
            lines += [
                f"# {_meaning(each)}{_choices(each)}",
                f"#{each.name}={escape_value(shown_default(each))}",
                "",
            ]
    return "\n".join(lines)


def shown_default(declared: Key) -> str:
    """The default as text, with the home directory as ~ so that it reads the same on every machine."""
    home = DEFAULT_STORE.removesuffix("store").rstrip("/")
    text = format_value(declared.default)
    return "~" + text.removeprefix(home) if home and text.startswith(home + "/") else text


def environment_of(table: str, declared: Key) -> str:
    """The variable of a key: the namesrv's carry NAMESRV_."""
    if table != "namesrv":
        return declared.environment
    return declared.environment.replace("RMQ_GATEWAY_", "RMQ_GATEWAY_NAMESRV_", 1)


def _row(table: str, declared: Key) -> str:
    span = declared.range_text or declared.type_name
    default = shown_default(declared)
    cells = [
        f"`{declared.name}`",
        f"`{default}`" if default else "",
        span,
        f"`{environment_of(table, declared)}`",
    ]
    return "| " + " | ".join([*cells, _meaning(declared)]) + " |\n"


def _choices(declared: Key) -> str:
    return f": {' or '.join(declared.choices)}" if declared.choices else ""


def _meaning(declared: Key) -> str:
    flags = {"ours": declared.ours, "live": declared.live, UNUSED_REASON: declared.name in UNUSED}
    notes = [note for note, applies in flags.items() if applies]
    return declared.doc + (f" ({', '.join(notes)})" if notes else "")
