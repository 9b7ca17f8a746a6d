"""Walk the guides: type their commands as a reader does, with the project installed from a wheel.

    python scripts/walk_guides.py                             # all guides that are walked, two at a time
    python scripts/walk_guides.py docs/tutorials/shadow.md    # one of them
    python scripts/walk_guides.py --stopped                   # those that the last run stopped in
    python scripts/walk_guides.py --list                      # all guides, and why some are not walked

`scripts/walks/__init__.py` explains the marks in the guides; `scripts/walks/unwalked.toml` names the guides that are
not walked. Each walk has a fresh folder, home and network, and an environment with exactly the extras that its guide
names. Environments stay below `.build/walks`. The exit status is 1 if a walk stops, with the line and the output.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from build_image import copy_sources
from check_installs import build_wheel, install
from walks import sandbox
from walks.guide import Guide, GuideError, read_guide
from walks.session import WalkFailed, WalkSession

ROOT: Final = Path(__file__).resolve().parent.parent
ENVIRONMENTS: Final = ROOT / ".build" / "walks"
STOPPED: Final = ENVIRONMENTS / "stopped"
"""Names of the guides that the last run stopped in."""
UNWALKED: Final = Path(__file__).resolve().parent / "walks" / "unwalked.toml"
PLAIN: Final = "plain"
JOBS: Final = 2
MAVEN: Final = "mvn"
GO: Final = "go"
CLIENT_JARS: Final = "WALK_CLIENT_JARS"
"""Variable for a Java program of a guide: the folder of the official client's jars."""
WALK_TIMEOUT_S: Final = 600
STOP_GRACE_S: Final = 30


def read_guides() -> list[Guide]:
    """Return the guides: README, tutorials, how-tos, and other pages with commands. Raises GuideError."""
    always = [ROOT / "README.md", ROOT / "docs" / "tutorials", ROOT / "docs" / "how-to"]
    pages = [read_guide(path) for path in (always[0], *sorted((ROOT / "docs").rglob("*.md")))]
    return [page for page in pages if page.has_commands or any(map(page.path.is_relative_to, always))]


def name_of(path: Path) -> str:
    """Return the path of a guide below the project's folder."""
    return path.resolve().relative_to(ROOT).as_posix()


def read_unwalked() -> dict[str, str]:
    """Return the reason by guide for those that are not walked."""
    reasons: dict[str, str] = tomllib.loads(UNWALKED.read_text())["guides"]
    return reasons


def find_disagreements(guides: Iterable[Guide], unwalked: dict[str, str]) -> list[str]:
    """Return the contradictions between the guides and the list of guides that are not walked, as sentences."""
    walked = {name_of(guide.path): guide.is_walked for guide in guides}
    problems = [
        f"{name} is not walked: mark its commands, or give the reason in {name_of(UNWALKED)}"
        for name, is_walked in walked.items()
        if not is_walked and name not in unwalked
    ]
    problems += [
        f"{name_of(UNWALKED)} lists {name}, which is walked" for name in unwalked if walked.get(name)
    ]
    problems += [
        f"{name_of(UNWALKED)} lists {name}, which is not a guide" for name in unwalked if name not in walked
    ]
    problems += [f"{name_of(UNWALKED)} has no reason for {name}" for name, why in unwalked.items() if not why]
    return problems


# -- walks -----------------------------------------------------------------------------------------------------------


def walk_all(guides: Sequence[Guide], jobs: int, scale: float) -> int:
    """Walk guides and return the exit status."""
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    isolated = sandbox.isolation()
    if not isolated:
        print("no network namespaces here: the ports that guides use must be free", flush=True)
    with tempfile.TemporaryDirectory() as built, ThreadPoolExecutor(jobs) as pool:
        wheel = build_wheel(Path(built))
        needed = {guide.extras for guide in guides}
        list(pool.map(lambda extras: install(environment_of(extras), extras, wheel), needed))
        # Without namespaces two guides may use the same port.
        turns = pool.map if isolated else map
        results = turns(lambda guide: _walk_one(guide, isolated, scale), guides)
        failed = [guide for guide, passed in zip(guides, results, strict=True) if not passed]
    STOPPED.write_text("".join(f"{name_of(guide.path)}\n" for guide in failed))
    print(f"\n{len(guides) - len(failed)} guides walked through, {len(failed)} stopped", flush=True)
    return int(bool(failed))


def environment_of(extras: Sequence[str]) -> Path:
    """Return the folder of the environment with these extras."""
    return ENVIRONMENTS / ("-".join(extras) or PLAIN)


