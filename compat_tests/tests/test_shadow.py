"""What the benchmark of the gateway makes of its samples."""

import pytest

from compat_tests.bench import shadow
from compat_tests.bench.loads import QUICK
from compat_tests.bench.shadow import DIRECT, FORWARD, Side, bars, markdown


def side(name: str, *samples: dict[str, float]) -> Side:
    return Side(name, "127.0.0.1:1", "127.0.0.1:2", samples=list(samples))


def test_medians_and_bars() -> None:
    direct = side(DIRECT, {"rate": 40_000.0, "p50_ms": 0.3})
    forward = side(
        FORWARD, {"rate": 31_000.0, "added_ms": 0.1}, {"rate": 29_000.0, "added_ms": 0.3}, {"rate": 33_000.0}
    )
    text = markdown([direct, forward], 3, ["it broke"])
    assert "| no gateway | 40,000 | - | 0.3 | - | - | - |" in text
    assert "| forward only | 31,000 | - | - | - | 0.2 | - |" in text
    assert "adds 0.200 ms to p50 (bar ≤ 0.15): **not met**" in text
    assert "carries 31,000 messages/s (bar ≥ 30,000): met" in text
    assert "FAILED: it broke" in text


def test_no_samples_no_verdict() -> None:
    assert bars([side(FORWARD)]) == []


def test_a_lone_sender_by_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def own(_: Side, mode: str, *options: str) -> dict[str, float]:
        asked.extend((mode, *options))
        return {"p50_ms_0": 0.3, "p99_ms_0": 1.0, "p50_ms_1": 0.4, "p99_ms_1": 2.0}

    monkeypatch.setattr(shadow, "own", own)
    found = [side(DIRECT), side(FORWARD)]
    shadow.lone_sender(found, QUICK, 100, 50)
    assert asked[:2] == ["senders", "namesrvs=127.0.0.1:1,127.0.0.1:1"]
    assert found[1].samples == [{"p50_ms": 0.4, "p99_ms": 2.0, "added_ms": pytest.approx(0.1)}]
