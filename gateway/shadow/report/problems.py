"""The present problems of a gateway, a sentence for each, for `status`, the live view and the report."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.mirror.mirror import Mirror

log = logging.getLogger(__name__)

MAX_PROBLEMS: Final = 20
MAX_PROBLEM_CHARS: Final = 1_000

ProblemSource = Callable[[], Iterable[str]]
"""Returns the present problems of a part as sentences."""


class Problems:
    """Collects the problems of parts, by name of the part, in the order in which the parts were added."""

    def __init__(self) -> None:
        self._sources: list[tuple[str, ProblemSource]] = []

    def add_source(self, part: str, source: ProblemSource) -> None:
        """Ask a part for its problems from now on. ``source`` must be quick."""
        self._sources.append((part, source))

    def to_json(self) -> list[dict[str, Any]]:
        """Return at most `MAX_PROBLEMS` problems; a sentence that several parts say appears once."""
        found: dict[str, str] = {}
        for part, source in self._sources:
            for sentence in _sentences(part, source):
                found.setdefault(sentence[:MAX_PROBLEM_CHARS], part)
        return [{"part": part, "problem": sentence} for sentence, part in found.items()][:MAX_PROBLEMS]


def _sentences(part: str, source: ProblemSource) -> Iterator[str]:
    try:
        yield from source()
    except Exception as error:
        log.exception("problems of a part are not available", extra={"part": part})
        yield f"its state is not available: {type(error).__name__}: {error}"


def mirror_problems(mirror: Mirror) -> Iterator[str]:
    """Yield what keeps mirror streams from writing, once for streams with the same problem."""
    failing = ((stream.name, stream.problem) for stream in mirror.streams() if stream.problem)
    for problem, names in _group_by_problem(failing):
        some = names[0] if len(names) == 1 else f"{len(names)} streams, such as {names[0]}"
        yield f"{some} cannot write to the target: {problem}"


def queue_problems(failing: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield why queues are not copied at the primary's offsets, once for queues with the same reason.

    ``failing`` are names of queues with their problems.
    """
    for problem, names in _group_by_problem(failing):
        some = names[0] if len(names) == 1 else f"{len(names)} queues, such as {names[0]},"
        yield f"{some} {'is' if len(names) == 1 else 'are'} not copied: {problem}"


def _group_by_problem(failing: Iterable[tuple[str, str]]) -> Iterable[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for name, problem in failing:
        groups.setdefault(problem, []).append(name)
    return groups.items()


def task_problems(supervisors: Iterable[TaskSupervisor]) -> Iterator[str]:
    """Yield the background tasks that fail at the moment."""
    for tasks in supervisors:
        for health in tasks.failing:
            yield f"the background task {tasks.part}: {health.name} fails: {health.last_error}"
