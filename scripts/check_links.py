"""Check the links of all Markdown documents: every relative link names a file, every anchor a heading.

A path of the source in backticks, such as `storage/store.py`, must exist as well.

    python scripts/check_links.py       # prints dead links; exit status 1 if there are any

Links to other hosts are not followed. `make docs` checks the pages under docs/ once more, as the site shows them.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
SKIPPED_FOLDERS = {"node_modules", "build", "site", "dist"}
LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
SOURCE_PATH = re.compile(
    r"`((?:codec|remoting|storage|toolkit|gateway|compat_tests|acceptance|tools|spark|conf|deploy|docs|recipes|scripts)/[\w/.-]+)`"
)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)


def documents() -> list[Path]:
    """Return every Markdown file of the repository, except those in hidden, built or installed folders."""
    paths = []
    for path in sorted(ROOT.rglob("*.md")):
        folders = path.relative_to(ROOT).parts[:-1]
        if not any(
            part in SKIPPED_FOLDERS or (part.startswith(".") and part != ".github") for part in folders
        ):
            paths.append(path)
    return paths


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub-like hosts and mkdocs derive them."""
    anchors: set[str] = set()
    for title in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        anchors |= {slug, re.sub(r"-+", "-", slug)}
    return anchors | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))


def links_of(text: str) -> Iterator[str]:
    """Yield the targets of a document's links, those in code left out."""
    yield from LINK.findall(CODE.sub("", FENCE.sub("", text)))


def dead_links(path: Path) -> Iterator[str]:
    """Yield a line for each link of a document that leads nowhere."""
    text = path.read_text("utf-8")
    for target in links_of(text):
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        name, _, anchor = unquote(target).partition("#")
        target_path = (path.parent / name).resolve() if name else path
        if not target_path.exists():
            yield f"{path.relative_to(ROOT)}: {target}: no such file"
        elif (
            anchor
            and target_path.suffix == ".md"
            and anchor not in anchors_of(target_path.read_text("utf-8"))
        ):
            yield f"{path.relative_to(ROOT)}: {target}: no such heading"


def dead_paths(path: Path) -> Iterator[str]:
    """Yield a line for each path of the source in backticks that does not exist."""
    for name in SOURCE_PATH.findall(FENCE.sub("", path.read_text("utf-8"))):
        if not (ROOT / name).exists():
            yield f"{path.relative_to(ROOT)}: {name}: no such file"


def main() -> int:
    """Print dead links and return the exit status."""
    dead = [line for path in documents() for line in (*dead_links(path), *dead_paths(path))]
    print("\n".join([*dead, f"dead links: {len(dead)} (limit 0)"]))
    return int(bool(dead))


if __name__ == "__main__":
    sys.exit(main())
