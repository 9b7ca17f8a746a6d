"""The judgement of a power cut, and the refusal where none is possible. `make power-cut` cuts for real."""

import os
import shutil
import sys

import pytest
from click.testing import CliRunner

from codec.message import Message, encode_message
from compat_tests.endpoints.probe import ProbeRefused
from tools.power_cut import cli, verdict
from tools.power_cut.rounds import TARGETS, Round
from tools.power_cut.traffic import PULL_NOT_FOUND, Acknowledged, Notes
from tools.power_cut.verdict import CutVerdict, judge

CUT_NS = 1000


class StoredQueues:
    """Stands for a probe of a broker that holds these bodies by queue id and queue offset."""

    def __init__(self, stored, committed):
        self.stored, self.committed = stored, committed

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def max_offset(self, topic, queue_id):
        offsets = [offset for queue, offset in self.stored if queue == queue_id]
        return max(offsets) + 1 if offsets else 0

    def ask(self, code, fields, body=b""):
        if "queueOffset" not in fields:
            return {"offset": str(self.committed)}, b""
        place = int(fields["queueId"]), int(fields["queueOffset"])
        if place not in self.stored:
            raise ProbeRefused(PULL_NOT_FOUND, "nothing")
        message = Message("t", self.stored[place], queue_id=place[0], queue_offset=place[1])
        return {"nextBeginOffset": str(place[1] + 1)}, encode_message(message)


@pytest.fixture
def judge_stored(monkeypatch):
    def run(stored, acknowledged, attempted, committed=0):
        monkeypatch.setattr(verdict, "Probe", lambda address, timeout_s: StoredQueues(stored, committed))
        notes = Notes(
            attempted, [Acknowledged(place[0], place[1], body, at_ns) for place, body, at_ns in acknowledged]
        )
        return judge("broker", notes, CUT_NS), notes

    return run


def test_a_store_that_kept_everything_has_no_offence(judge_stored):
    stored = {(0, 0): b"a", (0, 1): b"b", (3, 0): b"c"}
    found, notes = judge_stored(
        stored, [((0, 0), b"a", 1), ((3, 0), b"c", 2)], {b"a", b"b", b"c"}, committed=2
    )
    assert found == CutVerdict(2, 0, 0, 0, [])
    assert len(notes.acknowledged) == 2


def test_lost_messages_are_counted_by_the_time_of_their_answer(judge_stored):
    answers = [((0, 0), b"a", 1), ((0, 1), b"b", 2), ((0, 2), b"c", CUT_NS + 1)]
    found, notes = judge_stored({(0, 0): b"a", (0, 1): b"other"}, answers, {b"a", b"b", b"c", b"other"})
    assert found == CutVerdict(3, 1, 1, 1, [])
    assert [each.body for each in notes.acknowledged] == [b"a"]


@pytest.mark.parametrize(
    ("stored", "committed", "offence"),
    [
        ({(0, 0): b"a"}, 2, "beyond the end 1"),
        ({(1, 0): b"a", (1, 2): b"b"}, 0, "queue 1 has holes: 1 of 3, first 1"),
        ({(2, 0): b"z"}, 0, "1 messages that nobody sent"),
        ({(2, 0): b"a", (2, 1): b"a"}, 0, "1 messages are stored twice"),
    ],
)
def test_each_law_has_its_offence(judge_stored, stored, committed, offence):
    found, _ = judge_stored(stored, [], {b"a", b"b"}, committed)
    assert len(found.offences) == 1
    assert offence in found.offences[0]


def result(**changes):
    values = {"acknowledged": 9, "acknowledged_after": 0, "lost": 0, "lost_after": 0, "offences": []}
    return Round("ours", 0, False, 1.0, 0.5, CutVerdict(**(values | changes)))


@pytest.mark.parametrize(
    ("target", "changes", "problem"),
    [
        ("ours", {"lost": 2}, "2 acknowledged messages are lost"),
        ("ours", {"lost_after": 1}, "1 acknowledged messages are lost"),
        ("ours", {"offences": ["a hole"]}, "a hole"),
        ("ours", {"acknowledged": 0}, "no message was acknowledged"),
        ("ours-async", {}, "the control lost nothing"),
        ("ours-async", {"lost": 1, "offences": ["a hole"]}, "a hole"),
    ],
)
def test_what_fails_a_run(target, changes, problem):
    (found,) = cli.find_problems(TARGETS[target], [result(**changes)])
    assert problem in found


def test_what_passes_a_run():
    assert not cli.find_problems(TARGETS["ours"], [result()])
    assert not cli.find_problems(TARGETS["ours-async"], [result(lost=5)])
    assert not cli.find_problems(TARGETS["official"], [result(lost=5, offences=["a hole"])])


@pytest.mark.parametrize("lack", ["linux", "root", "tools"])
def test_a_machine_that_cannot_cut_is_told_the_reason(monkeypatch, lack):
    monkeypatch.setattr(cli, "exit_on_sigterm", lambda: None)
    monkeypatch.setattr(sys, "platform", "darwin" if lack == "linux" else "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if lack == "root" else 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    done = CliRunner().invoke(cli.main, [])
    assert done.exit_code == cli.EXIT_NOT_POSSIBLE
    assert {"linux": "needs Linux", "root": "needs root", "tools": "mkfs.ext4"}[lack] in done.output
