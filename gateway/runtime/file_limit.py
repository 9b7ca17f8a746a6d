"""The limit of open files, and its shares for connections and mapped files."""

import resource

MAX_FILES = 1 << 20


def raise_file_limit() -> None:
    """Raise the soft limit to the hard one: each connection and each mapped file takes one or two files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def within_file_limit(wanted: int, *, share: int) -> int:
    """Return ``wanted``, or one of ``share`` equal parts of the limit if that is less."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MAX_FILES if soft == resource.RLIM_INFINITY else soft
    return min(wanted, allowed // share)