def _walk_one(guide: Guide, isolated: list[str], scale: float) -> bool:
    """Walk one guide in a process of its own, print its report in one piece, and return whether it succeeded."""
    name = name_of(guide.path)
    if missing := sandbox.find_missing_programs(guide.needed_programs):
        print(f"\n=== {name}: left out, {', '.join(missing)} is not installed", flush=True)
        return os.environ.get("CI") != "true"
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="walk-") as folder:
        if guide.in_checkout:
            _prepare_checkout(Path(folder) / "work")
        if GO in guide.needed_programs:
            from walks.stock_clients import prepare

            prepare()
        environment = {
            **os.environ,
            **({CLIENT_JARS: _client_jars()} if MAVEN in guide.needed_programs else {}),
        }
        programs = environment_of(guide.extras) / "bin"
        words = [sys.executable, __file__, "--inside", str(guide.path), folder, str(programs), str(scale)]
        process = subprocess.Popen(
            [*isolated, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=WALK_TIMEOUT_S * scale)
        except subprocess.TimeoutExpired:
            process.terminate()
            output = process.communicate(timeout=STOP_GRACE_S)[0] + "\nthe walk took too long"
    print(f"\n=== {name}: {time.monotonic() - begun_s:.0f} s\n{output.rstrip()}", flush=True)
    return process.returncode == 0


def _client_jars() -> str:
    """Return the folder of the official client's jars, which a reader has in a Maven project."""
    from compat_tests.jars import fetch_jars

    return str(fetch_jars("server-5.4"))


def _prepare_checkout(folder: Path) -> None:
    """Make a checkout, and install beforehand what `make serve` installs, as the walk itself has no network."""
    copy_sources(folder)
    environment = sandbox.make_environment(folder.parent / "home", folder.parent / "programs", None)
    command = ["make", "-s", ".venv/serve", f"PYTHON={sys.executable}"]
    subprocess.run(command, cwd=folder, env=environment, check=True, stdin=subprocess.DEVNULL)


def walk_inside(path: Path, folder: Path, programs: Path, scale: float) -> int:
    """Walk one guide in the network of this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    if sandbox.isolation() and not _reaches_itself():
        sandbox.raise_loopback()
    guide = read_guide(path)
    for name in ("work", "home", "logs"):
        (folder / name).mkdir(exist_ok=True)
    sandbox.write_programs(folder / "programs", programs / "python")
    in_checkout = guide.in_checkout
    environment = sandbox.make_environment(
        folder / "home", folder / "programs", None if in_checkout else programs
    )
    session = WalkSession(guide, folder / "work", folder / "logs", environment, scale)
    try:
        session.walk(lambda line: print(line, flush=True))
    except WalkFailed as stopped:
        print(f"STOPPED {stopped}", flush=True)
        return 1
    return 0


def _reaches_itself() -> bool:
    """Tell whether the loopback interface is up."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
            probe.listen()
            with socket.create_connection(probe.getsockname(), 1):
                return True
        except OSError:
            return False


def list_guides(guides: Iterable[Guide], unwalked: dict[str, str]) -> None:
    """Print every guide with the number of its marks, or the reason why it is not walked."""
    for guide in guides:
        name = name_of(guide.path)
        if guide.is_walked:
            extras = f", extras {', '.join(guide.extras)}" if guide.extras else ""
            print(f"{name}: walked, {len(guide.steps)} marks{extras}")
        else:
            print(f"{name}: not walked: {unwalked.get(name, 'NO REASON')}")


def main() -> int:
    """Walk or list guides as the command line says; return the exit status."""
    if sys.argv[1:2] == ["--inside"]:
        path, folder, programs, scale = sys.argv[2:6]
        return walk_inside(Path(path), Path(folder), Path(programs), float(scale))
    parser = argparse.ArgumentParser(description="Walk the guides.")
    parser.add_argument("guides", nargs="*", metavar="GUIDE", help="guides to walk (default: all)")
    parser.add_argument("-j", "--jobs", type=int, default=JOBS, help="walks at a time (default: %(default)s)")
    parser.add_argument(
        "--scale", type=float, default=4.0, help="factor of all time limits, for busy machines (%(default)s)"
    )
    parser.add_argument("--stopped", action="store_true", help="walk those that the last run stopped in")
    parser.add_argument("--list", action="store_true", help="list the guides and walk none")
    arguments = parser.parse_args()
    try:
        guides = read_guides()
    except GuideError as problem:
        sys.exit(str(problem))
    unwalked = read_unwalked()
    if arguments.list:
        list_guides(guides, unwalked)
        return 0
    if arguments.stopped:
        arguments.guides = STOPPED.read_text().split() if STOPPED.exists() else []
    if not arguments.guides and (problems := find_disagreements(guides, unwalked)):
        sys.exit("\n".join(problems))
    requested = [name_of(Path(name)) for name in arguments.guides]
    chosen = [
        guide for guide in guides if guide.is_walked and (not requested or name_of(guide.path) in requested)
    ]
    if unknown := set(requested) - {name_of(guide.path) for guide in chosen}:
        sys.exit(f"not walked: {', '.join(sorted(unknown))}; --list shows why")
    # Guides with Spark take longest, so they start first.
    chosen.sort(key=lambda guide: "spark" not in guide.extras)
    return walk_all(chosen, arguments.jobs, arguments.scale)


if __name__ == "__main__":
    sys.exit(main())
