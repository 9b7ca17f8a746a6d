import json
from random import Random

import pytest

from codec.command import Command, encode_command
from gateway.runtime.metrics import Distribution
from gateway.shadow.compare.answer_diff import ComparisonTerms, Difference
from gateway.shadow.compare.comparison_counts import ComparisonCounts, DifferenceSample, SampleReservoir
from gateway.shadow.compare.comparison_observer import ComparisonObserver
from gateway.shadow.compare.noise import LearnedNoise
from gateway.shadow.compare.read_repeater import ReadComparison
from gateway.shadow.compare.settings import CompareSettings
from gateway.shadow.tests.exchanges import make_exchange, make_pull_exchange, make_send_exchange
from gateway.shadow.traffic.exchange import Hub, Side
from gateway.shadow.traffic.outcome import Outcome, OutcomeKind

ANSWER = Command(0, flag=1, ext={"msgId": "1" * 32, "queueId": "0", "queueOffset": "9"})
OTHER = Command(0, flag=1, ext={"msgId": "1" * 32, "queueId": "1", "queueOffset": "9"})


def make_observer(*, terms=ComparisonTerms(), repeat_read=None, learn_heartbeat=None, **settings):  # noqa: B008
    """Return an observer, its counts and the noise it was given."""
    noise, chance = LearnedNoise(1, 0.1, 100), Random(3)
    given = CompareSettings(**settings)
    counts = ComparisonCounts(noise, given.samples, chance)
    observer = ComparisonObserver(
        given,
        terms,
        noise,
        counts,
        repeat_read=repeat_read or (lambda exchange, second: None),
        learn_heartbeat=learn_heartbeat or (lambda exchange: None),
        chance=chance,
    )
    return observer, counts, noise


def test_outcomes_of_mirrors_are_compared():
    observer, counts, _ = make_observer()
    heard = []
    counts.add_listener(lambda topic, differs: heard.append((topic, differs)))
    observer.observe_outcome(
        Outcome(make_send_exchange("orders"), OutcomeKind.MIRRORED, answer=ANSWER, latency_s=0.002)
    )
    observer.observe_outcome(
        Outcome(make_send_exchange("orders"), OutcomeKind.MIRRORED, answer=OTHER, latency_s=0.002)
    )
    observer.observe_outcome(Outcome(make_send_exchange("orders"), OutcomeKind.DROPPED))
    assert (counts.compared_count, counts.differing_count, counts.diff_rate) == (2, 1, 0.5)
    assert heard == [("orders", False), ("orders", True)]
    (request,) = counts.status()["requests"]
    assert (request["request"], request["fields"]) == ("SEND_MESSAGE_V2", {"queueId": 1})
    (sample,) = counts.samples()["samples"]
    assert (sample["primary"], sample["target"], sample["topic"]) == ("0", "1", "orders")
    assert counts.samples("SEND_MESSAGE_V2", "queueId")["samples"] == [sample]
    assert counts.samples("SEND_MESSAGE_V2", "flag")["samples"] == []
    json.dumps(counts.status())


def test_offsets_are_compared_with_a_target_that_has_the_primarys():
    observer, counts, _ = make_observer(terms=ComparisonTerms(same_offsets=True))
    observer.observe_outcome(Outcome(make_send_exchange("orders"), OutcomeKind.MIRRORED, answer=ANSWER))
    assert counts.status()["requests"][0]["fields"] == {"queueOffset": 1}


def test_sides_are_swapped_when_the_target_answered_first():
    observer, counts, _ = make_observer()
    observer.observe_outcome(
        Outcome(make_send_exchange("orders", side=Side.TARGET), OutcomeKind.MIRRORED, answer=OTHER)
    )
    (sample,) = counts.samples()["samples"]
    assert (sample["primary"], sample["target"]) == ("1", "0")


def test_noise_is_left_out():
    observer, counts, noise = make_observer()
    noise.record_second_read(310, ["queueId"])
    observer.observe_outcome(Outcome(make_send_exchange("orders"), OutcomeKind.MIRRORED, answer=OTHER))
    assert counts.diff_rate == 0
    assert counts.status()["noise"] == [{"request": "SEND_MESSAGE_V2", "field": "queueId", "share": 1.0}]


