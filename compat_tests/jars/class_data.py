"""Class data sharing: a JVM that maps its classes from an archive needs half the processor time to start."""

import sys
from collections.abc import Callable
from pathlib import Path

from compat_tests.jars.maven import in_ci, lock_file

# If the archive does not fit this JVM after all, it reads the classes from the jars and should not complain.
QUIET_OPTIONS = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def class_data_options(archive: Path) -> list[str]:
    """Return the JVM options that map classes from an archive."""
    return [f"-XX:SharedArchiveFile={archive}", *QUIET_OPTIONS]


def build_archive_once(archive: Path, make: Callable[[Path], str]) -> None:
    """Build an archive unless it exists; one process at a time.

    ``make`` writes the file it is given and returns a problem, or "" on success. Programs also run without an
    archive, only slower, so a problem is printed; in CI, where nobody would notice, it raises RuntimeError.
    """
    with lock_file(archive.with_suffix(".lock")):
        if archive.exists():
            return
        new_archive = archive.with_suffix(".new")
        problem = make(new_archive)
        if problem:
            new_archive.unlink(missing_ok=True)
            report_missing_archive(problem)
        else:
            new_archive.rename(archive)


def report_missing_archive(problem: str) -> None:
    """Print that there is no archive; raise RuntimeError in CI."""
    if in_ci():
        raise RuntimeError(f"no archive of classes: {problem}")
    print(f"no archive of classes: {problem}", file=sys.stderr)
