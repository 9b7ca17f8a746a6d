"""Run the test matrix: unit tests, the conformance suite on every endpoint, and Spark's cases.

    python scripts/run_tests.py                    # list the runs, and what each one needs
    python scripts/run_tests.py all                # everything that `make test` runs, four at a time
    python scripts/run_tests.py release            # what is run before a release, besides
    python scripts/run_tests.py unit lint          # chosen runs
    python scripts/run_tests.py compat-ours -- -k pull    # further arguments go to pytest

Most runs wait as much as they compute, so several run at a time, each with servers of its own. The output of a run is
printed in one piece when the run ends. A unit, conformance or Spark run that fails is repeated once with the failed
cases, on a new server, because JVMs on a busy machine are late at times. So are failed installations, guides, the
archives and the interchange. The second tries come last, one at a time, so that they do not meet the same load again.
Both outputs are shown. A case that needs its second try is a defect with a cause: the summary names each one, with the
cause that `second_tries.toml` gives for it. The last lines of failed runs are printed again above the final summary.
The exit status is 1 if a run failed twice.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

Item = TypeVar("Item")
ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = (
    "codec",
    "remoting",
    "storage",
    "toolkit",
    "gateway",
    "compat_tests",
    "acceptance",
    "tools",
    "scripts",
)
SPARK_PACKAGES: Final = ("spark", "tools/bench_spark")
"""Packages that need Spark, which `make check` does without."""
CHECK: Final = ("format", "lint", "types", "readability", "links", "unit")
DEFAULT_JOBS: Final = 4
INTERCHANGE: Final = "storage/tests/test_interchange.py"
SPARK_CASES: Final = "spark/tests/cases"
SPARK_OFFICIAL: Final = tuple(
    f"spark/tests/cases/test_{name}.py"
    for name in ("pull", "source", "source_clusters", "source_endpoint", "source_stream", "sink")
)
"""Cases of sources and sink, which meet the official server's answers. Pipelines meet only those of the sources."""
SPARK_KILLS: Final = (f"{SPARK_CASES}/test_kills.py", f"{SPARK_CASES}/test_sink_kills.py")
RUN_LIMIT_S: Final = 50 * 60
"""A run that takes longer hangs. It is ended like an interrupted one, so that the output of all runs is seen."""
STOP_GRACE_S: Final = 20
STOP_POLL_S: Final = 0.1
OFFICIAL_DISK_LIMIT_PERCENT: Final = 90
REPEATED_LINES: Final = 60
"""Lines of a failed run's output that are printed once more at the end, where a reader of a long log looks first."""
FUZZED_FRAMES: Final = 20_000
"""Frames against each of the fuzzer's targets, a tenth of them against the gRPC port: about 90 s on two cores."""

SHADOW_FILES: Final = [
    "wire",
    "protocol",
    "namesrv",
    "send",
    "pull",
    "query",
    "heartbeat",
    "replies",
    "retry",
    "locks",
    "topics",
    "offsets",
    "bodies",
    "filters",
    "ordered",
    "pop",
    "transactions",
    "not_served",
    "java_admin",
    "java_consume",
    "go",
    "clients",
]
"""Case files that may answer differently behind the shadow gateway: the wire, addresses and ids, stock clients."""
GRPC_FILES: Final = ["grpc_codes", "grpc_send", "grpc_consume", "grpc_clients"]
SEND_FILES: Final = [
    "wire",
    "protocol",
    "malformed",
    "send",
    "replies",
    "pull",
    "pop",
    "query",
    "statistics",
    "timer",
    "transactions",
]
"""Case files that send plain messages, for a server without native sends."""
SEND_UNITS: Final = [
    "remoting",
    "gateway/broker/requests",
    "gateway/broker/messages",
    "gateway/broker/limits",
    "gateway/broker/assembly",
    "gateway/tests/test_simulation.py",
]
"""Unit tests of what a send passes."""
IMAGE_FILES: Final = ["wire", "protocol", "send", "pull", "namesrv", "java_send"]
"""Case files that may answer differently in a container: addresses, the wire, stock clients."""


@dataclass(frozen=True)
class Run:
    """One command of the matrix. ``retry`` is the command of a second try; empty means that there is none.

    Without ``in_all`` it is run before a release only: it asks the official server, which does not change, and its
    answers are recorded or met by other runs.
    """

    name: str
    text: str
    command: Sequence[str]
    retry: Sequence[str] = ()
    in_all: bool = True
    environment: Callable[[], dict[str, str]] = dict


