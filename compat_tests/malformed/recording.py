"""The recorded answers of the official servers, and the list of those that our server answers differently."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from compat_tests.malformed.exchange import ObservedAnswer

RECORDING: Final = Path(__file__).with_name("official_answers.json")
DEVIATIONS: Final = Path(__file__).with_name("deviations.toml")
_EXCEPTION = re.compile(r"(?:java|com|org|io)\.[\w.$]+(?:Exception|Error)\b|Cannot invoke ")
_UNEXPECTED: Final = "EXCEPTION"
"""Stands for the text of an exception that nobody had expected."""
_UNSET: Final = "not set any response code"


@dataclass(frozen=True, slots=True)
class Deviation:
    """A reason, and how our server answers the variants to which it applies."""

    reason: str
    ours: int | str


def read_recording() -> dict[str, dict[str, ObservedAnswer]]:
    """Return the recorded outcomes by section ("broker 310") and variant."""
    if not RECORDING.exists():
        return {}
    table = json.loads(RECORDING.read_text())
    return {
        section: {name: ObservedAnswer.from_json(parts) for name, parts in outcomes.items()}
        for section, outcomes in table.items()
    }


def write_section(section: str, outcomes: Mapping[str, ObservedAnswer]) -> None:
    """Replace one section of the recording. A line of the file is one variant, so that changes can be reviewed."""
    recording: dict[str, Mapping[str, ObservedAnswer]] = {**read_recording(), section: outcomes}
    blocks = []
    for name in sorted(recording, key=_section_order):
        lines = ",\n".join(
            f"  {json.dumps(variant)}: {json.dumps(outcome.to_json())}"
            for variant, outcome in recording[name].items()
        )
        blocks.append(f"{json.dumps(name)}: {{\n{lines}\n}}")
    RECORDING.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


def _section_order(section: str) -> tuple[str, int]:
    server, _, code = section.partition(" ")
    return server, int(code) if code.isdecimal() else -1


def recordable(outcome: ObservedAnswer) -> ObservedAnswer:
    """Return an official outcome without the parts of remarks that are nobody's protocol.

    Of an exception that nobody expected, the name is left. `_UNSET` is what official answers hold when their code was
    set without a remark, which depends on the way their source builds the answer.
    """
    remark = outcome.remark
    if remark == _UNSET:
        remark = ""
    elif _EXCEPTION.match(remark):
        remark = _UNEXPECTED
    return replace(outcome, remark=remark)


def same_answer(answer: ObservedAnswer, recorded: ObservedAnswer) -> bool:
    """Tell if our answer equals the recorded one. Any remark says more than that of an unexpected exception."""
    comparable = recordable(answer)
    if recorded.remark == _UNEXPECTED and comparable.remark:
        comparable = replace(comparable, remark=_UNEXPECTED)
    return comparable == recorded


def read_deviations() -> dict[str, Deviation]:
    """Return the deviations by case ("broker 310: without b"). Raises ValueError for a case that is listed twice."""
    groups = tomllib.loads(DEVIATIONS.read_text())["deviation"]
    deviations: dict[str, Deviation] = {}
    counts: Counter[str] = Counter()
    for group in groups:
        for section, variants in group["cases"].items():
            for variant in variants:
                case = case_name(section, variant)
                counts[case] += 1
                deviations[case] = Deviation(group["reason"], group["ours"])
    repeated = [case for case, count in counts.items() if count > 1]
    if repeated:
        raise ValueError(f"listed more than once: {', '.join(repeated)}")
    return deviations


def case_name(section: str, variant: str) -> str:
    """Return the name of one case in messages and in the list of deviations."""
    return f"{section}: {variant}"
