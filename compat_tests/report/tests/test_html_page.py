"""The page about a comparison."""

import re

from compat_tests.report.comparison import compare
from compat_tests.report.html_page import render_page, verdict_text
from compat_tests.report.tests.test_comparison import results


def page(found, expected):
    return render_page(compare(("mine <1>", found), ("official 5.4.0", expected)), "2026-01-02 03:04 UTC")


def test_verdict_deviations_and_features_are_shown():
    text = page(results(a="passed", b="failed"), results(a="passed", b="passed", c="passed"))
    assert "1 of 2 cases behave as on official 5.4.0, 1 deviate; 1 were not run on both." in text
    assert '<section class="verdict bad">' in text
    assert "why b" in text
    assert "Pulling" in text


def test_everything_is_escaped_and_nothing_is_loaded():
    text = page(results(a="failed"), results(a="passed"))
    assert "mine &lt;1&gt;" in text
    assert "mine <1>" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_the_verdict_of_equal_endpoints_is_good():
    text = page(results(a="passed", b="passed"), results(a="passed", b="differs"))
    assert '<section class="verdict good">' in text
    assert "1 of 2 cases behave as on official 5.4.0, 1 better, none deviates." in text


def test_nothing_compared_is_said():
    assert verdict_text(compare(("mine", {}), ("other", {}))) == "Nothing was compared."


def line(case_id, feature, outcome, area="send"):
    return {"id": case_id, "area": area, "feature": feature, "outcome": outcome, "reason": ""}


def test_what_each_stock_client_shows_is_a_table_of_features_and_clients():
    lines = [
        line("test_a[4.9.8]", "Java: send", "passed"),
        line("test_a[5.4.0]", "Java: send", "failed"),
        line("test_go", "Go: send", "passed"),
        line("test_grpc", "Java 5.1: send", "passed", "grpc"),
        line("test_old", "Java client 4.9.8: ten messages", "passed"),
        line("test_own", "no client", "passed"),
    ]
    found = {each["id"]: each for each in lines}
    text = page(found, {name: {**each, "outcome": "passed"} for name, each in found.items()})
    table = text.partition("Stock clients")[2].partition("</table>")[0]
    headings = re.findall(r'scope="col"[^>]*>([^<]+)<', table)
    assert headings == ["feature", "Java 4.9.8", "Java 5.4.0", "Java gRPC", "Go"]
    rows = [re.findall(r"<t[hd][^>]*>([^<]*)<", row) for row in table.split("<tr")[2:]]
    assert rows == [["send", "same", "deviates", "same", "same"], ["ten messages", "same", "–", "–", "–"]]  # noqa: RUF001


def test_cases_that_are_not_recorded_are_counted_apart():
    text = page(results(a="passed", b="passed"), results(a="passed"))
    assert "none deviates; 1 are not recorded of official 5.4.0." in text
