"""The pipeline `readiness`: judge from the results of `reconcile` and `profile` whether topics can move to the target.

The verdict is READY (exit code 0), NOT READY (3) or UNKNOWN (4), for each topic and for all of them, with reasons.
Both JSON formats are described in docs/how-to/spark/reconcile.md and docs/how-to/spark/readiness.md.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from spark.errors import OptionError
from spark.options import Option, integer, names, text
from spark.pipelines.job import Job, Pipeline, Section, Summary
from spark.reconciling.result import KIND, VERSION, iso_time
from toolkit.exit_codes import ExitCode
from toolkit.values import Number

READY, NOT_READY, UNKNOWN = "READY", "NOT READY", "UNKNOWN"
EXIT_CODES: Final = {READY: ExitCode.DONE, NOT_READY: ExitCode.REFUSED, UNKNOWN: ExitCode.NOTHING}
PROFILE: Final = "profile"
PROFILE_FORMAT: Final = 1
ALL_TRAFFIC: Final = "(all traffic)"
"""Name under which findings of `profile` about all topics together are listed among the topics."""


_share: Final = Number(0, 1)
COUNTED: Final = {
    "missing": "missing at the target",
    "extra": "at the target only",
    "duplicated": "more often at the target than at the primary",
    "reordered": "out of order at the target",
    "misplaced": "in another queue or at another offset",
    "changedBody": "with another body",
    "changedProperties": "with other properties",
    "changedHeader": "with another flag, born time or number of retries",
}
"""Counts of `reconcile`, each with its own limit, and their descriptions."""
SHARES: Final = {
    "lateShare": ("late", "primary", "late at the target"),
    "refusedShare": ("mirrorRefused", "sends", "refused by the target"),
    "droppedShare": ("mirrorDropped", "sends", "dropped by the mirror"),
    "retryShare": ("retries", "messages", "retries"),
    "deadLetterShare": ("deadLetters", "messages", "dead letters"),
}
"""Shares: option, count, total, description."""

READINESS: Final = (
    Option("reconcile", text, None, "JSON file of `reconcile`."),
    Option("profile", text, None, "JSON file of `profile`. Default: only content is judged."),
    Option("topics", names, (), "Topics that must be ready. Default: those that `reconcile` found."),
    Option("json", text, None, "File for the verdict as JSON."),
    Option(
        "maxAgeS",
        integer(1),
        86_400,
        "Maximum age of the results, s; with older results a verdict is UNKNOWN.",
    ),
    Option(
        "minMessages", integer(1), 1, "Minimum number of compared messages; a topic with fewer is UNKNOWN."
    ),
    *(
        Option(f"{name}Max", integer(0), 0, f"Maximum number of messages that may be {description}.")
        for name, description in COUNTED.items()
    ),
    Option("lateShareMax", _share, 0.001, "Maximum share of messages that may be late at the target."),
    Option("refusedShareMax", _share, 0.0, "Maximum share of sends that the target may have refused."),
    Option("droppedShareMax", _share, 0.0, "Maximum share of sends that the mirror may have dropped."),
    Option("retryShareMax", _share, None, "Maximum share of retries among messages. Default: not judged."),
    Option(
        "deadLetterShareMax",
        _share,
        None,
        "Maximum share of dead letters among messages. Default: not judged.",
    ),
    Option(
        "targetP99MsMax",
        Number(0),
        None,
        "Maximum latency of sends at the target (p99), ms. Default: not judged.",
    ),
    Option(
        "slowerMax",
        Number(0),
        None,
        "Maximum ratio of the target's latency of sends to the primary's (p99). Default: not judged.",
    ),
)


@dataclass(slots=True)
class TopicVerdict:
    """One topic's verdict: failures, unknowns, and notes."""

    name: str
    failures: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """READY, NOT READY or UNKNOWN; a failure outweighs an unknown."""
        return NOT_READY if self.failures else UNKNOWN if self.unknown else READY

    @property
    def all_reasons(self) -> list[str]:
        """Reasons, the weightiest first."""
        return [*self.failures, *self.unknown, *self.notes]


