"""The verdict of a run at the top of the report: healthy or not, with each reason in a sentence."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from gateway.shadow.report.snapshot import named_metrics
from toolkit.html_tables import format_number

Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """`reasons` name the failures; a healthy run has none. `notes` name checks that were not made."""

    title: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]


def describe_clusters(configuration: Mapping[str, Any]) -> list[str]:
    """Return the names of primary and target, by the addresses of their namesrvs."""
    descriptions = [
        f"primary {', '.join(configuration.get('primary', {}).get('namesrv', ())) or 'not named'}"
    ]
    target = configuration.get("target", {})
    if target.get("namesrv"):
        kind = "brokers of this project" if target.get("kind") == "ours" else "any RocketMQ cluster"
        descriptions.append(f"target {', '.join(target['namesrv'])} ({kind})")
    return descriptions


def judge_run(report: Report) -> RunVerdict:
    """Return the verdict of a report."""
    reasons, notes = tuple(_reasons(report)), tuple(_notes(report))
    if reasons:
        title = f"Not healthy: {len(reasons)} {'reason' if len(reasons) == 1 else 'reasons'}"
    else:
        title = "Healthy: nothing failed, and nothing was lost on the way to the target"
    return RunVerdict(title, reasons, notes)


def _reasons(report: Report) -> Iterator[str]:
    sections = report["sections"]
    problems = sections.get("problems")
    for problem in problems if isinstance(problems, list) else ():
        yield f"{problem['part']}: {problem['problem']}"
    metrics = named_metrics(report)
    for name, text in (
        ("mirror_dropped", "requests were dropped on the way to the target"),
        ("mirror_refused", "requests were refused by the target"),
        ("mirror.diverged_queues", "queues of the target lack messages"),
        ("differing", "answers of the two clusters differ"),
    ):
        # Totals over time are NaN while nothing was counted; the section of a part has the number as well.
        count = max(metrics.get(name, 0), metrics.get(f"compare.{name}", 0))
        if count > 0:
            yield f"{format_number(round(count))} {text}"
    parity = sections.get("parity") or {}
    wrong = [f"{parity[name]} {name.replace('_', ' ')}" for name in PARITY_COUNTS if parity.get(name)]
    if wrong:
        yield f"parity: {', '.join(wrong)}"


PARITY_COUNTS = ("missing", "extra", "duplicated", "order_broken", "changed", "problems")


def _notes(report: Report) -> Iterator[str]:
    parity = report["sections"].get("parity") or {}
    if report["configuration"].get("target", {}).get("namesrv"):
        if not parity:
            yield "Parity was not checked."
        elif parity.get("empty"):
            yield "The parity check compared no message."
    elif "target" in report["configuration"]:
        yield "There is no target: the gateway only forwards."


def render_verdict(verdict: RunVerdict) -> str:
    """Return the verdict as HTML."""
    mood = "bad" if verdict.reasons else "good"
    items = "".join(f"<li>{escape(reason)}</li>" for reason in verdict.reasons)
    notes = "".join(f'<p class="about">{escape(note)}</p>' for note in verdict.notes)
    listed = f"<ul>{items}</ul>" if items else ""
    return f'<section class="verdict {mood}"><b>{escape(verdict.title)}</b>{listed}{notes}</section>'
