"""The commands `rmq-gateway store …`: look into the files of a store, check, repair and copy them.

Each command imports what it needs of `storage/tools` when it runs, so that `--help` and shell completion stay fast.
"""

import sys
from contextlib import nullcontext
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from gateway.admin.commands.options import ClusterCommand, ConnectionFlags, cluster_options
from gateway.commands.store.options import (
    format_table,
    json_option,
    open_reader,
    report_store_errors,
    store_options,
)
from toolkit.command_group import SuggestingGroup
from toolkit.exit_codes import ExitCode
from toolkit.option_types import TimeType
from toolkit.printable import echo, echo_json
from toolkit.progress import show_progress
from toolkit.times import format_time

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient
    from storage.tools.findings import StoreFinding
    from storage.tools.repair import RepairPlan
    from storage.tools.summary import StoreSummary
    from storage.tools.verify import Verification


_STATES = {
    "open": "open, a broker may be writing",
    "crashed": "not closed: the last broker was killed, or the machine stopped",
    "closed": "closed cleanly",
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
                echo_json(orjson.dumps(value))
        return
    echo("\n\n".join(_describe(summary, pattern)))


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
            [(group.group, group.topic, group.queue_id, group.committed, group.lag) for group in groups],
        ),
        format_table(
            ("index file", "keys", "first stored", "last stored", "first offset", "last offset"),
            [
                (
                    file.file.rpartition("/")[2],
                    file.keys,
                    format_time(file.begin_ms),
                    format_time(file.end_ms),
                    file.begin_offset,
                    file.end_offset,
                )
                for file in summary.index
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


@click.command()
@store_options
@json_option
def verify(directory: str, files: tuple[str, ...], sets: tuple[str, ...], as_json: bool) -> None:
    """Read everything in DIR and report damage by file and byte. Never writes.

    Checked: every message with its CRC, every queue entry against its message, that queue offsets have no gaps, every
    index entry and slot, the tables and the checkpoint. A broker may have the store open; then messages that arrive
    during the check are left out, and the ends of queues and log are not compared.

    Exit code 0: no damage; 3: damage was found; 1: the store cannot be read.
    """
    sys.exit(verify_store(directory, files, sets, as_json))


def verify_store(directory: str, files: tuple[str, ...], sets: tuple[str, ...], as_json: bool) -> ExitCode:
    """Verify a store, print findings and totals, and return the exit code."""
    from storage.tools.verify import Verification, bytes_to_read

    with (
        open_reader(directory, files, sets) as reader,
        show_progress("verifying", lambda: bytes_to_read(reader)) as progress,
    ):
        verification = Verification(reader, progress)
        for finding in verification.run():
            print_finding(finding, as_json)
        print_totals(verification, reader.state.may_change, as_json)
    return ExitCode.REFUSED if verification.damage_count else ExitCode.DONE


def print_finding(finding: "StoreFinding", as_json: bool) -> None:
    """Print one finding, as soon as it is made."""
    if as_json:
        print_json({"kind": "finding", **finding.to_value()})
        return
    location = " ".join(
        f"{name} {value}"
        for name, value in (
            ("topic", finding.topic),
            ("queue", finding.queue_id),
            ("offset", finding.queue_offset),
        )
        if value is not None
    )
    location = f" ({location})" if location else ""
    echo(f"{finding.severity}: {finding.file} at byte {finding.offset}{location}: {finding.reason}")


def print_totals(verification: "Verification", is_open: bool, as_json: bool) -> None:
    """Print what was read, and how much is damaged."""
    counts = {
        "messages": verification.log_check.messages,
        "queues": verification.queue_check.queues,
        "queue_entries": verification.queue_check.entries,
        "index_entries": verification.index_check.entries,
        "log_end": verification.log_check.end,
        "damage": verification.damage_count,
        "notes": verification.note_count,
        "open": is_open,
    }
    if as_json:
        print_json({"kind": "summary", **counts})
        return
    verdict = f"{counts['damage']:,} damaged places" if counts["damage"] else "no damage"
    echo(
        f"{counts['messages']:,} messages, {counts['queue_entries']:,} entries of {counts['queues']:,} queues and "
        f"{counts['index_entries']:,} index entries read: {verdict}"
        + (", as far as can be told while a broker has the store open" if is_open else "")
    )


def print_json(value: dict[str, Any]) -> None:
    """Print one line of JSON."""
    import orjson

    echo_json(orjson.dumps(value))


@click.command()
@store_options
@click.option(
    "-t", "--topic", default="", metavar="TOPIC", help="Only this topic; its queues are read in turn."
)
@click.option("-q", "--queue", "queue_id", type=click.IntRange(0), help="Only this queue id.")
@click.option("--from-offset", type=click.IntRange(0), default=0, help="First queue offset.")
@click.option("--until-offset", type=click.IntRange(0), help="Queue offset before which to stop.")
@click.option(
    "--from", "from_ms", type=TimeType(), default=0, metavar="TIME", help="Stored at this time or later."
)
@click.option("--until", "until_ms", type=TimeType(), metavar="TIME", help="Stored before this time.")
@click.option("-k", "--key", default="", metavar="KEY", help="Only messages with this key or unique key.")
@click.option(
    "--body",
    type=click.Choice(["text", "base64", "none"]),
    default="text",
    help="How to print bodies; text: base64 for those that are not UTF-8 (default: text).",
)
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
def dump(
    directory: str,
    files: tuple[str, ...],
    sets: tuple[str, ...],
    body: str,
    limit: int | None,
    **conditions: Any,
) -> None:
    """Print the messages in DIR as JSON lines: in the order of the log, or queue by queue with --topic.

    Times are in ms since 1970 or such as 2026-01-31T12:00:00Z. Compressed bodies are inflated. Without --topic also
    messages of deleted topics, and half messages, are printed. Never writes; a broker may have the store open.

    Exit code 0: all could be read; 3: damage was passed over, and is reported on standard error; 1: the store cannot
    be read.
    """
    from storage.tools.dump import DumpFilter, dump_messages, message_value
    from storage.tools.findings import StoreFinding

    printed = 0
    is_damaged = False
    with open_reader(directory, files, sets) as reader:
        for entry in dump_messages(reader, DumpFilter(**conditions)):
            if isinstance(entry, StoreFinding):
                is_damaged = True
                echo(f"{entry.file} at byte {entry.offset}: {entry.reason}", err=True)
                continue
            print_json(message_value(entry, body))
            printed += 1
            if printed == limit:
                break
    sys.exit(ExitCode.REFUSED if is_damaged else ExitCode.DONE)


@click.command(cls=ClusterCommand)
@store_options
@click.option(
    "--from",
    "replica",
    metavar="HOST:PORT",
    help="Take damaged bytes of the log from this broker, a replica of the store; with the connection options below.",
)
@click.option(
    "--ha-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="HA port of --from (default: the broker is asked for it).",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before writing.")
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@cluster_options
def repair(
    directory: str,
    files: tuple[str, ...],
    sets: tuple[str, ...],
    replica: str | None,
    ha_port: int | None,
    yes: bool,
    dry_run: bool,
    connection: ConnectionFlags,
) -> None:
    """Repair DIR, which no broker may have open: verify it, print the steps, ask, carry them out, verify again.

    Damaged bytes of the log become fillers, which readers skip; queues and index are built again from the log. What
    is cut, replaced or moved is kept in the folder "damaged" of the store.

    With --from, the bytes come from a master or slave that has the same log, over its HA port, and are checked: also
    those that an earlier repair has replaced by fillers. What the replica does not have is left as it is.

    Exit code 0: the store is whole; 3: damage is left, or with --dry-run, there is something to repair; 1: the store
    is open or cannot be repaired, the replica does not answer, or you did not agree.
    """
    from gateway.runtime.logs import set_up_logging
    from storage.tools.repair import carry_out

    set_up_logging("error")
    plan = _plan(directory, files, sets)
    with connection.open() if replica else nullcontext() as client:
        if client is not None and replica is not None and (plan.ranges or plan.filled):
            plan = _plan_fetch(plan, client, replica, ha_port)
        for damaged, reason in plan.skipped:
            size = damaged.end - damaged.start
            echo(f"Fillers stay: {size:,} bytes from physical offset {damaged.start:,}: {reason}")
        if plan.is_empty:
            echo("Nothing to repair.")
            return
        steps = [f"  {number}. {step}" for number, step in enumerate(plan.describe(), 1)]
        if steps:
            echo("\n".join(["Steps:", *steps]))
        for damaged, reason in plan.unfetched:
            size = damaged.end - damaged.start
            echo(f"Left as they are: {size:,} bytes from physical offset {damaged.start:,}: {reason}")
        if dry_run or not steps:
            sys.exit(ExitCode.REFUSED)
        if not yes:
            click.confirm("Write to the store?", abort=True)
        with report_store_errors():
            carry_out(plan)
    echo("Repaired; verifying again:")
    code = verify_store(directory, files, sets, as_json=False)
    sys.exit(code)


def _plan_fetch(plan: "RepairPlan", client: "AdminClient", replica: str, ha_port: int | None) -> "RepairPlan":
    """Return the plan that takes what is damaged from a replica."""
    from gateway.commands.store.replica_source import ReplicaSource
    from storage.tools.repair import plan_fetch

    try:
        source = ReplicaSource(client, replica, ha_port)
    except ValueError as error:
        raise click.UsageError(f"--from: {error}") from error
    with report_store_errors():
        return plan_fetch(plan, source)


def _plan(directory: str, files: tuple[str, ...], sets: tuple[str, ...]) -> "RepairPlan":
    """Verify the store, print the findings, and return the plan."""
    from storage.tools.repair import plan_repair
    from storage.tools.verify import bytes_to_read

    with (
        open_reader(directory, files, sets) as reader,
        show_progress("verifying", lambda: bytes_to_read(reader)) as progress,
    ):
        return plan_repair(
            reader,
            progress,
            lambda finding: print_finding(finding, as_json=False),
            index_sizes_known=bool(files or sets),
        )


@click.command()
@store_options
@click.argument("target", metavar="TARGET", type=click.Path())
@json_option
def backup(directory: str, files: tuple[str, ...], sets: tuple[str, ...], target: str, as_json: bool) -> None:
    """Copy the store in DIR to TARGET, a folder that does not exist yet. A broker may have the store open.

    The copy holds every message that was acknowledged before the command began, and opens in this broker and in an
    official one. It is made in TARGET.partial and renamed when it is complete and on the disk. To restore it, copy
    TARGET to the place of a store: `cp -r --sparse=always TARGET STORE`.

    Exit code 0: the copy is complete; 1: there is none, because it does not fit, TARGET exists, or DIR is damaged.
    """
    from storage.tools.backup import allocated_bytes, back_up

    with (
        open_reader(directory, files, sets) as reader,
        show_progress("copying", lambda: allocated_bytes(reader)) as progress,
    ):
        result = back_up(reader, target, progress)
    if as_json:
        print_json({"kind": "backup", **asdict(result)})
        return
    echo(
        f"{result.target}: log from {result.first_offset:,} to {result.end_offset:,}, {result.bytes:,} bytes copied"
    )
    if result.needs_recovery:
        echo("The broker that opens it will add missing queue entries, as after a crash.")
    if result.left_out:
        echo(f"Not copied, because no broker needs them: {', '.join(result.left_out)}")


@click.group(cls=SuggestingGroup)
def store() -> None:
    """Inspect, verify, dump, repair and back up the store folder of this broker or an official one."""


for _command in (inspect, verify, dump, repair, backup):
    store.add_command(_command)
