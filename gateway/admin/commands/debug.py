"""The command `rmq-gateway debug`: collects information about a cluster that misbehaves."""

from pathlib import Path

import click

from gateway.admin.commands.options import ClusterGroup, ConnectionFlags, cluster_options
from toolkit.printable import echo


@click.group(cls=ClusterGroup)
def debug() -> None:
    """Collect information about a cluster that misbehaves."""


@debug.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--metrics", "metrics", multiple=True, metavar="URL", help="Add the answer of this /metrics; repeatable."
)
@cluster_options
def bundle(connection: ConnectionFlags, file: Path | None, metrics: tuple[str, ...]) -> None:
    """Write a tar file for support: settings, versions, health, topics, groups with lag, statistics.

    It holds no messages and no secrets; its README.txt says what is in it. FILE is
    rmq-gateway-debug-TIME.tar.gz by default, and is never overwritten.
    """
    import time

    from gateway.admin.debug_bundle import CONTENTS, NOTICE, collect_bundle

    path = file or Path(time.strftime("rmq-gateway-debug-%Y%m%d-%H%M%S.tar.gz", time.gmtime()))
    with connection.open() as client:
        contents = collect_bundle(client, metrics)
    try:
        size = contents.write(path)
    except OSError as error:
        raise click.ClickException(
            f"{path} cannot be written: {error.strerror}. Name another FILE."
        ) from error
    echo(f"Wrote {path} ({size:,} bytes):")
    for name, meaning in CONTENTS.items():
        if name == "errors.json" or any(file_name.startswith(name) for file_name in contents.files):
            echo(f"  {name:<15}{meaning}")
    for name, problem in contents.errors.items():
        echo(f"  {name} is missing: {problem}", err=True)
    echo(NOTICE)
