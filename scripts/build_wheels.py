"""Build what is published of the project, in dist/: wheels and the archive of its sources.

    python scripts/build_wheels.py pure        # a wheel for any machine, without the C extension
    python scripts/build_wheels.py native      # a wheel with it, for machines of this kind and CPython from 3.11 on
    python scripts/build_wheels.py sources     # an archive of the sources, from which pip builds either

All are built from a copy of the checkout, and looked through afterwards: a wheel for many systems must not need a newer
system. `.github/workflows/wheels.yml` builds those for other processors and for systems with musl.
"""

import argparse
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from build_image import PIP, ROOT, build_wheels, copy_sources

EXTENSION: Final = "_rocketmq_native.abi3.so"
MAX_GLIBC: Final = (2, 17)
"""The C library of manylinux2014, older than that of every system with Python 3.11."""
ALLOWED_LIBRARIES: Final = frozenset({b"libc.so.6", b"libpthread.so.0"})


class BadArchive(Exception):
    """A wheel or archive does not have what it should have."""


def list_files(path: Path) -> set[str]:
    """Return the names of the files in a wheel or an archive of sources, without the folder of the latter."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return set(wheel.namelist())
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def find_needs(extension: bytes) -> tuple[tuple[int, int], set[bytes]]:
    """Return the newest version of glibc whose symbols an extension uses, and the libraries that it names."""
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", extension)
    newest = max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))
    return newest, set(re.findall(rb"\0(lib[\w+-]+\.so[.\d]*)(?=\0)", extension))


def check_native_wheel(path: Path) -> None:
    """Refuse a wheel that would not work on the systems that its tag names. Raises BadArchive."""
    if EXTENSION not in list_files(path):
        raise BadArchive(f"{path.name} lacks {EXTENSION}")
    if "-cp311-abi3-" not in path.name:
        raise BadArchive(f"{path.name} is not for every CPython from 3.11 on")
    with zipfile.ZipFile(path) as wheel:
        newest, libraries = find_needs(wheel.read(EXTENSION))
    if newest > MAX_GLIBC or libraries - ALLOWED_LIBRARIES:
        raise BadArchive(f"{path.name} needs glibc {newest[0]}.{newest[1]}, and {sorted(libraries)}")


def check_pure_wheel(path: Path) -> None:
    """Refuse a wheel for any machine that has something of this one. Raises BadArchive."""
    if not path.name.endswith("-py3-none-any.whl"):
        raise BadArchive(f"{path.name} is not for any machine")
    if compiled := [name for name in list_files(path) if name.endswith((".so", ".c", ".h"))]:
        raise BadArchive(f"{path.name} has {', '.join(compiled)}")


def check_sources(path: Path) -> None:
    """Refuse an archive that lacks a file of the C extension. Raises BadArchive."""
    needed = {"setup.py", "LICENSE", *(f"native/{file.name}" for file in (ROOT / "native").iterdir())}
    if missing := needed - list_files(path):
        raise BadArchive(f"{path.name} lacks {', '.join(sorted(missing))}")


def native_tag() -> str | None:
    """Return the platform in the name of a native wheel built here; None for the one that setuptools names."""
    library, _ = platform.libc_ver()
    return f"manylinux_2_17_{platform.machine()}" if sys.platform == "linux" and library == "glibc" else None


def build_pure(source: Path, target: Path) -> None:
    """Build the wheel for any machine."""
    build_wheels(source, target, with_dependencies=False, native="off")


def build_native(source: Path, target: Path) -> None:
    """Build the wheel with the extension."""
    build_wheels(source, target, with_dependencies=False, native="require", platform_tag=native_tag())


def build_sources(source: Path, target: Path) -> None:
    """Build the archive of sources."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([*PIP, "--python", python, "install", "--quiet", "build"], check=True)
        words = [python, "-m", "build", "--sdist", "--outdir", str(target), str(source)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


Step = tuple[Callable[[Path, Path], None], str, Callable[[Path], None]]
KINDS: Final[Mapping[str, Step]] = {
    "pure": (build_pure, "*.whl", check_pure_wheel),
    "native": (build_native, "*.whl", check_native_wheel),
    "sources": (build_sources, "*.tar.gz", check_sources),
}


def build(kind: str, target: Path) -> Path:
    """Build and check one kind of archive, and return its path. Raises BadArchive, CalledProcessError."""
    build_kind, pattern, check = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "source", Path(folder) / "built"
        copy_sources(source)
        build_kind(source, built)
        (path,) = built.glob(pattern)
        check(path)
        target.mkdir(parents=True, exist_ok=True)
        return path.replace(target / path.name)


def main(words: Sequence[str]) -> int:
    """Build the named kinds and return the exit status."""
    parser = argparse.ArgumentParser(description="Build wheels and the archive of sources.")
    parser.add_argument("kinds", nargs="+", choices=tuple(KINDS), help="what to build")
    parser.add_argument("--target", type=Path, default=ROOT / "dist", help="folder (default: dist)")
    options = parser.parse_args(words)
    try:
        for kind in options.kinds:
            print(build(kind, options.target), flush=True)
    except (OSError, subprocess.CalledProcessError, BadArchive) as problem:
        print(f"Error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
