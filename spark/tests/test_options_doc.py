"""Generated tables of the documents are up to date, and how they are generated."""

from pathlib import Path

import pytest

from spark.options import Option, integer
from spark.pipelines.options_doc import ROOT, find_documents, options_table, update_tables


@pytest.mark.parametrize("path", find_documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_are_up_to_date(path: Path) -> None:
    """Run `python -m spark.pipelines.options_doc` if this fails."""
    text = path.read_text(encoding="utf-8")
    assert update_tables(text) == text


def test_a_table_of_options() -> None:
    options = [
        Option("rows", integer(1), 3, "How many.", ("lines", "count")),
        Option("tags", str, None, "`a || b`."),
    ]
    assert options_table(options) == (
        "| option | default | meaning |\n| --- | --- | --- |\n"
        "| `rows` | `3` | How many. Also: `lines`, `count`. |\n"
        "| `tags` |  | `a \\|\\| b`. |\n"
    )


def test_tables_are_replaced_and_the_rest_is_kept() -> None:
    document = "\n".join(
        [
            "# A",
            "<!-- options: spark.endpoint.OPTIONS -->",
            "old",
            "<!-- end -->",
            "<!-- columns: spark.schema.COLUMNS -->",
            "<!-- end -->",
            "B",
        ]
    )
    once = update_tables(document)
    assert once.startswith("# A\n<!-- options: spark.endpoint.OPTIONS -->\n| option |")
    assert once.endswith("<!-- end -->\nB")
    assert "| `nameServer` |" in once
    assert "| `msgId` | `string` |" in once
    assert "old" not in once
    assert update_tables(once) == once
