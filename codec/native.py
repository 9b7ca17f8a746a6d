"""Finds the optional C extension `rocketmq_native`, whose sources are in `native/`.

All that it does is also written in Python, which decides what is right. Whoever uses it takes it from here, so that one
place knows whether there is one, and why not.
"""

from functools import lru_cache
from importlib import import_module
from types import ModuleType


def native_module() -> ModuleType | None:
    """Return the extension; None where it was not built, or not for this interpreter."""
    return _find_native()[0]


def native_absence() -> str:
    """Return why there is no extension; the empty string if there is one."""
    return _find_native()[1]


@lru_cache(maxsize=1)
def _find_native() -> tuple[ModuleType | None, str]:
    try:
        return import_module("rocketmq_native"), ""
    except ImportError as error:
        return None, str(error)
