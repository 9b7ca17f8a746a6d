"""Fetches the official jars through the machine's own Maven into a cache that many processes may share.

Not responsible for running them, nor for where Maven fetches from: its own settings decide.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POM = Path(__file__).with_name("pom.xml")
PROFILES = ("server-5.4", "client-5.5", "client-4.9", "server-4.9")
COMPLETE = ".complete"
_FETCH_TIMEOUT_S = 900


class Unavailable(Exception):
    """Something this machine lacks (Java, Maven, a Docker engine, …); the text is fit to be a skip reason."""


def in_ci() -> bool:
    """Whether CI=true, where what a machine lacks is an error and no reason to skip."""
    return os.environ.get("CI", "").lower() == "true"


def cache_dir() -> Path:
    """The folder for jars and compiled classes: ROCKETMQ_COMPAT_CACHE, or one in the user's cache folder."""
    chosen = os.environ.get("ROCKETMQ_COMPAT_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rocketmq-gateway"


def need(program: str, purpose: str) -> str:
    """The full path of a program on PATH. Raises Unavailable when there is none."""
    found = shutil.which(program)
    if found is None:
        raise Unavailable(f"{program} is not on PATH, which is needed to {purpose}")
    return found


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds the lock file `path` against other processes; the system frees it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ensure(profile: str) -> Path:
    """The folder with all jars of one profile of pom.xml, fetched first where they are missing.

    Raises Unavailable when Maven or Java are missing or the fetch fails.
    """
    if profile not in PROFILES:
        raise ValueError(f"unknown profile {profile!r}, known are {', '.join(PROFILES)}")
    need("java", "run the official clients and servers")
    # the name changes with the pom, so that a changed list of artifacts is never answered from an old folder
    version = hashlib.sha256(POM.read_bytes()).hexdigest()[:8]
    target = cache_dir() / "jars" / f"{profile}-{version}"
    if not (target / COMPLETE).exists():
        with exclusive(target.with_name(target.name + ".lock")):
            if not (target / COMPLETE).exists():
                _fetch(profile, target)
    return target


def _fetch(profile: str, target: Path) -> None:
    maven = need("mvn", "fetch the official jars from Maven Central")
    shutil.rmtree(target, ignore_errors=True)
    command = [maven, "-B", "-q", "-f", str(POM), f"-P{profile}", "dependency:copy-dependencies"]
    command.append(f"-DoutputDirectory={target}")
    try:
        # Maven's own folder is not made for several processes at once
        with exclusive(cache_dir() / "maven.lock"):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
            )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"Maven took over {_FETCH_TIMEOUT_S} s to fetch profile {profile}") from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()
        raise Unavailable(f"Maven could not fetch profile {profile}: {said[:400] or 'it said nothing'}")
    (target / COMPLETE).touch()
