"""A base image made on this machine, for an engine that has no registry to pull one from.

debootstrap makes a small Debian with Python in a folder, which needs root and a Debian mirror. The engine imports it
from an archive in the cache folder, so the next engine gets it within seconds.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from compat_tests.jars import Unavailable, cache_dir, find_program

IMAGE: Final = "rocketmq-gateway-base"
SUITES: Final = {(3, 11): "bookworm", (3, 13): "trixie"}
"""Debian by the version of its Python, which must be that of this process: it collects the wheels of the image."""
PACKAGES: Final = "python3,python3-pip"
DEFAULT_MIRROR: Final = "http://deb.debian.org/debian"
BOOTSTRAP_TIMEOUT_S: Final = 300
IMPORT_TIMEOUT_S: Final = 120
NOT_IN_IMAGE: Final = (
    "dev/*",
    "proc/*",
    "sys/*",
    "var/cache/apt/*",
    "var/lib/apt/lists/*",
    "usr/share/doc",
    "usr/share/man",
)


def make_base() -> str:
    """Make the base image and return its name. Raises Unavailable where this machine cannot.

    Not safe for several processes at once: the caller holds a lock.
    """
    suite = SUITES.get(sys.version_info[:2])
    if suite is None:
        raise Unavailable(f"no Debian known here has Python {sys.version_info[0]}.{sys.version_info[1]}")
    name = f"{IMAGE}:{suite}"
    if not _run("docker", "image", "inspect", name, timeout_s=IMPORT_TIMEOUT_S):
        return (
            name  # Importing it anew would make another image, and the build would find nothing in its cache.
        )
    archive = cache_dir() / "debian-base" / f"{suite}.tar.gz"
    if not archive.exists():
        _make_archive(suite, archive)
    if problem := _run("docker", "import", str(archive), name, timeout_s=IMPORT_TIMEOUT_S):
        raise Unavailable(f"the engine cannot import a base image: {problem}")
    return name


def _make_archive(suite: str, archive: Path) -> None:
    """Fill a folder with Debian and pack it."""
    bootstrap = find_program("debootstrap", "make a base image without a registry")
    if os.geteuid() != 0:
        raise Unavailable("only root can make a base image with debootstrap")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="debian-base-") as folder:
        root = Path(folder) / "root"
        words = [bootstrap, "--variant=minbase", f"--include={PACKAGES}", suite, str(root), _mirror()]
        if problem := _run(*words, timeout_s=BOOTSTRAP_TIMEOUT_S):
            raise Unavailable(f"debootstrap cannot make a base image: {problem}")
        unfinished = archive.with_suffix(".unfinished")
        left_out = [f"--exclude=./{pattern}" for pattern in NOT_IN_IMAGE]
        words = ["tar", "-C", str(root), "--numeric-owner", *left_out, "-czf", str(unfinished), "."]
        if problem := _run(*words, timeout_s=BOOTSTRAP_TIMEOUT_S):
            raise Unavailable(f"the base image cannot be packed: {problem}")
        unfinished.rename(archive)


def _mirror() -> str:
    """Return the mirror that this machine installs its own packages from, so that a proxy or a copy nearby is used."""
    try:
        asked = ["apt-get", "indextargets", "--format", "$(SITE)"]
        sites = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    except FileNotFoundError:
        sites = []
    return next(
        (site for site in sites if site.startswith("http") and "security" not in site), DEFAULT_MIRROR
    )


def _run(*words: str, timeout_s: float) -> str:
    """Run a command; return the end of its output if it failed, "" otherwise."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{words[0]} took longer than {timeout_s:.0f} s"
    return (
        ""
        if done.returncode == 0
        else (done.stdout + done.stderr).strip()[-400:] or f"exit {done.returncode}"
    )
