"""The rules of the source tree: purity of the codec, one test file per module.

The allowed imports between packages and folders are in `test_rooms.py`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "codec",
    "toolkit",
    "remoting",
    "storage",
    "gateway",
    "compat_tests",
    "acceptance",
    "spark",
    "tools",
)
IMPURE = {"trio", "logging", "socket", "time", "os", "random", "threading", "pathlib", "datetime", "asyncio"}
NO_NETWORK = {"trio", "socket", "asyncio"}


def sources(*packages: str) -> list[Path]:
    found = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    return [path for path in found if "tests" not in path.relative_to(ROOT).parts]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def imported_at_top(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def test_toolkit_needs_no_library_until_it_is_used() -> None:
    """Packages that must not import each other share it, also where matplotlib or trio is missing.

    Exit codes, types of options and groups belong to commands, which all need click.
    """
    allowed = sys.stdlib_module_names | {"codec", "toolkit"}
    of_commands = ("command_group.py", "exit_codes.py", "option_types.py")
    assert not [
        f"{path.name} imports {name}"
        for path in sources("toolkit")
        for name in imported_at_top(path)
        if name not in allowed and not (path.name in of_commands and name == "click")
    ]


def test_codec_is_pure_and_storage_knows_no_network() -> None:
    wrong = [f"{path.name}: {name}" for path in sources("codec") for name in imported(path) if name in IMPURE]
    wrong += [
        f"{path.name}: {name}" for path in sources("storage") for name in imported(path) if name in NO_NETWORK
    ]
    assert not wrong


def test_every_module_says_what_it_is() -> None:
    assert not [
        str(path.relative_to(ROOT))
        for path in sources(*PACKAGES)
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]


def test_every_test_file_has_its_module() -> None:
    """Return a test file is named after the module it tests, or after a subject that several share (listed here)."""
    shared = {
        "test_tidy.py",
        "test_rooms.py",
        "test_simulation.py",
        "test_timer_crashes.py",
        "test_interchange.py",
        "test_extreme_requests.py",
        "test_grafana_dashboard.py",
        "test_planted_defects.py",
        "test_documents.py",
        "test_service_unit.py",
        "test_queue_extensions.py",
        "test_deploy_files.py",
    }
    modules = {path.stem for path in sources(*PACKAGES)} | {path.parent.name for path in sources(*PACKAGES)}
    wrong = []
    for package in ("codec", "toolkit", "remoting", "storage", "gateway"):
        for path in sorted((ROOT / package).rglob("test_*.py")):
            subject = path.stem.removeprefix("test_")
            words = subject.split("_")
            prefixes = {"_".join(words[:count]) for count in range(1, len(words) + 1)}
            if (
                path.name not in shared
                and not prefixes & modules
                and not {subject[:-1], subject + "s"} & modules
            ):
                wrong.append(str(path.relative_to(ROOT)))
    assert not wrong


NUMBER_PACKAGES = ("gateway/broker", "gateway/namesrv", "storage")
CONVERTS_ITSELF = {"gateway/broker/filters/sql92/compiler.py": 1}
"""Modules that call ``int`` on text, with the number of calls: at most nine digits, once per message and filter."""


def text_conversions(path: Path) -> list[int]:
    """Return the lines in which ``int`` may be given text: calls, and ``int`` passed on to be called."""
    tree = ast.parse(path.read_text())
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "int":
            found += [node.lineno] if node.args and not isinstance(node.args[0], ast.Constant) else []
        elif not (isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass")):
            passed = [*node.args, *(keyword.value for keyword in node.keywords)]
            found += [node.lineno for given in passed if isinstance(given, ast.Name) and given.id == "int"]
    return sorted(found)


def test_text_becomes_a_number_in_one_place() -> None:
    """Text of peers and files is parsed by `codec.java_numbers`; floats become whole by floor and trunc."""
    paths = [path for package in NUMBER_PACKAGES for path in sources(package)]
    found = {str(path.relative_to(ROOT)): len(lines) for path in paths if (lines := text_conversions(path))}
    assert found == CONVERTS_ITSELF


def test_conversions_of_text_are_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "int(text)\nint('5')\nlist(map(int, parts))\nisinstance(text, int)\nint.from_bytes(data)\nf(kind=int)\n"
    )
    assert text_conversions(path) == [1, 3, 6]


def test_no_machine_paths_in_tracked_text() -> None:
    home = re.compile(r"/(?:root|home/[a-z]+|work)/")
    wrong = []
    for pattern in ("*.py", "*.md", "*.toml", "*.conf", "Makefile"):
        for path in ROOT.rglob(pattern):
            hidden = any(
                part.startswith(".") or part in ("build", "node_modules")
                for part in path.relative_to(ROOT).parts
            )
            if not hidden and path.name != "test_tidy.py" and home.search(path.read_text()):
                wrong.append(str(path.relative_to(ROOT)))
    assert not wrong
