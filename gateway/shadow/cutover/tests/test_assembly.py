from types import SimpleNamespace

import trio

from gateway.shadow.compare.parity import PARITY_OF_MOVES, ParityResult, QueueParity
from gateway.shadow.cutover import assembly as build
from gateway.shadow.cutover.assembly import ModeMirrorControl, ParityCheck, open_move_file, pair_clusters
from gateway.shadow.cutover.moves import Move, MoveState
from gateway.shadow.cutover.settings import CutoverSettings
from gateway.shadow.mirror.diverged_queues import DivergedQueues
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule

NOW_MS = 1_700_000_000_000


class FakeMirror:
    """The parts of a `Mirror` that moves use."""

    def __init__(self):
        self.rules = MirrorRules([MirrorRule()])
        self.diverged = DivergedQueues(10)
        self.moved_topics = set()
        self.set_mode, self.reset_mode = self.rules.set_mode, self.rules.reset_mode
        self.apply_mode = lambda topic, mode: self.set_mode(topic, mode) if mode else self.reset_mode(topic)

    def count_queued_of(self, topic):
        return 7


def test_resume_restores_the_mode_before_the_stop():
    mirrors = FakeMirror()
    control = ModeMirrorControl(mirrors)
    assert control.count_waiting("t") == 7
    control.resume_mirroring("t")
    control.stop_mirroring("t")
    control.stop_mirroring("t")
    assert (mirrors.rules.mode_overrides(), mirrors.moved_topics) == ({"t": "off"}, {"t"})
    control.resume_mirroring("t")
    assert (mirrors.rules.mode_overrides(), mirrors.moved_topics) == ({}, set())
    mirrors.set_mode("t", "strict-dual")
    control.stop_mirroring("t")
    control.resume_mirroring("t")
    assert mirrors.rules.mode_overrides() == {"t": "strict-dual"}


def test_parity_window_reaches_back_to_the_oldest_mark(monkeypatch):
    windows = []

    async def compare(clusters, topics, how, now_ms, window):
        windows.append(window.from_ms)
        return ParityResult()

    monkeypatch.setattr(build, "compare_topics", compare)
    mirrors, sides = (
        FakeMirror(),
        SimpleNamespace(primary=None, target=None, counterpart=str, preserves_offsets=True),
    )
    check = ParityCheck(sides, CutoverSettings(parity_s=60), mirrors, lambda: NOW_MS)
    found = trio.run(check, "t", 0)
    assert (found.name, found.ok, found.reason) == ("parity", True, "")
    mirrors.diverged.mark_diverged("broker-a", "t", 0, NOW_MS - 100_000, "the queue was full")
    trio.run(check, "t", 0)
    trio.run(check, "t", NOW_MS - 10_000)
    assert [NOW_MS - since for since in windows] == [60_000, 100_000, 10_000]


def test_the_report_gets_the_last_parity_check_of_each_move(monkeypatch):
    async def compare(clusters, topics, how, now_ms, window):
        return ParityResult([QueueParity(topics[0], "broker-a", 0, same=window.from_ms % 7)], 2.0)

    monkeypatch.setattr(build, "compare_topics", compare)
    sides = SimpleNamespace(primary=None, target=None, counterpart=str, preserves_offsets=True)
    check = ParityCheck(sides, CutoverSettings(parity_s=60), FakeMirror(), lambda: NOW_MS)
    assert check.last_result() == {}
    for topic, since_ms in (("t", 0), ("u", 0), ("t", NOW_MS - 1000)):
        trio.run(check, topic, since_ms)
    result = check.last_result()
    assert (result["at_ms"], result[PARITY_OF_MOVES], result["seconds"]) == (NOW_MS, ["u", "t"], 4.0)
    assert [queue["topic"] for queue in result["queues"]] == ["u", "t"]
    assert result["same"] == (NOW_MS - 60_000) % 7 + (NOW_MS - 1000) % 7


def test_move_file_path_comes_from_the_settings(tmp_path):
    book = open_move_file(CutoverSettings(state_file=str(tmp_path / "a" / "moves.json")))
    trio.run(book.save_move, Move("t", MoveState.CAUGHT_UP))
    assert (tmp_path / "a" / "moves.json").exists()
    assert list(open_move_file(CutoverSettings())) == []


def test_pair_maps_brokers_to_counterparts():
    target = SimpleNamespace(brokers={"x": {}, "broker-b": {}})
    sides = pair_clusters(None, target, {"broker-a": "x"}, "ours")
    assert (sides.counterpart("broker-a"), sides.counterpart("broker-b"), sides.preserves_offsets) == (
        "x",
        "broker-b",
        True,
    )
