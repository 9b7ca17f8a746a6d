"""The extension is used only where it fits; its absence has a reason."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from codec.native import native_absence, native_module

ROOT = Path(__file__).resolve().parents[2]
BUILT = """
import zlib
SOURCES_CHECKSUM = f"{zlib.crc32(b'int one;'):08x}"
take = 7
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with an extension that was built from its sources."""
    shutil.copy(ROOT / "rocketmq_native.py", tmp_path)
    (tmp_path / "codec").mkdir()
    shutil.copy(ROOT / "codec" / "native.py", tmp_path / "codec")
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "module.c").write_text("int one;")
    (tmp_path / "_rocketmq_native.py").write_text(BUILT)
    return tmp_path


def absence_in(folder: Path, **environment: Any) -> str:
    """Return the reason of a process, "" if it has the extension."""
    program = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "from codec.native import native_module, native_absence\n"
        "assert native_absence() or native_module().take == 7\nprint(native_absence(), end='')"
    )
    clean = {name: text for name, text in os.environ.items() if name != "ROCKETMQ_NATIVE"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=folder,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_extension_of_the_same_sources_is_used(checkout):
    assert absence_in(checkout) == ""
    (checkout / "native" / "README.md").write_text("not a source")
    assert absence_in(checkout) == ""


def test_extension_of_other_sources_is_not(checkout):
    (checkout / "native" / "frames.h").write_text("int two;")
    assert absence_in(checkout) == "built from other sources: run `make native`"


def test_installed_extension_needs_no_sources(checkout):
    shutil.rmtree(checkout / "native")
    assert absence_in(checkout) == ""


def test_missing_extension_says_what_it_needs(checkout):
    (checkout / "_rocketmq_native.py").unlink()
    assert absence_in(checkout) == "not built: that needs a C compiler and the headers of Python"


def test_extension_that_does_not_load_says_why(checkout):
    (checkout / "_rocketmq_native.py").write_text('raise ImportError("version `GLIBC_2.99\' not found")')
    assert absence_in(checkout) == "not for this system: version `GLIBC_2.99' not found"


def test_variable_switches_it_off_for_a_process(checkout):
    assert absence_in(checkout, ROCKETMQ_NATIVE="off") == "ROCKETMQ_NATIVE=off"
    assert absence_in(checkout, ROCKETMQ_NATIVE="auto") == ""


def test_either_there_is_one_or_a_reason():
    assert (native_module() is None) == (native_absence() != "")


def test_extension_of_this_checkout_is_not_stale():
    assert "other sources" not in native_absence(), native_absence()
