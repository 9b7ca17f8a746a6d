"""The command `rmq-gateway store`: looks into the files of a store, checks, repairs and copies them."""

import click

from gateway.store_commands.backup import backup
from gateway.store_commands.dump import dump
from gateway.store_commands.inspect import inspect
from gateway.store_commands.repair import repair
from gateway.store_commands.verify import verify


@click.group()
def store() -> None:
    """Inspect, verify, dump, repair and back up the store folder of this broker or an official one."""


for _command in (inspect, verify, dump, repair, backup):
    store.add_command(_command)
