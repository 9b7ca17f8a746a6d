"""Suggestions for misspelt names: the nearest known one, regardless of case."""

from collections.abc import Iterable

DEFAULT_CUTOFF = 0.6


def nearest_name(name: str, known: Iterable[str], cutoff: float = DEFAULT_CUTOFF) -> str | None:
    """Return the known name that looks most like `name`, None when none is similar.

    `cutoff` is difflib's similarity, from 0 (anything) to 1 (equal).
    """
    import difflib  # slow to import, and servers start without it

    folded = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def suggest_name(name: str, known: Iterable[str], *, list_all: bool = True) -> str:
    """Return the end of an error message about an unknown name, beginning with a semicolon.

    It suggests the nearest known name; where none is similar it lists all of them, or is empty without `list_all`.
    """
    names = list(known)
    near = nearest_name(name, names)
    if near is not None:
        return f'; did you mean "{near}"?'
    return f"; known names: {', '.join(sorted(names))}" if list_all and names else ""
