"""The traffic that the pipelines' cases share is what it claims to be: judged by reading both sides, without Spark."""

from collections import Counter

import pytest

from codec.capture import CaptureRecord, scan_records
from spark.tests.cases.mirrored import BILLS, MIXED, ORDERS, Mirrored

pytestmark = [pytest.mark.ours_only, pytest.mark.both_servers]


def test_the_target_has_what_was_planted_and_nothing_else_is_wrong(traffic: Mirrored) -> None:
    planted = traffic.planted
    primary = [each.unique_key or "" for each in traffic.stored(traffic.primary.broker, ORDERS)]
    target = Counter(each.unique_key or "" for each in traffic.stored(traffic.target.broker, ORDERS))
    assert sorted(set(primary) - set(target)) == sorted(planted.lost)
    assert sorted(set(target) - set(primary)) == sorted(planted.extra)
    assert sorted(key for key, count in target.items() if count > 1) == sorted(planted.duplicated)
    for topic in (BILLS, MIXED):
        here, there = (traffic.stored(where.broker, topic) for where in (traffic.primary, traffic.target))
        assert sorted((each.unique_key, each.body) for each in here) == sorted(
            (each.unique_key, each.body) for each in there
        )


def test_every_send_is_in_the_capture(traffic: Mirrored) -> None:
    files = sorted(traffic.captures.glob("*.rmqcap"))
    records = [
        each for path in files for each in scan_records(path.read_bytes()) if isinstance(each, CaptureRecord)
    ]
    assert Counter(each.code for each in records if each.code in (310, 320, 37)) == {310: 488, 320: 1, 37: 4}
