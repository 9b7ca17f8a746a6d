"""Imports libraries of the extra `shadow` when they are first needed: not every gateway has a live view or a report."""

import importlib
from types import ModuleType

from toolkit.exit_codes import ConfigurationError
from toolkit.install_command import install_command


def import_optional(name: str) -> ModuleType:
    """Return a module of the extra `shadow`. Raises ConfigurationError, which names the extra, if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"{name.split('.')[0]} is not installed; it belongs to the extra `shadow`: {install_command('shadow')}"
        ) from error
