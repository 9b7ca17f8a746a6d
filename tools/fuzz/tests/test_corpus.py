"""The corpus: every case can be sent, and says what it did."""

import json
from pathlib import Path

import pytest

from codec.command import decode_frame
from tools.fuzz.cli import TARGETS
from tools.fuzz.corpus import CORPUS, build_case, load_corpus
from tools.fuzz.walks import Expect

FILES = sorted(CORPUS.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_case_says_what_it_did_and_can_be_sent(path: Path):
    case = json.loads(path.read_text())
    assert len(case["what"]) > 20
    assert case["against"]
    assert set(case["against"]) <= set(TARGETS)
    assert build_case(case, -1).frames


def test_each_target_gets_its_cases_under_numbers_of_their_own():
    for target in TARGETS:
        cases = load_corpus(target)
        assert len({walk.number for _, walk in cases}) == len(cases)
        assert all(walk.number < 0 for _, walk in cases)


def test_a_frame_is_built_from_its_description():
    frame = {"code": 34, "ext": {"a": "b"}, "body": "[", "repeat": ["x", 3], "times": 2}
    walk = build_case({"what": "x", "port": "namesrv", "frames": [frame]}, -5)
    commands = [decode_frame(each.data, 4, len(each.data)) for each in walk.frames]
    assert [(each.code, each.opaque, each.ext, each.body) for each in commands] == [
        (34, 100, {"a": "b"}, b"[xxx"),
        (34, 101, {"a": "b"}, b"[xxx"),
    ]
    assert {each.expects for each in walk.frames} == {Expect.ANSWER}
