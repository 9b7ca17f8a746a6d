"""A profile's page without Spark: number formats, plots of any shape, no external resources."""

import re

import pytest

from spark.capture.options import CaptureFilter
from spark.pipelines.job import Summary
from spark.pipelines.profile import PIPELINE, build_summary
from spark.profiling import page
from spark.profiling.exchange_profile import answer_name, is_normal
from spark.profiling.message_profile import TimeAxis, skew_of_queues

START_MS = 1_762_300_800_000


def some(p50, p90, p99, most):
    return {"p50": p50, "p90": p90, "p99": p99, "max": most}


def topic(name, times, rate=2.0, **more):
    return {
        "topic": name,
        "messages": 1000,
        "bytes": 123_456,
        "size_bytes": some(100, 900, 2000, 5000),
        "delay_ms": some(1, 3, 9, 20),
        "reconsumed": 0,
        "keys": {
            "messages": 900,
            "distinct": 3,
            "gini": 0.5,
            "top_share": 0.7,
            "top": [{"key": "<a&b>", "messages": 5}],
        },
        "queues": {"seen": 4, "gini": 0.1, "max_over_mean": 1.25, "busiest": []},
        "rates": {"messages_per_s": [rate] * times, "bytes_per_s": [1000.0] * times},
        **more,
    }


def profile(times=60, topics=12, exchanges=True):
    moments = [START_MS + 1000 * each for each in range(times)]
    about = {"from_ms": START_MS, "until_ms": moments[-1], "step_s": 1, "times_ms": moments}
    series = {name: [1000.0 + each for each in range(times - 1)] + [None] for name in ("p50", "p90", "p99")}
    nothing = {name: [None] * times for name in ("p50", "p90", "p99")}
    sides = {side: some(800, 900, 1000, 2000) for side in ("primary", "gateway")} | {
        "target": some(*[None] * 4)
    }
    retries = {name: {"messages": 3, "share": 0.003} for name in ("retry", "dead", "reconsumed")}
    by_group = [{"kind": kind, "group": "billing", "messages": 3} for kind in ("retry", "dead")]
    return {
        "format": 1,
        "title": "Orders & <more>",
        "inputs": {"capture": "/captures"},
        "messages": {
            **about,
            "messages": 12_000,
            "bytes": 5 << 30,
            "topics_seen": topics,
            "topics": [topic(f"Topic{each}", times) for each in range(topics)],
            "sizes": [{"below_bytes": 1 << each, "messages": each * 10} for each in range(5, 20)],
            "retries": {**retries, "by_group": by_group},
            "clients": [{"client": "10.0.0.1", "messages": 5, "bytes": 500}],
        },
        "exchanges": {
            **about,
            "exchanges": 100,
            "sends": {
                "count": 90,
                "refused": 2,
                "latency_us": sides,
                "series": {
                    "per_s": [1.0] * times,
                    "refused_per_s": [0.1] * times,
                    "latency_us": {"primary": series, "gateway": series, "target": nothing},
                },
            },
            "requests": [
                {"code": 310, "name": None, "count": 9, "request_bytes": 1, "answer_bytes": None, "latency_us": sides}
            ],
            "answers": [{"side": "client", "request": "SEND_MESSAGE_V2", "code": 2, "name": "SYSTEM_BUSY", "count": 2}],
            "fates": {"mirrored": 90},
            "send_backs": {"count": 1, "by_group": []},
            "clients": [
                {"client": None, "language": None, "requests": 5, "sends": 4, "groups": 1, "last_ms": START_MS}
            ],
        }
        if exchanges
        else None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("times", "topics", "exchanges"), [(60, 12, True), (1, 1, True), (2, 8, False), (90, 9, True)]
)
def test_the_page_needs_nothing_from_elsewhere(times, topics, exchanges):
    html = page.render_page(profile(times, topics, exchanges))
    assert not re.search(r"(src|href)=\"(?!#|data:)|url\((?!#)|<script|http(?!://www.w3.org)", html)
    assert "Orders &amp; &lt;more&gt;" in html
    assert "&lt;a&amp;b&gt;" in html
    assert "<more>" not in html
    assert "#0101" not in html, "a colour of the page has taken the place of each stand-in"
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert html.count("<svg") == html.count("</svg>") == html.count('role="img"') >= 6


