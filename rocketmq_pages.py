"""What pages of the gateway and of Spark pipelines have in common: colours, a style sheet, plots as inline SVG.

It imports nothing of the project: packages that know nothing of each other use it. Not responsible for what a page
shows, nor for drawing its plots, which matplotlib does where it is installed.
"""

import io
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

ROUND_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Times that are easily read, seconds: between two ticks of an axis, or what a point stands for."""
HUES: Final = tuple(f"#01010{index}" for index in range(8))
"""Stand-ins that matplotlib is given for the colours a page declares as `--hue-0`, …; `inline` puts those there."""
INK, FAINT, GRID, PAPER = "#020201", "#020202", "#020203", "#020204"
"""Stand-ins for `--ink`, `--faint`, `--grid` and `--paper`."""
_STAND_INS: Final = {
    **{hue: f"var(--hue-{index})" for index, hue in enumerate(HUES)},
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    GRID: "var(--grid)",
    PAPER: "var(--paper)",
}
PLOT_STYLE: Final[Mapping[str, Any]] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 8.5,
    "axes.edgecolor": GRID,
    "axes.labelcolor": FAINT,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": GRID,
    "xtick.labelcolor": FAINT,
    "ytick.color": GRID,
    "ytick.labelcolor": FAINT,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.4,
}
"""Settings of matplotlib. A page adds `svg.hashsalt`, which ids in its plots are made from."""
_BASE: Final = """
:root { color-scheme: light dark;
  --paper: #ffffff; --card: #f6f7f9; --ink: #1b2230; --faint: #5c6675; --grid: #dfe3e8; --good: #0f7b4f; --bad: #c22a2a;
  --hue-0: #2563eb; --hue-1: #c77700; --hue-2: #0b8a5c; --hue-3: #d43737; --hue-4: #7c3aed; --hue-5: #0e8fa8;
  --hue-6: #c02d7c; --hue-7: #7a8594; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12161c; --card: #1b2129; --ink: #e7eaef; --faint: #9ba6b5; --grid: #303843; --good: #4cc38a; --bad: #ff7b72;
  --hue-0: #6ea8fe; --hue-1: #f0a93b; --hue-2: #46c796; --hue-3: #ff7b72; --hue-4: #b794f6; --hue-5: #4fc3dc;
  --hue-6: #f27bb8; --hue-7: #8b96a5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: 0; line-height: 1.25; }
h2 { font-size: 1.25rem; padding-top: .75rem; border-top: 1px solid var(--grid); }
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
"""
_SMALL_AND_PRINTED: Final = """
@media (max-width: 52rem) { body { padding: 1rem .8rem 3rem; } }
@media print { body { max-width: none; } figure, .card, tr { break-inside: avoid; } }
"""


def style_sheet(own: str) -> str:
    """What all pages have, then a page's own rules, then what goes before both on paper and on small screens."""
    return _BASE + own.strip() + _SMALL_AND_PRINTED


def document(title: str, style: str, body: Sequence[str], footer: str) -> str:
    """A whole page that needs nothing from elsewhere. `body` and `footer` are HTML, `title` is text."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,"><style>{style}</style></head><body>'
        + "\n".join(body)
        + f"<footer>{footer}</footer></body></html>\n"
    )


def moment(at_ms: float) -> str:
    """A time (ms since 1970) as pages show it, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def short(value: float, _position: Any = None) -> str:
    """A number for a plot: 0.05, 12, 3.5k, 2M. matplotlib passes the position of a tick as well."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def time_format(lasted_s: float) -> str:
    """How ticks of a time axis of that length are written, for `strftime`."""
    return "%H:%M:%S" if lasted_s < 20 * 60 else ("%H:%M" if lasted_s < 20 * 3600 else "%d %b %H:%M")


def svg_of(figure: Any) -> str:
    """A figure of matplotlib as an SVG document that is the same each time."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    return out.getvalue()


def inline(svg: str, name: str, attributes: str, content: str = "") -> str:
    """An SVG document as an element of a page, in its colours, whose ids begin with `name`.

    `attributes` are the element's, and `content` is what it begins with: both say what is seen, to be read aloud.
    """
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.S)
    for stand_in, variable in _STAND_INS.items():
        svg = svg.replace(stand_in, variable)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    box = re.search(r'viewBox="[^"]*"', svg)
    head = f'<svg {box[0] if box else ""} role="img" {attributes}>{content}'
    return head + svg[svg.index(">") + 1 :].replace("xlink:href", "href").strip()
