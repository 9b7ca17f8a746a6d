"""Build the container image with the Docker engine that `docker` talks to.

    python scripts/build_image.py                                   # rocketmq-gateway, on debian:bookworm-slim
    python scripts/build_image.py --tag registry.example/rmq:1.0
    python scripts/build_image.py --base my/debian --offline        # no package index within the build

The Docker build gets only the wheel, which is built from a copy of the checkout. With ``--offline``, the wheels of all
dependencies are collected here first, so a base image that has pip needs no network. The Python that runs this script
must then have the version of the base image's Python (3.11 in Debian 12).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CONTAINER: Final = Path("deploy/container")
TAG: Final = "rocketmq-gateway"
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check")
"""First words of a pip command. ``--python`` after them names an environment that has no pip of its own."""


def copy_sources(target: Path) -> None:
    """Copy the files of the checkout, uncommitted changes included, because setuptools builds inside its sources."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def build_wheels(
    source: Path,
    target: Path,
    *,
    with_dependencies: bool,
    native: str | None = None,
    platform_tag: str | None = None,
) -> None:
    """Build the project's wheel, and collect those of its dependencies.

    ``native`` says whether it has the C extension (ROCKETMQ_NATIVE in setup.py, by default that of this process);
    ``platform_tag`` names the systems that the wheel is for, if it has it.
    """
    scope = [] if with_dependencies else ["--no-deps"]
    tag = [] if platform_tag is None else [f"--config-settings=--build-option=--plat-name={platform_tag}"]
    subprocess.run(
        [*PIP, "wheel", "--quiet", *scope, *tag, "--wheel-dir", str(target), str(source)],
        env={**os.environ, **({} if native is None else {"ROCKETMQ_NATIVE": native})},
        check=True,
    )


def build_image(tag: str, base: str | None = None, *, offline: bool = False) -> None:
    """Build the image. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="rocketmq-image-") as folder:
        source, context = Path(folder) / "source", Path(folder) / "context"
        copy_sources(source)
        build_wheels(source, context / "dist", with_dependencies=offline)
        shutil.copytree(source / CONTAINER, context / CONTAINER)
        arguments = ["--build-arg", f"BASE={base}"] if base else []
        arguments += ["--build-arg", "PIP_OPTIONS=--no-index"] if offline else []
        dockerfile = str(context / CONTAINER / "Dockerfile")
        subprocess.run(
            ["docker", "build", *arguments, "--tag", tag, "--file", dockerfile, str(context)], check=True
        )


def main(words: Sequence[str]) -> int:
    """Build the image and return the exit status."""
    parser = argparse.ArgumentParser(description="Build the container image.")
    parser.add_argument("--tag", default=TAG, help=f"name of the image (default: {TAG})")
    parser.add_argument("--base", help="image to build on (default: debian:bookworm-slim)")
    parser.add_argument("--offline", action="store_true", help="use no package index within the build")
    options = parser.parse_args(words)
    try:
        build_image(options.tag, options.base, offline=options.offline)
    except (OSError, subprocess.CalledProcessError) as problem:
        print(f"Error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