def test_a_page_of_nothing():
    html = page.render_page({"title": "t", "inputs": {}, "messages": None, "exchanges": None})
    assert "No messages and no exchanges" in html


def test_numbers():
    assert [page.format_bytes(each) for each in (None, 0, 1023, 1024, 5 << 30)] == [
        "\u2013",
        "0 B",
        "1,023 B",
        "1 KiB",
        "5 GiB",
    ]
    assert [page.format_share(each) for each in (0, 0.00123, 0.5)] == ["0 %", "0.123 %", "50 %"]
    assert [page.format_ms(each) for each in (None, 99, 1_234_567)] == ["\u2013", "0.099 ms", "1,235 ms"]


@pytest.mark.parametrize(
    ("lasted_ms", "points", "step_s"),
    [(0, 10, 1), (9_000, 10, 1), (10_000, 10, 2), (10**10, 10, 13 * 86_400)],
)
def test_points_in_time(lasted_ms, points, step_s):
    span = TimeAxis.for_range(START_MS, START_MS + lasted_ms, points)
    assert span.step_s == step_s
    assert len(span.times_ms) <= points + 1
    assert span.times_ms[0] <= START_MS
    assert span.times_ms[-1] <= START_MS + lasted_ms < span.times_ms[-1] + step_s * 1000


def test_answers_that_mean_nothing():
    assert is_normal(310, 10)
    assert is_normal(11, 19)
    assert not is_normal(310, 14)
    assert not is_normal(99_999, 1)
    assert (answer_name(14), answer_name(9999)) == ("SERVICE_NOT_AVAILABLE", "9999")


def test_the_summary_is_short():
    shown = build_summary(profile())
    assert isinstance(shown, Summary)
    assert shown.figures["messages"] == 12_000
    assert [section.title for section in shown.sections] == ["Topics", "Latency of sends, us"]
    assert set(PIPELINE.tables) == {"source", "table", "capture", "profile"}
    assert CaptureFilter().intersect_with(CaptureFilter(5)) == CaptureFilter(5)


def test_the_plot_of_rates_has_every_minute():
    """The first and the last minute were left out; they held 5,000 of 5,011 messages."""
    times = 12
    bursts = [5000.0, *[0.0] * (times - 2), 4000.0]
    rates = {"messages_per_s": bursts, "bytes_per_s": bursts}
    shown = profile(times, 1, exchanges=False)
    shown["messages"]["topics"] = [topic("Orders", times, rates=rates)]
    html = page.render_page(shown)
    drawn = html[html.index('id="rates-title"') : html.index('id="volumes-title"')]
    assert ">4.5k<" in drawn or ">4k<" in drawn or ">5k<" in drawn, "the axis reaches the bursts"


@pytest.mark.parametrize(
    ("counts", "queues"), [([5, 5], 4), ([7], 4), ([1, 2, 3, 4], 4), ([2, 2, 2], 3), ([10, 1], 8)]
)
def test_empty_queues_count_in_the_skew(counts, queues):
    """Gini was 0.00 with two of four queues empty."""

    def gini_of(values):
        pairs = sum(abs(one - other) for one in values for other in values)
        return pairs / (2 * len(values) * sum(values))

    every = counts + [0] * (queues - len(counts))
    found = skew_of_queues(len(counts), max(counts), sum(counts), gini_of(counts), queues)
    assert found["gini"] == pytest.approx(gini_of(every))
    assert found["max_over_mean"] == pytest.approx(max(every) * len(every) / sum(every))
    assert (found["queues"], found["seen"]) == (queues, len(counts))


def test_empty_queues_are_named_in_the_table():
    shown = profile(2, 1, exchanges=False)
    queues = {"queues": 4, "seen": 2, "gini": 0.5, "max_over_mean": 2.0, "busiest": []}
    shown["messages"]["topics"] = [topic("Orders", 2, queues=queues)]
    assert "4 (2 empty)" in page.render_page(shown)
