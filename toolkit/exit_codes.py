"""The exit codes of all commands of `rmq-gateway`; docs/reference/exit-codes.md explains them to users."""

from enum import IntEnum

import click


class ExitCode(IntEnum):
    """The reason why a command ended. Errors of click have the same numbers: 1 for ClickException, 2 for UsageError."""

    DONE = 0
    FAILED = 1
    """The work could not be done: a cluster, gateway, file, port or directory is unavailable."""
    USAGE = 2
    """The command line, the environment or the configuration is wrong; nothing was started."""
    REFUSED = 3
    """The work was done, and its verdict is no: a condition holds, a check refuses, messages differ."""
    NOTHING = 4
    """There was nothing to judge, so there is no verdict."""
    INTERRUPTED = 5
    """The command ended early; another run can complete the work."""


class ConfigurationError(click.ClickException):
    """A configuration that cannot be used."""

    exit_code = ExitCode.USAGE


class EndedEarly(click.ClickException):
    """Work that ended early; another run can complete it."""

    exit_code = ExitCode.INTERRUPTED
