"""Generate the tables of options and columns in docs from their declarations.

A document marks each table by two comments, and the text between them is replaced:

    <!-- options: spark.source.options.OPTIONS -->
    <!-- columns: spark.schema.COLUMNS -->
    <!-- pipeline: ingest -->
    …
    <!-- end -->

`python -m spark.pipelines.options_doc` rewrites all documents.
"""

import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from spark.options import Option
from toolkit.settings_docs import code_cell, description_of, markdown_table
from toolkit.values import plain_value

ROOT: Final = Path(__file__).resolve().parents[2]
_TABLE: Final = re.compile(r"<!-- (options|columns|pipeline): (\S+) -->\n(.*?)<!-- end -->\n", re.DOTALL)


def find_documents(root: Path = ROOT) -> list[Path]:
    """Return the documents that have generated tables."""
    pages = sorted((root / "docs").rglob("*.md"))
    return [path for path in pages if _TABLE.search(path.read_text(encoding="utf-8"))]


def update_tables(document: str) -> str:
    """Return the document with up-to-date tables. Raises ImportError, AttributeError for unknown declarations."""
    return _TABLE.sub(
        lambda match: f"<!-- {match[1]}: {match[2]} -->\n{_generate_table(match[1], match[2])}<!-- end -->\n",
        document,
    )


def _generate_table(kind: str, name: str) -> str:
    if kind == "pipeline":
        tables = importlib.import_module(f"spark.pipelines.{name}").PIPELINE.tables
        return "\n".join(_toml_table(table, options) for table, options in tables.items())
    module, _, attribute = name.rpartition(".")
    declared = getattr(importlib.import_module(module), attribute)
    return options_table(declared) if kind == "options" else columns_table(declared)


def _toml_table(name: str, options: tuple[Option, ...]) -> str:
    if options is importlib.import_module("spark.source.options").OPTIONS:
        return f"`[{name}]` takes the options of the source `rocketmq`.\n"
    return f"`[{name}]`\n\n{options_table(options)}"


def options_table(options: Iterable[Option]) -> str:
    """Return a Markdown table of options."""
    rows = [
        (code_cell(option.name), code_cell(plain_value(option.default)), description_of(option))
        for option in options
    ]
    return markdown_table(("option", "default", "meaning"), rows)


def columns_table(columns: Iterable[Any]) -> str:
    """Return a Markdown table of columns, each with a name, a `ddl` and a `doc`."""
    rows = [(code_cell(column.name), code_cell(column.ddl), column.doc) for column in columns]
    return markdown_table(("column", "type", "meaning"), rows)


def main() -> None:
    """Rewrite the documents whose tables are out of date."""
    for path in find_documents():
        before = path.read_text(encoding="utf-8")
        after = update_tables(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(ROOT), file=sys.stderr)


if __name__ == "__main__":
    main()
