"""Builds a class data sharing archive for the official server: `python -m compat_tests.archives`.

The suite starts about a hundred official servers, and each needs half the processor time with the archive. It also
works without: if Java, Maven or `jcmd` is missing, this command reports that and builds nothing.
"""

import shutil
import subprocess
from pathlib import Path

from compat_tests.endpoints.official import QUICK_START, OfficialEndpoint
from compat_tests.endpoints.probe import Probe
from compat_tests.jars import Unavailable, fetch_jars
from compat_tests.jars.class_data import build_archive_once, report_missing_archive
from compat_tests.jars.java import archive_path

PROFILE = "server-5.4"
FIRST_SEND_S = 60.0
"""For the first send of a cold broker, which takes seconds on a busy machine."""
RECORDING = "-XX:+IgnoreUnrecognizedVMOptions -XX:+RecordDynamicDumpInfo"


def main() -> None:
    """Build the archive unless it exists."""
    try:
        build_archive_once(archive_path(fetch_jars(PROFILE)), _dump_archive)
    except Unavailable as missing:
        report_missing_archive(str(missing))


def _dump_archive(archive: Path) -> str:
    jcmd = shutil.which("jcmd")
    if jcmd is None:
        return "jcmd is not on PATH"
    with OfficialEndpoint(profile=PROFILE, jvm=f"{QUICK_START} {RECORDING}") as server:
        with Probe(server.broker, timeout_s=FIRST_SEND_S) as probe:
            probe.send("archives", b"what a broker reads for its first message")
        command = [jcmd, str(server.children[-1].pid), "VM.cds", "dynamic_dump", str(archive)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if archive.exists() else (done.stdout + done.stderr).strip()[:400] or "jcmd said nothing"


if __name__ == "__main__":
    main()
