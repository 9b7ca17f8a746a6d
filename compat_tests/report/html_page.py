"""Renders a comparison as one HTML page that needs no other file."""

from collections import Counter
from collections.abc import Iterable
from html import escape
from typing import Final

from compat_tests.areas import AREAS
from compat_tests.report.clients import client_of, order_clients
from compat_tests.report.comparison import (
    BETTER,
    DEVIATES,
    NOT_RECORDED,
    NOT_RUN,
    SAME,
    ComparedCase,
    EndpointComparison,
)
from toolkit.html_tables import NO_VALUE, render_table
from toolkit.pages import Mood, render_cards, render_document

VERDICTS: Final = (SAME, DEVIATES, BETTER, NOT_RUN, NOT_RECORDED)
_WORST_FIRST: Final = (DEVIATES, BETTER, SAME, NOT_RECORDED, NOT_RUN)


def render_page(comparison: EndpointComparison, when: str) -> str:
    """Return the page: a verdict, the areas, deviations with reasons, stock clients, and every feature of each area.

    ``when`` is the time of the run as people read it.
    """
    counts = comparison.counts
    cards: list[tuple[str, str, Mood]] = [
        (str(counts[SAME]), "cases behave the same", "good" if counts[SAME] else ""),
        (str(counts[DEVIATES]), "deviate", "bad" if counts[DEVIATES] else ""),
        (str(counts[BETTER]), "pass where the reference does not", ""),
        (str(counts[NOT_RUN]), "were not run on both", ""),
    ]
    if counts[NOT_RECORDED]:
        cards.append((str(counts[NOT_RECORDED]), "are not recorded", ""))
    body = [
        f"<h1>Compatibility of {escape(comparison.endpoint)}</h1>",
        f'<p class="about">Compared with {escape(comparison.reference)}, case by case.</p>',
        _verdict(comparison),
        render_cards(cards),
        "<h2>Areas</h2>",
        render_table(("area", *VERDICTS), _area_rows(comparison)),
    ]
    if deviations := comparison.deviations:
        rows = [(case.feature, case.reason or case.outcome, case.id) for case in deviations]
        body += [
            "<h2>Deviations</h2>",
            render_table(("feature", "what happened", "case"), rows, max_rows=None),
        ]
    body += _clients(comparison)
    for area, title in AREAS.items():
        rows_of_area = list(comparison.features(area))
        if rows_of_area:
            headings = ("feature", comparison.endpoint, comparison.reference, "verdict")
            features = [_feature_row(feature, cases) for feature, cases in rows_of_area]
            bad = [row[-1].startswith(DEVIATES) for row in features]
            body += [
                f"<h2>{escape(title)}</h2>",
                render_table(headings, features, max_rows=None, bad_rows=bad),
            ]
    return render_document(
        f"Compatibility of {comparison.endpoint}", body, f"rmq-gateway compat, {escape(when)}"
    )


def verdict_text(comparison: EndpointComparison) -> str:
    """Return the verdict in one sentence."""
    counts = comparison.counts
    compared = comparison.compared
    if not compared:
        return "Nothing was compared."
    text = f"{counts[SAME]} of {compared} cases behave as on {comparison.reference}"
    if counts[BETTER]:
        text += f", {counts[BETTER]} better"
    text += f", {counts[DEVIATES]} deviate" if counts[DEVIATES] else ", none deviates"
    if counts[NOT_RUN]:
        text += f"; {counts[NOT_RUN]} were not run on both"
    if counts[NOT_RECORDED]:
        text += f"; {counts[NOT_RECORDED]} are not recorded of {comparison.reference}"
    return f"{text}."


def _verdict(comparison: EndpointComparison) -> str:
    counts = comparison.counts
    mood = "good" if not counts[DEVIATES] and counts[SAME] + counts[BETTER] else "bad"
    return f'<section class="verdict {mood}"><b>{escape(verdict_text(comparison))}</b></section>'


def _area_rows(comparison: EndpointComparison) -> list[tuple[str | int, ...]]:
    rows: list[tuple[str | int, ...]] = []
    for area, title in AREAS.items():
        counts = Counter(case.verdict for case in comparison.cases if case.area == area)
        if counts:
            rows.append((title, *(counts[verdict] for verdict in VERDICTS)))
    return rows


def _clients(comparison: EndpointComparison) -> list[str]:
    """Return the table of what stock clients show: a row for each feature, a column for each client."""
    table: dict[str, dict[str, list[ComparedCase]]] = {}
    for case in comparison.cases:
        if (client_feature := client_of(case)) is not None:
            client, feature = client_feature
            table.setdefault(feature, {}).setdefault(client, []).append(case)
    if not table:
        return []
    clients = order_clients({client for cells in table.values() for client in cells})
    rows = [
        (feature, *(_verdict_cell(cells.get(client, [])) for client in clients))
        for feature, cells in sorted(table.items())
    ]
    bad = [any(cell.startswith(DEVIATES) for cell in row[1:]) for row in rows]
    headings = ("feature", *clients)
    return ["<h2>Stock clients</h2>", render_table(headings, rows, max_rows=None, bad_rows=bad)]


def _verdict_cell(cases: list[ComparedCase]) -> str:
    """Return the worst verdict of some cases, with their number if not all of them have it; a dash for none."""
    if not cases:
        return NO_VALUE
    worst = next(verdict for verdict in _WORST_FIRST if any(case.verdict == verdict for case in cases))
    number = sum(case.verdict == worst for case in cases)
    return worst + (f" ({number} of {len(cases)})" if number < len(cases) else "")


def _feature_row(feature: str, cases: list[ComparedCase]) -> tuple[str, str, str, str]:
    outcomes = _list_outcomes(case.outcome for case in cases)
    expected = _list_outcomes(case.expected for case in cases)
    return feature, outcomes, expected, _verdict_cell(cases)


def _list_outcomes(outcomes: Iterable[str]) -> str:
    counts = Counter(outcomes)
    return ", ".join(
        name if len(counts) == 1 else f"{name} {number}" for name, number in counts.most_common()
    )
