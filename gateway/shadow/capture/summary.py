"""Contents of capture files, and plans and results of replays, as JSON values and as text."""

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from codec.capture import CaptureRecord, Damage
from codec.command import decode_frame
from codec.errors import FrameError
from codec.java_numbers import parse_java_integer
from gateway.shadow.capture.reader import CaptureFileReader
from gateway.shadow.capture.replay import Replay
from gateway.shadow.capture.replay_plan import ReplayPlan, count_by_code
from remoting import requests  # noqa: F401 - declares them all
from remoting.declare import REQUESTS

_MAX_TOPICS_SHOWN = 20
ASSUMED_ANSWER_S = 0.001
"""Assumed latency of an answer when the duration of a replay is estimated."""


def format_time(time_ms: int) -> str:
    """Return a time in UTC with milliseconds, as ``--from`` and ``--until`` accept it; out of range: the number."""
    try:
        moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def parse_time_ms(text: str) -> int:
    """Parse the output of `format_time`, ms since 1970, or a time without zone (UTC). Raises ValueError."""
    if text.isdecimal():
        return parse_java_integer(text)
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def format_code(code: int) -> str:
    """Return number and name of a request code."""
    declared = REQUESTS.get(code)
    return f"{code} {declared.NAME}" if declared is not None else f"{code} unknown"


def summarize_file(file: CaptureFileReader) -> dict[str, Any]:
    """Return a file's writer, times, counts and damage as a JSON object."""
    codes: Counter[int] = Counter()
    topics: Counter[str] = Counter()
    blocks, low, high = 0, None, None
    damage = []
    for block_or_damage in file.read_blocks():
        if isinstance(block_or_damage, Damage):
            damage.append(block_or_damage._asdict())
            continue
        block, records = block_or_damage
        blocks += 1
        low = block.min_ms if low is None else min(low, block.min_ms)
        high = block.max_ms if high is None else max(high, block.max_ms)
        codes.update(record.code for record in records)
        topics.update(record.topic for record in records)
    return {
        "file": file.path,
        "bytes": file.size_bytes,
        "gateway": file.header.gateway if file.header else None,
        "created": format_time(file.header.created_ms) if file.header else None,
        "closed": file.has_index,
        "blocks": blocks,
        "records": codes.total(),
        "first": None if low is None else format_time(low),
        "last": None if high is None else format_time(high),
        "codes": {format_code(code): count for code, count in codes.most_common()},
        "topics": dict(topics.most_common()),
        "damage": damage,
    }


