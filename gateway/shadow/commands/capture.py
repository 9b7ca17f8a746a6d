"""The commands `rmq-gateway capture` and `rmq-gateway replay`: options, printing and exit codes."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from toolkit.command_group import SuggestingGroup
from toolkit.exit_codes import ConfigurationError, ExitCode
from toolkit.printable import echo, echo_json

if TYPE_CHECKING:
    from gateway.shadow.capture.reader import CaptureFileReader
    from gateway.shadow.capture.replay import Replay
    from gateway.shadow.capture.replay_plan import RecordFilter, ReplayPlan
    from gateway.shadow.clusters.cluster import Cluster, Sign


class _TimeType(click.ParamType):  # type: ignore[type-arg]
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        from gateway.shadow.capture.summary import parse_time_ms

        try:
            return parse_time_ms(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2026-12-31T23:59:59.123Z", param, context)


class _SpeedType(click.ParamType):  # type: ignore[type-arg]
    name = "speed"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> float | None:
        if value == "max":
            return None
        try:
            speed = float(str(value).removesuffix("x"))
        except ValueError:
            speed = 0.0
        if not 0 < speed <= 1_000_000:
            self.fail(f"{value!r} is neither max nor a number such as 2x", param, context)
        return speed


def _files_argument(function: Any) -> Any:
    return click.argument("files", nargs=-1, required=True, metavar="FILE...")(function)


def _time_options(function: Any) -> Any:
    for name, meaning in (("--until", "before this time"), ("--from", "at this time or later")):
        parameter = name.removeprefix("--") + "_ms"
        function = click.option(
            name, parameter, type=_TimeType(), metavar="TIME", help=f"Only requests sent {meaning} (UTC)."
        )(function)
    return function


def _split_names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _topics_option(function: Any) -> Any:
    return click.option("--topics", metavar="A,B,…", help="Only these topics.")(function)


def _codes_option(function: Any) -> Any:
    return click.option("--codes", metavar="N,M,…", help="Only these request codes.")(function)


def _record_filter(options: dict[str, Any]) -> "RecordFilter":
    from gateway.shadow.capture.replay_plan import RecordFilter

    codes = _split_names(options["codes"])
    wrong = [code for code in codes if not code.lstrip("-").isdecimal()]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is not a request code", param_hint="--codes")
    topics = _split_names(options["topics"])
    return RecordFilter(
        options["from_ms"],
        options["until_ms"],
        frozenset(topics) if topics else None,
        frozenset(int(code) for code in codes),
    )


@contextlib.contextmanager
def _open_files(paths: tuple[str, ...]) -> "Iterator[list[CaptureFileReader]]":
    """Open capture files for a command; end it with a message if one does not exist."""
    from gateway.shadow.capture.reader import open_captures

    try:
        with open_captures(paths) as files:
            yield files
    except FileNotFoundError as error:
        raise click.ClickException(str(error)) from error


@click.group(cls=SuggestingGroup)
def capture() -> None:
    """Inspect capture files of a shadow gateway; a folder stands for all files in it."""


@capture.command()
@_files_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per file.")
def info(files: tuple[str, ...], as_json: bool) -> None:
    """Show times, counts by code and topic, and damage; exit code 3 when there is any damage."""
    from gateway.shadow.capture.summary import format_file_summary, summarize_file

    damaged = False
    with _open_files(files) as opened:
        for file in opened:
            facts = summarize_file(file)
            damaged = damaged or bool(facts["damage"])
            if as_json:
                echo_json(json.dumps(facts).encode())
            else:
                echo("\n".join(format_file_summary(facts)))
    sys.exit(ExitCode.REFUSED if damaged else ExitCode.DONE)


@capture.command()
@_files_argument
@_topics_option
@_codes_option
@_time_options
@click.option("--bodies", is_flag=True, help="Include message bodies, as base64.")
def dump(files: tuple[str, ...], bodies: bool, **options: Any) -> None:
    """Print every exchange as a line of JSON, and damage to standard error."""
    from codec.capture import Damage
    from gateway.shadow.capture.replay_plan import matches_filter
    from gateway.shadow.capture.summary import record_to_json

    record_filter = _record_filter(options)
    damaged = False
    with _open_files(files) as opened:
        for file in opened:
            for block_or_damage in file.read_blocks(
                from_ms=record_filter.from_ms, until_ms=record_filter.until_ms, topics=record_filter.topics
            ):
                if isinstance(block_or_damage, Damage):
                    damaged = True
                    echo(
                        f"{file.path}: at byte {block_or_damage.position}: {block_or_damage.reason}", err=True
                    )
                    continue
                for record in block_or_damage[1]:
                    if matches_filter(record, record_filter):
                        echo_json(json.dumps(record_to_json(record, bodies=bodies)).encode())
    sys.exit(ExitCode.REFUSED if damaged else ExitCode.DONE)


@click.command()
@_files_argument
@click.option("--to", "namesrv", metavar="HOST:PORT", help="Namesrv of the cluster to replay to.")
@click.option(
    "--speed", type=_SpeedType(), default="1x", metavar="1x|2x|max", help="Speed of the replay (default: 1x)."
)
@_topics_option
@_codes_option
@_time_options
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="CAPTURED=TARGET",
    help="Target broker for a captured one; repeatable. Default: the broker of the same name, or the only one.",
)
@click.option(
    "--broker-network",
    "networks",
    multiple=True,
    metavar="CIDR",
    help="Network in which the cluster's brokers may be (default: all but link-local and similar ones); repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be replayed.")
@click.option("--access-key", default="", help="Access key to sign requests with.")
@click.option("--secret-key-file", default="", metavar="PATH", help="File with the secret key.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def replay(files: tuple[str, ...], **options: Any) -> None:
    """Replay captured requests against another cluster.

    Exit code 3: a request was refused; 5: the replay was interrupted, or the target did not answer.
    """
    from gateway.shadow.capture.replay_plan import plan_replay
    from gateway.shadow.capture.summary import format_damage, format_plan

    if not options["dry_run"] and not options["namesrv"]:
        raise click.UsageError("pass --to HOST:PORT, or --dry-run")
    with _open_files(files) as opened:
        plan = plan_replay(opened, _record_filter(options))
        if options["dry_run"]:
            echo("\n".join(format_plan(plan, options["speed"])))
            return
        for line in format_damage(plan):
            echo(line, err=True)
        sys.exit(_replay_plan(plan, opened, options))


def _replay_plan(plan: "ReplayPlan", files: "list[CaptureFileReader]", options: dict[str, Any]) -> int:
    """Replay a plan, print the results, and return the exit code. Raises ClickException."""
    from gateway.shadow.capture.summary import format_results, format_time, results_to_json
    from gateway.shadow.commands.run_async import run_async

    finished = run_async(_run_replay, plan, files, options)
    if options["as_json"]:
        echo_json(json.dumps(results_to_json(finished)).encode())
    else:
        echo("\n".join(format_results(finished)))
    resume = finished.find_resume_point()
    if finished.failure:
        echo(f"the target did not answer: {finished.failure}", err=True)
    if resume is not None:
        from_ms, again = resume
        echo(
            f"ended after {finished.finished_count:,} of {finished.step_count:,} requests; "
            f"--from {format_time(from_ms)} resumes and repeats {again:,}; "
            "it does not know earlier transactions, offsets and recalls",
            err=True,
        )
        return ExitCode.INTERRUPTED
    return ExitCode.REFUSED if finished.results.refused else ExitCode.DONE


async def _run_replay(
    plan: "ReplayPlan", files: "list[CaptureFileReader]", options: dict[str, Any]
) -> "Replay":
    """Replay a plan at the target and return the finished replay. Raises ClickException."""
    import trio

    from gateway.shadow.capture.replay import Replay, ReplayError, prepare_target
    from gateway.shadow.clusters.address_policy import AddressPolicy
    from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster
    from remoting.transport import connect
    from storage.clock import SystemClock

    try:
        sign = _make_signer(options)
        policy = AddressPolicy([options["namesrv"]], options["networks"], "--broker-network")
    except ValueError as error:
        raise ConfigurationError(f"cannot replay: {error}") from error
    target = Cluster([options["namesrv"]], sign=sign, opener=policy.guard_opener(connect))
    async with trio.open_nursery() as nursery:
        await nursery.start(target.run)
        # Topics, groups and brokers first: nothing is sent to a target that cannot take all of it.
        try:
            pairs = await _pair_brokers(target, plan, options["brokers"])
            await prepare_target(target, plan, pairs)
        except (ReplayError, LookupError, ValueError, *CLUSTER_ERRORS) as error:
            raise click.ClickException(f"cannot replay: {error}") from error
        replay = Replay(
            plan, files, target, pairs, speed=options["speed"], now_ms=SystemClock().now_ms, sign=sign
        )
        nursery.start_soon(_stop_on_signal, replay)
        with _ProgressBar(replay) as bar:
            nursery.start_soon(bar.run)
            await replay.run()
        nursery.cancel_scope.cancel()
    return replay


def _make_signer(options: dict[str, Any]) -> "Sign | None":
    from gateway.shadow.clusters.endpoints import CredentialSettings, make_signer

    settings = CredentialSettings(
        access_key=options["access_key"], secret_key_file=options["secret_key_file"]
    )
    return make_signer(settings, "--access-key")


async def _pair_brokers(target: "Cluster", plan: "ReplayPlan", pair_texts: tuple[str, ...]) -> dict[str, str]:
    """Return the target's broker for each captured one. Raises LookupError, ValueError."""
    from gateway.shadow.clusters.cluster_pair import find_counterpart

    malformed = [pair for pair in pair_texts if "=" not in pair]
    if malformed:
        raise ValueError(f"--broker {malformed[0]}: expected CAPTURED=TARGET")
    declared = dict(pair.split("=", 1) for pair in pair_texts)
    await target.refresh()
    return {name: find_counterpart(name, target.brokers, declared) for name in plan.brokers}


async def _stop_on_signal(replay: "Replay") -> None:
    import signal

    import trio

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            replay.stop()


class _ProgressBar:
    """A progress bar on a terminal; silent elsewhere, or if rich is not installed."""

    def __init__(self, replay: "Replay") -> None:
        self._replay = replay
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> "_ProgressBar":
        if sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import Progress
            except ImportError:
                return self
            self._progress = Progress(console=Console(stderr=True))
            self._task = self._progress.add_task("replaying", total=self._replay.step_count)
            self._progress.start()
        return self

    def __exit__(self, *details: Any) -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=self._replay.finished_count)
            self._progress.stop()

    async def run(self) -> None:
        """Follow the replay until cancelled."""
        import trio

        if self._progress is None:
            return
        while True:
            self._progress.update(self._task, completed=self._replay.finished_count)
            await trio.sleep(0.2)
