"""A list of planted defects, ordered by the rules that they break."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from storage.tests.planting.defect import Defect


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Defects that one command plants.

    ``rules`` are the laws, or areas, in the order of the table; ``rule`` is the word for one of them. ``page`` is the
    document with the table. ``stories`` is a file of random tests that may be run instead of each defect's own; empty
    if there is none.
    """

    defects: tuple[Defect, ...]
    rule: str
    rules: tuple[str, ...]
    page: str
    stories: str = ""

    def choose_defects(self, patterns: Sequence[str]) -> list[Defect]:
        """Return the defects whose names match one of the patterns; all without a pattern. Raises ValueError."""
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(defect.name, pattern) for defect in self.defects):
                raise ValueError(f"no planted defect is called {pattern}; --list shows all")
        return [
            defect
            for defect in self.defects
            if not patterns or any(fnmatch.fnmatchcase(defect.name, pattern) for pattern in patterns)
        ]

    def render_table(self) -> str:
        """Return the table of the page: each rule, the defects that break it, and the files of their tests."""
        lines = [f"| {self.rule} | planted defects | tests that must fail |", "|---|---|---|"]
        for rule in self.rules:
            defects = [defect for defect in self.defects if defect.law == rule]
            files = sorted({test.partition("::")[0] for defect in defects for test in defect.tests})
            names = ", ".join(f"`{defect.name}`" for defect in defects)
            lines.append(f"| {rule} | {len(defects)}: {names} | {', '.join(f'`{file}`' for file in files)} |")
        return "\n".join(lines) + "\n"