def format_file_summary(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a file's summary."""
    state = "closed" if facts["closed"] else "not closed: still being written, or the gateway was killed"
    yield f"{facts['file']}: {facts['bytes']:,} bytes, {state}"
    yield f"  written by {facts['gateway']} from {facts['created']}"
    yield f"  {facts['records']:,} exchanges in {facts['blocks']:,} blocks, {facts['first']} to {facts['last']}"
    for name, count in facts["codes"].items():
        yield f"  {count:>12,}  {name}"
    for name, count in list(facts["topics"].items())[:_MAX_TOPICS_SHOWN]:
        yield f"  {count:>12,}  {'topic ' + name if name else 'without topic'}"
    if len(facts["topics"]) > _MAX_TOPICS_SHOWN:
        yield f"  and {len(facts['topics']) - _MAX_TOPICS_SHOWN:,} more topics"
    for damage in facts["damage"]:
        yield f"  damage at byte {damage['position']:,}, {damage['size']:,} bytes: {damage['reason']}"


def record_to_json(record: CaptureRecord, *, bodies: bool) -> dict[str, Any]:
    """Return one record as a JSON object, bodies as base64 if wanted."""
    facts: dict[str, Any] = {
        "time": format_time(record.wall_ms),
        "code": record.code,
        "name": REQUESTS[record.code].NAME if record.code in REQUESTS else None,
        "topic": record.topic,
        "group": record.group,
        "client": record.client,
        "connection": record.connection,
        "broker": record.broker,
        "upstream": record.upstream,
        "reverse": record.reverse,
        "side": "target" if record.by_target else "primary",
        "redacted": record.redacted,
        "forwarded_us": record.forwarded_us,
        "answered_us": record.answered_us,
        "request": _command_to_json(record.request, bodies),
        "answer": None if record.answer is None else _command_to_json(record.answer, bodies),
    }
    if record.fate:
        target = None if record.target is None else _command_to_json(record.target, bodies)
        facts["mirror"] = {"outcome": record.fate, "us": record.target_us, "answer": target}
    return facts


def _command_to_json(frame: bytes, bodies: bool) -> dict[str, Any]:
    try:
        command = decode_frame(frame, 4, len(frame))
    except FrameError as error:
        return {"unreadable": str(error), "bytes": len(frame)}
    facts: dict[str, Any] = {
        "code": command.code,
        "opaque": command.opaque,
        "flag": command.flag,
        "language": command.language,
        "remark": command.remark,
        "fields": command.ext,
        "body_bytes": len(command.body),
    }
    if bodies and command.body:
        facts["body"] = base64.b64encode(bytes(command.body)).decode()
    return facts


def format_plan(plan: ReplayPlan, speed: float | None) -> Iterator[str]:
    """Yield the lines that describe a planned replay."""
    codes = count_by_code(plan.steps)
    for code, count in codes.most_common():
        yield f"{count:>12,}  {format_code(code)}, {plan.bytes_by_code[code]:,} bytes"
    yield from _format_skipped(plan.skipped)
    yield from format_damage(plan)
    yield f"{codes.total():,} requests, {plan.bytes_by_code.total():,} bytes, {len(plan.queue_counts):,} topics"
    if not plan.steps:
        return
    first, last = plan.steps[0].wall_ms, plan.steps[-1].wall_ms
    yield f"captured from {format_time(first)} to {format_time(last)}"
    yield f"about {estimate_duration_s(plan, speed):,.1f} s{'' if speed else ' where an answer takes a millisecond'}"


def estimate_duration_s(plan: ReplayPlan, speed: float | None) -> float:
    """Estimate the duration of a replay: from the speed, or from the longest chain of dependent steps."""
    if speed is not None:
        return plan.duration_s / speed
    depth: list[int] = []
    for step in plan.steps:
        depth.append(1 + max((depth[dependency] for dependency in step.after_answers), default=0))
    return max(depth, default=0) * ASSUMED_ANSWER_S


def format_damage(plan: ReplayPlan) -> Iterator[str]:
    """Yield a line for each damaged part of the files."""
    for path, damage in plan.damage:
        yield f"{path}: damage at byte {damage.position:,}, {damage.size:,} bytes: {damage.reason}"


def format_results(replay: Replay) -> Iterator[str]:
    """Yield the lines that describe the results of a replay."""
    results = replay.results
    refused: Counter[int] = Counter()
    for (code, _), count in results.refused.items():
        refused[code] += count
    for code, sent in results.sent.most_common():
        ok = results.ok[code]
        yield f"{format_code(code)}: {sent:,} sent, {ok:,} ok, {refused[code]:,} refused"
    for (code, reason), count in results.refused.most_common():
        yield f"{count:>12,}  refused  {format_code(code)}: {reason}"
    yield from _format_skipped(results.skipped)


def _format_skipped(skipped: Counter[tuple[int, str]]) -> Iterator[str]:
    for (code, reason), count in skipped.most_common():
        yield f"{count:>12,}  skipped  {format_code(code)}: {reason}"


def results_to_json(replay: Replay) -> dict[str, Any]:
    """Return the results of a replay as a JSON object."""
    results = replay.results
    resume = replay.find_resume_point()
    return {
        "steps": replay.step_count,
        "finished": replay.finished_count,
        "sent": _counts_by_code(results.sent.items()),
        "ok": _counts_by_code(results.ok.items()),
        "refused": _reasons_to_json(results.refused),
        "skipped": _reasons_to_json(results.skipped),
        "failure": replay.failure or None,
        "resume_from": None if resume is None else format_time(resume[0]),
    }


def _counts_by_code(counts: Iterable[tuple[int, int]]) -> dict[str, int]:
    return {str(code): count for code, count in counts}


def _reasons_to_json(counts: Counter[tuple[int, str]]) -> list[dict[str, Any]]:
    return [{"code": code, "reason": reason, "count": count} for (code, reason), count in counts.items()]
