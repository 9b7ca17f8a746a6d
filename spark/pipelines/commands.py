"""The command `rmq-gateway spark`, which spark-submit reaches through `submit.py`: one command per pipeline.

A pipeline's module is imported when it is run, so that the command line starts without pyspark, and can name the extra
to install where pyspark is missing. The Spark session is configured by `[spark]` of the pipeline's file, by flags, and
by spark-submit (`session_conf`).
"""

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from spark.errors import OptionError, SparkRocketmqError
from spark.pipelines.config import Config, example_file, load_config, spark_settings
from spark.pipelines.job import Job, Pipeline, Summary
from toolkit.exit_codes import ConfigurationError
from toolkit.install_command import install_command

PIPED_WIDTH_CHARS = 1_000


class _Pipelines(click.Group):
    """Group of the pipelines' commands, which are imported when used."""

    MODULES: ClassVar[Mapping[str, str]] = {
        "compact": "Merge the small files of ingested tables into larger ones.",
        "ingest": "Write topics to tables, each message exactly once.",
        "peek": "Show the first messages of topics.",
        "profile": "Describe traffic: rates, sizes, keys, latencies, as a report with plots.",
        "readiness": "Judge whether topics are ready for a cut-over, with an exit code.",
        "reconcile": "Find differences between a primary and its mirror.",
    }
    """Help line by pipeline. Its module is `spark.pipelines.<name>` and has a `PIPELINE`."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted([*super().list_commands(context), *self.MODULES])

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self.MODULES:
            return super().get_command(context, name)
        return _pipeline_command(name, self.MODULES[name], lambda: find_pipeline(name))


@click.group(cls=_Pipelines)
@click.pass_context
def spark(context: click.Context) -> None:
    """Run pipelines on Spark, each configured by a TOML file."""
    context.ensure_object(dict)


@spark.command()
@click.argument("pipeline", type=click.Choice(sorted(_Pipelines.MODULES)))
def example(pipeline: str) -> None:
    """Print a commented configuration file with every key of a pipeline."""
    found = find_pipeline(pipeline)
    click.echo(example_file(found.tables, f"{found.doc}\n\nrmq-gateway spark {found.name} -c FILE"), nl=False)


@spark.command()
def script() -> None:
    """Print the path of the script for spark-submit: spark-submit $(rmq-gateway spark script) NAME -c FILE."""
    click.echo(Path(__file__).with_name("submit.py"))


def find_pipeline(name: str) -> Pipeline:
    """Return the pipeline of that name. Raises a click exception that names missing dependencies."""
    try:
        found: Pipeline = importlib.import_module(f"spark.pipelines.{name}").PIPELINE
    except ModuleNotFoundError as missing:
        raise _missing_dependency(missing) from missing
    return found


def _missing_dependency(missing: ModuleNotFoundError) -> click.ClickException:
    if (missing.name or "").partition(".")[0] in ("spark", "codec", "toolkit", "remoting"):
        raise missing
    return ConfigurationError(f"{missing.name} is not installed: {install_command('spark')}")


def _pipeline_command(name: str, help_line: str, find: Callable[[], Pipeline]) -> click.Command:
    """Return the command of a pipeline, which is looked up when it runs."""

    @click.pass_context
    def callback(context: click.Context, /, **given: Any) -> None:
        sys.exit(run_pipeline(find(), submitted=bool((context.obj or {}).get("submitted")), **given))

    options = [
        click.Option(["-c", "--config", "file"], metavar="FILE", help=f"See `spark example {name}`."),
        click.Option(
            ["--set", "sets"], multiple=True, metavar="TABLE.KEY=VALUE", help="Set one key; repeatable."
        ),
        click.Option(["--master"], metavar="URL", help="Spark master (default: local[*])."),
        click.Option(["--remote"], metavar="URL", help="Spark Connect server, sc://host:15002."),
        click.Option(["--conf"], multiple=True, metavar="KEY=VALUE", help="Spark configuration; repeatable."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the summary as one JSON object."),
    ]
    return click.Command(name, callback=callback, params=list(options), help=help_line)


def run_pipeline(
    pipeline: Pipeline,
    *,
    file: str | None,
    sets: Sequence[str],
    master: str | None,
    remote: str | None,
    conf: Sequence[str],
    as_json: bool,
    submitted: bool = False,
) -> int:
    """Run a pipeline, print its summary, and return the exit code. Raises click exceptions for errors."""
    if master and remote:
        raise ConfigurationError("--master and --remote contradict each other: pass one of them")
    try:
        config = load_config(pipeline.tables, file, sets)
    except OptionError as error:
        raise ConfigurationError(str(error)) from error
    flags = {"master": master, "remote": remote, **dict(map(_parse_conf, conf))}
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        if pipeline.check is not None:
            pipeline.check(config)
        own, settings = session_conf(pipeline.name, config, given, submitted)
        summary = _run_in_session(pipeline, config, own, settings)
    except ModuleNotFoundError as missing:
        raise _missing_dependency(missing) from missing
    except OptionError as error:
        raise ConfigurationError(config.redact_secrets(str(error))) from error
    _print_summary(summary, as_json)
    return summary.exit_code


def _run_in_session(
    pipeline: Pipeline, config: Config, own: Mapping[str, str], settings: Mapping[str, str]
) -> Summary:
    from pyspark.errors import PySparkException
    from rich.console import Console

    session: Any = open_session(own, settings) if pipeline.on_spark else None
    try:
        return pipeline.run(Job(session, config, Console(stderr=True)))
    except OptionError:
        raise
    except (SparkRocketmqError, PySparkException) as error:
        said = error_text(error)
        kind = ConfigurationError if said.startswith("OptionError: ") else click.ClickException
        raise kind(config.redact_secrets(said.removeprefix("OptionError: "))) from None
    finally:
        if session is not None:
            session.stop()


def error_text(error: Exception) -> str:
    """Return an error's text without the JVM's stack: the last line from this package if there is one."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line for line in lines if line.startswith("spark.errors.")]
    if ours:
        return ours[-1].removeprefix("spark.errors.")
    return "\n".join(line for line in lines if line and not line.startswith("at "))


