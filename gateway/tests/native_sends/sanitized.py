"""Builds the C extension with AddressSanitizer and UndefinedBehaviorSanitizer, and runs the comparison with it.

`python -m gateway.tests.native_sends.sanitized --frames 100000` runs the tests of native sends, and then rounds of
random frames. Python takes its memory from malloc here, so that each object has guarded borders. Needs GCC or Clang
with their sanitizers.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
FLAGS: Final = "-fsanitize=address,undefined -fno-sanitize-recover=all"
TESTS: Final = "gateway/tests/test_native_sends.py"
SITE: Final = """\
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec

name, path = "_rocketmq_native", {path!r}
loader = ExtensionFileLoader(name, path)
sys.modules[name] = module = module_from_spec(ModuleSpec(name, loader, origin=path))
loader.exec_module(module)
"""
"""Loads the sanitized extension before anything else can import another one: the checkout comes first on the path."""


def build(folder: Path) -> Path:
    """Build the extension in a folder and return its path. Raises CalledProcessError."""
    environment = {
        **os.environ,
        "ROCKETMQ_NATIVE": "require",
        "CFLAGS": f"{FLAGS} -O1 -g -fno-omit-frame-pointer",
        "LDFLAGS": FLAGS,
    }
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--force"]
    command += ["--build-lib", str(folder), "--build-temp", str(folder / "objects")]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    (path,) = folder.glob("_rocketmq_native*.so")
    return path


def environment_of(path: Path) -> dict[str, str]:
    """Return the environment in which Python loads a sanitized extension."""
    compiler = os.environ.get("CC", "cc")
    libraries = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    (path.parent / "sitecustomize.py").write_text(SITE.format(path=str(path)))
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        # Python keeps memory to its end, and the tests of kills end a process by SIGSEGV.
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": f"{path.parent}:{ROOT}",
    }


def main() -> int:
    """Run everything; return the exit status."""
    parser = argparse.ArgumentParser(description="Compare native sends with Python's under sanitizers.")
    parser.add_argument(
        "--seed", type=int, default=1000, help="seed of the first round (default: %(default)s)"
    )
    parser.add_argument("--frames", type=int, default=100_000, help="random frames (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sanitized-") as folder:
        path = build(Path(folder))
        environment = environment_of(path)
        program = "import _rocketmq_native, rocketmq_native; print(_rocketmq_native.__file__)"
        loaded = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if loaded.stdout.strip() != str(path):
            print(f"the sanitized extension cannot be loaded:\n{loaded.stdout}{loaded.stderr}")
            return 2
        rounds = [
            "gateway.tests.native_sends",
            "--seed",
            str(arguments.seed),
            "--frames",
            str(arguments.frames),
        ]
        for module in (["pytest", "-p", "no:cacheprovider", TESTS], rounds):
            status = subprocess.run(
                [sys.executable, "-m", *module], cwd=ROOT, env=environment, check=False
            ).returncode
            if status:
                return status if status > 0 else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
