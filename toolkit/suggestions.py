"""Suggestions for misspelt names: the nearest known name, regardless of case."""

from collections.abc import Iterable

DEFAULT_CUTOFF = 0.6


def nearest_name(name: str, known_names: Iterable[str], cutoff: float = DEFAULT_CUTOFF) -> str | None:
    """Return the known name that looks most like `name`, None when none is similar.

    `cutoff` is difflib's similarity, from 0 (anything) to 1 (equal).
    """
    import difflib  # slow to import, and servers start without it

    folded = {known_name.lower(): known_name for known_name in known_names}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def suggest_name(name: str, known_names: Iterable[str], *, list_all: bool = True) -> str:
    """Return the end of an error message about an unknown name, beginning with a semicolon.

    It suggests the nearest known name. If none is similar, it lists all known names, or is empty without `list_all`.
    """
    names = list(known_names)
    near = nearest_name(name, names)
    if near is not None:
        return f'; did you mean "{near}"?'
    return f"; known names: {', '.join(sorted(names))}" if list_all and names else ""
