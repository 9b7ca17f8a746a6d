"""How work that may block is done: in a worker thread, or at once in simulations."""

from collections.abc import Awaitable, Callable
from typing import Any

RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function of no arguments without holding anybody up; gives back what it returns, raises what it raises."""
