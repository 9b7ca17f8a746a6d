"""Builds and runs the client programs in Java, Go, Node and Python. Most of them print their result as one JSON line.

Most send messages and consume them; the admin tool prints text.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compat_tests.jars import (
    Unavailable,
    cache_dir,
    compile_jar,
    find_program,
    java_command,
    lock_file,
    tool_environment,
)
from remoting.acl import Credentials

_HERE = Path(__file__).parent
_JAVA = sorted((_HERE / "java").glob("*.java"))
_ADMIN = sorted((_HERE / "java" / "admin").glob("*.java"))
_GRPC = sorted((_HERE / "java" / "grpc").glob("*.java"))
_BUILD_TIMEOUT_S = 600
# Keeps a JVM small and lets it start in a fraction of a second.
HEAP = "-Xms64m -Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """A program's result: messages acknowledged (`sent`), different messages received, and deliveries in all."""

    sent: int
    distinct: int
    deliveries: int


def java_classes() -> Path:
    """Return our Java programs compiled against client 4.9, so that they run with every later client."""
    return compile_jar(_JAVA, "client-4.9")


def admin_classes() -> Path:
    """Return our Java programs with the driver's admin operations, which need the 5.x tools."""
    return compile_jar([*_JAVA, *_ADMIN], "server-5.4")


def grpc_classes() -> Path:
    """Return the driver of the client that speaks gRPC, compiled against its 5.0 line."""
    return compile_jar([_HERE / "java" / "CommandLoop.java", *_GRPC], "grpc-client-5.0")


def run_java(
    profile: str,
    namesrv: str,
    topic: str,
    count: int,
    timeout_s: float,
    properties: Mapping[str, str] | None = None,
) -> ProgramResult:
    """Run the Java client. With "-" as `namesrv` it finds one by itself, for example by the properties."""
    with tempfile.TemporaryDirectory() as home:
        command = java_command(
            profile,
            "SendAndConsume",
            Path(home),
            heap=HEAP,
            classes=[java_classes()],
            properties=properties,
        )
        return _parse_result(run_command([*command, namesrv, topic, str(count)], timeout_s))


def run_go(
    namesrv: str,
    topic: str,
    count: int,
    timeout_s: float,
    *more: str,
    credentials: Credentials | None = None,
) -> ProgramResult:
    """Run the Go client. With "transactions" as `more` it commits `count` messages and rolls back as many.

    With "send" it consumes nothing, and raises AssertionError with the error that a send meets.
    """
    command = [str(build_go_program()), namesrv, topic, str(count), *more]
    return _parse_result(run_command(command, timeout_s, _key_variables(credentials)))


def _key_variables(credentials: Credentials | None) -> dict[str, str]:
    if credentials is None:
        return {}
    return {"COMPAT_ACCESS_KEY": credentials.access_key, "COMPAT_SECRET_KEY": credentials.secret_key}


def run_go_feature(namesrv: str, topic: str, feature: str, timeout_s: float) -> list[dict[str, Any]]:
    """Run a feature of features.go and return the deliveries in their order."""
    printed = run_command([str(build_go_program()), namesrv, topic, feature], timeout_s)
    deliveries: list[dict[str, Any]] = json.loads(printed.strip().splitlines()[-1])
    return deliveries


def run_node(
    namesrv: str,
    topic: str,
    count: int,
    timeout_s: float,
    *more: str,
    credentials: Credentials | None = None,
) -> ProgramResult:
    """Run the Node client; with "send" as `more` it consumes nothing. Raises AssertionError with a send's error."""
    command = ["node", str(install_node_program() / "send_and_consume.js"), namesrv, topic, str(count), *more]
    return _parse_result(run_command(command, timeout_s, _key_variables(credentials)))


def run_node_grpc(address: str, topic: str, count: int, timeout_s: float) -> ProgramResult:
    """Run the Node client that speaks gRPC."""
    program = install_node_program("node_grpc") / "send_and_consume.js"
    return _parse_result(run_command(["node", str(program), address, topic, str(count)], timeout_s))


def run_mqadmin(home: Path, *arguments: str) -> str:
    """Run the official admin tool and return its output, or its errors: it exits with 0 even if its command failed."""
    home.mkdir(exist_ok=True)
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    done = _run_process([*java_command("server-5.4", main, home, heap=HEAP), *arguments], 120)
    return done.stdout or done.stderr


def run_command(command: Sequence[str], timeout_s: float, env: dict[str, str] | None = None) -> str:
    """Run a command and return its output. Raises AssertionError with its errors if it fails or takes too long."""
    return _run_process(command, timeout_s, env).stdout


def _run_process(
    command: Sequence[str], timeout_s: float, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{command[0]} took over {timeout_s} s: {error.stderr!r}") from error
    if done.returncode != 0:
        raise AssertionError(f"{command[0]} ended with {done.returncode}: {done.stderr[-1500:]}")
    return done


def _parse_result(output: str) -> ProgramResult:
    return ProgramResult(**json.loads(output.strip().splitlines()[-1]))


def build_go_program() -> Path:
    """Return the Go program, built once. Raises Unavailable without Go or without its module."""
    return _build_go("go")


def build_go_driver(version: str) -> Path:
    """Return the driver of the Go client that speaks gRPC, built once for each version (5.1.3 or 5.1.4)."""
    module = f"v{version}.mod"
    has_own_file = (_HERE / "go_grpc" / module).exists()
    return _build_go("go_grpc", *([f"-modfile={module}"] if has_own_file else []))


def _build_go(folder: str, *flags: str) -> Path:
    go = find_program("go", "build the Go client program")
    sources = sorted((_HERE / folder).glob("*"))
    target = cache_dir() / "go" / f"client-{_digest(sources, *flags)}"
    with lock_file(target.with_name(target.name + ".lock")):
        if not target.exists():
            _build([go, "build", *flags, "-o", str(target), "."], _HERE / folder, "the Go client")
    return target


def install_python_client(version: str) -> Path:
    """Return the interpreter of an environment with this version of rocketmq-python-client, made once."""
    requirement = f"rocketmq-python-client=={version}"
    target = cache_dir() / "python" / f"{requirement}-{sys.version_info[0]}.{sys.version_info[1]}"
    interpreter = target / "bin" / "python"
    with lock_file(target.with_name(target.name + ".lock")):
        if not (target / "done").exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            what = f"an environment with {requirement}"
            _build([sys.executable, "-m", "venv", "--clear", str(target)], target.parent, what)
            install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
            _build([str(interpreter), *install], target.parent, what)
            (target / "done").touch()
    return interpreter


def install_node_program(client: str = "node") -> Path:
    """Return a folder with a Node program (node or node_grpc) and its packages, installed once.

    Raises Unavailable without Node.
    """
    find_program("node", "run the Node client program")
    npm = find_program("npm", "install the Node client")
    sources = [_HERE / client / "package.json", _HERE / client / "send_and_consume.js"]
    target = cache_dir() / "node" / _digest(sources)
    with lock_file(target.with_name(target.name + ".lock")):
        if not (target / "done").exists():
            target.mkdir(parents=True, exist_ok=True)
            for source in sources:
                shutil.copy(source, target)
            _build([npm, "install", "--no-audit", "--no-fund", "--silent"], target, "the Node client")
            (target / "done").touch()
    return target


def _digest(sources: Sequence[Path], *flags: str) -> str:
    digest = hashlib.sha256(" ".join(flags).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _build(command: Sequence[str], folder: Path, what: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=tool_environment(),
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"building {what} took over {_BUILD_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise Unavailable(f"cannot build {what}: {(done.stderr or done.stdout).strip()[:500]}")
