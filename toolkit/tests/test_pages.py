"""The frame of pages: cards, escaped titles, nothing from elsewhere."""

import re

from toolkit.pages import format_time, render_cards, render_document


def test_a_page_loads_nothing_from_elsewhere():
    page = render_document("a < b", ["<p>body</p>"], "footer")
    assert "<title>a &lt; b</title>" in page
    assert "<p>body</p>" in page
    assert not re.search(r"(src|href)=\"(?!#|data:)|url\((?!#)|<script", page)


def test_cards_show_number_meaning_and_mood():
    cards = render_cards([("7", "lost <messages>", "bad"), ("1", "all", "")])
    assert '<div class="card bad"><b>7</b><span>lost &lt;messages&gt;</span></div>' in cards
    assert '<div class="card"><b>1</b>' in cards


def test_times_are_utc():
    assert format_time(1_700_000_000_000) == "2023-11-14 22:13:20"