@dataclass(frozen=True)
class Result:
    """The end of one run: ``attempts`` is 2 when it passed or failed at its second try; ``output`` is of the last.

    ``processor_s`` is that of all attempts, with the processes that each one started and waited for.
    """

    run: Run
    passed: bool
    attempts: int
    seconds: float
    processor_s: float
    output: bytes
    failed_first: tuple[str, ...] = ()
    """Cases that failed at the first of two tries ("storage/tests/test_files.py::test_a[1]")."""


def failed_cases(output: bytes) -> tuple[str, ...]:
    """Return the cases that pytest's short summary lists as failed or broken, each once, in their order."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.decode("utf-8", "replace"))
    # A parameter may hold spaces and dashes, so its closing bracket ends the name, not the dash before the reason.
    name = r"\S+\.py(?:::[\w:]+(?:\[.*?\](?= - |$))?)?"
    lines = re.findall(rf"^(?:FAILED|ERROR) ({name})(?: - .*)?$", text, re.MULTILINE)
    return tuple(dict.fromkeys(lines))


def read_causes() -> dict[str, str]:
    """Return why cases are known to need a second try, by the beginning of their names."""
    entries = tomllib.loads((ROOT / "scripts" / "second_tries.toml").read_text("utf-8"))
    return {entry["case"]: entry["cause"] for entry in entries.get("second_try", [])}


def describe_second_tries(results: Sequence["Result"], causes: dict[str, str]) -> list[str]:
    """Return a line for each case that passed only at its second try, with its cause."""
    lines = []
    for result in results:
        for case in result.failed_first if result.passed else ():
            cause = next((text for start, text in causes.items() if case.startswith(start)), None)
            reason = cause or "cause unknown: find it, mend it, or add it to scripts/second_tries.toml"
            lines.append(f"{result.run.name}: {case}: {reason}")
    return lines


def describe_results(results: Sequence["Result"]) -> list[str]:
    """Return a line for each run: its outcome, its time, and its processor time; and one for all of them."""
    lines = []
    for result in results:
        state = ("passed" if result.passed else "FAILED") + (
            " at the second try" if result.attempts == 2 else ""
        )
        lines.append(_time_line(result.run.name, state, result.seconds, result.processor_s))
    seconds, processor_s = (
        sum(times) for times in zip(*((r.seconds, r.processor_s) for r in results), strict=True)
    )
    return [*lines, _time_line("all", "", seconds, processor_s)]


def _time_line(name: str, state: str, seconds: float, processor_s: float) -> str:
    return f"{name:18} {state:26} {seconds:7.0f} s {processor_s:7.0f} s of processor time"


def _pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


def _cases(name: str, text: str, endpoint: str, selection: Sequence[str], files: Sequence[str] = ()) -> Run:
    """Return a run of conformance cases on one endpoint, with its second try."""
    paths = [f"compat_tests/cases/test_{file}.py" for file in files] or ["compat_tests/cases"]
    if endpoint == "ours" and not files:
        paths.append("acceptance")
    common = ["-o", f"cache_dir=.pytest_cache/{name}", "--endpoint", endpoint]
    return Run(
        name,
        text,
        _pytest(*paths, *common, *selection),
        _pytest(*paths, *common, "--last-failed", "--last-failed-no-failures=none"),
    )


def _before_release(run: Run) -> Run:
    return replace(run, in_all=False)


def _spark(name: str, text: str, endpoint: str, paths: Sequence[str]) -> Run:
    """Return a run of Spark's cases on one endpoint, with its second try."""
    common = ["-o", f"cache_dir=.pytest_cache/{name}", "--endpoint", endpoint]
    return Run(
        name,
        text,
        _pytest(*paths, *common),
        _pytest(SPARK_CASES, *common, "--last-failed", "--last-failed-no-failures=none"),
    )


def _in_python(run: Run) -> Run:
    """Return the run without the C extension, which all other runs have where it is built."""
    return replace(run, environment=lambda: {"ROCKETMQ_NATIVE": "off"})


def _without_kills() -> list[str]:
    return [SPARK_CASES, *(f"--ignore={path}" for path in SPARK_KILLS)]


def _official_jars() -> dict[str, str]:
    """Return the environment of the interchange run: the folder of the official server's jars, fetched if need be."""
    program = "from compat_tests.jars import fetch_jars; print(fetch_jars('server-5.4'))"
    fetched = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {"ROCKETMQ_OFFICIAL_LIB": fetched.stdout.strip()} if fetched.returncode == 0 else {}


