"""Runs the asynchronous part of a command, and turns its failures into messages for people."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

T = TypeVar("T")


def run_async(function: Callable[..., Awaitable[T]], *arguments: object) -> T:
    """Run a trio function and return its result. Nurseries put failures into groups, which no user has to see.

    Raises ConfigurationError for settings that cannot be used, ClickException for clusters that fail or do not fit; of
    a group with other failures the first of them.
    """
    import trio

    from codec.errors import MessageFormatError
    from gateway.runtime.process import leaves
    from gateway.shadow.clusters.cluster import CLUSTER_ERRORS
    from toolkit.exit_codes import ConfigurationError
    from toolkit.settings import SettingsError

    expected = (*CLUSTER_ERRORS, MessageFormatError, LookupError, ValueError, click.ClickException)
    try:
        return trio.run(function, *arguments)
    except Exception as failure:  # noqa: BLE001 - raised again, without its groups
        failures = [leaf for leaf in leaves(failure) if not isinstance(leaf, trio.Cancelled)]
        unexpected = [leaf for leaf in failures if not isinstance(leaf, expected)]
        if unexpected:
            raise unexpected[0] from None
        for leaf in failures:
            if isinstance(leaf, click.ClickException):
                raise leaf from None
        text = "; ".join(dict.fromkeys(str(leaf) or type(leaf).__name__ for leaf in failures))
        if all(isinstance(leaf, SettingsError) for leaf in failures):
            raise ConfigurationError(text) from None
        raise click.ClickException(text) from None
