"""The commands `rmq-gateway shadow report` and `rmq-gateway shadow watch`: they query a running gateway's console."""

from pathlib import Path
from typing import Any

import click
import orjson

from gateway.shadow.console.client import console_from_options, console_options
from gateway.shadow.report.conditions import exit_if, fail_if_option
from toolkit.conditions import Condition


@click.command()
@click.option("-o", "--output", metavar="FILE", help="Write the HTML report to FILE.")
@click.option("--json", "json_output", metavar="FILE", help="Write the report as JSON to FILE; - prints it.")
@click.option(
    "--from", "source", metavar="FILE", help="Read a report that --json wrote instead of asking a gateway."
)
@click.option("--parity", metavar="FILE", help="Add the result of `parity --json` to the report.")
@fail_if_option
@console_options
def report(
    output: str | None,
    json_output: str | None,
    source: str | None,
    parity: str | None,
    conditions: list[Condition],
    file: str | None,
    address: str | None,
) -> None:
    """Write the report of a running gateway, and check conditions on its metrics."""
    from gateway.shadow.report.snapshot import named_metrics

    if not (output or json_output or conditions):
        raise click.UsageError("nothing to do: pass -o FILE, --json FILE or --fail-if CONDITION")
    report_data = (
        _read_json(source, "metrics") if source else console_from_options(file, address).get("/report")
    )
    if parity:
        report_data["sections"]["parity"] = _read_json(parity, "holds")
    if json_output:
        _write_file(json_output, orjson.dumps(report_data, option=orjson.OPT_INDENT_2) + b"\n")
    if output:
        from gateway.shadow.report.html import render_report

        _write_file(output, render_report(report_data).encode())
    exit_if(conditions, named_metrics(report_data))


@click.command()
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.2, 3600),
    default=1.0,
    metavar="SECONDS",
    help="Time between refreshes (default: 1).",
)
@click.option("--times", type=click.IntRange(1), metavar="N", help="Exit after N refreshes.")
@console_options
def watch(every_s: float, times: int | None, file: str | None, address: str | None) -> None:
    """Show a running gateway until Ctrl-C; prints lines of text when the output is not a terminal."""
    from gateway.shadow.report.live_view import watch_gateway

    watch_gateway(console_from_options(file, address), every_s, times)


COMMANDS = (report, watch)


def _read_json(source: str, key: str) -> dict[str, Any]:
    """Return the object in a JSON file, which must have a key that tells what it is. Raises ClickException."""
    try:
        content = orjson.loads(Path(source).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise click.ClickException(f"{source}: {error}") from error
    if not isinstance(content, dict) or key not in content:
        raise click.ClickException(
            f'{source} was not written by this version of the command: it has no "{key}"'
        )
    return content


def _write_file(path: str, data: bytes) -> None:
    try:
        with click.open_file(path, "wb", atomic=path != "-") as file:
            file.write(data)
    except OSError as error:
        raise click.ClickException(f"{path}: {error}") from error
