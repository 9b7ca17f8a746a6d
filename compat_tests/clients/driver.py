"""Runs one JVM with a stock Java client, and drives it by commands."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from compat_tests.clients.command_driver import CommandDriver, StockClientError
from compat_tests.clients.programs import HEAP, admin_classes, java_classes
from compat_tests.jars import java_command

# By default a stock client rebalances every 20 s, which is too slow for the suite, and leaves recalls out of traces.
_PROPERTIES = {
    "com.rocketmq.recall.default.trace.enable": "true",
    "rocketmq.client.rebalance.waitInterval": "1000",
    "rocketmq.client.rebalance.minInterval": "200",
}


class JavaClientError(StockClientError):
    """An exception thrown by the stock Java client."""


class JavaDriver(CommandDriver):
    """A running JVM with the jars of `profile` and the given system properties.

    `program`: the main class and the jar with it, instead of the remoting client's.
    """

    error: ClassVar[type[StockClientError]] = JavaClientError

    def __init__(
        self,
        profile: str,
        namesrv: str,
        *,
        admin: bool = False,
        program: tuple[str, Path] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        home = tempfile.TemporaryDirectory(prefix="compat-java-")
        main, classes = program or ("Driver", admin_classes() if admin else java_classes())
        command = java_command(
            profile,
            main,
            Path(home.name),
            heap=HEAP,
            classes=[classes],
            properties={**_PROPERTIES, **(properties or {})},
        )
        super().__init__(command, home, namesrv)


__all__ = ["JavaClientError", "JavaDriver"]
