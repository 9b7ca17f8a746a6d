"""The command `rmq-gateway shadow parity`: compares the messages of both clusters.

It reads from the clusters itself, so no gateway needs to run.
"""

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click

from gateway.shadow.commands.run_async import run_async
from gateway.shadow.report.conditions import exit_if, fail_if_option
from toolkit.conditions import Condition, parse_condition
from toolkit.exit_codes import ConfigurationError, ExitCode
from toolkit.printable import echo, echo_json

DEFAULT_CONDITIONS: Final = ("wrong>0", "problems>0")
PROGRESS_INTERVAL_S: Final = 1.0
MAX_NAMED_TOPICS: Final = 3
CONSOLE_TIMEOUT_S: Final = 3.0


QueueBound = tuple[str, int]
"""Start or end of the compared part of each queue: ("offset", queue offset) or ("ms", ms since 1970)."""


def _parse_bound(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> QueueBound | None:
    if value is None:
        return None
    if value.isdecimal():
        return "offset", int(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is neither a queue offset nor a time such as 2026-01-31T12:00:00Z"
        ) from None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return "ms", round(zoned.timestamp() * 1000)


@click.command()
@click.option(
    "-c", "--config", "file", metavar="FILE", help="Configuration file, if it was not given to `shadow`."
)
@click.option(
    "-t",
    "--topics",
    "topics",
    multiple=True,
    default=("*",),
    help="Topic or shell pattern, upper and lower case as they are; repeatable (default: all topics but "
    "those of retries and dead letters, which need a pattern that begins with %).",
)
@click.option(
    "--from",
    "begin",
    callback=_parse_bound,
    metavar="OFFSET|TIME",
    help="First queue offset or time to compare in each queue of the primary (UTC without zone).",
)
@click.option(
    "--until",
    "end",
    callback=_parse_bound,
    metavar="OFFSET|TIME",
    help="End of the compared part, exclusive (default: now).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print progress to standard error.")
@fail_if_option
@click.pass_context
def parity(
    context: click.Context,
    file: str | None,
    topics: tuple[str, ...],
    begin: QueueBound | None,
    end: QueueBound | None,
    as_json: bool,
    quiet: bool,
    conditions: list[Condition],
) -> None:
    """Compare the messages of both clusters, queue by queue.

    Metrics for --fail-if: missing, extra, duplicated, reordered, order_broken, changed, wrong (their sum),
    problems, primary, target, same, sent_again, left_out. Without it the command fails on any difference or problem.
    The exit code is 4 when nothing was compared.

    Retry and dead-letter topics (%RETRY%..., %DLQ%...) are compared only where a pattern begins with "%", such as
    -t '%*'; left_out is the number of those that were not compared.
    """
    import orjson

    from gateway.shadow.commands.read_config import read_config

    config = read_config(file or context.obj["file"], context.obj["sets"])
    if not config.target.namesrv:
        raise ConfigurationError("target.namesrv must be set")
    result = run_async(_compare_clusters, config, topics, begin, end, ParityProgress(quiet))
    value = result.to_value()
    if as_json:
        echo_json(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    else:
        echo(describe_parity(value))
    if config.console.enabled and not send_result(file or context.obj["file"], value) and not quiet:
        echo("No gateway took this result: its report needs it with --parity FILE (from --json).", err=True)
    metrics = {name: float(number) for name, number in value.items() if isinstance(number, int | float)}
    exit_if(conditions or [parse_condition(text) for text in DEFAULT_CONDITIONS], metrics)
    if value["empty"]:
        echo(describe_empty(value), err=True)
        raise click.exceptions.Exit(ExitCode.NOTHING)


def send_result(file: str | None, value: dict[str, Any]) -> bool:
    """Give a result to the gateway that runs with a configuration file, whose report shows it; return False if none
    took it. Queues without findings are left out, because there may be thousands.
    """
    from gateway.shadow.console.client import make_console_client, read_login

    if not file:
        return False
    queues = [queue for queue in value["queues"] if queue["findings"] or queue["problem"]]
    try:
        console = make_console_client(file, timeout_s=CONSOLE_TIMEOUT_S, login=read_login(""))
        console.post("/parity/result", {**value, "queues": queues})
    except click.ClickException:
        return False
    return True


async def _compare_clusters(
    config: Any,
    topics: tuple[str, ...],
    begin: QueueBound | None,
    end: QueueBound | None,
    progress: "ParityProgress",
) -> Any:
    import trio

    from gateway.shadow.clusters.target_check import refuse_same_cluster
    from gateway.shadow.compare.parity import ParityRange
    from gateway.shadow.compare.service import build_comparison

    bounds = [("from", begin), ("until", end)]
    window = ParityRange(**{f"{name}_{bound[0]}": bound[1] for name, bound in bounds if bound is not None})
    comparing = build_comparison(config)
    async with trio.open_nursery() as nursery:
        for cluster in (comparing.primary, comparing.target):
            await nursery.start(cluster.run)
        await refuse_same_cluster(comparing.primary, comparing.target)
        result = await comparing.check_parity(topics, window, progress)
        nursery.cancel_scope.cancel()
    return result


class ParityProgress:
    """Prints progress to standard error, one line every `PROGRESS_INTERVAL_S`."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._next_s = 0.0
        self._counts: dict[tuple[str, str, int], tuple[int, int]] = {}

    def __call__(self, queue: Any) -> None:
        self._counts[queue.topic, queue.broker, queue.queue_id] = (queue.primary, queue.wrong)
        if self._quiet or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + PROGRESS_INTERVAL_S
        messages, wrong = (sum(counts) for counts in zip(*self._counts.values(), strict=True))
        text = (
            f"{len(self._counts)} queues, {messages} messages, {wrong} wrong; {queue.topic} {queue.queue_id}"
        )
        end = "\r" if sys.stderr.isatty() else "\n"
        echo(f"{text:<78}{end}", nl=False, err=True)


def describe_parity(value: dict[str, Any]) -> str:
    """Return the result as text: queues with findings, the first findings of each, and the sums."""
    lines = []
    for queue in value["queues"]:
        wrong = _describe_counts(queue)
        if wrong or queue["problem"]:
            queue_label = f"{queue['topic']} {queue['broker']} {queue['queue_id']}"
            lines.append(f"{queue_label}: {', '.join(filter(None, (queue['problem'], wrong)))}")
            lines += [f"    {line}" for finding in queue["findings"] for line in _describe_finding(finding)]
    sums = (
        f"{value['primary']} messages of the primary, {value['target']} of the target, {value['same']} equal"
    )
    wrong = _describe_counts(value) or ("nothing was compared" if value["empty"] else "nothing is wrong")
    if value["sent_again"]:
        sums += f", {value['sent_again']} of them sent again with another born host"
    lines.append(f"{len(value['queues'])} queues in {value['seconds']:g} s: {sums}; {wrong}")
    if number := value.get("left_out"):
        shown = value["left_out_topics"][:MAX_NAMED_TOPICS]
        some = ", ".join(shown) + (", …" if number > len(shown) else "")
        lines.append(
            f"not compared: {number} retry and dead-letter topics ({some}); to compare them, add -t '%*'"
        )
    return "\n".join(lines)


def _describe_counts(value: dict[str, Any]) -> str:
    names = ("missing", "extra", "duplicated", "reordered", "changed", "order_broken", "problems")
    return ", ".join(f"{value[name]} {name.replace('_', ' ')}" for name in names if value.get(name))


def describe_empty(value: dict[str, Any]) -> str:
    """Return why there is no verdict, and what to do."""
    reasons = []
    for pattern in value["unmatched"]:
        similar = f"; there is {', '.join(pattern['similar'])}" if pattern["similar"] else ""
        reasons.append(f'the primary has no topic that matches "{pattern["name"]}"{similar}')
    if not reasons:
        reasons.append(
            f"{len(value['queues'])} queues have no message in the range; check --from and --until"
        )
    return f"No verdict: {'; '.join(reasons)}."


def _describe_finding(finding: dict[str, Any]) -> Iterator[str]:
    at = f"primary {finding['primary_offset']}, target {finding['target_offset']}".replace("None", "-")
    part = f" ({finding['part']})" if finding["part"] else ""
    yield f"{finding['kind']}{part} {finding['key']}: {at}"
    for difference in finding["differences"]:
        yield f"    {difference['name']}: {difference['primary']} at the primary, {difference['target']} at the target"


COMMANDS: Final = (parity,)
