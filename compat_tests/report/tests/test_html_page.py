"""The page about a comparison."""

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
