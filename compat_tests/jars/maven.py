"""Fetch the official jars through the machine's own Maven into a cache that many processes may share.

Maven's own settings decide from where it fetches. `java.py` runs programs on the jars.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POM = Path(__file__).with_name("pom.xml")
PROFILES = (
    "server-5.4",
    "proxy-5.4",
    "client-5.5",
    "client-4.9",
    "server-4.9",
    "grpc-client-5.1",
    "grpc-client-5.0",
)
_ANY_SERVER = re.compile(r"server-(\d+\.\d+\.\d+)")
COMPLETE_MARKER = ".complete"
_FETCH_TIMEOUT_S = 900
_CHECKOUT = Path(__file__).resolve().parents[2]
TOOLS_HOME = "ROCKETMQ_TOOLS_HOME"
"""Environment variable with the home folder of whoever runs the tests; tests themselves have an empty one."""


class Unavailable(Exception):
    """Something this machine lacks (Java, Maven, a Docker engine, …); the text is fit to be a skip reason."""


def in_ci() -> bool:
    """Return True if CI=true: then a missing tool is an error rather than a reason to skip."""
    return os.environ.get("CI", "").lower() == "true"


def cache_dir() -> Path:
    """Return the folder for jars, compiled classes and the build tools' own caches.

    ROCKETMQ_COMPAT_CACHE names it. Without it, a checkout has one in `.build/cache`, so that tests write nothing into
    the user's home folder, and an installed package uses the user's cache folder.
    """
    chosen = os.environ.get("ROCKETMQ_COMPAT_CACHE")
    if chosen:
        return Path(chosen)
    if (_CHECKOUT / "pyproject.toml").exists():
        return _CHECKOUT / ".build" / "cache"
    home = os.environ.get(TOOLS_HOME) or Path.home()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(home) / ".cache") / "rocketmq-gateway"


def tool_environment() -> dict[str, str]:
    """Return the environment of build tools: the user's home folder for their settings, our cache for what they write.

    Tests run with an empty home folder (see `conftest.py` at the root), without the user's proxies and mirrors.
    """
    cache = cache_dir()
    environment = {
        **os.environ,
        "GOMODCACHE": str(cache / "go-modules"),
        "GOCACHE": str(cache / "go-build"),
        "npm_config_cache": str(cache / "npm"),
        "PIP_CACHE_DIR": str(cache / "pip"),
    }
    if TOOLS_HOME in os.environ:
        environment["HOME"] = os.environ[TOOLS_HOME]
    return environment


def find_program(program: str, purpose: str) -> str:
    """Return the full path of a program on PATH. Raises Unavailable if there is none."""
    path = shutil.which(program)
    if path is None:
        raise Unavailable(f"{program} is not on PATH, which is needed to {purpose}")
    return path


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold a lock file against other processes; the system releases it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch_jars(profile: str) -> Path:
    """Return the folder with all jars of one profile of pom.xml, fetching them first if they are missing.

    "server-" and three numbers, as in "server-5.3.3", stands for the namesrv and broker of any version. Raises
    Unavailable if Maven or Java is missing or the fetch fails, for instance because there is no such version.
    """
    if profile not in PROFILES and _ANY_SERVER.fullmatch(profile) is None:
        raise ValueError(f"unknown profile {profile!r}, known are {', '.join(PROFILES)} and server-x.y.z")
    find_program("java", "run the official clients and servers")
    # The name contains a digest of pom.xml, so that a changed list of artifacts never uses an old folder.
    version = hashlib.sha256(POM.read_bytes()).hexdigest()[:8]
    target = cache_dir() / "jars" / f"{profile}-{version}"
    if not (target / COMPLETE_MARKER).exists():
        with lock_file(target.with_name(target.name + ".lock")):
            if not (target / COMPLETE_MARKER).exists():
                _run_maven(profile, target)
    return target


def _run_maven(profile: str, target: Path) -> None:
    maven = find_program("mvn", "fetch the official jars from Maven Central")
    shutil.rmtree(target, ignore_errors=True)
    command = [maven, "-B", "-q", "-f", str(POM), *_profile_options(profile), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={target}", f"-Dmaven.repo.local={cache_dir() / 'maven'}"]
    try:
        # Maven's repository folder does not support several processes at once.
        with lock_file(cache_dir() / "maven.lock"):
            done = subprocess.run(
                command,
                env=tool_environment(),
                capture_output=True,
                text=True,
                timeout=_FETCH_TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"Maven took over {_FETCH_TIMEOUT_S} s to fetch profile {profile}") from error
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()
        raise Unavailable(f"Maven could not fetch profile {profile}: {output[:400] or 'it said nothing'}")
    (target / COMPLETE_MARKER).touch()


def _profile_options(profile: str) -> list[str]:
    server = _ANY_SERVER.fullmatch(profile)
    return [f"-P{profile}"] if server is None else ["-Pserver", f"-Dserver.version={server[1]}"]
