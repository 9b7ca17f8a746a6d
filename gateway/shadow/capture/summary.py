"""What capture files hold and what a replay did, as values and as text for people.

Not responsible for reading options or printing.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from codec.capture import Damage, Record
from codec.command import Command, decode_frame
from codec.errors import FrameError
from gateway.shadow.capture.reader import CaptureFile
from gateway.shadow.capture.replay import Replay
from gateway.shadow.capture.replay_plan import Plan, counted
from remoting import requests  # noqa: F401 - declares them all
from remoting.declare import REQUESTS

_TOPICS_SHOWN = 20
ANSWER_S = 0.001
"""What an answer is taken to need where a replay's length is estimated."""


def time_text(time_ms: int) -> str:
    """UTC, to the millisecond: what ``--from`` and ``--until`` take. Times beyond a calendar stay numbers."""
    try:
        moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def time_ms(text: str) -> int:
    """The reverse; ms since 1970 and times without zone (UTC) are taken too. Raises ValueError."""
    if text.isdecimal():
        return int(text)
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def code_name(code: int) -> str:
    """Number and name of a request code."""
    declared = REQUESTS.get(code)
    return f"{code} {declared.NAME}" if declared is not None else f"{code} unknown"


def file_facts(file: CaptureFile) -> dict[str, Any]:
    """One file: who wrote it and when, what is in it, what is damaged."""
    codes: Counter[int] = Counter()
    topics: Counter[str] = Counter()
    blocks, low, high = 0, None, None
    damage = []
    for found in file.blocks():
        if isinstance(found, Damage):
            damage.append(found._asdict())
            continue
        block, records = found
        blocks += 1
        low = block.min_ms if low is None else min(low, block.min_ms)
        high = block.max_ms if high is None else max(high, block.max_ms)
        codes.update(record.code for record in records)
        topics.update(record.topic for record in records)
    return {
        "file": file.path,
        "bytes": file.size,
        "gateway": file.header.gateway if file.header else None,
        "created": time_text(file.header.created_ms) if file.header else None,
        "closed": file.closed,
        "blocks": blocks,
        "records": codes.total(),
        "first": None if low is None else time_text(low),
        "last": None if high is None else time_text(high),
        "codes": {code_name(code): count for code, count in codes.most_common()},
        "topics": dict(topics.most_common()),
        "damage": damage,
    }


def facts_text(facts: Mapping[str, Any]) -> Iterator[str]:
    """The same for people, line by line."""
    state = "closed" if facts["closed"] else "not closed: being written, or its gateway was killed"
    yield f"{facts['file']}: {facts['bytes']:,} bytes, {state}"
    yield f"  written by {facts['gateway']} from {facts['created']}"
    yield f"  {facts['records']:,} exchanges in {facts['blocks']:,} blocks, {facts['first']} to {facts['last']}"
    for name, count in facts["codes"].items():
        yield f"  {count:>12,}  {name}"
    for name, count in list(facts["topics"].items())[:_TOPICS_SHOWN]:
        yield f"  {count:>12,}  {'topic ' + name if name else 'about no topic'}"
    if len(facts["topics"]) > _TOPICS_SHOWN:
        yield f"  and {len(facts['topics']) - _TOPICS_SHOWN:,} topics more"
    for each in facts["damage"]:
        yield f"  damage at byte {each['position']:,}, {each['size']:,} bytes: {each['reason']}"


def record_facts(record: Record, *, bodies: bool) -> dict[str, Any]:
    """One record for a line of JSON; bodies as base64, if at all."""
    facts: dict[str, Any] = {
        "time": time_text(record.wall_ms),
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
        "request": _command_facts(record.request, bodies),
        "answer": None if record.answer is None else _command_facts(record.answer, bodies),
    }
    if record.fate:
        target = None if record.target is None else _command_facts(record.target, bodies)
        facts["mirror"] = {"fate": record.fate, "us": record.target_us, "answer": target}
    return facts


def _command_facts(frame: bytes, bodies: bool) -> dict[str, Any]:
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
        facts["body"] = base64.b64encode(_bytes(command)).decode()
    return facts


def _bytes(command: Command) -> bytes:
    return bytes(command.body)


def plan_text(plan: Plan, speed: float | None) -> Iterator[str]:
    """What a replay would do."""
    codes = counted(plan.steps)
    for code, count in codes.most_common():
        yield f"{count:>12,}  {code_name(code)}, {plan.bytes_by_code[code]:,} bytes"
    yield from _skipped_text(plan.skipped)
    yield from damage_text(plan)
    yield f"{codes.total():,} requests, {plan.bytes_by_code.total():,} bytes, {len(plan.queues):,} topics"
    if not plan.steps:
        return
    first, last = plan.steps[0].wall_ms, plan.steps[-1].wall_ms
    yield f"captured from {time_text(first)} to {time_text(last)}"
    yield f"about {estimated_s(plan, speed):,.1f} s{'' if speed else ' where an answer takes a millisecond'}"


def estimated_s(plan: Plan, speed: float | None) -> float:
    """How long a replay takes: what the speed says, or the longest row of steps that wait for each other."""
    if speed is not None:
        return plan.span_s / speed
    depth: list[int] = []
    for step in plan.steps:
        depth.append(1 + max((depth[each] for each in step.after), default=0))
    return max(depth, default=0) * ANSWER_S


def damage_text(plan: Plan) -> Iterator[str]:
    """What of the files could not be read."""
    for path, each in plan.damage:
        yield f"{path}: damage at byte {each.position:,}, {each.size:,} bytes: {each.reason}"


def results_text(replay: Replay) -> Iterator[str]:
    """What a replay did."""
    results = replay.results
    refused: Counter[int] = Counter()
    for (code, _), count in results.refused.items():
        refused[code] += count
    for code, sent in results.sent.most_common():
        ok = results.ok[code]
        yield f"{code_name(code)}: {sent:,} sent, {ok:,} ok, {refused[code]:,} refused"
    for (code, reason), count in results.refused.most_common():
        yield f"{count:>12,}  refused  {code_name(code)}: {reason}"
    yield from _skipped_text(results.skipped)


def _skipped_text(skipped: Counter[tuple[int, str]]) -> Iterator[str]:
    for (code, reason), count in skipped.most_common():
        yield f"{count:>12,}  left out  {code_name(code)}: {reason}"


def results_facts(replay: Replay) -> dict[str, Any]:
    """The same as values."""
    results = replay.results
    resume = replay.resume()
    return {
        "steps": replay.total,
        "finished": replay.finished,
        "sent": _by_code(results.sent.items()),
        "ok": _by_code(results.ok.items()),
        "refused": _with_reasons(results.refused),
        "skipped": _with_reasons(results.skipped),
        "failure": replay.failure or None,
        "go_on_from": None if resume is None else time_text(resume[0]),
    }


def _by_code(counts: Iterable[tuple[int, int]]) -> dict[str, int]:
    return {str(code): count for code, count in counts}


def _with_reasons(counts: Counter[tuple[int, str]]) -> list[dict[str, Any]]:
    return [{"code": code, "reason": reason, "count": count} for (code, reason), count in counts.items()]
