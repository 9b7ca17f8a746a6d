"""Archives of classes: a JVM that maps its classes from one (class data sharing) computes half as much until it serves.

Not responsible for what an archive holds: whoever makes it says.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from compat_tests.jars.maven import in_ci, lock_file

# Without a word when the archive does not fit after all: classes are read then.
QUIET_OPTIONS = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def class_data_options(archive: Path) -> list[str]:
    """Options with which a JVM maps its classes from an archive."""
    return [f"-XX:SharedArchiveFile={archive}", *QUIET_OPTIONS]


def build_archive_once(archive: Path, make: Callable[[Path], str]) -> None:
    """Makes an archive unless it is there; one process at a time.

    ``make`` writes the file it is given, and says what went wrong, "" when nothing did. Programs do without an archive,
    only slowly, so that is printed; in CI, where nobody would notice, it raises RuntimeError.
    """
    with lock_file(archive.with_suffix(".lock")):
        if archive.exists():
            return
        made = archive.with_suffix(".new")
        problem = make(made)
        if problem:
            made.unlink(missing_ok=True)
            report_missing_archive(problem)
        else:
            made.rename(archive)


def report_missing_archive(problem: str) -> None:
    """Says that there is no archive; RuntimeError in CI."""
    if in_ci():
        raise RuntimeError(f"no archive of classes: {problem}")
    print(f"no archive of classes: {problem}", file=sys.stderr)
