"""Fetches the suite and its jars, compiles it, and runs it against one server."""

import hashlib
import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from compat_tests.jars import Unavailable, cache_dir, find_program, lock_file, tool_environment

REPOSITORY: Final = "https://github.com/apache/rocketmq-e2e.git"
COMMIT: Final = "7811611"
TESTS: Final = Path("java", "e2e")
"""The folder of the tests of 5.x clients in a checkout of the suite."""
POM: Final = Path(__file__).with_name("pom.xml")
COPY_JARS: Final = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"
COMPLETE: Final = ".complete"
FETCH_TIMEOUT_S: Final = 900
RUN_TIMEOUT_S: Final = 3_600
HEAP: Final = "-Xmx1g"
OPENED: Final = ("java.lang", "java.net", "java.nio", "sun.net", "sun.nio.ch")
"""Packages of the JDK that libraries of the suite open by reflection."""


class CaseResult(Enum):
    """The end of one test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """The end of one test, and the first line of its failure."""

    result: CaseResult
    reason: str = ""


class SuiteFailed(Exception):
    """The suite could not be fetched, compiled or run."""


def fetch_suite(checkout: Path | None) -> Path:
    """Return the folder of the tests: that of a given checkout, or of one that is cloned once."""
    if checkout is None:
        checkout = cache_dir() / f"rocketmq-e2e-{COMMIT}"
        with lock_file(checkout.with_name(checkout.name + ".lock")):
            if not (checkout / TESTS).is_dir():
                git = find_program("git", "clone apache/rocketmq-e2e")
                shutil.rmtree(checkout, ignore_errors=True)
                _run([git, "clone", "-q", REPOSITORY, str(checkout)], FETCH_TIMEOUT_S)
                _run([git, "-C", str(checkout), "checkout", "-q", COMMIT], FETCH_TIMEOUT_S)
    if not (checkout / TESTS).is_dir():
        raise SuiteFailed(f"{checkout} has no folder {TESTS}: it is not a checkout of apache/rocketmq-e2e")
    return checkout / TESTS


def fetch_jars() -> Path:
    """Return the folder of the jars that the suite needs. Raises Unavailable without Maven or Java."""
    target = cache_dir() / "jars" / f"foreign-suite-{hashlib.sha256(POM.read_bytes()).hexdigest()[:8]}"
    with lock_file(target.with_name(target.name + ".lock")):
        if not (target / COMPLETE).exists():
            maven = find_program("mvn", "fetch the jars of apache/rocketmq-e2e")
            local = f"-Dmaven.repo.local={cache_dir() / 'maven'}"
            _run(
                [maven, "-B", "-q", "-f", str(POM), COPY_JARS, f"-DoutputDirectory={target}", local],
                FETCH_TIMEOUT_S,
            )
            (target / COMPLETE).touch()
    return target


def compile_suite(tests: Path, jars: Path, classes: Path) -> None:
    """Compile all sources into a folder. Raises SuiteFailed with what the compiler says."""
    javac = find_program("javac", "compile apache/rocketmq-e2e")
    classes.mkdir(parents=True)
    sources = sorted(map(str, tests.rglob("*.java")))
    _run(
        [
            javac,
            "--release",
            "8",
            "-nowarn",
            "-encoding",
            "UTF-8",
            "-cp",
            f"{jars}/*",
            "-d",
            str(classes),
            *sources,
        ],
        FETCH_TIMEOUT_S,
    )


def run_suite(
    tests: Path, jars: Path, classes: Path, folder: Path, *, namesrv: str, grpc: str, pattern: str
) -> dict[str, CaseOutcome]:
    """Run the tests of classes whose name fits a pattern against one server; return their outcomes by name."""
    reports = folder / "reports"
    # The suite reads its configuration from its own folder, below the working directory.
    shutil.copytree(tests / "src" / "test" / "resources", folder / "src" / "test" / "resources")
    properties = {
        "endPoint": grpc,
        "namesrvAddr": namesrv,
        "user.home": str(folder),
        "java.io.tmpdir": str(folder),
        "rocketmq.client.logRoot": str(folder),
    }
    # Its gRPC classes differ from those that rocketmq-tools brings along, and Maven puts it first as well.
    first = sorted(map(str, jars.glob("rocketmq-client-java-*.jar")))
    opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED]
    command = [
        find_program("java", "run apache/rocketmq-e2e"), HEAP, *opened,
        *(f"-D{name}={value}" for name, value in properties.items()),
        "-cp", os.pathsep.join([*first, str(classes), str(folder / "src" / "test" / "resources"), f"{jars}/*"]),
        "org.junit.platform.console.ConsoleLauncher", "--scan-classpath", str(classes), "--include-classname", pattern,
        "--reports-dir", str(reports), "--details", "none", "--disable-banner",
    ]  # fmt: skip
    with (folder / "output.txt").open("wb") as output:
        # It ends with 1 if a test fails.
        subprocess.run(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, timeout=RUN_TIMEOUT_S, check=False
        )
    report = reports / "TEST-junit-jupiter.xml"
    if not report.exists():
        raise SuiteFailed(f"the suite ended without a report:\n{_tail(folder / 'output.txt')}")
    return read_report(report)


def read_report(report: Path) -> dict[str, CaseOutcome]:
    """Return the outcomes in a report of JUnit, by class and method; parameters of a test are a part of its name."""
    outcomes: dict[str, CaseOutcome] = {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name', '').replace('()', '')}"
        failure = next((case.find(tag) for tag in ("failure", "error") if case.find(tag) is not None), None)
        if failure is not None:
            text = failure.get("message") or failure.text or ""
            outcomes[name] = CaseOutcome(CaseResult.FAILED, text.strip().partition("\n")[0])
        elif case.find("skipped") is not None:
            outcomes[name] = CaseOutcome(CaseResult.SKIPPED)
        else:
            outcomes[name] = CaseOutcome(CaseResult.PASSED)
    return outcomes


def _run(command: list[str], timeout_s: float) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False,
            env=tool_environment(),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]} failed: {error}") from error
    if done.returncode != 0:
        raise SuiteFailed(f"{' '.join(command[:4])} … failed:\n{(done.stderr or done.stdout)[-2000:]}")


def _tail(path: Path) -> str:
    return path.read_text("utf-8", "replace")[-2000:]
