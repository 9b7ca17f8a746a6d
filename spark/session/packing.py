"""Pack an environment for executors into one archive, for `--archives spark-env.tar.gz#environment` (`make spark-env`).

The archive holds this package and its requirements except pyspark, which the cluster provides. Its interpreter is a
link to the Python of the machine that made it, so the cluster needs the same Python at the same path.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
REQUIREMENTS: Final = ("pyarrow>=18", "numpy>=1.26", "rich>=13")
"""Imports of the sources and pipelines other than pyspark. Drivers in the cluster may also need deltalake and
matplotlib.
"""


def build_wheel(directory: Path, source: Path = ROOT) -> Path:
    """Build a wheel of this distribution. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as scratch:
        # Build from a copy: setuptools leaves a build directory in the sources, and picks up files from an old one.
        tree = Path(scratch) / "tree"
        hidden = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "node_modules")
        shutil.copytree(source, tree, ignore=hidden)
        run_command(
            sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(directory), str(tree)
        )
    return next(directory.glob("rocketmq_gateway-*.whl"))


def pack_environment(archive: Path, *requirements: str) -> None:
    """Pack a new environment with these requirements. Raises CalledProcessError."""
    import venv_pack

    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        environment = Path(scratch) / "environment"
        run_command(sys.executable, "-m", "venv", "--without-pip", str(environment))
        python = str(environment / "bin" / "python")
        run_command(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *requirements)
        venv_pack.pack(prefix=str(environment), output=str(archive), force=True)


def run_command(*command: str) -> None:
    """Run a command to its end, without PYTHONPATH. Raises CalledProcessError.

    pip would treat packages on PYTHONPATH as installed.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, check=True, env=env)


def main() -> None:
    """Run `python -m spark.session.packing ARCHIVE [REQUIREMENT…]`."""
    archive, requirements = Path(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as scratch:
        pack_environment(archive, str(build_wheel(Path(scratch))), *REQUIREMENTS, *requirements)
    print(f"{archive}: {archive.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
