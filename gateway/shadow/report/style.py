"""The report's style sheet: one text, light and dark, for screens and paper."""

from typing import Final

from rocketmq_pages import style_sheet

CSS: Final = style_sheet("""
body { padding: 1.5rem 1.25rem 4rem; max-width: 76rem; }
h2 { margin: 2.75rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
h4 { font-size: .9rem; margin: 1rem 0 .3rem; color: var(--faint); font-weight: 600; }
.more { color: var(--faint); font-size: .87rem; }
nav { margin: 1rem 0 0; font-size: .87rem; display: flex; flex-wrap: wrap; gap: .2rem 1rem; }
a { color: var(--hue-0); text-decoration: none; } a:hover { text-decoration: underline; }
.card b { font-weight: 650; }
figure { margin: .75rem 0 1.25rem; display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 23rem);
  gap: 1rem 1.5rem; align-items: start; }
figure.wide { grid-template-columns: minmax(0, 1fr); }
figcaption { grid-column: 1 / -1; }
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
@media (max-width: 52rem) { figure { grid-template-columns: minmax(0, 1fr); } figure .picture { overflow-x: auto; }
  figure svg { min-width: 34rem; } figure.wide svg { min-width: 50rem; } }
@media print { nav { display: none; } }
""")
