"""Install the project as users do, once with each extra alone, and use the features that the extra is for.

    python scripts/check_installs.py             # every extra, several at a time
    python scripts/check_installs.py spark       # one of them; "none" is the project without extras
    python scripts/check_installs.py pure        # without extras, and without the C extension

The project is built as a wheel and installed into environments below `.build/installs`. They stay there: a later run
only replaces the wheel, unless the dependencies in pyproject.toml have changed. The commands run in an empty folder, so
nothing is imported from the checkout. If an extra lacks something, the output
of its commands is shown and the exit status is 1.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from build_image import PIP, build_wheels, copy_sources

ROOT: Final = Path(__file__).resolve().parent.parent
INSTALLS: Final = ROOT / ".build" / "installs"
PLAIN: Final = "none"
PURE: Final = "pure"
LEFT_OUT: Final = frozenset({"check", "dev"})
"""Extras that only a checkout needs."""
JOBS: Final = 3
COMMAND_TIMEOUT_S: Final = 600
START_TIMEOUT_S: Final = 60
PATIENT: Final = ("--retries", "10", "--timeout", "60")
"""Options of pip: several installations at once can be slow."""


class CheckFailed(Exception):
    """An installation lacks something; the text has the command and its output."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel and one extra; commands run in `folder`."""

    bin: Path
    folder: Path

    def run(self, *command: str, code: int = 0) -> str:
        """Run a program of the environment and return its output. Raises CheckFailed for another exit code."""
        completed = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.folder,
            env=_clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if completed.returncode != code:
            raise CheckFailed(
                f"$ {' '.join(command)}\n{completed.stdout[-4000:]}\nexit code {completed.returncode}, not {code}"
            )
        return completed.stdout

    def python(self, program: str) -> str:
        """Run a Python program."""
        return self.run("python", "-c", program)

    @contextmanager
    def server(self, *command: str) -> Iterator[dict[str, object]]:
        """Run a server of the environment and yield its ready line."""
        ready = self.folder / f"ready-{command[0]}"
        words = [str(self.bin / "rmq-gateway"), *command, "--ready-file", str(ready)]
        with (self.folder / f"{command[0]}.log").open("wb") as log:
            process = subprocess.Popen(
                words, cwd=self.folder, env=_clean_environment(), stdout=log, stderr=subprocess.STDOUT
            )
        try:
            end_s = time.monotonic() + START_TIMEOUT_S
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > end_s:
                    text = (self.folder / f"{command[0]}.log").read_text()
                    raise CheckFailed(f"$ rmq-gateway {' '.join(command)}\n{text[-4000:]}\nit did not start")
                time.sleep(0.05)
            yield json.loads(ready.read_text())
        finally:
            process.terminate()
            process.wait(START_TIMEOUT_S)


def _clean_environment() -> dict[str, str]:
    """Return the environment without variables that would bring in the checkout or another Python."""
    left_out = ("PYTHON", "VIRTUAL_ENV", "RMQ_GATEWAY_", "PYSPARK_", "SPARK_HOME")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


# -- checks of the extras -----------------------------------------------------------------------------------------

MEMORY_SERVER: Final = ("serve", "--memory", "--port", "0", "--broker-port", "0", "--host", "127.0.0.1")
PRODUCE: Final = """
import trio
from remoting.client import open_client
from remoting.requests.send import SendMessageV2
async def main():
    async with open_client("127.0.0.1", {port}) as client:
        for number in range(8):
            request = SendMessageV2(producer_group="p", topic="orders", default_topic="TBW102",
                default_topic_queue_nums=4, queue_id=number % 4, sys_flag=0, born_timestamp=1, flag=0, properties="")
            request.body = b'{{"id": %d}}' % number
            await client.ask(request)
trio.run(main)
"""
INGEST: Final = """
[source]
nameServer = "{namesrv}"
subscribe = "orders"
startingOffsets = "earliest"
[table]
path = "lake"
format = "directory"
[run]
availableNow = true
[spark]
master = "local[1]"
driver.memory = "1g"
"""


def _broker_port(ready: dict[str, object]) -> int:
    """Return the port of the first broker that a ready line names."""
    brokers = ready["brokers"]
    assert isinstance(brokers, dict)
    return int(str(next(iter(brokers.values()))).rpartition(":")[2])


def check_plain(environment: Environment) -> None:
    """The server, its configuration, and commands that say which extra they need."""
    environment.run("rmq-gateway", "--version")
    environment.run("rmq-gateway", "--help")
    environment.run("rmq-gateway", "config", "--example", "broker")
    environment.run("rmq-gateway", "shadow", "example")
    check_documents(environment)
    check_native(environment, expected=has_extension(environment))
    sets = ("--set", "source.nameServer=127.0.0.1:1", "--set", "source.subscribe=x")
    if ".whl[spark]'" not in environment.run("rmq-gateway", "spark", "peek", *sets, code=2):
        raise CheckFailed("spark peek without the extra does not say which wheel to install with it")


