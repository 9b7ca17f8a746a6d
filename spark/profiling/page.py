"""A profile as one self-contained HTML page: cards, and plots with their numbers in tables."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from spark.profiling.exchange_profile import SIDES
from toolkit.html_tables import NO_VALUE, render_table
from toolkit.pages import Mood, format_time, render_cards, render_document
from toolkit.plots import HUES, Bars, Panel, Plot, PlotLine, draw_bars, draw_plot

MAX_LINES: Final = len(HUES)
"""Maximum number of topics drawn as areas; all further topics are summed up in one."""
MAX_BARS: Final = 12
_SIDE_NAMES: Final = {"primary": "primary", "target": "target", "gateway": "gateway's share"}
Profile = Mapping[str, Any]


def render_page(profile: Profile) -> str:
    """Return the HTML document."""
    parts = [_render_head(profile), _render_cards(profile)]
    messages, exchanges = profile["messages"], profile["exchanges"]
    if messages is not None:
        parts += [
            _render_rates(messages),
            _render_topics(messages),
            _render_sizes(messages),
            _render_skew(messages),
            _render_retries(profile),
        ]
    if exchanges is not None:
        parts += [_render_latencies(exchanges), _render_answers(exchanges), _render_requests(exchanges)]
    if messages is None and exchanges is None:
        parts.append('<p class="none">No messages and no exchanges in this period.</p>')
    parts.append(_render_clients(profile))
    footer = "Made by rmq-gateway spark profile. Times are UTC. Quantiles are approximate, to a thousandth of the rank."
    return render_document(profile["title"], parts, footer)


# -- parts of the page --------------------------------------------------------------------------------------------


def _render_head(profile: Profile) -> str:
    about = ", ".join(f"{name}: {what}" for name, what in profile["inputs"].items())
    sections = [profile[name] for name in ("messages", "exchanges") if profile[name] is not None]
    when = ""
    if sections:
        first, last = (
            min(section["from_ms"] for section in sections),
            max(section["until_ms"] for section in sections),
        )
        when = f"{format_time(first)} to {format_time(last)}, {_format_duration((last - first) / 1000)}. "
    return f'<header><h1>{escape(profile["title"])}</h1><p class="about">{when}{escape(about)}</p></header>'


def _render_cards(profile: Profile) -> str:
    cards: list[tuple[str, str, Mood]] = []
    messages, exchanges = profile["messages"], profile["exchanges"]
    if messages is not None:
        lasted_s = max((messages["until_ms"] - messages["from_ms"]) / 1000, 1)
        cards += [
            (format_count(messages["messages"]), f"messages of {messages['topics_seen']:,} topics", ""),
            (format_bytes(messages["bytes"]), "in bodies", ""),
            (f"{format_number(messages['messages'] / lasted_s)}/s", "messages, on average", ""),
            (
                f"{format_number(_peak_rate(messages))}/s",
                f"at most, in {_format_duration(messages['step_s'])}",
                "",
            ),
            (format_share(messages["retries"]["retry"]["share"]), "of the messages are retries", ""),
            (_share_card(messages["retries"]["dead"]["share"], "of the messages are dead letters")),
        ]
    if exchanges is not None:
        sends = exchanges["sends"]
        cards += [
            (format_count(sends["count"]), "sends captured", ""),
            (format_count(sends["refused"]), "of them refused", "bad" if sends["refused"] else "good"),
            *(
                (format_ms(sends["latency_us"][side]["p99"]), f"p99 of sends, {_SIDE_NAMES[side]}", "")
                for side in SIDES
                if sends["latency_us"][side]["p99"] is not None
            ),
        ]
    return render_cards(cards)


def _share_card(value: float, what: str) -> tuple[str, str, Mood]:
    return format_share(value), what, "bad" if value else "good"


def _peak_rate(messages: Profile) -> float:
    rates = [topic["rates"]["messages_per_s"] for topic in messages["topics"]]
    return max(map(sum, zip(*rates, strict=True)), default=0.0)


def _render_rates(messages: Profile) -> str:
    topics = messages["topics"]
    times = messages["times_ms"]
    lines = _by_topic(topics, "messages_per_s")
    volumes = {
        name: [value / 1e6 for value in values] for name, values in _by_topic(topics, "bytes_per_s").items()
    }
    drawn = _draw_areas("rates", "Messages stored", "per second", times, lines)
    drawn += _draw_areas("volumes", "Bodies", "MB per second", times, volumes)
    note = f"One point per {_format_duration(messages['step_s'])}."
    if len(times) > 1:
        note += " The first and the last point cover less traffic, since it begins and ends within them."
    return _render_section("Rates", f"<figure>{drawn}<figcaption>{note}</figcaption></figure>")


def _by_topic(topics: Sequence[Profile], name: str) -> dict[str, list[float]]:
    """Return the lines of the first topics; the last line adds up all further topics."""
    if len(topics) <= MAX_LINES:
        return {topic["topic"]: topic["rates"][name] for topic in topics}
    lines = {topic["topic"]: topic["rates"][name] for topic in topics[: MAX_LINES - 1]}
    further = [topic["rates"][name] for topic in topics[MAX_LINES - 1 :]]
    return lines | {f"{len(further)} others": list(map(sum, zip(*further, strict=True)))}


def _render_topics(messages: Profile) -> str:
    rows = [
        [
            topic["topic"],
            format_count(topic["messages"]),
            format_share(topic["messages"] / messages["messages"]),
            format_bytes(topic["bytes"]),
            *(format_bytes(topic["size_bytes"][name]) for name in ("p50", "p99", "max")),
            *(f"{format_count(topic['delay_ms'][name])} ms" for name in ("p50", "p99")),
            format_count(topic["reconsumed"]),
        ]
        for topic in messages["topics"]
    ]
    names = [
        "topic",
        "messages",
        "share",
        "bodies",
        "size p50",
        "p99",
        "largest",
        "stored after p50",
        "p99",
        "redelivered",
    ]
    about = "Stored after: from the producer's clock to the broker's (captures: to the gateway's)."
    return _render_section("Topics", _render_table(names, rows) + f'<p class="about">{about}</p>')


def _format_queues(queues: Profile | None) -> str:
    """Format the number of queues, and of empty ones among them."""
    if not queues:
        return ""
    total = queues.get("queues", queues["seen"])
    empty = total - queues["seen"]
    return f"{format_count(total)} ({format_count(empty)} empty)" if empty else format_count(total)


def _render_sizes(messages: Profile) -> str:
    values = {format_bytes(bucket["below_bytes"]): bucket["messages"] for bucket in messages["sizes"]}
    below = draw_bars(Bars("sizes", "Messages with bodies below", "by powers of two", values, upright=True))
    largest = [topic for topic in messages["topics"] if topic["size_bytes"]["p99"] is not None]
    largest.sort(key=lambda topic: -topic["size_bytes"]["p99"])
    by_topic = {topic["topic"]: topic["size_bytes"]["p99"] for topic in largest[:MAX_BARS]}
    return _render_section(
        "Sizes", _render_pair(below, draw_bars(Bars("large", "Largest bodies, p99", "bytes", by_topic)))
    )


def _render_skew(messages: Profile) -> str:
    keyed = [topic for topic in messages["topics"] if topic["keys"]["distinct"]]
    queued = [topic for topic in messages["topics"] if topic["queues"]]
    # Bars show the most skewed topics, the table below them all.
    keyed_bars = {
        topic["topic"]: 100 * topic["keys"]["top_share"]
        for topic in sorted(keyed, key=lambda topic: -topic["keys"]["top_share"])[:MAX_BARS]
    }
    queue_bars = {
        topic["topic"]: topic["queues"]["max_over_mean"]
        for topic in sorted(queued, key=lambda topic: -topic["queues"]["max_over_mean"])[:MAX_BARS]
    }
    left = (
        draw_bars(Bars("keys", "Share of the busiest key", "%", keyed_bars))
        if keyed_bars
        else '<p class="none">No message has a key.</p>'
    )
    right = (
        draw_bars(Bars("queues", "Busiest queue against the mean", "times", queue_bars, reference=1.0))
        if queue_bars
        else ""
    )
    rows = [
        [
            topic["topic"],
            format_count(topic["keys"]["messages"]),
            format_count(topic["keys"]["distinct"]),
            _format_fraction(topic["keys"]["gini"]),
            ", ".join(f"{key['key']} ({format_count(key['messages'])})" for key in topic["keys"]["top"][:3]),
            _format_queues(topic["queues"]),
            format_number(topic["queues"]["max_over_mean"]) if topic["queues"] else "",
            _format_fraction(topic["queues"]["gini"]) if topic["queues"] else "",
        ]
        for topic in messages["topics"]
    ]
    names = ["topic", "with key", "keys", "Gini", "busiest keys", "queues", "max / mean", "Gini"]
    about = (
        "Gini coefficient: 0 if all keys or queues have equally many messages, near 1 if one of them has all."
    )
    return _render_section(
        "Skew", _render_pair(left, right) + _render_table(names, rows) + f'<p class="about">{about}</p>'
    )


def _render_retries(profile: Profile) -> str:
    retries = profile["messages"]["retries"]
    parts = []
    for kind, title in (("retry", "Messages in retry topics"), ("dead", "Dead letters")):
        values = {group["group"]: group["messages"] for group in retries["by_group"] if group["kind"] == kind}
        if values:
            parts.append(
                draw_bars(Bars(f"by-group-{kind}", title, "by group", dict(list(values.items())[:MAX_BARS])))
            )
    rows = [
        [
            "in retry topics",
            format_count(retries["retry"]["messages"]),
            format_share(retries["retry"]["share"]),
        ],
        ["dead letters", format_count(retries["dead"]["messages"]), format_share(retries["dead"]["share"])],
        [
            "redelivered",
            format_count(retries["reconsumed"]["messages"]),
            format_share(retries["reconsumed"]["share"]),
        ],
    ]
    if profile["exchanges"] is not None:
        rows.append(["send-backs captured", format_count(profile["exchanges"]["send_backs"]["count"]), ""])
    return _render_section(
        "Retries and dead letters", _render_table(["", "messages", "share"], rows) + _render_pair(*parts)
    )


def _render_latencies(exchanges: Profile) -> str:
    series = exchanges["sends"]["series"]["latency_us"]
    panels = {
        _SIDE_NAMES[side]: {name: _in_ms(values) for name, values in series[side].items()}
        for side in SIDES
        if any(value is not None for value in series[side]["p50"])
    }
    rows = [
        [
            _SIDE_NAMES[side],
            *(
                format_ms(exchanges["sends"]["latency_us"][side][name])
                for name in ("p50", "p90", "p99", "max")
            ),
        ]
        for side in SIDES
    ]
    drawn = _draw_quantiles("latency", "Latency of sends", exchanges["times_ms"], panels) if panels else ""
    note = f"One point per {_format_duration(exchanges['step_s'])}. Sends with an answer; oneway sends are left out."
    numbers = _render_table(["sends", "p50", "p90", "p99", "longest"], rows)
    return _render_section("Latencies", f"<figure>{drawn}<figcaption>{note}</figcaption></figure>{numbers}")


def _in_ms(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else value / 1000 for value in values]


def _render_answers(exchanges: Profile) -> str:
    rows = [
        [
            "target" if answer["side"] == "target" else "client's answer",
            answer["request"],
            answer["name"],
            format_count(answer["count"]),
        ]
        for answer in exchanges["answers"]
    ]
    fates = ", ".join(f"{name} {format_count(count)}" for name, count in sorted(exchanges["fates"].items()))
    about = f"Outcomes of sends at the mirror's target: {fates}." if fates else "Nothing was mirrored."
    content = (
        _render_table(["side", "request", "answer", "count"], rows)
        if rows
        else '<p class="none">No errors.</p>'
    )
    if exchanges["sends"]["refused"]:
        lines = {"refused": exchanges["sends"]["series"]["refused_per_s"]}
        drawn = _draw_areas("refused", "Refused sends", "per second", exchanges["times_ms"], lines)
        content = f"<figure>{drawn}</figure>{content}"
    return _render_section("Errors", f'{content}<p class="about">{about}</p>')


def _render_requests(exchanges: Profile) -> str:
    rows = [
        [
            request["name"] or str(request["code"]),
            format_count(request["count"]),
            format_bytes(request["request_bytes"]),
            format_bytes(request["answer_bytes"]),
            *(format_ms(request["latency_us"]["primary"][name]) for name in ("p50", "p99")),
            format_ms(request["latency_us"]["gateway"]["p99"]),
        ]
        for request in exchanges["requests"]
    ]
    names = ["request", "count", "requests", "answers", "primary p50", "p99", "gateway's share p99"]
    return _render_section("Requests", _render_table(names, rows))


def _render_clients(profile: Profile) -> str:
    if profile["exchanges"] is not None:
        rows = [
            [
                client["client"] or "",
                client["language"] or "",
                format_count(client["requests"]),
                format_count(client["sends"]),
                format_count(client["groups"]),
                format_time(client["last_ms"]),
            ]
            for client in profile["exchanges"]["clients"]
        ]
        return _render_section(
            "Clients", _render_table(["host", "language", "requests", "sends", "groups", "last seen"], rows)
        )
    if profile["messages"] is None:
        return ""
    rows = [
        [client["client"] or "", format_count(client["messages"]), format_bytes(client["bytes"])]
        for client in profile["messages"]["clients"]
    ]
    return _render_section("Producers", _render_table(["host", "messages", "bodies"], rows))


# -- elements -----------------------------------------------------------------------------------------------------


def _render_section(title: str, inner: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


def _render_pair(*drawn: str) -> str:
    figures = [figure for figure in drawn if figure]
    return (
        f'<div class="pair">{"".join(f"<figure>{figure}</figure>" for figure in figures)}</div>'
        if figures
        else ""
    )


def _render_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts; columns whose cells begin with a digit are aligned to the right."""
    return render_table(names, rows, max_rows=None, is_numeric=_is_numeric)


