"""Decides which of the collected cases run against an endpoint, and turns their marks into expected outcomes.

The marks of `marks.py` become expected failures here:

- `differs` must fail on the official server,
- `not_yet` and `not_served` must fail on ours.

The marks are about official `MARKED_VERSION`. On another official version, and at an address, which may be any server,
such a failure is accepted but not required.
"""

from collections.abc import Callable

import pytest

from compat_tests.endpoints import MARKED_VERSION, STARTED_KINDS, expected_kind, official_version

OFFICIAL_KINDS = ("official", "image")


def select_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the cases, leave only the selected ones, and mark those that must fail or must not run."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "endpoint" in fixtures:
            item.add_marker("stops_server")
        if "admin_rights" in fixtures:
            item.add_marker(pytest.mark.needs_admin(reason="changes settings of the cluster"))
    # Last, so that no other case meets a stopped server.
    items.sort(key=lambda item: item.get_closest_marker("stops_server") is not None)
    _select_areas(config, items)
    if config.getoption("--read-only"):
        _keep(config, items, lambda item: item.get_closest_marker("read_only") is not None)
    label = config.getoption("--endpoint")
    is_admin_allowed = config.getoption("--allow-admin") or expected_kind(label) in STARTED_KINDS
    for item in items:
        _describe(item)
        _expect_failures(item, label)
        if label != "ours" and item.get_closest_marker("ours_only") is not None:
            item.add_marker(pytest.mark.skip(reason="about our own processes, not about this endpoint"))
        needs_admin = item.get_closest_marker("needs_admin")
        if needs_admin is not None and not is_admin_allowed:
            reason = f"{needs_admin.kwargs['reason']}: run it with --allow-admin"
            item.add_marker(pytest.mark.skip(reason=reason))


def _describe(item: pytest.Item) -> None:
    mark = item.get_closest_marker("case")
    if mark is not None:
        item.user_properties += [("area", mark.kwargs["area"]), ("feature", mark.kwargs["feature"])]


def _expect_failures(item: pytest.Item, label: str) -> None:
    kind = expected_kind(label)
    different = item.get_closest_marker("differs")
    if different is not None and kind != "ours":
        version = official_version(label)
        # A shadow gateway names no version; the server behind it has that of the marks.
        is_strict = version == MARKED_VERSION or (kind == "official" and version is None)
        item.add_marker(pytest.mark.xfail(reason=different.kwargs["reason"], strict=is_strict))
        item.user_properties.append(("expected", "differs"))
    for name, outcome in (("not_yet", "missing"), ("not_served", "not served")):
        mark = item.get_closest_marker(name)
        if mark is not None and kind not in OFFICIAL_KINDS:
            item.add_marker(pytest.mark.xfail(reason=mark.kwargs["reason"], strict=kind == "ours"))
            item.user_properties.append(("expected", outcome))


def _select_areas(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only the cases of the areas that were asked for; those without an area go as well."""
    areas = config.getoption("--area")
    if areas:
        _keep(config, items, lambda item: _area(item) in areas)


def _area(item: pytest.Item) -> str:
    mark = item.get_closest_marker("case")
    return "" if mark is None else mark.kwargs["area"]


def _keep(config: pytest.Config, items: list[pytest.Item], is_wanted: Callable[[pytest.Item], bool]) -> None:
    left_out = [item for item in items if not is_wanted(item)]
    items[:] = [item for item in items if is_wanted(item)]
    config.hook.pytest_deselected(items=left_out)
