"""The tables have a column for each cluster, and say what never happened."""

import pytest

from tools.failovers.cli import table
from tools.failovers.rounds import RoundResult


def test_the_tables_show_times_and_problems() -> None:
    rows = [
        RoundResult("official", "official", "master killed", 5.0, {"": 5.0, "routed": 6.0}, 30.0, 100, 1),
        RoundResult("official", "official", "master killed", 8.0, {"": 8.0, "routed": 9.0}, 30.0, 50, 1),
        RoundResult("ours", "etcd", "master killed", 1.0, {"": 1.0, "routed": 1.5}, 3.0, 1000, 1),
        RoundResult("ours", "etcd", "master killed", None, {"": 9.0}, None, 10, 0, ["1 missing"], "ours"),
        RoundResult("ours", "etcd", "controller killed", 0.25, {"": 0.25}, 0.0, 10),
    ]
    assert table(rows).splitlines() == [
        "Seconds until a send is accepted: median (maximum) of rounds",
        "",
        "|  | official under official | ours under etcd |",
        "| --- | --- | --- |",
        "| master killed | 6.5 (8.0) of 2 | 1.0 (1.0) of 1, 1 never |",
        "| controller killed | - | 0.2 (0.2) of 1 |",
        "",
        "Longest pause of each client, in seconds: median (maximum)",
        "",
        "|  | official under official | ours under etcd |",
        "| --- | --- | --- |",
        "| master killed, routed | 7.5 (9.0) of 2 | 1.5 (1.5) of 1 |",
        "",
        "Laws",
        "",
        "|  | official under official | ours under etcd |",
        "| --- | --- | --- |",
        "| rounds | 2 | 3 |",
        "| accepted sends | 150 | 1,020 |",
        "| elections | 2 | 1 |",
        "| rounds with a problem | 0 | 1 |",
        "",
        "- ours under etcd, master killed (master ours): 1 missing",
    ]


@pytest.mark.parametrize(
    ("brokers", "controllers", "fault", "master", "is_official"),
    [
        ("official", "official", "master killed", "official 5.4.0", True),
        ("ours", "official", "master stopped", "ours", False),
        ("mixed", "etcd", "master stopped", "ours", False),
        ("mixed", "etcd", "master stopped", "official 5.4.0", True),
        ("mixed", "etcd", "master killed", "official 5.4.0", False),
    ],
)
def test_an_official_master_that_lives_on_is_not_ours(
    brokers: str, controllers: str, fault: str, master: str, is_official: bool
) -> None:
    row = RoundResult(brokers, controllers, fault, problems=["1 missing"], master=master)
    assert row.is_official == is_official
