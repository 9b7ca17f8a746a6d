"""Frame of the HTML pages of reports and profiles: the style sheet, the document, and cards.

A page is a single file that loads nothing from elsewhere. It suits light and dark themes, narrow screens, and paper.
Plots are drawn by `plots.py`, tables by `html_tables.py`.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final, Literal

STYLE_SHEET: Final = """
:root { color-scheme: light dark;
  --paper: #ffffff; --card: #f6f7f9; --ink: #1b2230; --faint: #5c6675; --grid: #dfe3e8; --good: #0f7b4f; --bad: #c22a2a;
  --hue-0: #2563eb; --hue-1: #c77700; --hue-2: #0b8a5c; --hue-3: #d43737; --hue-4: #7c3aed; --hue-5: #0e8fa8;
  --hue-6: #c02d7c; --hue-7: #7a8594; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12161c; --card: #1b2129; --ink: #e7eaef; --faint: #9ba6b5; --grid: #303843; --good: #4cc38a; --bad: #ff7b72;
  --hue-0: #6ea8fe; --hue-1: #f0a93b; --hue-2: #46c796; --hue-3: #ff7b72; --hue-4: #b794f6; --hue-5: #4fc3dc;
  --hue-6: #f27bb8; --hue-7: #8b96a5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: 0; line-height: 1.25; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--grid); }
p { margin: .3rem 0; max-width: 60rem; }
.about, .none, figcaption { color: var(--faint); font-size: .87rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1.25rem 0; }
.card { background: var(--card); border-radius: .5rem; padding: .6rem .8rem; border-left: 3px solid var(--grid); }
.card.good { border-left-color: var(--good); } .card.bad { border-left-color: var(--bad); }
.card b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.card span { font-size: .8rem; color: var(--faint); display: block; line-height: 1.35; }
figure svg { width: 100%; height: auto; display: block; }
svg text { font-family: inherit; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .26rem 1.4rem .26rem 0; border-bottom: 1px solid var(--grid); vertical-align: top;
  font-weight: 400; }
td.n, th.n { text-align: right; white-space: nowrap; overflow-wrap: normal; }
thead th { color: var(--faint); font-weight: 600; font-size: .78rem; vertical-align: bottom; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
h4 { font-size: .9rem; margin: 1rem 0 .3rem; color: var(--faint); font-weight: 600; }
.more { color: var(--faint); font-size: .87rem; }
nav { margin: 1rem 0 0; font-size: .87rem; display: flex; flex-wrap: wrap; gap: .2rem 1rem; }
a { color: var(--hue-0); text-decoration: none; } a:hover { text-decoration: underline; }
figure { margin: .75rem 0 1.25rem; } figure svg { margin-bottom: .5rem; }
figure.with-table { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 23rem); gap: 1rem 1.5rem;
  align-items: start; }
figure.wide { grid-template-columns: minmax(0, 1fr); }
figcaption { grid-column: 1 / -1; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 1.5rem; align-items: start; }
svg * { stroke-linejoin: round; }
figure.wide .numbers { max-width: 44rem; }
.numbers table { width: 100%; min-width: 0; } .numbers th, .numbers td { padding-right: .6rem; }
table { min-width: 24rem; }
caption { text-align: left; color: var(--faint); font-size: .84rem; padding-bottom: .25rem; }
th, td { overflow-wrap: break-word; }
.long { overflow-wrap: anywhere; min-width: 16rem; }
.numbers td:nth-child(2) { white-space: nowrap; color: var(--faint); }
td.n, th.n { padding-left: .4rem; }
.numbers td:last-child, .numbers th:last-child, td:last-child, th:last-child { padding-right: 0; }
thead th { overflow-wrap: normal; }
tbody th { min-width: 5rem; white-space: nowrap; } tbody th.long, .numbers th { white-space: normal; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: .4rem 1.25rem; margin: .5rem 0;
  font-size: .87rem; }
dt { color: var(--faint); font-size: .78rem; overflow-wrap: anywhere; }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
code { font: .92em ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
details { margin: .75rem 0; } summary { cursor: pointer; color: var(--faint); font-size: .87rem; }
footer { margin-top: 3rem; color: var(--faint); font-size: .8rem; }
table.many { font-size: .74rem; } table.many th, table.many td { padding-right: .5rem; padding-left: 0; }
table.many thead th { font-size: .68rem; white-space: normal; overflow-wrap: break-word; }
table.many td.n { padding-left: 0; }
tr.bad > th, tr.bad > td { color: var(--bad); }
.verdict { border-left: 4px solid var(--grid); background: var(--card); border-radius: .5rem; padding: .7rem 1rem;
  margin: 1rem 0; }
.verdict b { font-size: 1.1rem; } .verdict ul { margin: .3rem 0 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
.verdict.good { border-left-color: var(--good); } .verdict.good b { color: var(--good); }
.verdict.bad { border-left-color: var(--bad); } .verdict.bad b, .verdict.bad li { color: var(--bad); }
@media (max-width: 52rem) { body { padding: 1rem .8rem 3rem; }
  .scroll { overflow-x: visible; } .scroll table { min-width: 0; width: 100%; } .scroll thead { display: none; }
  .scroll tr { display: block; padding: .35rem 0; border-bottom: 1px solid var(--grid); }
  .scroll tbody th, .scroll td { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem 0;
    min-width: 0; white-space: normal; overflow-wrap: anywhere; text-align: right; }
  .scroll tbody th { font-weight: 600; text-align: left; }
  table.many, table.many thead th { font-size: .84rem; }
  .scroll td::before { content: attr(data-label); color: var(--faint); text-align: left; flex: none; max-width: 45%; }
  .scroll td[data-label]:empty { display: none; }
  figure.with-table, .pair { grid-template-columns: minmax(0, 1fr); } figure, figure .picture { overflow-x: auto; }
  figure svg { min-width: 30rem; } figure.wide svg { min-width: 50rem; } }
@media print { body { max-width: none; } figure, .card, tr { break-inside: avoid; } nav { display: none; } }
"""

Mood = Literal["", "good", "bad"]


def render_document(title: str, body: Sequence[str], footer: str) -> str:
    """Return a whole page that loads nothing from elsewhere. `body` and `footer` are HTML, `title` is text."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,"><style>{STYLE_SHEET}</style></head><body>'
        + "\n".join(body)
        + f"<footer>{footer}</footer></body></html>\n"
    )


def render_cards(cards: Iterable[tuple[str, str, Mood]]) -> str:
    """Return a row of cards, each with a number, its meaning, and a mood, which colours its border."""
    rendered = "".join(
        f'<div class="{f"card {mood}".strip()}"><b>{escape(number)}</b><span>{escape(meaning)}</span></div>'
        for number, meaning, mood in cards
    )
    return f'<div class="cards">{rendered}</div>'


def format_time(at_ms: float) -> str:
    """Return a time (ms since 1970) as pages show it, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
