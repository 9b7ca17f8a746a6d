"""The commands `rmq-gateway shadow status|plan|advance|rollback|read-only|sync`.

They use the console of the running gateway; `sync` works directly between the clusters if no gateway runs.
"""

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from gateway.shadow.commands.read_config import read_config
from gateway.shadow.commands.run_async import run_async
from gateway.shadow.console.client import (
    ConsoleClient,
    ConsoleUnreachable,
    console_from_options,
    console_options,
)
from toolkit.exit_codes import ConfigurationError, ExitCode
from toolkit.printable import echo, printable

if TYPE_CHECKING:
    from gateway.shadow.clusters.sync_steps import SyncStep

MOVE_COLUMNS: Final = ("topic", "group", "state", "producers", "consumers")
CHECK_COLUMNS: Final = ("check", "ok", "measured")
SYNC_COLUMNS: Final = ("kind", "name", "broker", "action", "detail")
CHANGES: Final = ("create", "change")
REST: Final = {"failed": "failed", "same": "the same on both sides", "left out": "left out"}
QUIET_ACTIONS: Final = frozenset({"same", "left out"})
"""Actions whose rows are shown only with --all."""


@click.command()
@console_options
def status(file: str | None, address: str | None) -> None:
    """Show the gateway's problems, and the state of every topic and group that is being moved."""
    console = console_from_options(file, address)
    show_problems(console)
    moves = console.get("/cutover")["moves"]
    if not moves:
        echo("No topic is being moved. To see what a move needs: rmq-gateway shadow plan TOPIC")
        return
    echo(render_table(MOVE_COLUMNS, [row for move in moves for row in _move_rows(move)]))


def show_problems(console: ConsoleClient) -> None:
    """Print the gateway's present problems in red."""
    for problem in console.get("/status").get("problems", ()):
        echo(f"Problem ({problem['part']}): {problem['problem']}", fg="red")


def _move_rows(move: dict[str, Any]) -> Iterable[dict[str, str]]:
    """Yield a row for the topic, and one for each of its groups."""
    producers = "target" if move["state"] in ("PRODUCERS_SWITCHED", "DONE") else "primary"
    if move["taken_permissions"]:
        producers += " (read-only at the primary)"
    yield {"topic": move["topic"], "state": move["overall_state"], "producers": producers}
    for group, state in move["groups"].items():
        consumers = "target" if state in ("CONSUMERS_SWITCHED", "DONE") else "primary"
        yield {"group": group, "state": state, "consumers": consumers}


@click.command()
@click.argument("topics", nargs=-1)
@click.option("--group", help="Show the next step of this group only.")
@console_options
def plan(topics: tuple[str, ...], group: str | None, file: str | None, address: str | None) -> None:
    """Show the checks for each topic's next step. Without TOPICS, show all topics being moved."""
    query = {"topic": ",".join(topics), "group": group or ""}
    console = console_from_options(file, address)
    show_problems(console)
    answer = console.get("/cutover/plan", **query)
    for topic_plan in answer["topics"]:
        echo(f"{topic_plan['topic']}: {topic_plan['state']}")
        if topic_plan["reason"]:
            echo(f"  no next step: {topic_plan['reason']}")
        _show_steps(topic_plan["steps"], planned=True)


