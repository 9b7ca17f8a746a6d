from datetime import datetime

import pytest

from toolkit.times import elapsed_in_month_ms, format_time, parse_duration_ms, parse_time_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert parse_time_ms(text) == ms


def test_a_time_and_its_text() -> None:
    assert format_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert parse_time_ms(format_time(1_700_000_000_123)) == 1_700_000_000_123
    assert (format_time(0), format_time(2**63 - 1)) == ("-", f"{2**63 - 1} ms")


@pytest.mark.parametrize("text", ["", "soon", "-1", "15m", "9" * 30, "\u0661"])
def test_texts_that_are_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"beyond|neither"):
        parse_time_ms(text)


def test_the_time_since_the_month_began() -> None:
    start = datetime(2024, 2, 1).timestamp()
    assert elapsed_in_month_ms(round(start * 1000)) == 0
    assert elapsed_in_month_ms(round(start * 1000) + 86_400_123) == 86_400_123


def test_durations() -> None:
    texts = ("500ms", "30s", "1.5h", "2d", "1m")
    assert [parse_duration_ms(text) for text in texts] == [500, 30_000, 5_400_000, 172_800_000, 60_000]
    for text in ("", "5", "s", "-5s", "5 s"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration_ms(text)
