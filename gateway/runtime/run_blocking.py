"""The type of functions that run blocking work: in a worker thread, or at once in simulations."""

from collections.abc import Awaitable, Callable
from typing import Any

RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function without arguments, without blocking other tasks; returns or raises what the function does."""