def test_an_answer_that_is_no_command_is_counted():
    observer, counts, _ = make_observer()
    broken = make_exchange(310, encode_command(Command(310)), b"\0\0\0\4garb")
    observer.observe_outcome(Outcome(broken, OutcomeKind.MIRRORED, answer=ANSWER))
    assert (counts.not_understood, counts.compared_count) == (1, 0)


def test_a_share_of_the_outcomes():
    observer, counts, _ = make_observer(answers=0.25)
    for _ in range(400):
        observer.observe_outcome(Outcome(make_send_exchange("orders"), OutcomeKind.MIRRORED, answer=ANSWER))
    assert 70 <= counts.compared_count <= 130


def test_a_share_of_read_only_requests_is_repeated():
    asked, beats = [], []
    observer, _, _ = make_observer(
        repeated_reads=0.5,
        second_reads=0.5,
        repeat_read=lambda each, second: asked.append(second),
        learn_heartbeat=beats.append,
    )
    hub = Hub()
    hub.add_observer(observer)
    for _ in range(400):
        hub.publish_exchange(make_pull_exchange("orders"))
        hub.publish_exchange(make_send_exchange("orders"))
    hub.publish_exchange(make_pull_exchange("orders", side=Side.TARGET))
    hub.publish_exchange(make_exchange(34, encode_command(Command(34)), encode_command(Command(0))))
    assert 160 <= len(asked) <= 240
    assert 60 <= sum(asked) <= 140
    assert len(beats) == 1


def test_observed_request_codes():
    observer, counts, _ = make_observer()
    hub = Hub()
    hub.add_observer(observer)
    assert hub.is_observed(11)
    assert hub.is_observed(310)
    assert not hub.is_observed(200050)
    observer, counts, _ = make_observer(latencies=False)
    hub = Hub()
    hub.add_observer(observer)
    assert not hub.is_observed(310)


def test_latencies_of_all_three():
    observer, counts, _ = make_observer()
    observer.observe(make_send_exchange("orders", share_s=0.001, primary_s=0.01))
    observer.observe(make_send_exchange("orders", share_s=0.001, primary_s=0.02, side=Side.TARGET))
    observer.observe_outcome(
        Outcome(make_send_exchange("orders"), OutcomeKind.MIRRORED, answer=ANSWER, latency_s=0.5)
    )
    found = {
        each.labels["of"]: each.histogram.count
        for each in counts.collect_metrics()
        if isinstance(each, Distribution)
    }
    assert found == {"primary": 1, "gateway": 2, "target": 2}
    assert counts.status()["requests"][0]["latency_ms"]["primary"]["p50"] == pytest.approx(10, rel=0.2)


def test_repeated_reads_are_counted():
    observer, counts, _ = make_observer()
    difference = Difference(11, "messages[].body", "messages[a].body", "x", "y")
    more = Difference(11, "messages[].body", "messages[b].body", "x", "z")
    counts.record_read(ReadComparison(make_pull_exchange("orders"), [difference, more], 0.001))
    counts.record_read(ReadComparison(make_pull_exchange("orders"), [], 0.001))
    (request,) = counts.status()["requests"]
    assert (request["compared"], request["differing"], request["fields"]) == (2, 1, {"messages[].body": 1})
    assert counts.samples()["samples"][0]["at"] == "messages[a].body"


def test_everything_is_bounded():
    observer, counts, _ = make_observer(samples=2)
    for number in range(2000):
        difference = Difference(11, f"field{number}", "", "x", "y")
        counts.record_read(ReadComparison(make_pull_exchange("orders"), [difference], 0.0))
        counts.record_read(ReadComparison(make_exchange(number, encode_command(Command(1)), b""), [], 0.0))
    assert len(counts.status()["requests"]) <= 501
    assert len(counts.samples()["samples"]) <= 2 * 201
    assert len(list(counts.collect_metrics())) < 3000


def test_a_reservoir_is_fair():
    kept = [0] * 20
    for seed in range(2000):
        reservoir = SampleReservoir(5, Random(seed))
        for number in range(20):
            reservoir.add_sample(DifferenceSample(None, number, "", ""))
        for sample in reservoir.samples:
            kept[sample.wall_ms] += 1
    assert all(400 < count < 600 for count in kept)
