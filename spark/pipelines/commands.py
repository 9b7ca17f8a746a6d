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
from toolkit.command_group import SuggestingGroup
from toolkit.exit_codes import ConfigurationError
from toolkit.install_command import install_command
from toolkit.printable import echo_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPED_WIDTH_CHARS = 1_000
"""Width of printed tables if the output is a file or a pipe."""


class _Pipelines(SuggestingGroup):
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
    declared = find_pipeline(pipeline)
    head = f"{declared.doc}\n\nrmq-gateway spark {declared.name} -c FILE"
    click.echo(example_file(declared.tables, head), nl=False)


@spark.command()
def script() -> None:
    """Print the path of the script for spark-submit: spark-submit $(rmq-gateway spark script) NAME -c FILE."""
    click.echo(Path(__file__).with_name("submit.py"))


def find_pipeline(name: str) -> Pipeline:
    """Return the pipeline of that name. Raises a click exception that names missing dependencies."""
    try:
        pipeline: Pipeline = importlib.import_module(f"spark.pipelines.{name}").PIPELINE
    except ModuleNotFoundError as missing:
        raise _missing_dependency(missing) from missing
    return pipeline


def _missing_dependency(missing: ModuleNotFoundError) -> click.ClickException:
    if (missing.name or "").partition(".")[0] in ("spark", "codec", "toolkit", "remoting"):
        raise missing
    return ConfigurationError(f"{missing.name} is not installed: {install_command('spark')}")


def _pipeline_command(name: str, help_line: str, find: Callable[[], Pipeline]) -> click.Command:
    """Return the command of a pipeline, which is looked up when it runs."""

    @click.pass_context
    def callback(context: click.Context, /, **parameters: Any) -> None:
        submitted = bool((context.obj or {}).get("submitted"))
        sys.exit(run_pipeline(find(), submitted=submitted, **parameters))

    options = [
        click.Option(
            ["-c", "--config", "file"],
            metavar="FILE",
            help=f"Configuration; `spark example {name}` prints one.",
        ),
        click.Option(
            ["--set", "sets"],
            multiple=True,
            metavar="TABLE.KEY=VALUE",
            help="Set a configuration key; repeatable.",
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
    set_flags = {key: value for key, value in flags.items() if value is not None}
    try:
        if pipeline.check is not None:
            pipeline.check(config)
        session_options, spark_conf = session_conf(pipeline.name, config, set_flags, submitted)
        summary = _run_in_session(pipeline, config, session_options, spark_conf)
    except ModuleNotFoundError as missing:
        raise _missing_dependency(missing) from missing
    except OptionError as error:
        raise ConfigurationError(config.redact_secrets(str(error))) from error
    _print_summary(summary, as_json)
    return summary.exit_code


def _run_in_session(
    pipeline: Pipeline, config: Config, session_options: Mapping[str, str], spark_conf: Mapping[str, str]
) -> Summary:
    from pyspark.errors import PySparkException
    from rich.console import Console

    session: Any = open_session(session_options, spark_conf) if pipeline.on_spark else None
    try:
        return pipeline.run(Job(session, config, Console(stderr=True)))
    except OptionError:
        raise
    except (SparkRocketmqError, PySparkException) as error:
        text = error_text(error)
        # Spark turns errors of Python workers into text, so that the class is known by its name only.
        kind = ConfigurationError if text.startswith("OptionError: ") else click.ClickException
        raise kind(config.redact_secrets(text.removeprefix("OptionError: "))) from None
    finally:
        if session is not None:
            session.stop()


def error_text(error: Exception) -> str:
    """Return an error's text without the JVM's stack: the last line about an error of this package if there is one."""
    lines = [line.strip() for line in str(error).splitlines()]
    own_lines = [line for line in lines if line.startswith("spark.errors.")]
    if own_lines:
        return own_lines[-1].removeprefix("spark.errors.")
    return "\n".join(line for line in lines if line and not line.startswith("at "))


def _parse_conf(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(f"--conf {text}: expected KEY=VALUE")
    return key.strip(), value


def _print_summary(summary: Summary, as_json: bool) -> None:
    from rich.console import Console

    if as_json:
        echo_json(summary.as_json().encode())
    else:
        console = Console()
        # Files and pipes have no width: message ids must not be cut there.
        summary.print_tables(console if console.is_terminal else Console(width=PIPED_WIDTH_CHARS))


# -- the Spark session ------------------------------------------------------------------------------------------------

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

    Under spark-submit the master of spark-submit replaces that of the file; a flag overrides both.
    """
    options, conf = spark_settings(config)
    options = {"appName": f"rmq-gateway {name}", **options}
    cluster_flags = {key: value for key, value in flags.items() if key in ("master", "remote")}
    options = {"appName": options["appName"], **cluster_flags} if cluster_flags else options
    conf = {**({} if submitted else DEFAULT_CONF), **conf}
    conf |= {key: value for key, value in flags.items() if key not in ("master", "remote")}
    if "remote" in options or (submitted and "master" not in cluster_flags):
        options.pop("master", None)
    else:
        options.setdefault("master", "local[*]")
    return options, conf


def open_session(options: Mapping[str, str], conf: Mapping[str, str]) -> "SparkSession":
    """Open a session that knows the sources. A Spark Connect server must have them installed, and finds them itself."""
    from pyspark.sql import SparkSession

    from spark.session.registration import register

    set_python(conf)
    builder: Any = SparkSession.builder
    builder = builder.appName(options["appName"])
    builder = builder.remote(options["remote"]) if "remote" in options else builder
    builder = builder.master(options["master"]) if "master" in options else builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    if "remote" not in options:
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