def _runs() -> list[Run]:
    """Return all runs in the order in which they begin: the longest first, and those that wait beside Spark's."""
    python, tools = sys.executable, Path(sys.executable).parent
    # Cases wait most of the time, so two files share a server; those that stop it or change its settings go one by one.
    alone = "stops_server or needs_admin"
    shared = ["-m", f"not ({alone}) and not both_servers", "--numprocesses", "2", "--dist", "loadfile"]
    two_files = ["--numprocesses", "2", "--dist", "loadfile"]
    stopping = ["-m", alone]
    units = (
        "codec",
        "remoting",
        "storage",
        "toolkit",
        "gateway",
        "compat_tests/tests",
        "tools",
        "scripts",
    )
    ignored = ["--ignore", INTERCHANGE]
    spark_units = ["spark", "--ignore", SPARK_CASES, "-o", "cache_dir=.pytest_cache/unit-spark"]
    # Hypothesis tells a story that failed again, so that chance lets none pass at the second try.
    unit_cache = ["-o", "cache_dir=.pytest_cache/unit"]
    python_cache = ["-o", "cache_dir=.pytest_cache/unit-python"]
    interchange_cache = ["-o", "cache_dir=.pytest_cache/interchange"]
    fuzz = [python, "-m", "tools.fuzz", "--busy", "--seed", "1"]
    return [
        Run("format", "formatting (ruff)", [str(tools / "ruff"), "format", "--check", "."]),
        Run("lint", "lint (ruff)", [str(tools / "ruff"), "check", "."]),
        Run(
            "types",
            "types (mypy, less strict for tests)",
            [str(tools / "mypy"), *PACKAGES, "--exclude", f"^{SPARK_PACKAGES[1]}/"],
        ),
        Run("types-spark", "types of what needs Spark", [str(tools / "mypy"), *SPARK_PACKAGES]),
        Run("readability", "counts that keep the source readable", [python, "scripts/readability.py"]),
        Run("links", "links in documents", [python, "scripts/check_links.py"]),
        Run(
            "docs",
            "the documentation site (mkdocs, strict)",
            [python, "-m", "mkdocs", "build", "--strict", "--quiet"],
        ),
        Run(
            "archives",
            "class archives, so that official servers start sooner",
            [python, "-m", "compat_tests.archives"],
            [python, "-m", "compat_tests.archives"],
        ),
        Run(
            "unit",
            "unit and simulation tests",
            _pytest(*units, *ignored, *unit_cache, "--numprocesses", "auto"),
            _pytest(*units, *ignored, *unit_cache, "--last-failed", "--last-failed-no-failures=none"),
        ),
        Run(
            "unit-spark",
            "unit tests of what needs Spark",
            _pytest(*spark_units, "--numprocesses", "auto"),
            _pytest(*spark_units, "--last-failed", "--last-failed-no-failures=none"),
        ),
        Run(
            "fuzz",
            "mutated requests against namesrv, broker and shadow gateway, and the corpus",
            [*fuzz, "--frames", str(FUZZED_FRAMES)],
        ),
        _in_python(
            Run(
                "unit-python",
                "unit tests of what a send passes, without the C extension",
                _pytest(*SEND_UNITS, *python_cache, "--numprocesses", "2"),
                _pytest(*SEND_UNITS, *python_cache, "--last-failed", "--last-failed-no-failures=none"),
            )
        ),
        _in_python(
            Run(
                "fuzz-python",
                "mutated requests against a broker without the C extension",
                [*fuzz, "--frames", str(FUZZED_FRAMES // 2), "--against", "broker"],
            )
        ),
        Run(
            "installs",
            "each extra installed alone from a wheel, outside the checkout (Java for Spark)",
            [python, "scripts/check_installs.py"],
            [python, "scripts/check_installs.py"],  # installs again only what did not end well
        ),
        Run(
            "walks",
            "guides typed as they stand, from an installed wheel (Java for Spark, Maven)",
            [python, "scripts/walk_guides.py"],
            [python, "scripts/walk_guides.py", "--stopped"],
        ),
        _cases(
            "compat-both",
            "cases with our server and official brokers side by side (Java, Maven)",
            "ours",
            ["-m", "both_servers", "--numprocesses", "4", "--dist", "loadfile"],
        ),
        _cases(
            "compat-official", "conformance suite on the official server (Java, Maven)", "official", shared
        ),
        _cases("compat-ours", "conformance suite on our server", "ours", shared),
        _in_python(
            _cases(
                "compat-python", "sends on our server, without the C extension", "ours", shared, SEND_FILES
            )
        ),
        _spark("spark-ours", "Spark's cases on our server (Java)", "ours", _without_kills()),
        _before_release(
            _cases(
                "restarts-official",
                "cases that stop or reconfigure the official server (Java, Maven)",
                "official",
                stopping,
            )
        ),
        _cases(
            "compat-shadow",
            "the official server behind the shadow gateway (Java, Maven)",
            "shadow",
            two_files,
            SHADOW_FILES,
        ),
        _cases(
            "compat-proxy",
            "5.x clients at our proxy before the official server (Java, Maven)",
            "proxy",
            two_files,
            GRPC_FILES,
        ),
        _spark("spark-kills", "drivers, executors and brokers killed at random moments", "ours", SPARK_KILLS),
        _spark(
            "spark-official", "Spark's sources and sink on the official server", "official", SPARK_OFFICIAL
        ),
        _before_release(
            _spark(
                "spark-official-rest",
                "Spark's other cases on the official server",
                "official",
                [SPARK_CASES, *(f"--ignore={path}" for path in SPARK_OFFICIAL)],
            )
        ),
        _cases("restarts-ours", "cases that stop or reconfigure our server", "ours", stopping),
        _in_python(
            _cases(
                "restarts-python",
                "kills of our server, without the C extension",
                "ours",
                stopping,
                ["restart"],
            )
        ),
        Run(
            "interchange",
            "store files opened in turns with the official broker (Java)",
            _pytest(INTERCHANGE, *interchange_cache),
            _pytest(INTERCHANGE, *interchange_cache, "--last-failed", "--last-failed-no-failures=none"),
            environment=_official_jars,
        ),
        _cases("compat-image", "the official container image (Docker)", "image", [], IMAGE_FILES),
    ]


class Matrix:
    """Runs commands side by side, prints each output in one piece, and stops all of them on an interrupt."""

    def __init__(self, more: Sequence[str], limit_s: float = RUN_LIMIT_S) -> None:
        self._more = list(more)
        self._limit_s = limit_s
        self._printing = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopped = False
        # Names of the runs that were ended by the limit.
        self._overdue: set[str] = set()

    def run_all(self, runs: Sequence[Run], jobs: int) -> list[Result]:
        """Run everything, at most ``jobs`` at a time, and return the results in the given order.

        Second tries come after all first ones, one at a time.
        """
        results = self._gather(self._run_first, runs, jobs)
        return self._gather(self._try_again, results, 1)

    def _gather(self, step: Callable[[Item], Result], items: Sequence[Item], jobs: int) -> list[Result]:
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(step, item) for item in items]
            try:
                return [future.result() for future in futures]
            except KeyboardInterrupt:
                self._stop()
                raise

    def _run_first(self, run: Run) -> Result:
        started_s = time.monotonic()
        passed, output, processor_s = self._execute(run, run.command)
        return Result(run, passed, 1, time.monotonic() - started_s, processor_s, output)

    def _try_again(self, first: Result) -> Result:
        """Return the result of the second try, or the first one if it passed or has none.

        A run that hung has none: it would hang again for as long.
        """
        run = first.run
        if first.passed or not run.retry or self._stopped or run.name in self._overdue:
            return first
        started_s = time.monotonic()
        passed, output, processor_s = self._execute(run, run.retry)
        seconds = first.seconds + time.monotonic() - started_s
        failed_first = failed_cases(first.output)
        return Result(run, passed, 2, seconds, first.processor_s + processor_s, output, failed_first)

    def _execute(self, run: Run, command: Sequence[str]) -> tuple[bool, bytes, float]:
        """Run one command to its end and print what it wrote; return if it succeeded, its output and processor time."""
        if self._stopped:
            return False, b"", 0.0
        more = self._more if "pytest" in command else []
        environment = {**os.environ, **run.environment()}
        process = subprocess.Popen(
            [*command, *more],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._processes.add(process)
        assert process.stdout is not None
        limit = threading.Timer(self._limit_s, self._end, [[process]])
        limit.daemon = True
        limit.start()
        started_s = time.monotonic()
        try:
            output = process.stdout.read()
        finally:
            limit.cancel()
        if time.monotonic() - started_s >= self._limit_s:
            output += f"\nended: the run took more than {self._limit_s:.0f} s\n".encode()
            self._overdue.add(run.name)
        # Not `Popen.wait`, which does not say how much processor time the process and its children took.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self._processes.discard(process)
        process.stdout.close()
        with self._printing:
            print(f"\n=== {run.name}: {' '.join([*command, *more])}", flush=True)
            sys.stdout.buffer.write(output)
            sys.stdout.flush()
        return process.returncode == 0, output, usage.ru_utime + usage.ru_stime

    def _stop(self) -> None:
        self._stopped = True
        self._end(list(self._processes))

    def _end(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Interrupt process groups, so that tests stop the servers they started; kill what stays."""
        for process in processes:
            _signal_group(process, signal.SIGINT)
        deadline_s = time.monotonic() + STOP_GRACE_S
        # The threads that started the processes wait for them.
        while self._processes.intersection(processes) and time.monotonic() < deadline_s:
            time.sleep(STOP_POLL_S)
        for process in self._processes.intersection(processes):
            _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.killpg(process.pid, number)


def _list_runs(runs: Sequence[Run]) -> None:
    width = max(len(run.name) for run in runs)
    for run in runs:
        print(f"{run.name:{width}}  {run.text}{'' if run.in_all else ' (before a release)'}")
    left_out = ", ".join(run.name for run in runs if not run.in_all)
    print(f"\nall: every run above but {left_out}, which are `release`: run them before a release.")
    print(f"check, which needs no Spark: {', '.join(CHECK)}.")


def _chosen(names: Sequence[str], runs: Sequence[Run], left_out: Sequence[str]) -> list[Run]:
    """Return the named runs in their order of start. Raises SystemExit for a name that is not a run."""
    groups = {
        "check": set(CHECK),
        "all": {run.name for run in runs if run.in_all},
        "release": {run.name for run in runs if not run.in_all},
    }
    selected: set[str] = set()
    for name in names:
        selected |= groups.get(name, {name})
    unknown = (selected | set(left_out)) - {run.name for run in runs}
    if unknown:
        sys.exit(f"unknown run: {', '.join(sorted(unknown))}; run without arguments to list them")
    return [run for run in runs if run.name in selected and run.name not in left_out]


def warn_of_full_disk(directory: str) -> None:
    """Print a warning if the disk of the test servers' stores is so full that official brokers refuse messages."""
    usage = shutil.disk_usage(directory)
    used_percent = 100 - 100 * usage.free // usage.total
    if used_percent > OFFICIAL_DISK_LIMIT_PERCENT:
        print(
            f"warning: the disk of {directory} is {used_percent} percent full, and official brokers refuse messages"
            f" above {OFFICIAL_DISK_LIMIT_PERCENT} percent: make room, or set TMPDIR to a folder of another disk",
            flush=True,
        )


def main() -> int:
    """Run what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Run the test matrix.", epilog="Arguments after -- go to pytest."
    )
    parser.add_argument(
        "names", nargs="*", metavar="RUN", help="runs, or all, release or check; none lists them"
    )
    parser.add_argument(
        "-j", "--jobs", type=int, default=DEFAULT_JOBS, help="runs at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="RUN", help="leave out a run; repeatable"
    )
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:end])
    # A shell lets the commands that it starts in the background ignore SIGINT, and so would everything that runs here:
    # programs that tests stop by Ctrl-C would go on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runs = _runs()
    if not arguments.names:
        _list_runs(runs)
        return 0
    chosen = _chosen(arguments.names, runs, arguments.without)
    warn_of_full_disk(tempfile.gettempdir())
    print(f"{len(chosen)} runs, {arguments.jobs} at a time; each prints when it is done.", flush=True)
    results = Matrix(words[end + 1 :]).run_all(chosen, arguments.jobs)
    for result in results:
        if not result.passed:
            print(f"\n=== the end of {result.run.name} once more", flush=True)
            sys.stdout.buffer.write(b"".join(result.output.splitlines(keepends=True)[-REPEATED_LINES:]))
            sys.stdout.flush()
    print("\n=== summary")
    print("\n".join(describe_results(results)))
    second_tries = describe_second_tries(results, read_causes())
    if second_tries:
        print("\n=== cases that needed their second try")
        print("\n".join(second_tries))
    return int(not all(result.passed for result in results))


if __name__ == "__main__":
    sys.exit(main())
