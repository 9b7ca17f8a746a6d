"""How many files this process may have open, and what that leaves for connections and mapped files.

Not responsible for opening or closing any.
"""

import resource

PLENTY = 1 << 20


def raise_file_limit() -> None:
    """Lets the process open as many files as it may: each connection and each mapped file takes one or two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def within_file_limit(wanted: int, *, share: int) -> int:
    """At most ``wanted``, and at most one of ``share`` equal parts of the files that may be open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = PLENTY if soft == resource.RLIM_INFINITY else soft
    return min(wanted, allowed // share)
