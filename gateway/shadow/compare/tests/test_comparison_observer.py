import json
from random import Random

import pytest

from codec.command import Command, encode_command
from gateway.runtime.metrics import Distribution
from gateway.shadow.compare.answer_diff import ComparisonTerms, Difference
from gateway.shadow.compare.comparison_observer import Comparer, DifferenceSample, SampleReservoir
from gateway.shadow.compare.noise import LearnedNoise
from gateway.shadow.compare.read_repeater import ReadComparison
from gateway.shadow.compare.settings import CompareSettings
from gateway.shadow.tests.exchanges import exchange, pulled, sent
from gateway.shadow.traffic.exchange import Hub, Side
from gateway.shadow.traffic.outcome import Fate, Outcome

ANSWER = Command(0, flag=1, ext={"msgId": "1" * 32, "queueId": "0", "queueOffset": "9"})
OTHER = Command(0, flag=1, ext={"msgId": "1" * 32, "queueId": "1", "queueOffset": "9"})


def made(*, terms=ComparisonTerms(), **settings):  # noqa: B008
    noise = LearnedNoise(1, 0.1, 100)
    return Comparer(CompareSettings(**settings), terms, noise, Random(3)), noise


def test_outcomes_of_mirrors_are_compared():
    comparer, _ = made()
    heard = []
    comparer.add_listener(lambda topic, differs: heard.append((topic, differs)))
    comparer.observe_outcome(Outcome(sent("orders"), Fate.MIRRORED, answer=ANSWER, latency_s=0.002))
    comparer.observe_outcome(Outcome(sent("orders"), Fate.MIRRORED, answer=OTHER, latency_s=0.002))
    comparer.observe_outcome(Outcome(sent("orders"), Fate.DROPPED))
    assert (comparer.compared_count, comparer.differing_count, comparer.diff_rate) == (2, 1, 0.5)
    assert heard == [("orders", False), ("orders", True)]
    (request,) = comparer.status()["requests"]
    assert (request["request"], request["fields"]) == ("SEND_MESSAGE_V2", {"queueId": 1})
    (sample,) = comparer.samples()["samples"]
    assert (sample["primary"], sample["target"], sample["topic"]) == ("0", "1", "orders")
    assert comparer.samples("SEND_MESSAGE_V2", "queueId")["samples"] == [sample]
    assert comparer.samples("SEND_MESSAGE_V2", "flag")["samples"] == []
    json.dumps(comparer.status())


def test_offsets_count_where_they_are_kept():
    comparer, _ = made(terms=ComparisonTerms(same_offsets=True))
    comparer.observe_outcome(Outcome(sent("orders"), Fate.MIRRORED, answer=ANSWER))
    assert comparer.status()["requests"][0]["fields"] == {"queueOffset": 1}


def test_sides_are_swapped_when_the_target_answered_first():
    comparer, _ = made()
    comparer.observe_outcome(Outcome(sent("orders", side=Side.TARGET), Fate.MIRRORED, answer=OTHER))
    (sample,) = comparer.samples()["samples"]
    assert (sample["primary"], sample["target"]) == ("1", "0")


def test_noise_is_left_out():
    comparer, noise = made()
    noise.record_second_read(310, ["queueId"])
    comparer.observe_outcome(Outcome(sent("orders"), Fate.MIRRORED, answer=OTHER))
    assert comparer.diff_rate == 0
    assert comparer.status()["noise"] == [{"request": "SEND_MESSAGE_V2", "field": "queueId", "share": 1.0}]


def test_an_answer_that_is_no_command_is_counted():
    comparer, _ = made()
    broken = exchange(310, encode_command(Command(310)), b"\0\0\0\4garb")
    comparer.observe_outcome(Outcome(broken, Fate.MIRRORED, answer=ANSWER))
    assert (comparer.not_understood, comparer.compared_count) == (1, 0)


def test_a_share_of_the_outcomes():
    comparer, _ = made(answers=0.25)
    for _ in range(400):
        comparer.observe_outcome(Outcome(sent("orders"), Fate.MIRRORED, answer=ANSWER))
    assert 70 <= comparer.compared_count <= 130


def test_questions_are_a_share_of_what_passes():
    comparer, _ = made(questions=0.5, second_reads=0.5)
    asked, beats = [], []
    comparer.ask_with(lambda each, second: asked.append(second), beats.append)
    hub = Hub()
    hub.add_observer(comparer)
    for _ in range(400):
        hub.publish_exchange(pulled("orders"))
        hub.publish_exchange(sent("orders"))
    hub.publish_exchange(pulled("orders", side=Side.TARGET))
    hub.publish_exchange(exchange(34, encode_command(Command(34)), encode_command(Command(0))))
    assert 160 <= len(asked) <= 240
    assert 60 <= sum(asked) <= 140
    assert len(beats) == 1


def test_what_is_watched():
    comparer, _ = made()
    hub = Hub()
    hub.add_observer(comparer)
    assert hub.is_observed(11)
    assert hub.is_observed(310)
    assert not hub.is_observed(200050)
    comparer, _ = made(latencies=False)
    hub = Hub()
    hub.add_observer(comparer)
    assert not hub.is_observed(310)


def test_latencies_of_all_three():
    comparer, _ = made()
    comparer.observe(sent("orders", share_s=0.001, primary_s=0.01))
    comparer.observe(sent("orders", share_s=0.001, primary_s=0.02, side=Side.TARGET))
    comparer.observe_outcome(Outcome(sent("orders"), Fate.MIRRORED, answer=ANSWER, latency_s=0.5))
    found = {
        each.labels["of"]: each.latencies.count
        for each in comparer.figures()
        if isinstance(each, Distribution)
    }
    assert found == {"primary": 1, "gateway": 2, "target": 2}
    assert comparer.status()["requests"][0]["latency_ms"]["primary"]["p50"] == pytest.approx(10, rel=0.2)


def test_questions_are_counted():
    comparer, _ = made()
    difference = Difference(11, "messages[].body", "messages[a].body", "x", "y")
    more = Difference(11, "messages[].body", "messages[b].body", "x", "z")
    comparer.record_read(ReadComparison(pulled("orders"), [difference, more], 0.001))
    comparer.record_read(ReadComparison(pulled("orders"), [], 0.001))
    (request,) = comparer.status()["requests"]
    assert (request["compared"], request["differing"], request["fields"]) == (2, 1, {"messages[].body": 1})
    assert comparer.samples()["samples"][0]["at"] == "messages[a].body"


def test_everything_is_bounded():
    comparer, _ = made(samples=2)
    for number in range(2000):
        difference = Difference(11, f"field{number}", "", "x", "y")
        comparer.record_read(ReadComparison(pulled("orders"), [difference], 0.0))
        comparer.record_read(ReadComparison(exchange(number, encode_command(Command(1)), b""), [], 0.0))
    assert len(comparer.status()["requests"]) <= 501
    assert len(comparer.samples()["samples"]) <= 2 * 201
    assert len(list(comparer.figures())) < 3000


def test_a_reservoir_is_fair():
    kept = [0] * 20
    for seed in range(2000):
        reservoir = SampleReservoir(5, Random(seed))
        for number in range(20):
            reservoir.add_sample(DifferenceSample(None, number, "", ""))
        for sample in reservoir.samples:
            kept[sample.wall_ms] += 1
    assert all(400 < count < 600 for count in kept)