def overall_verdict(topics: Iterable[TopicVerdict]) -> str:
    """Return the worst verdict, UNKNOWN if there is nothing to judge."""
    verdicts = {topic.verdict for topic in topics}
    if NOT_READY in verdicts:
        return NOT_READY
    return READY if verdicts == {READY} else UNKNOWN


def judge_topics(
    limits: Mapping[str, Any], reconcile: Mapping[str, Any], profile: Mapping[str, Any] | None, now_ms: int
) -> list[TopicVerdict]:
    """Return one verdict per topic. `limits` is the table `[readiness]`; `reconcile` and `profile` are results."""
    verdicts = []
    for name in limits["topics"] or sorted(reconcile["topics"]):
        topic = TopicVerdict(name)
        _judge_age(topic, limits, f"{KIND} ran at {reconcile['made']}", now_ms - _unix_ms(reconcile["made"]))
        _judge_content(topic, limits, reconcile)
        verdicts.append(topic)
    if profile is not None:
        traffic = TopicVerdict(ALL_TRAFFIC)
        newest_ms = max((profile.get(part) or {}).get("until_ms", 0) for part in ("messages", "exchanges"))
        _judge_age(
            traffic,
            limits,
            f"the newest traffic in {PROFILE} is from {iso_time(newest_ms)}",
            now_ms - newest_ms,
        )
        _judge_traffic(traffic, limits, profile)
        verdicts.append(traffic)
    return verdicts


def _judge_age(topic: TopicVerdict, limits: Mapping[str, Any], fact: str, age_ms: int) -> None:
    if age_ms > limits["maxAgeS"] * 1000:
        topic.unknown.append(f"{fact}, longer ago than {limits['maxAgeS']} s")


def _judge_content(topic: TopicVerdict, limits: Mapping[str, Any], reconcile: Mapping[str, Any]) -> None:
    counts = reconcile["topics"].get(topic.name)
    if counts is None:
        topic.unknown.append("reconcile found this topic on neither side")
        return
    for name, description in COUNTED.items():
        if counts[name] > limits[f"{name}Max"]:
            topic.failures.append(f"{counts[name]:,} {description} (at most {limits[f'{name}Max']:,})")
    if counts["primary"] < limits["minMessages"]:
        topic.unknown.append(
            f"{counts['primary']:,} messages were compared, at least {limits['minMessages']:,} are needed"
        )
    else:
        topic.notes.append(f"{counts['primary']:,} messages compared, {counts['same']:,} the same")
    if counts["unsettled"]:
        topic.notes.append(f"{counts['unsettled']:,} messages too new to be judged")
    if reconcile["lateAfterMs"] is None:
        topic.notes.append("lateness cannot be judged from these sides")
    else:
        _judge_share(topic, limits, counts, "lateShare")


def _judge_traffic(topic: TopicVerdict, limits: Mapping[str, Any], profile: Mapping[str, Any]) -> None:
    figures = profile_figures(profile)
    for name in SHARES:
        if name != "lateShare":
            _judge_share(topic, limits, figures, name)
    _judge_latency(topic, limits, figures)