def _parse_conf(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(f"--conf {text}: expected KEY=VALUE")
    return key.strip(), value


def _print_summary(summary: Summary, as_json: bool) -> None:
    from rich.console import Console

    if as_json:
        click.echo(summary.as_json())
    else:
        console = Console()
        # Files and pipes have no width: message ids must not be cut there.
        summary.print_tables(console if console.is_terminal else Console(width=PIPED_WIDTH_CHARS))


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}
"""Defaults of a pipeline's Spark configuration."""


def session_conf(
    name: str, config: Config, flags: Mapping[str, str], submitted: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (master, remote and appName; Spark's configuration). Flags override the file, the file the defaults.

    Under spark-submit its own master applies, whatever the file says; a flag overrides that, too.
    """
    own, conf = spark_settings(config)
    own = {"appName": f"rmq-gateway {name}", **own}
    places = {key: value for key, value in flags.items() if key in ("master", "remote")}
    own = {"appName": own["appName"], **places} if places else own
    conf = {**({} if submitted else DEFAULT_CONF), **conf}
    conf |= {key: value for key, value in flags.items() if key not in ("master", "remote")}
    if "remote" in own or (submitted and "master" not in places):
        own.pop("master", None)
    else:
        own.setdefault("master", "local[*]")
    return own, conf


def open_session(own: Mapping[str, str], conf: Mapping[str, str]) -> "SparkSession":
    """Open a session that knows the sources. A Spark Connect server finds them itself, as they are installed there."""
    from pyspark.sql import SparkSession

    from spark.session.registration import register

    set_python(conf)
    builder: Any = SparkSession.builder
    builder = builder.appName(own["appName"])
    builder = builder.remote(own["remote"]) if "remote" in own else builder
    builder = builder.master(own["master"]) if "master" in own else builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    if "remote" not in own:
        register(session)
    return session


def set_python(conf: Mapping[str, str]) -> None:
    """Let driver and executors use this Python, unless the configuration or the environment names another.

    Spark would use `python3`, which usually has neither this package nor pyarrow.
    """
    workers = conf.get("spark.pyspark.python")
    if workers:
        os.environ["PYSPARK_PYTHON"] = workers
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
