"""The container image that cases run; built once for a session. Needs the `docker` command with an engine.

The base image is that of the Dockerfile, which the engine must have or be able to pull, or another one that
ROCKETMQ_IMAGE_BASE names. With that variable the build uses no package index.
"""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from compat_tests.plugin import skip_or_fail

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "scripts" / "build_image.py"
BASE = os.environ.get("ROCKETMQ_IMAGE_BASE", "")
TAG = "rocketmq-gateway:case"
BUILD_TIMEOUT_S = 900
NO_BASE = "the base image cannot be pulled"


@pytest.fixture(scope="session")
def image() -> str:
    """The name of the image. It stays with the engine, whose cache makes the next build quick."""
    missing = _build_once()
    if missing.startswith(NO_BASE):
        pytest.skip(missing)  # also in CI: an engine may be there, and no registry behind it
    if missing:
        skip_or_fail(missing)
    return TAG


@cache
def _build_once() -> str:
    """Build the image; return what is missing for that, "" if nothing is."""
    if not BUILD.exists():
        return "the image is built from a checkout only"
    if shutil.which("docker") is None:
        return "no docker command"
    if subprocess.run(["docker", "version"], capture_output=True, check=False).returncode != 0:
        return "no Docker engine answers"
    base = ["--base", BASE, "--offline"] if BASE else []
    built = subprocess.run(
        [sys.executable, str(BUILD), "--tag", TAG, *base],
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if built.returncode != 0 and not BASE and "debian" in built.stdout + built.stderr:
        return f"{NO_BASE} (ROCKETMQ_IMAGE_BASE names another one): {built.stderr[-400:]}"
    assert built.returncode == 0, built.stdout + built.stderr
    return ""
