"""Archives of classes: a JVM that maps its classes from one (class data sharing) computes half as much until it serves.

Not responsible for what an archive holds: whoever makes it says.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from compat_tests.jars.maven import exclusive, in_ci

# Without a word when the archive does not fit after all: classes are read then.
QUIET = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def mapped_from(archive: Path) -> list[str]:
    """Options with which a JVM maps its classes from an archive."""
    return [f"-XX:SharedArchiveFile={archive}", *QUIET]


def make_once(archive: Path, make: Callable[[Path], str]) -> None:
    """Makes an archive unless it is there; one process at a time.

    ``make`` writes the file it is given, and says what went wrong, "" when nothing did. Programs do without an archive,
    only slowly, so that is printed; in CI, where nobody would notice, it raises RuntimeError.
    """
    with exclusive(archive.with_suffix(".lock")):
        if archive.exists():
            return
        made = archive.with_suffix(".new")
        problem = make(made)
        if problem:
            made.unlink(missing_ok=True)
            complain(problem)
        else:
            made.rename(archive)


def complain(problem: str) -> None:
    """Says that there is no archive; RuntimeError in CI."""
    if in_ci():
        raise RuntimeError(f"no archive of classes: {problem}")
    print(f"no archive of classes: {problem}", file=sys.stderr)
