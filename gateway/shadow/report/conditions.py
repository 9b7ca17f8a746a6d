"""The option `--fail-if "diff_rate>0.001"` of commands that CI runs, and its exit code.

The grammar of conditions is that of `toolkit.conditions`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import click

from toolkit.conditions import Condition, parse_condition
from toolkit.exit_codes import ExitCode
from toolkit.printable import echo
from toolkit.suggestions import suggest_name

PARITY_PREFIX: Final = "parity."
RENAMED_METRICS: Final = {
    "kept_behind_messages": "replication_behind_messages",
    "kept_bytes_total": "replication_bytes_total",
    "kept_failures_total": "replication_failures_total",
    "kept_messages_total": "replication_messages_total",
    "kept_offsets_total": "replication_offsets_total",
    "kept_queues": "replication_queues",
    "kept_queues_left_out": "replication_queues_left_out",
    "forward_kept_bytes": "forward_buffered_bytes",
}
"""Old names of metrics, which conditions of 0.1 may use, and the present ones."""


def failed_conditions(conditions: Iterable[Condition], metrics: Mapping[str, float]) -> list[str]:
    """Return a sentence for each condition that holds, or whose metric has no value (NaN).

    Raises ValueError for an unknown metric, with the nearest one that is known.
    """

    def look_up(metric: str, scope: str | None) -> float:
        name = f"{metric}[{scope}]" if scope else metric
        if name not in metrics:
            if metric.startswith(PARITY_PREFIX):
                raise ValueError(
                    f'"{name}" needs the result of a parity check: pass --parity FILE, which '
                    '"rmq-gateway shadow parity --json > FILE" writes'
                )
            plain = [name for name in metrics if "[" not in name]
            raise ValueError(f'unknown metric "{name}"{suggest_name(name, metrics if scope else plain)}')
        return metrics[name]

    failures = []
    for condition in conditions:
        value = condition.value(look_up)
        if math.isnan(value):
            failures.append(f"{condition}: {condition.name} has no value yet")
        elif condition.holds(value):
            failures.append(f"{condition}: {condition.name} is {value:g}")
    return failures


def _parse_all(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> list[Condition]:
    try:
        return [_rename_metrics(parse_condition(text)) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _rename_metrics(condition: Condition) -> Condition:
    """Return a condition on the present names of its metrics, with a warning on standard error for each old one."""
    for name in (condition.metric, condition.divisor):
        if name not in RENAMED_METRICS:
            continue
        echo(
            f"Warning: metric {name} has been renamed to {RENAMED_METRICS[name]}; "
            "a later version will refuse the old name",
            err=True,
        )
    metric, divisor = condition.metric, condition.divisor
    return replace(
        condition,
        metric=RENAMED_METRICS.get(metric, metric),
        divisor=RENAMED_METRICS.get(divisor, divisor) if divisor else None,
    )


def fail_if_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the repeatable option `--fail-if`; the command gets a list of `Condition` as `conditions`."""
    return click.option(
        "--fail-if",
        "conditions",
        multiple=True,
        callback=_parse_all,
        metavar="CONDITION",
        help=f'Condition that makes the exit code {ExitCode.REFUSED}, such as "diff_rate>0.001"; repeatable.',
    )(function)


def exit_if(conditions: Iterable[Condition], metrics: Mapping[str, float]) -> None:
    """Print which conditions hold, and end the command with `ExitCode.REFUSED` if any does.

    Raises UsageError (exit code 2) for an unknown metric.
    """
    try:
        failures = failed_conditions(conditions, metrics)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for line in failures:
        echo(f"failed: {line}", err=True)
    if failures:
        raise click.exceptions.Exit(ExitCode.REFUSED)
