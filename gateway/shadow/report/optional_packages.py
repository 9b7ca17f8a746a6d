"""Imports libraries of the extra `shadow` when they are first needed: not every gateway has a live view or a report."""

import importlib
from types import ModuleType

import click


def import_optional(name: str) -> ModuleType:
    """Return a module of the extra `shadow`. Raises ClickException, which names the extra, if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise click.ClickException(
            f"{name.split('.')[0]} is not installed; it belongs to the extra `shadow`: "
            "pip install 'rocketmq-gateway[shadow]'"
        ) from error
