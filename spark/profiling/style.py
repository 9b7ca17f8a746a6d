"""The page's style sheet: light and dark, for screens and paper."""

from typing import Final

from rocketmq_pages import style_sheet

CSS: Final = style_sheet("""
body { padding: 1.5rem 1.25rem 3rem; max-width: 72rem; }
h2 { margin: 2.25rem 0 .5rem; }
figure { margin: .75rem 0; } figure svg { margin-bottom: .5rem; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 1.5rem; align-items: start; }
td { overflow-wrap: anywhere; min-width: 3rem; }
footer { margin-top: 2.5rem; color: var(--faint); font-size: .87rem; }
@media (max-width: 52rem) { .pair { grid-template-columns: minmax(0, 1fr); } figure svg { min-width: 30rem; }
  figure { overflow-x: auto; } }
""")
