"""Wheels and archives are refused that would not work where their names say."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from build_wheels import (  # noqa: E402
    EXTENSION,
    BadArchive,
    check_native_wheel,
    check_pure_wheel,
    check_sources,
    find_needs,
)

NATIVE_NAME = "rocketmq_gateway-0.1.0-cp311-abi3-manylinux_2_17_x86_64.whl"
PURE_NAME = "rocketmq_gateway-0.1.0-py3-none-any.whl"
OLD = b"\0libc.so.6\0memcpy\0GLIBC_2.14\0GLIBC_2.2.5\0"


def wheel(folder: Path, name: str, **files: str | bytes) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("codec/native.py", "")
        for inner, content in files.items():
            archive.writestr(inner.replace("__", "."), content)
    return path


def native_wheel(folder: Path, content: bytes, name: str = NATIVE_NAME) -> Path:
    return wheel(folder, name, **{EXTENSION.replace(".", "__"): content})


def test_wheels_with_the_right_names_and_files(tmp_path: Path) -> None:
    check_native_wheel(native_wheel(tmp_path, OLD))
    check_pure_wheel(wheel(tmp_path, PURE_NAME))


def test_native_wheel_without_the_extension(tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match=r"lacks _rocketmq_native\.abi3\.so"):
        check_native_wheel(wheel(tmp_path, NATIVE_NAME))


def test_native_wheel_for_one_python_only(tmp_path: Path) -> None:
    name = NATIVE_NAME.replace("cp311-abi3", "cp312-cp312")
    with pytest.raises(BadArchive, match="not for every CPython"):
        check_native_wheel(native_wheel(tmp_path, OLD, name))


@pytest.mark.parametrize("needs", [b"\0GLIBC_2.38\0", b"\0libssl.so.3\0", OLD + b"GLIBC_2.18\0"])
def test_native_wheel_that_needs_newer_or_more_libraries(tmp_path: Path, needs: bytes) -> None:
    with pytest.raises(BadArchive, match="needs glibc"):
        check_native_wheel(native_wheel(tmp_path, needs))


def test_needs_of_an_extension() -> None:
    assert find_needs(OLD) == ((2, 14), {b"libc.so.6"})
    assert find_needs(b"\0libc.so.6\0libm.so.6\0") == ((0, 0), {b"libc.so.6", b"libm.so.6"})


def test_pure_wheel_has_nothing_of_this_machine(tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match="is not for any machine"):
        check_pure_wheel(wheel(tmp_path, NATIVE_NAME))
    with pytest.raises(BadArchive, match=r"has _rocketmq_native\.abi3\.so"):
        check_pure_wheel(native_wheel(tmp_path, OLD, PURE_NAME))


def test_archive_of_sources_has_the_extension(tmp_path: Path) -> None:
    path = tmp_path / "rocketmq_gateway-0.1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(ROOT / "setup.py", "rocketmq_gateway-0.1.0/setup.py")
    with pytest.raises(BadArchive, match=r"lacks LICENSE, native/.*/module\.c, .*native/plain_sends\.c"):
        check_sources(path)
    with tarfile.open(path, "w:gz") as archive:
        for name in ("setup.py", "LICENSE", "native"):
            archive.add(ROOT / name, f"rocketmq_gateway-0.1.0/{name}")
    check_sources(path)


def build_in_place(folder: Path, **environment: str) -> tuple[int, str, list[str]]:
    """Run setup.py in a copy of what it needs; return its exit code, its output, and the files that it built."""
    shutil.copytree(ROOT / "native", folder / "native")
    shutil.copy(ROOT / "setup.py", folder)
    (folder / "pyproject.toml").write_text('[project]\nname = "rocketmq-gateway"\nversion = "0.1.0"\n')
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=folder,
        env={**os.environ, "ROCKETMQ_NATIVE": "auto", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, [path.name for path in folder.glob("*.so")]


def test_without_a_compiler_the_rest_is_built(tmp_path: Path) -> None:
    (tmp_path / EXTENSION).write_text("of an earlier build")
    code, output, built = build_in_place(tmp_path, CC="/bin/false")
    assert (code, built) == (0, []), output


def test_without_a_compiler_a_required_extension_fails(tmp_path: Path) -> None:
    code, output, built = build_in_place(tmp_path, CC="/bin/false", ROCKETMQ_NATIVE="require")
    assert code != 0
    assert built == []
    assert "/bin/false" in output


def test_extension_that_nobody_wants_is_not_built(tmp_path: Path) -> None:
    assert build_in_place(tmp_path, ROCKETMQ_NATIVE="off")[::2] == (0, [])


def test_unknown_mode_is_refused(tmp_path: Path) -> None:
    code, output, _ = build_in_place(tmp_path, ROCKETMQ_NATIVE="on")
    assert code != 0
    assert "ROCKETMQ_NATIVE=on is not one of auto, off, require" in output