def has_extension(environment: Environment) -> bool:
    """Return True if the installed wheel has the C extension: it does where the machine has a compiler."""
    files = environment.python("import importlib.metadata as m; print(*m.files('rocketmq-gateway'))").split()
    return any(name.startswith("_rocketmq_native") for name in files)


def check_native(environment: Environment, *, expected: bool) -> None:
    """The server runs, and says whether it takes sends natively."""
    absence = environment.python("from codec.native import native_absence as a; print(a())").strip()
    if (absence == "") != expected:
        raise CheckFailed(f"the wheel has the extension: {expected}. Python says: {absence or 'it is there'}")
    with environment.server(*MEMORY_SERVER):
        pass
    if not expected:
        environment.run("rmq-gateway", "serve", "--memory", "--set", "nativeSends=require", code=2)


def check_pure(environment: Environment) -> None:
    """The wheel for any machine."""
    check_native(environment, expected=False)


def check_documents(environment: Environment) -> None:
    """The documents and examples are installed, and no tests."""
    if "Run the server" not in environment.run("rmq-gateway", "docs", "how-to/serve"):
        raise CheckFailed("the documents are not installed")
    folder = Path(environment.run("rmq-gateway", "docs", "--folder").strip())
    for example in (
        "conf/broker.conf",
        "deploy/container/Dockerfile",
        "deploy/compose-ha.yaml",
        "deploy/compose.yaml",
        "deploy/kubernetes-ha.yaml",
        "deploy/kubernetes.yaml",
        "deploy/rmq-gateway.service",
    ):
        if not (folder / example).is_file():
            raise CheckFailed(f"{example} is not installed")
    tests = environment.python(
        "import importlib.metadata as m; "
        "print([str(f) for f in m.files('rocketmq-gateway') if '/tests/' in str(f) and f.suffix == '.py'])"
    ).strip()
    if tests != "[]":
        raise CheckFailed(f"the wheel has tests: {tests}")


TEST_OF_A_PROGRAM: Final = """
import asyncio
from urllib.request import urlopen

def test_shop(rocketmq):
    rocketmq.create_topic("orders", queues=1)
    assert rocketmq.messages("orders") == []
    rocketmq.advance(60)
    asyncio.run(rocketmq.aio.reset())
"""


def check_testing(environment: Environment) -> None:
    """The pytest plugin, and the control API."""
    (environment.folder / "test_program.py").write_text(TEST_OF_A_PROGRAM)
    text = environment.run("python", "-m", "pytest", "-q", "-W", "error", "test_program.py")
    if "1 passed" not in text:
        raise CheckFailed(f"the fixture does not work\n{text}")
    with environment.server(*MEMORY_SERVER, "--control", "0") as facts:
        environment.python(
            f"from urllib.request import urlopen; urlopen('http://{facts['control']}/openapi.json')"
        )


def check_shadow(environment: Environment) -> None:
    """A shadow gateway, its report as HTML and its live view."""
    with environment.server(*MEMORY_SERVER) as primary:
        gateway = ("shadow", "--set", f"primary.namesrv=['{primary['namesrv']}']")
        ports = ("--set", "listen.namesrv_port=0", "--set", "listen.broker_port=0", "--set", "console.port=0")
        with environment.server(*gateway, *ports) as facts:
            at = ("--console", str(facts["console"]))
            environment.python(PRODUCE.format(port=_broker_port(facts)))
            environment.run("rmq-gateway", "shadow", "watch", *at, "--times", "3")
            environment.run("rmq-gateway", "shadow", "report", *at, "-o", "report.html")
    if "<svg" not in (environment.folder / "report.html").read_text():
        raise CheckFailed("the report has no plot")


def check_spark(environment: Environment) -> None:
    """The pipeline of the tutorial, from a server to a table."""
    for name in (
        "pyspark_rocketmq",
        "pyspark_rocketmq_capture",
        "spark.profiling.page",
        "spark.sink.writers",
    ):
        environment.python(f"import {name}")
    if shutil.which("java") is None:
        print("spark: no java, so no pipeline was run", flush=True)
        return
    with environment.server(*MEMORY_SERVER) as server:
        environment.python(PRODUCE.format(port=_broker_port(server)))
        (environment.folder / "ingest.toml").write_text(INGEST.format(namesrv=server["namesrv"]))
        text = environment.run("rmq-gateway", "spark", "ingest", "-c", "ingest.toml", "--json")
    rows = json.loads(text.splitlines()[-1])["rows"]
    if rows != 8:
        raise CheckFailed(f"the table has {rows} rows, not 8\n{text}")
    if "statically registered" in text:
        raise CheckFailed(f"Spark warns about the data sources\n{text}")


