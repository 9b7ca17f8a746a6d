"""The HTML report: well-formed, self-contained and complete, with all texts escaped."""

import re
from html.parser import HTMLParser

import pytest

from gateway.shadow.report.html import CHAPTERS, render_report
from gateway.shadow.tests.sample_report import sample_report

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """The tags, attributes and texts of a page; fails for tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def ids(self):
        return [value for _, name, value in self.attributes if name == "id"]


@pytest.fixture(scope="module")
def text():
    return render_report(sample_report())


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_all_sections_are_there_and_linked(page):
    wanted = [chapter.name for chapter in CHAPTERS] + ["part-capture", "events", "metrics", "configuration"]
    sections = [value for tag, name, value in page.attributes if (tag, name) == ("section", "id")]
    assert sections == wanted
    links = [value for tag, name, value in page.attributes if (tag, name) == ("a", "href")]
    assert links == [f"#{name}" for name in wanted]


def test_nothing_comes_from_elsewhere(text, page):
    assert not re.findall(r"https?:|//[a-z]|@import|src=", text)
    assert {value for _, name, value in page.attributes if name == "href" and value[0] != "#"} == {"data:,"}
    assert not re.findall(r"url\((?!#)", text)
    assert "script" not in page.tags


def test_ids_are_used_once_and_references_lead_somewhere(text, page):
    ids = page.ids()
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"url\(#([^)]+)\)", text))
    used |= {value[1:] for _, name, value in page.attributes if name == "href" and value[0] == "#"}
    assert used <= set(ids)


def test_every_plot_has_a_title_read_aloud_and_a_table(text, page):
    figures = re.findall(r"<figure.*?</figure>", text, re.S)
    assert len(figures) == page.tags.count("svg") == 5
    ids = set(page.ids())
    for figure in figures:
        labelled = re.search(r'<svg[^>]* role="img" aria-labelledby="([^"]+)"><title', figure)
        assert labelled is not None
        assert set(labelled[1].split()) <= ids
        assert "<table>" in figure
        assert "<figcaption>" in figure


def test_colours_are_those_of_the_page(text):
    plots = "".join(re.findall(r"<svg.*?</svg>", text, re.S))
    assert "var(--hue-0)" in plots
    assert "var(--ink)" in plots
    assert set(re.findall(r"#[0-9a-f]{6}\b", plots)) <= {"#000000", "#ffffff"}
    assert "prefers-color-scheme: dark" in text


def test_texts_are_shown_as_texts(text):
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<h1>Orders &amp; &lt;friends&gt;</h1>" in text
    assert "<b>Clicks" not in text


def test_the_page_shows_the_numbers_and_texts_of_the_report(text, page):
    cards = dict(re.findall(r"<b>([^<]*)</b><span>([^<]*)</span>", text))
    assert cards["no"] == "parity holds"
    assert "Shaded: the circuit breaker was open" in text
    assert "2023-11-14 22:13:20" in text
    assert "(not shown)" in text
    assert "messages[].order" in page.texts
    assert "primary p50, ms" in page.texts
    assert "Findings" in page.texts
    assert "0 to 7" in page.texts
    assert "circuit breaker open" in page.texts


def test_a_run_without_anything():
    empty = sample_report(series=None, sections={}, metrics=[], events=[], configuration={})
    text = render_report(empty)
    assert Page(text).tags.count("svg") == 0
    assert "No time series was recorded." in text
    nothing = {"step_s": 1, "times_ms": [], "topics": {}, "metrics": {}, "totals": {}}
    assert Page(render_report(sample_report(series=nothing))).tags.count("svg") == 0


def test_forwarding_only_shows_no_mirror():
    report = sample_report(sections={})
    for columns in report["series"]["topics"].values():
        for name in ("mirrored_per_s", "compared_per_s", "differing_per_s"):
            columns[name] = [0.0] * len(columns[name])
    report["series"]["metrics"] = {}
    text = render_report(report)
    assert "Mirror over time: no data in this period." in text
    assert "Differences over time: no data in this period." in text
