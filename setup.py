"""Builds the optional C extension; everything else stands in pyproject.toml.

The environment variable ROCKETMQ_NATIVE decides. `auto`, the default, builds the extension where there is a C compiler
with Python's headers, and installs everything else where there is none. `off` never builds it, and `require` fails
where it cannot be built.
"""

import os
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Final

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import OptionError, PlatformError

NAME: Final = "_rocketmq_native"
FOLDER: Final = Path(__file__).resolve().parent / "native"
MODES: Final = ("auto", "off", "require")


def checksum_sources() -> str:
    """Return the checksum of the C sources; `rocketmq_native` compares it with the sources of a checkout."""
    checksum = 0
    for path in sorted(FOLDER.glob("*.[ch]")):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return f"{checksum:08x}"


def is_supported() -> bool:
    """Return True for interpreters that have the limited API, on systems with the compilers that the sources expect."""
    is_free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return sys.implementation.name == "cpython" and os.name == "posix" and not is_free_threaded


def declare_extensions(mode: str) -> list[Extension]:
    """Return the extension, or nothing, as a mode of ROCKETMQ_NATIVE says."""
    if mode not in MODES:
        raise OptionError(f"ROCKETMQ_NATIVE={mode} is not one of {', '.join(MODES)}")
    if mode == "require" and not is_supported():
        raise PlatformError(f"ROCKETMQ_NATIVE=require: {NAME} cannot be built for this interpreter")
    if mode == "off" or not is_supported():
        return []
    return [
        Extension(
            NAME,
            sorted(f"native/{path.name}" for path in FOLDER.glob("*.c")),
            depends=sorted(f"native/{path.name}" for path in FOLDER.glob("*.h")),
            define_macros=[("SOURCES_CHECKSUM", f'"{checksum_sources()}"')],
            extra_compile_args=["-std=c11", "-O2", "-fno-strict-aliasing", "-fvisibility=hidden"],
            # One file for all versions of CPython from 3.11 on.
            py_limited_api=True,
            # Without a compiler everything is installed but this: the Python code does the same.
            optional=mode != "require",
        )
    ]


class BuildNative(build_ext):
    """Build the extension; a file of an earlier build does not outlive a failure."""

    def build_extension(self, extension: Extension) -> None:
        Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
        super().build_extension(extension)

    def copy_extensions_to_source(self) -> None:
        (FOLDER.parent / self.get_ext_filename(NAME)).unlink(missing_ok=True)
        super().copy_extensions_to_source()


class TaggedWheel(bdist_wheel):
    """Build a wheel for every CPython from 3.11 on; one without the extension is for every platform as well."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.py_limited_api = "cp311"

    def run(self) -> None:
        # The tag and the layout follow from the outcome of the compiler, so it comes first.
        if self.distribution.has_ext_modules():
            self.run_command("build_ext")
            command = self.get_finalized_command("build_ext")
            if not Path(command.get_ext_fullpath(NAME)).exists():
                self.distribution.ext_modules = []
                self.root_is_pure = True
        super().run()


setup(
    ext_modules=declare_extensions(os.environ.get("ROCKETMQ_NATIVE", "auto")),
    cmdclass={"build_ext": BuildNative, "bdist_wheel": TaggedWheel},
)
