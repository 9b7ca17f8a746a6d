"""The container image that cases run; built once for a session. Needs the `docker` command with an engine.

The base image is the first of these that can be had:

1. the one that ROCKETMQ_IMAGE_BASE names; with that variable the build uses no package index,
2. that of the Dockerfile, which the engine has or pulls,
3. one that `debian_base` makes here.
"""

import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from acceptance.debian_base import make_base
from compat_tests.jars import Unavailable, cache_dir, lock_file
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually
from tools.etcd_members import etcd_program

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "scripts" / "build_image.py"
DOCKERFILE = ROOT / "deploy" / "container" / "Dockerfile"
TAG = "rocketmq-gateway:case"
ETCD_TAG = "rocketmq-gateway-etcd:case"
BUILD_TIMEOUT_S = 900
PULL_TIMEOUT_S = 120
ENGINE_START_TIMEOUT_S = 180
"""A script of the machine may be bringing the engine up while the first tests run."""


@pytest.fixture(scope="session")
def image() -> str:
    """The name of the image. It stays with the engine, whose cache makes the next build quick."""
    _require_engine()
    try:
        _build()
    except Unavailable as missing_base:
        pytest.skip(str(missing_base))  # also in CI: an engine may be there, and no registry behind it
    return TAG


@pytest.fixture(scope="session")
def etcd_image(image: str) -> str:
    """The name of an image of etcd, made of the program on this machine: `image` says that there is an engine."""
    program = etcd_program()
    if program is None:
        skip_or_fail("etcd is not on PATH, of which the image of the case is made")
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    paths = [program, *re.findall(r"(/\S+) \(0x", libraries)]
    archive = subprocess.run(["tar", "-c", "--dereference", "-P", *paths], capture_output=True, check=True)
    words = ["docker", "import", "--change", f"ENV PATH={os.path.dirname(program)}", "-", ETCD_TAG]
    subprocess.run(words, input=archive.stdout, capture_output=True, check=True)
    return ETCD_TAG


def _require_engine() -> None:
    """Skip the case where no engine answers. With CI=true that is a failure if somebody named the engine."""
    named = os.environ.get("DOCKER_HOST")
    if not named and not _engine_answers():
        pytest.skip("no Docker engine answers")
    if named:
        try:
            eventually(_engine_answers, ENGINE_START_TIMEOUT_S, every_s=1)
        except AssertionError:
            skip_or_fail(f"no Docker engine answers at {named} (DOCKER_HOST)")


def _engine_answers() -> bool:
    return shutil.which("docker") is not None and _succeeds("docker", "version")


def _build() -> None:
    """Build the image. Raises Unavailable if no base image can be had."""
    # Workers of one session build one after the other: the second finds everything in the engine's cache.
    with lock_file(cache_dir() / "image.lock"):
        base = _choose_base()
        built = subprocess.run(
            [sys.executable, str(BUILD), "--tag", TAG, *(["--base", base, "--offline"] if base else [])],
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    assert built.returncode == 0, built.stdout + built.stderr


def _choose_base() -> str:
    """Return the base image that the build is given, "" for that of the Dockerfile."""
    if given := os.environ.get("ROCKETMQ_IMAGE_BASE"):
        return given
    (published,) = re.findall(r"^ARG BASE=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    if _succeeds("docker", "image", "inspect", published):
        return ""
    if _succeeds("docker", "pull", "--quiet", published, timeout_s=PULL_TIMEOUT_S):
        return ""
    pulling = f"{published} cannot be pulled"
    try:
        made = make_base()
    except Unavailable as problem:
        raise Unavailable(f"{pulling}, and {problem}; ROCKETMQ_IMAGE_BASE names another base image") from None
    with warnings.catch_warnings():
        # Shown at the end of a session, whatever it does with warnings elsewhere.
        warnings.simplefilter("always")
        warnings.warn(f"{pulling}: the image is built on {made}, made here", stacklevel=1)
    return made


def _succeeds(*command: str, timeout_s: float = 60) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=timeout_s, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
