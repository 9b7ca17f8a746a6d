"""Options that the sides of a comparison pass to their sources."""

from typing import Any

import pytest

from spark.errors import OptionError
from spark.options import read_options
from spark.reconciling.sides import SIDE, ComparisonSide, ReadWindow, _add_window_options


def side(**given: str) -> ComparisonSide:
    return ComparisonSide("target", read_options(given, SIDE, "[target]"), given)


def test_a_cluster_is_asked_for_topics_by_a_pattern_as_not_every_topic_is_on_both_sides() -> None:
    span = ReadWindow(topics=("Orders", "a.b"))
    assert _add_window_options({"nameServer": "h:1"}, span) == {
        "nameServer": "h:1",
        "subscribePattern": r"Orders|a\.b",
    }
    assert _add_window_options({}, ReadWindow()) == {"subscribePattern": ".+"}
    assert "RETRY" in _add_window_options({}, ReadWindow(retries=True))["subscribePattern"]


def test_times_become_positions() -> None:
    assert _add_window_options({"topic": "t"}, ReadWindow(from_ms=5, until_ms=9)) == {
        "topic": "t",
        "startingTimestamp": "5",
        "startingOffsetsByTimestampStrategy": "latest",
        "endingTimestamp": "9",
    }


def test_what_the_user_said_stays() -> None:
    given = {"assign": "{}", "STARTINGOFFSETS": "earliest", "endingoffsets": "latest"}
    assert _add_window_options(given, ReadWindow(("Orders",), 5, 9)) == given


@pytest.mark.parametrize("kind", ["table", "capture"])
def test_files_need_a_path(kind: str) -> None:
    session: Any = None
    with pytest.raises(OptionError, match=rf"\[target\]: kind {kind} requires a path"):
        side(kind=kind).read_messages(session, ReadWindow())


def test_mistakes_in_a_side_are_named() -> None:
    with pytest.raises(OptionError, match='did you mean "nameServer"'):
        side(nameServr="h:1")
    assert side(kind="CAPTURE", path="x").is_capture
    assert side(kind="table", path="x").is_table
