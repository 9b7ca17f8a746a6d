"""Threads that run while a block is open."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def run_threads(targets: Iterable[Callable[[threading.Event], None]]) -> Iterator[None]:
    """Run functions in threads of their own; at the end of the block, wait until they return.

    Each function is given the event that is set then. The threads end with the process, if one never returns.
    """
    stopped = threading.Event()
    threads = [threading.Thread(target=target, args=(stopped,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
