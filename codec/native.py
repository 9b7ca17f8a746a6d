"""Finds the optional C extension `rocketmq_native`, whose sources are in `native/`.

All that it does is also written in Python, which decides what is right. Whoever uses it takes it from here, so that one
place knows whether there is one.
"""

from functools import lru_cache
from importlib import import_module
from types import ModuleType


@lru_cache(maxsize=1)
def native_module() -> ModuleType | None:
    """Return the extension; None where it was not built, or not for this interpreter."""
    try:
        return import_module("rocketmq_native")
    except ImportError:
        return None