def profile_figures(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the judged figures of a profile, None where it did not measure them."""
    messages, exchanges = profile.get("messages") or {}, profile.get("exchanges") or {}
    retries, sends, fates = (
        messages.get("retries") or {},
        exchanges.get("sends") or {},
        exchanges.get("fates"),
    )
    latency_us = sends.get("latency_us") or {}
    figures: dict[str, Any] = {"messages": messages.get("messages"), "sends": sends.get("count")}
    for name, key in (("retries", "retry"), ("deadLetters", "dead")):
        figures[name] = (retries.get(key) or {}).get("messages")
    for name, key in (("mirrorRefused", "refused"), ("mirrorDropped", "dropped")):
        figures[name] = None if fates is None else fates.get(key, 0)
    for side in ("primary", "target"):
        p99_us = (latency_us.get(side) or {}).get("p99")
        figures[f"{side}P99Ms"] = None if p99_us is None else p99_us / 1000
    return figures


def _judge_share(
    topic: TopicVerdict, limits: Mapping[str, Any], figures: Mapping[str, Any], name: str
) -> None:
    limit, (part, whole, description) = limits[f"{name}Max"], SHARES[name]
    if limit is None:
        return
    if figures.get(part) is None or figures.get(whole) is None:
        topic.notes.append(f"{part} is unknown")
    elif figures[part] > limit * figures[whole]:
        topic.failures.append(f"{figures[part]:,} of {figures[whole]:,} {description} (at most {limit:.4%})")


def _judge_latency(topic: TopicVerdict, limits: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    target, primary = figures.get("targetP99Ms"), figures.get("primaryP99Ms")
    limit, slower = limits["targetP99MsMax"], limits["slowerMax"]
    if limit is not None and target is None:
        topic.unknown.append("the target's latency of sends is unknown")
    elif limit is not None and target > limit:
        topic.failures.append(
            f"the target takes {target:g} ms for a send (p99), at most {limit:g} ms are allowed"
        )
    if slower is not None and (target is None or not primary):
        topic.unknown.append("the latencies of primary and target are unknown")
    elif slower is not None and target is not None and primary and target > slower * primary:
        topic.failures.append(
            f"the target takes {target / primary:.1f} times as long as the primary (at most {slower:g})"
        )


# -- files --------------------------------------------------------------------------------------------------------


def load_result(path: str, kind: str, required: Mapping[str, Any]) -> dict[str, Any]:
    """Load a result file. Raises OptionError unless it has the required values."""
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise OptionError(f"[readiness] {kind}: {path}: {error}") from error
    if not isinstance(content, dict) or any(content.get(key) != value for key, value in required.items()):
        expected = ", ".join(f"{key} {value}" for key, value in required.items())
        raise OptionError(f"[readiness] {kind}: {path} is not a result of {kind} ({expected})")
    return content


def _unix_ms(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def verdict_value(topics: list[TopicVerdict], now_ms: int) -> dict[str, Any]:
    """Return the JSON value of the verdict."""
    return {
        "kind": "readiness",
        "version": VERSION,
        "made": iso_time(now_ms),
        "verdict": overall_verdict(topics),
        "topics": {topic.name: {"verdict": topic.verdict, "reasons": topic.all_reasons} for topic in topics},
    }


def run(job: Job) -> Summary:
    """Read the files and judge."""
    return judge_files(job.config["readiness"], lambda: round(time.time() * 1000))


def judge_files(settings: Mapping[str, Any], clock_ms: Callable[[], int]) -> Summary:
    """Judge the files of the table `[readiness]`, write the JSON, return the summary. Raises OptionError."""
    if not settings["reconcile"]:
        raise OptionError("[readiness]: reconcile is required, the JSON file of that pipeline")
    reconcile = load_result(settings["reconcile"], KIND, {"kind": KIND, "version": VERSION})
    profile = None
    if settings["profile"]:
        profile = load_result(settings["profile"], PROFILE, {"format": PROFILE_FORMAT})
    now_ms = clock_ms()
    topics = judge_topics(settings, reconcile, profile, now_ms)
    value = verdict_value(topics, now_ms)
    if settings["json"]:
        Path(settings["json"]).write_text(json.dumps(value, indent=1) + "\n")
    rows = [[topic.name, topic.verdict, "; ".join(topic.all_reasons)] for topic in topics]
    counts = {verdict: sum(topic.verdict == verdict for topic in topics) for verdict in EXIT_CODES}
    figures = {
        "judged": f"up to {reconcile['until']}",
        **{verdict: count for verdict, count in counts.items() if count},
    }
    overall = overall_verdict(topics)
    return Summary(
        overall, figures, [Section("By topic", ["topic", "verdict", "reasons"], rows)], EXIT_CODES[overall]
    )


PIPELINE = Pipeline(
    "readiness",
    "Judge whether topics are ready for a cut-over: READY (exit code 0), NOT READY (3) or UNKNOWN (4), with reasons.",
    {"readiness": READINESS},
    run,
    on_spark=False,
)