def _step_options(function: Any) -> Any:
    options = (
        click.argument("topic"),
        click.option("--group", help="Move only this group of the topic."),
        click.option(
            "--allow",
            multiple=True,
            type=click.Choice(["transactions", "delays", "apart", "bypass", "dead-letters", "retries"]),
            help="Check that may fail; repeatable. transactions: the primary holds back half messages; delays: it "
            "holds back delayed messages; apart: the group's other topics have not got as far; bypass: messages were "
            "sent past the gateway; dead-letters: dead letters could not be copied; retries: a group without "
            "consumers has retries left, which nobody gets. See "
            "docs/reference/cutover-guarantees.md.",
        ),
        click.option(
            "--wait",
            "wait_s",
            type=float,
            default=0.0,
            metavar="SECONDS",
            help="Keep retrying for up to SECONDS until the checks pass (default: try once).",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return console_options(function)


@click.command()
@click.option("--to", "goal", metavar="STATE", help="Take all steps up to this state.")
@click.option(
    "-y", "--yes", is_flag=True, help="Take the step to DONE, which cannot be undone, without asking."
)
@click.option(
    "--read-only",
    is_flag=True,
    help="Once producers are switched, make the topic read-only at the primary: producers that bypass the gateway get "
    "errors. A rollback undoes it.",
)
@_step_options
def advance(
    file: str | None, address: str | None, goal: str | None, yes: bool, read_only: bool, **options: Any
) -> None:
    """Take the next step of TOPIC, or of its groups. The exit code is 3 if a check refuses it.

    The step to DONE cannot be undone; the command asks before it. When messages were sent past the gateway, it offers
    to make the topic read-only at the primary.
    """
    console = console_from_options(file, address)
    step_request = {**options, "to": goal, "read_only": read_only}
    answer = console.post("/cutover/advance", {**step_request, "confirmed": yes})
    if answer.get("confirm"):
        _show_steps(answer["steps"])
        echo(f"{answer['topic']}: {answer['state']}")
        echo(f"{answer['confirm']}.", fg="yellow")
        if not is_interactive():
            echo("The step was not taken. Pass --yes to take it.", err=True)
            sys.exit(ExitCode.REFUSED)
        if not click.confirm("Take this step?"):
            sys.exit(ExitCode.REFUSED)
        answer = console.post("/cutover/advance", {**step_request, "confirmed": True})
    if not answer["done"] and _is_bypassed(answer) and is_interactive():
        _offer_read_only(console, answer["topic"])
    _show_answer(answer)


def _is_bypassed(answer: dict[str, Any]) -> bool:
    """Tell whether a step was refused because messages were sent past the gateway."""
    checks = (check for step in answer["steps"] for check in step["checks"])
    return any(check["check"] == "bypass" and not check["ok"] for check in checks)


def _offer_read_only(console: ConsoleClient, topic: str) -> None:
    """Ask whether to make a topic read-only at the primary, unless it is, and do it."""
    moves = console.get("/cutover")["moves"]
    if any(move["topic"] == topic and move["taken_permissions"] for move in moves):
        return
    echo(f"Messages of {topic} were sent to the primary past the gateway.")
    if click.confirm(
        f"Make {printable(topic)} read-only at the primary, so that such producers get errors instead?"
    ):
        _show_permission(console.post("/cutover/read-only", {"topic": topic}))


@click.command("read-only")
@click.argument("topic")
@click.option("--undo", is_flag=True, help="Make TOPIC writable again at the primary.")
@console_options
def read_only(topic: str, undo: bool, file: str | None, address: str | None) -> None:
    """Make a switched TOPIC read-only at the primary, so that producers that bypass the gateway get errors.

    Producers read it from their routes, within 30 s. Clients of the gateway and consumers notice nothing. A rollback
    undoes it.
    """
    console = console_from_options(file, address)
    _show_permission(console.post("/cutover/read-only", {"topic": topic, "undo": undo}))


def _show_permission(answer: dict[str, Any]) -> None:
    if answer["read_only"]:
        brokers = ", ".join(answer["brokers"])
        echo(f"{answer['topic']} is read-only at the primary ({brokers}). A rollback undoes it.")
    else:
        echo(f"{answer['topic']} is writable at the primary again.")


@click.command()
@click.option("--all", "whole", is_flag=True, help="Undo every step of the topic.")
@_step_options
def rollback(file: str | None, address: str | None, whole: bool, **options: Any) -> None:
    """Undo the last step of TOPIC, or of one group. The exit code is 3 if a check refuses it."""
    answer = console_from_options(file, address).post("/cutover/rollback", {**options, "all": whole})
    _show_answer(answer)


def is_interactive() -> bool:
    """Tell whether the command runs at a terminal, where a user can answer."""
    return sys.stdin.isatty()


def _show_answer(answer: dict[str, Any]) -> None:
    _show_steps(answer["steps"])
    echo(f"{answer['topic']}: {answer['state']}")
    if not answer["done"]:
        sys.exit(ExitCode.REFUSED)


def _show_steps(steps: Sequence[dict[str, Any]], *, planned: bool = False) -> None:
    for step in steps:
        ready = all(check["ok"] for check in step["checks"]) if planned else step["done"]
        words = ("ready", "not ready") if planned else ("done", "refused")
        name = f"group {step['group']}: " if step["group"] else ""
        echo(f"  {name}{step['from']} -> {step['to']}: {words[0] if ready else words[1]}")
        if step["checks"]:
            _show_checks(step["checks"])


def _show_checks(checks: Sequence[dict[str, Any]]) -> None:
    """Print a row for each check, and below it the reason why it does not hold: a narrow terminal shows all of it."""
    rows = [{**check, "ok": "yes" if check["ok"] else "NO"} for check in checks]
    heading, *lines = render_table(CHECK_COLUMNS, rows, indent=4).split("\n")
    echo(heading)
    width = max(40, shutil.get_terminal_size().columns)
    for check, line in zip(checks, lines, strict=True):
        echo(line, fg=None if check["ok"] else "red")
        if check["reason"]:
            indent = " " * 8
            # Commands in the text stay in one piece.
            wrapped = textwrap.wrap(
                check["reason"],
                width,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
            echo("\n".join(wrapped))


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show the changes.")
@click.option("--all", "show_all", is_flag=True, help="Also show what is left out or the same on both sides.")
@click.option("--topics", metavar="NAME[,NAME]", help="Copy only these topics.")
@click.option("--groups", metavar="NAME[,NAME]", help="Copy only these groups.")
@console_options
def sync(
    dry_run: bool,
    show_all: bool,
    topics: str | None,
    groups: str | None,
    file: str | None,
    address: str | None,
) -> None:
    """Copy topics, groups, offsets and orders from the primary to the target. The exit code is 3 if a step failed."""
    request = {"dry_run": dry_run, "topics": topics or "", "groups": groups or ""}
    console = console_from_options(file, address)
    try:
        rows = console.post("/cutover/sync", request)["steps"]
    except ConsoleUnreachable:
        rows = _sync_without_gateway(f"{console.host}:{console.port}", request)
    if dry_run:
        echo("Dry run: nothing is changed.", bold=True)
    shown = [row for row in rows if show_all or row["action"] not in QUIET_ACTIONS]
    if shown:
        echo(render_table(SYNC_COLUMNS, [_planned(row) if dry_run else row for row in shown]))
    echo(describe_sync(rows, dry_run=dry_run, show_all=show_all))
    if any(row["action"] == "failed" for row in rows):
        sys.exit(ExitCode.REFUSED)


def _planned(row: dict[str, str]) -> dict[str, str]:
    """Return a row of a dry run, whose changes are still to be made."""
    return {**row, "action": f"would {row['action']}" if row["action"] in CHANGES else row["action"]}


def describe_sync(rows: Sequence[dict[str, str]], *, dry_run: bool, show_all: bool) -> str:
    """Return the sum of a copy, and how to see the rest."""
    counts = Counter(row["action"] for row in rows)
    changes = sum(counts[action] for action in CHANGES)
    verb = "to make" if dry_run else "made"
    parts = [f"{changes} changes {verb}" if changes else "Nothing to copy"]
    parts += [f"{counts[action]} {text}" for action, text in REST.items() if counts[action]]
    hint = " (--all shows them)" if not show_all and any(counts[action] for action in QUIET_ACTIONS) else ""
    return ", ".join(parts) + hint + "."


def _sync_without_gateway(address: str, request: dict[str, Any]) -> list[dict[str, str]]:
    """Copy directly between the clusters, from the configuration alone."""
    settings = click.get_current_context().obj or {}
    file = click.get_current_context().params.get("file") or settings.get("file")
    if not file:
        raise click.ClickException(
            f"No gateway is running at {address}. Pass -c FILE to copy directly between its clusters."
        )
    echo(f"No gateway is running at {address}; copying directly between the clusters.", err=True)
    return sync_once(file, settings.get("sets", ()), request)


COMMANDS: Final = (status, plan, advance, rollback, read_only, sync)


def render_table(columns: Sequence[str], rows: Sequence[dict[str, Any]], indent: int = 0) -> str:
    """Return rows as aligned text below a heading."""
    cells = [list(columns)] + [[str(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    return "\n".join(
        (
            " " * indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def sync_once(file: str, sets: Sequence[str], request: dict[str, Any]) -> list[dict[str, str]]:
    """Copy the metadata without a gateway: connect to both clusters, and end.

    Returns the rows of the steps taken, or planned with `dry_run`. Raises ClickException.
    """
    config = read_config(file, tuple(sets))
    if not config.target.namesrv:
        raise ConfigurationError(f"{file}: target.namesrv must be set")
    return [step.to_dict() for step in run_async(_run_sync, config, request)]


async def _run_sync(config: Any, request: dict[str, Any]) -> "list[SyncStep]":
    import trio

    from gateway.shadow.clusters.endpoints import make_cluster
    from gateway.shadow.clusters.full_sync import FullSync
    from gateway.shadow.clusters.target_check import refuse_same_cluster
    from gateway.shadow.cutover.assembly import open_move_file, pair_clusters
    from gateway.shadow.cutover.console_routes import parse_names

    primary, target = make_cluster(config.primary, "primary"), make_cluster(config.target, "target")
    async with trio.open_nursery() as nursery:
        await nursery.start(primary.run)
        await nursery.start(target.run)
        await refuse_same_cluster(primary, target)
        syncing = FullSync(pair_clusters(primary, target, config.target.brokers, config.target.kind))
        topics, groups = parse_names(request["topics"]) or None, parse_names(request["groups"]) or None
        moving = [move.topic for move in open_move_file(config.cutover) if not move.is_mirrored]
        steps = await syncing.run(topics, groups, moving, dry_run=request["dry_run"])
        nursery.cancel_scope.cancel()
    return steps
