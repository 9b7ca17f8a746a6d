"""The page's style sheet: light and dark, for screens and paper."""

CSS = """
:root { color-scheme: light dark;
  --paper: #ffffff; --card: #f6f7f9; --ink: #1b2230; --faint: #5c6675; --grid: #dfe3e8; --good: #0f7b4f; --bad: #c22a2a;
  --hue-0: #2563eb; --hue-1: #c77700; --hue-2: #0b8a5c; --hue-3: #d43737; --hue-4: #7c3aed; --hue-5: #0e8fa8;
  --hue-6: #c02d7c; --hue-7: #7a8594; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12161c; --card: #1b2129; --ink: #e7eaef; --faint: #9ba6b5; --grid: #303843; --good: #4cc38a; --bad: #ff7b72;
  --hue-0: #6ea8fe; --hue-1: #f0a93b; --hue-2: #46c796; --hue-3: #ff7b72; --hue-4: #b794f6; --hue-5: #4fc3dc;
  --hue-6: #f27bb8; --hue-7: #8b96a5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: 0; line-height: 1.25; }
h2 { font-size: 1.25rem; margin: 2.25rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--grid); }
p { margin: .3rem 0; max-width: 60rem; }
.about, .none, figcaption, footer { color: var(--faint); font-size: .87rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1.25rem 0; }
.card { background: var(--card); border-radius: .5rem; padding: .6rem .8rem; border-left: 3px solid var(--grid); }
.card.good { border-left-color: var(--good); } .card.bad { border-left-color: var(--bad); }
.card b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.card span { font-size: .8rem; color: var(--faint); display: block; line-height: 1.35; }
figure { margin: .75rem 0; } figure svg { width: 100%; height: auto; display: block; margin-bottom: .5rem; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 1.5rem; align-items: start; }
svg text { font-family: inherit; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .26rem 1.4rem .26rem 0; border-bottom: 1px solid var(--grid); vertical-align: top;
  font-weight: 400; }
td { overflow-wrap: anywhere; min-width: 3rem; }
td.n, th.n { text-align: right; white-space: nowrap; overflow-wrap: normal; }
thead th { color: var(--faint); font-weight: 600; font-size: .78rem; vertical-align: bottom; }
footer { margin-top: 2.5rem; }
@media (max-width: 52rem) { .pair { grid-template-columns: minmax(0, 1fr); } figure svg { min-width: 30rem; }
  figure { overflow-x: auto; } body { padding: 1rem .8rem 3rem; } }
@media print { body { max-width: none; } figure, .card, tr { break-inside: avoid; } }
"""