def _draw_areas(
    name: str, title: str, unit: str, times_ms: Sequence[int], lines: Mapping[str, Sequence[float]]
) -> str:
    """Draw areas on top of each other over time."""
    drawn = [PlotLine(label, values, at % len(HUES)) for at, (label, values) in enumerate(lines.items())]
    panel = Panel(title, unit, drawn, stacked=True, legend=len(drawn) > 1)
    return draw_plot(Plot(name, title, f"{title}, {unit}.", times_ms, [panel], wide=True))


def _draw_quantiles(
    name: str,
    title: str,
    times_ms: Sequence[int],
    panels: Mapping[str, Mapping[str, Sequence[float | None]]],
) -> str:
    """Draw quantiles over time, in ms, in panels side by side with one logarithmic axis."""
    drawn_panels = [
        Panel(
            side,
            "ms",
            [
                PlotLine(
                    label, [value if value and value > 0 else None for value in values], hue, highest=True
                )
                for hue, (label, values) in enumerate(lines.items())
            ],
            logarithmic=True,
        )
        for side, lines in panels.items()
    ]
    return draw_plot(Plot(name, title, f"{title} in ms.", times_ms, drawn_panels, beside=True, wide=True))


def _is_numeric(cell: str) -> bool:
    return not cell or cell == NO_VALUE or cell[0].isdigit()


