"""Threads that run while a block is open."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def run_threads(targets: Iterable[Callable[[threading.Event], None]]) -> Iterator[None]:
    """Run each function in a thread of its own; at the end of the block, set an event and wait until all return.

    The functions get the event as their argument. They are daemon threads: if one never returns, it ends with the
    process.
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
