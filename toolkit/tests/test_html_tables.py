"""Numbers, cells and tables as HTML."""

from toolkit.html_tables import MAX_ROWS, format_number, render_cell, render_table


def test_numbers():
    shown = [
        format_number(each) for each in (None, float("nan"), 0, 1234567, 1234.5, 0.12345678, 0.000012345, 5.0)
    ]
    assert shown == ["\u2013", "\u2013", "0", "1\u202f234\u202f567", "1\u202f234", "0.1235", "1.2e-05", "5"]


def test_cells():
    assert render_cell(True) == "yes"
    assert render_cell(["a", "<"]) == "a, &lt;"
    assert render_cell([]) == render_cell("") == "\u2013"
    nested = {"a_b": [{"c": 1.5, "d": None}, {"e": True}], "f": "<"}
    assert render_cell(nested) == "a b c 1.5, d \u2013; e yes, f &lt;"
    assert len(render_cell("x" * 10_000)) < 1000


def test_long_tables_are_cut_and_say_so():
    assert "7 more rows are left out" in render_table(["n"], ([at] for at in range(MAX_ROWS + 7)))