def format_number(value: float | None) -> str:
    """Format a number with three significant digits."""
    if value is None:
        return "\u2013"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def format_count(value: float | None) -> str:
    """Format a count."""
    return "\u2013" if value is None else f"{value:,.0f}"


def format_share(value: float | None) -> str:
    """Format a share in per cent."""
    return "\u2013" if value is None else f"{format_number(100 * value)} %"


def format_bytes(value: float | None) -> str:
    """Format a size with a binary unit."""
    if value is None:
        return "\u2013"
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= unit:
            return f"{format_number(value / unit)} {name}"
    return f"{value:,.0f} B"


def format_ms(value_us: float | None) -> str:
    """Format microseconds in ms."""
    return "\u2013" if value_us is None else f"{format_number(value_us / 1000)} ms"


def _format_fraction(value: float | None) -> str:
    return "\u2013" if value is None else f"{value:.2f}"


def _format_duration(seconds: float) -> str:
    whole_s = round(seconds)
    for unit_s, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if whole_s >= unit_s:
            remainder_s = whole_s % unit_s
            below = {86400: (3600, "h"), 3600: (60, "min"), 60: (1, "s")}[unit_s]
            more = f" {remainder_s // below[0]} {below[1]}" if remainder_s // below[0] else ""
            return f"{whole_s // unit_s} {name}{more}"
    return f"{whole_s} s"
