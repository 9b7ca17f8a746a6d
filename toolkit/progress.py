"""A progress bar on standard error: on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_UPDATES = 200
"""The bar is drawn at most this many times."""


@contextmanager
def show_progress(label: str, total: Callable[[], int]) -> Iterator[Callable[[int], None]]:
    """Show a bar until the block ends; its value is called with the amount done since the last call.

    ``total`` returns the whole amount, in bytes or pieces, and is called only if a bar is shown.
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
