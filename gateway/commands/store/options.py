"""Options that all store commands share, the store that they open, and the tables that they print."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    from gateway.broker.messages.store_settings import build_store_config
    from gateway.config.sources import ConfigError, SourceValue, load_config

    try:
        config = load_config("broker", files, {}, sets, [SourceValue("storePathRootDir", root, "DIR")])
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


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a heading and rows as aligned plain text; numbers, with thousands separators, to the right.

    The text is empty if there are no rows.
    """
    if not rows:
        return ""
    cells = [list(header)] + [[_cell_text(value) for value in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    numeric = [all(isinstance(row[column], int) for row in rows) for column in range(len(header))]
    lines = []
    for row in cells:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _cell_text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