def check_compat(environment: Environment) -> None:
    """The conformance suite against any endpoint."""
    environment.run("python", "-m", "compat_tests", "--help")
    with environment.server(*MEMORY_SERVER) as server:
        where = ("--endpoint", str(server["namesrv"]))
        text = environment.run(
            "python", "-m", "compat_tests", "run", *where, "-k", "test_topics", "--no-header"
        )
        address = ("--namesrv", str(server["namesrv"]))
        judged = environment.run("rmq-gateway", "compat", *address, "--read-only", "--area", "wire")
    if " passed" not in text:
        raise CheckFailed(f"no case was run\n{text}")
    if "none deviates" not in judged:
        raise CheckFailed(f"no verdict from the recorded run\n{judged}")


def importing(*modules: str) -> Callable[[Environment], None]:
    """Return the check of an extra that only installs libraries."""

    def check(environment: Environment) -> None:
        environment.python("; ".join(f"import {name}" for name in modules))
        environment.run("rmq-gateway", "--version")

    return check


CHECKS: Final[dict[str, Callable[[Environment], None]]] = {
    PLAIN: check_plain,
    PURE: check_pure,
    "testing": check_testing,
    "shadow": check_shadow,
    "spark": check_spark,
    "delta": importing("deltalake"),
    "avro": importing("fastavro"),
    "connect": importing("pandas", "grpc", "grpc_status", "google.rpc", "zstandard"),
    "otel": importing(
        "opentelemetry.exporter.otlp.proto.http.metric_exporter",
        "opentelemetry.exporter.otlp.proto.grpc.metric_exporter",
    ),
    "compat": check_compat,
    "docs": importing("mkdocs", "mkdocstrings"),
}


# -- building and installing ----------------------------------------------------------------------------------------


def build_wheel(folder: Path, native: str | None = None) -> Path:
    """Build the project's wheel in a folder, from a copy of the checkout; ``native`` as in `build_wheels`."""
    with tempfile.TemporaryDirectory() as copied:
        source = Path(copied) / "source"
        copy_sources(source)
        build_wheels(source, folder, with_dependencies=False, native=native)
    return next(folder.glob("*.whl"))


def install(folder: Path, extras: Sequence[str], wheel: Path) -> None:
    """Make an environment with a wheel and extras. Dependencies are installed again only if they have changed."""
    digest = _dependencies_digest()
    stamp = folder / "dependencies"
    pip = [*PIP, "--python", str(folder / "bin" / "python"), "install", "--quiet", *PATIENT]
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        subprocess.run([*pip, f"{wheel}[{','.join(extras)}]" if extras else str(wheel)], check=True)
        stamp.write_text(digest)
    else:
        subprocess.run([*pip, "--no-deps", "--force-reinstall", str(wheel)], check=True)


def _project() -> dict[str, object]:
    project: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _dependencies_digest() -> str:
    project = _project()
    text = json.dumps([project["dependencies"], project["optional-dependencies"], sys.version])
    return hashlib.sha256(text.encode()).hexdigest()


def check_extra(extra: str, wheel: Path) -> str:
    """Install and check one extra; return the problem as text, "" if there is none."""
    started_s = time.monotonic()
    environment_folder = INSTALLS / extra
    try:
        install(environment_folder, () if extra in (PLAIN, PURE) else (extra,), wheel)
        with tempfile.TemporaryDirectory() as folder:
            CHECKS[extra](Environment(environment_folder / "bin", Path(folder)))
    except (CheckFailed, subprocess.SubprocessError) as problem:
        output = getattr(problem, "output", None)  # of a command that took too long
        text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
        return f"{extra}: {problem}\n{text[-4000:]}"
    print(f"{extra}: works, {time.monotonic() - started_s:.0f} s", flush=True)
    return ""


def main(names: Sequence[str]) -> int:
    """Check the named extras, or all; return the exit status."""
    extras = _project()["optional-dependencies"]
    assert isinstance(extras, dict)
    unchecked = extras.keys() - LEFT_OUT - CHECKS.keys()
    unknown = set(names) - CHECKS.keys()
    if unchecked or unknown:
        print(f"no check for the extras {', '.join(sorted(unchecked | unknown))}", file=sys.stderr)
        return 1
    # The slowest first.
    chosen = sorted(names or CHECKS, key=lambda name: name != "spark")
    INSTALLS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(JOBS) as pool:
        wheel, pure_wheel = build_wheel(Path(folder) / "any"), build_wheel(Path(folder) / "pure", "off")
        problems = [
            problem
            for problem in pool.map(
                lambda extra: check_extra(extra, pure_wheel if extra == PURE else wheel), chosen
            )
            if problem
        ]
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
