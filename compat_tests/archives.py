"""Makes an archive of the classes that official servers read: `python -m compat_tests.archives`.

A JVM that maps its classes from an archive (class data sharing) computes half as much until it serves; the suite starts
some hundred. It needs none: without Java, Maven or `jcmd` nothing is made, and that is said. In CI it is an error.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from compat_tests.endpoints import official
from compat_tests.endpoints.official import Official
from compat_tests.endpoints.probe import Probe
from compat_tests.jars import Unavailable, cache_dir, exclusive
from compat_tests.jars.java import archive_of

PROFILE = "server-5.4"
RECORDING = "-XX:+IgnoreUnrecognizedVMOptions -XX:+RecordDynamicDumpInfo"


def main() -> None:
    """Makes it unless it is there; one process at a time."""
    try:
        with exclusive(cache_dir() / "archives.lock"):
            archive = archive_of(PROFILE)
            if not archive.exists():
                _make(archive)
    except Unavailable as missing:
        print(f"no archive of classes: {missing}", file=sys.stderr)
        sys.exit("CI" in os.environ)


def _make(archive: Path) -> None:
    jcmd = shutil.which("jcmd")
    if jcmd is None:
        raise Unavailable("jcmd is not on PATH")
    archive.parent.mkdir(parents=True, exist_ok=True)
    made = archive.with_suffix(".new")
    with Official(profile=PROFILE, jvm=f"{official.QUICK_START} {RECORDING}") as server:
        with Probe(server.broker) as probe:
            probe.send("archives", b"what a broker reads for its first message")
        command = [jcmd, str(server.children[-1].pid), "VM.cds", "dynamic_dump", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not made.exists():
        raise Unavailable((done.stdout + done.stderr).strip()[:400])
    made.rename(archive)


if __name__ == "__main__":
    main()
