"""Reads the steps of a walk from a guide."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MARK: Final = re.compile(r"<!-- walk: (.+?) -->", re.DOTALL)
FENCE: Final = re.compile(r"^( *)(```+)\s*(\w*)")
EXTRAS: Final = re.compile(r"\[([a-z]+(?:,[a-z]+)*)\]")
INDENT: Final = "    "
DIAGRAMS: Final = frozenset({"mermaid"})
VERBS_WITH_BLOCK: Final = frozenset({"run", "start", "file", "python", "install", "no"})
VERBS_WITHOUT_BLOCK: Final = frozenset({"type", "stop", "afresh", "checkout", "needs"})
VERBS_OF_BOTH_KINDS: Final = frozenset({"start", "python", "install"})
"""Verbs that take a block, or an argument instead of it."""
PROGRAMMING_LANGUAGES: Final = frozenset(
    {"bash", "console", "go", "java", "js", "python", "sh", "shell", "ts", "typescript"}
)
COMMAND: Final = re.compile(
    r"(\$ )?(sudo )?([A-Z_]+=\S+ )*"
    r"(\.?/|\$[A-Z]|(cd|curl|docker|export|git|go|helm|java|kubectl|make|mkdir|mqadmin|mvn|node|npm|npx|pip|pytest|python3?"
    r"|rmq-gateway|spark-class|spark-submit|systemctl|tar|uvx?)\b)"
)
"""The beginning of a line that a reader types into a shell."""


class GuideError(Exception):
    """A guide's marks cannot be used. The text names file and line."""


@dataclass(frozen=True)
class Block:
    """A block of code: its first line's number in the guide, its language, and its text."""

    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Step:
    """One mark with its conditions, and the block that follows it."""

    line: int
    verb: str
    argument: str
    text: str = ""
    exit_code: int = 0
    shows: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    types: str = ""
    within_s: float | None = None


@dataclass
class Guide:
    """The walk of one guide."""

    path: Path
    steps: list[Step] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    @property
    def has_commands(self) -> bool:
        """True if a block is a program or contains a shell command."""
        return any(
            block.language in PROGRAMMING_LANGUAGES
            or (not block.language and any(map(COMMAND.match, block.text.splitlines())))
            for block in self.blocks
        )

    @property
    def is_walked(self) -> bool:
        """True if the walk types anything."""
        return any(step.verb in ("run", "start", "python", "type") for step in self.steps)

    @property
    def extras(self) -> tuple[str, ...]:
        """The extras that the guide tells its readers to install."""
        names = {
            name
            for step in self.steps
            if step.verb == "install"
            for match in EXTRAS.finditer(step.text)
            for name in match[1].split(",")
        }
        return tuple(sorted(names))

    @property
    def in_checkout(self) -> bool:
        """True if readers of the guide are in a checkout."""
        return any(step.verb == "checkout" for step in self.steps)

    @property
    def needed_programs(self) -> tuple[str, ...]:
        """Programs besides the project's own."""
        return tuple(step.argument for step in self.steps if step.verb == "needs")


def read_guide(path: Path) -> Guide:
    """Read the marks of a guide. Raises GuideError for a mark that cannot be used, and for a block without one."""
    lines = path.read_text().splitlines()
    guide = Guide(path, blocks=list(_find_blocks(lines)))
    marks = list(_find_marks(path, lines))
    blocks = {block.line: block for block in guide.blocks}
    marked: set[int] = set()
    # Each mark applies to the block that follows it, unless its verb takes none or has an argument instead.
    for line, after, text in marks:
        verb, _, argument = text.split("|")[0].strip().partition(" ")
        verb = verb.rstrip(",")
        if verb not in VERBS_WITH_BLOCK | VERBS_WITHOUT_BLOCK:
            raise GuideError(f"{path}:{line}: unknown walk mark {verb!r}")
        block = None
        if verb in VERBS_WITH_BLOCK and not (verb in VERBS_OF_BOTH_KINDS and argument):
            block = blocks.get(_next_written_line(lines, after))
            if block is None:
                raise GuideError(f"{path}:{line}: no block follows the mark {verb!r}")
            marked.add(block.line)
        guide.steps.append(_read_step(path, line, verb, argument.strip(), text, block))
    unmarked = [block.line for block in blocks.values() if block.line not in marked]
    if guide.is_walked and unmarked:
        line_numbers = ", ".join(str(line) for line in unmarked)
        raise GuideError(f"{path}: the blocks at lines {line_numbers} have no walk mark")
    return guide


def _find_marks(path: Path, lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """Yield the line of each mark, the index of the line after it, and its text on one line."""
    text = "\n".join(lines)
    for match in MARK.finditer(text):
        first, last = text.count("\n", 0, match.start()), text.count("\n", 0, match.end())
        if lines[first][: match.start() - text.rfind("\n", 0, match.start()) - 1].strip():
            raise GuideError(f"{path}:{first + 1}: a walk mark stands on lines of its own")
        yield first + 1, last + 1, " ".join(match[1].split())


def _next_written_line(lines: list[str], index: int) -> int:
    while index < len(lines) and not lines[index].strip():
        index += 1
    return index + 1


def _find_blocks(lines: list[str]) -> Iterator[Block]:
    """Yield fenced blocks, and blocks that are indented by four spaces after an empty line; diagrams are left out."""
    index, was_empty, in_list = 0, True, False
    while index < len(lines):
        line = lines[index]
        fence = FENCE.match(line)
        if fence:
            begin = index
            index += 1
            while index < len(lines) and not lines[index].strip().startswith(fence[2]):
                index += 1
            if fence[3] not in DIAGRAMS:
                indent = len(fence[1])
                text = "\n".join(source_line[indent:] for source_line in lines[begin + 1 : index])
                yield Block(begin + 1, fence[3], text)
        # In a list, four spaces continue an item and are not code.
        elif line.startswith(INDENT) and was_empty and not in_list:
            begin = index
            while index < len(lines) and (lines[index].startswith(INDENT) or not lines[index].strip()):
                index += 1
            yield Block(
                begin + 1, "", "\n".join(source_line[4:] for source_line in lines[begin:index]).rstrip()
            )
            index -= 1
        elif line.strip() and not line.startswith(" "):
            in_list = re.match(r"([-*]|\d+[.)])\s", line) is not None
        last = lines[index].rstrip() if index < len(lines) else ""
        was_empty = not last or last.endswith("-->")
        index += 1


def _read_step(path: Path, line: int, verb: str, argument: str, text: str, block: Block | None) -> Step:
    conditions: dict[str, object] = {}
    texts: dict[str, list[str]] = {"shows": [], "lacks": [], "until": []}
    for condition in text.split("|")[1:]:
        name, _, value = condition.strip().partition(" ")
        value = value.strip().strip('"')
        if name == "exit":
            conditions["exit_code"] = int(value)
        elif name == "within":
            conditions["within_s"] = float(value)
        elif name == "types":
            conditions["types"] = value
        elif name in texts:
            texts[name].append(value)
        else:
            raise GuideError(f"{path}:{line}: unknown condition {name!r}")
    written = argument if block is None else block.text
    conditions |= {name: tuple(values) for name, values in texts.items()}
    return Step(line, verb, argument, written, **conditions)  # type: ignore[arg-type]
