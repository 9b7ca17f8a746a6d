"""The command `rmq-gateway store inspect`: what a store holds, without reading all of it."""

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from gateway.store_commands.options import json_option, open_reader, store_options
from gateway.store_commands.text_table import format_table
from toolkit.times import format_time

if TYPE_CHECKING:
    from storage.tools.summary import StoreSummary

_STATES = {
    "open": "open, a broker may be writing",
    "crashed": "not closed: the last broker was killed, or the machine stopped",
    "closed": "closed in order",
}


@click.command()
@store_options
@click.option(
    "-t", "--topic", "pattern", default="*", metavar="PATTERN", help="Only topics like this (shell pattern)."
)
@json_option
def inspect(
    directory: str, files: tuple[str, ...], sets: tuple[str, ...], pattern: str, as_json: bool
) -> None:
    """Show log segments, queues, groups with their lag, index, timer, checkpoint, and whether DIR is open.

    Reads only the ends of files, so that it is quick; "verify" reads everything. Never writes. A broker may have the
    store open: every line is then true of the moment at which it was read.
    """
    import orjson

    from storage.tools.summary import summarize_store

    with open_reader(directory, files, sets) as reader:
        summary = summarize_store(reader)
    if as_json:
        for value in summary.to_values():
            if fnmatchcase(value.get("topic", pattern), pattern) or "topic" not in value:
                click.echo(orjson.dumps(value))
        return
    click.echo("\n\n".join(_describe(summary, pattern)))


def _describe(summary: "StoreSummary", pattern: str) -> list[str]:
    """Return the parts of the text for people."""
    queues = [queue for queue in summary.queues if fnmatchcase(queue.topic, pattern)]
    groups = [group for group in summary.groups if fnmatchcase(group.topic, pattern)]
    problems = [segment.problem for segment in summary.segments]
    problems += [queue.problem for queue in queues] + [file.problem for file in summary.index]
    parts = [
        _describe_store(summary),
        format_table(
            ("log file", "bytes", "first offset", "end offset", "first stored", "last stored"),
            [
                (
                    segment.file.rpartition("/")[2],
                    segment.bytes,
                    segment.first_offset,
                    segment.end_offset,
                    format_time(segment.first_store_ms),
                    format_time(segment.last_store_ms),
                )
                for segment in summary.segments
            ],
        ),
        format_table(
            ("topic", "queue", "min offset", "max offset", "messages"),
            [
                (queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, queue.messages)
                for queue in queues
            ],
        ),
        format_table(
            ("group", "topic", "queue", "committed", "lag"),
            [(each.group, each.topic, each.queue_id, each.committed, each.lag) for each in groups],
        ),
        format_table(
            ("index file", "keys", "first stored", "last stored", "first offset", "last offset"),
            [
                (
                    each.file.rpartition("/")[2],
                    each.keys,
                    format_time(each.begin_ms),
                    format_time(each.end_ms),
                    each.begin_offset,
                    each.end_offset,
                )
                for each in summary.index
            ],
        ),
        _describe_progress(summary),
    ]
    parts.append("\n".join(f"Problem: {problem}" for problem in problems if problem))
    return [part for part in parts if part]


def _describe_store(summary: "StoreSummary") -> str:
    state = _STATES[summary.state]
    if summary.pid:
        state += f": process {summary.pid}" + (f", {summary.command}" if summary.command else "")
    size = f"{summary.end_offset - summary.first_offset:,} bytes"
    topics = len({queue.topic for queue in summary.queues})
    return (
        f"{summary.root}\n{state}\n"
        f"log from {summary.first_offset:,} to {summary.end_offset:,} ({size}), "
        f"{topics:,} topics, {len(summary.queues):,} queues"
    )


def _describe_progress(summary: "StoreSummary") -> str:
    checkpoint = summary.checkpoint
    lines = [
        f"checkpoint: log {format_time(checkpoint['log_ms'])}, queues {format_time(checkpoint['queues_ms'])}, "
        f"index {format_time(checkpoint['index_ms'])}, confirmed to {checkpoint['confirmed_until']:,}"
    ]
    if summary.timer:
        timer = summary.timer
        lines.append(
            f"timer: delivered before {format_time(timer['delivered_before_ms'])}, read to queue offset "
            f"{timer['queue_offset']:,}, {timer['waiting']:,} waiting"
        )
    return "\n".join(lines)
