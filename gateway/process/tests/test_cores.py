"""Cores of the process, and how many brokers suit them."""

import os

import pytest

from gateway.process import cores
from gateway.process.cores import suggest_brokers, usable_cores


@pytest.mark.parametrize(
    ("machine", "brokers"), [(1, 1), (2, 1), (3, 1), (4, 3), (6, 5), (8, 6), (16, 12), (36, 26), (256, 26)]
)
def test_a_quarter_of_the_cores_is_left_to_everything_else(machine, brokers):
    assert suggest_brokers(machine) == brokers


@pytest.mark.parametrize(
    ("limit", "usable"),
    [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8), (None, 8)],
)
def test_a_container_may_use_fewer_cores_than_the_machine_has(tmp_path, monkeypatch, limit, usable):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cores, "CGROUP_LIMIT", tmp_path / "cpu.max")
    if limit is not None:
        (tmp_path / "cpu.max").write_text(limit + "\n")
    assert usable_cores() == usable
