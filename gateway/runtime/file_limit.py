"""The limit of open files, and its shares for connections and mapped files.

Commands that only open a store use it, too, so it must not import anything of a server.
"""

import resource

MAX_FILES = 1 << 20


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one: a connection or mapped file takes one or two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def within_file_limit(count: int, *, share: int) -> int:
    """Return ``count``, or the limit of open files divided by ``share`` if that is less."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MAX_FILES if soft == resource.RLIM_INFINITY else soft
    return min(count, allowed // share)
