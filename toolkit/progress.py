"""A progress bar on standard error, shown on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_UPDATES = 200
"""Maximum number of times that the bar is drawn."""


@contextmanager
def show_progress(label: str, total: Callable[[], int]) -> Iterator[Callable[[int], None]]:
    """Show a bar until the block ends, and yield a function that takes the amount done since its last call.

    ``total`` returns the whole amount in the same unit. It is called only if a bar is shown.
    """
    if not sys.stderr.isatty():
        yield _ignore
        return
    import click

    amount = max(1, total())
    with click.progressbar(
        length=amount, label=label, file=sys.stderr, update_min_steps=amount // _UPDATES + 1
    ) as bar:
        yield bar.update


def _ignore(done: int) -> None:
    """Show nothing."""
