"""Options that all store commands share, and the store that they open."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from toolkit.exit_codes import ConfigurationError

if TYPE_CHECKING:
    from storage.config import StoreConfig
    from storage.tools.store_reader import StoreReader

Function = Callable[..., Any]


def store_options(function: Function) -> Function:
    """Add the argument DIR and the options that describe the broker whose store it is."""
    options = [
        click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False)),
        click.option(
            "-c",
            "--config",
            "files",
            multiple=True,
            metavar="FILE",
            help="The broker's broker.conf; needed only if it sets storePathCommitLog, maxHashSlotNum or "
            "messageDelayLevel. Sizes of files are read from the store.",
        ),
        click.option(
            "--set",
            "sets",
            multiple=True,
            metavar="KEY=VALUE",
            help="Set one key of broker.conf; repeatable.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def json_option(function: Function) -> Function:
    """Add the flag --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")(function)


def read_store_config(directory: str, files: tuple[str, ...], sets: tuple[str, ...]) -> "StoreConfig":
    """Return the settings of the store in a folder. Raises ConfigurationError."""
    from storage.config import StoreConfig

    root = os.path.abspath(directory)
    if not files and not sets:
        return StoreConfig(root)
    from gateway.broker.store_settings import build_store_config
    from gateway.config.sources import ConfigError, GivenValue, load_config

    try:
        config = load_config("broker", files, {}, sets, [GivenValue("storePathRootDir", root, "DIR")])
    except ConfigError as problem:
        raise ConfigurationError(str(problem)) from problem
    return build_store_config(config.brokers[0], memory=False)


@contextmanager
def report_store_errors() -> Iterator[None]:
    """End the command with exit code 1 and one line for an error of the store or the system."""
    from storage.errors import StoreError

    try:
        yield
    except BrokenPipeError:
        raise  # click ends quietly
    except (StoreError, OSError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def open_reader(directory: str, files: tuple[str, ...], sets: tuple[str, ...]) -> "Iterator[StoreReader]":
    """Open a store for reading; errors end the command as `report_store_errors` says."""
    from storage.tools.store_reader import StoreReader

    with report_store_errors():
        reader = StoreReader(read_store_config(directory, files, sets))
        try:
            yield reader
        finally:
            reader.close()


def format_time(time_ms: int) -> str:
    """Return a time in UTC with milliseconds; "-" for 0."""
    if time_ms <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


class TimeType(click.ParamType):  # type: ignore[type-arg]
    """A time in ms since 1970, or in ISO 8601; UTC without a zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        """Return ms since 1970."""
        if isinstance(value, int):
            return value
        if str(value).isdecimal():
            return int(value)
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(
                f"{value!r} is neither ms since 1970 nor a time such as 2026-01-31T12:00:00Z", param, context
            )
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(zoned.timestamp() * 1000)
