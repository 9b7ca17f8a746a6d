import os
import signal

import click
import pytest
from click.testing import CliRunner

from tools.bench import grpc
from tools.bench.grpc import GrpcSide, measure
from tools.bench.loads import QUICK


def test_sides_take_turns_and_their_medians_are_reported(monkeypatch):
    order, signals = [], []
    sides = [GrpcSide(name, "", "", "", (pid,)) for name, pid in (("ours", 1), ("official", 2))]
    rates = {"ours": [5.0, 7.0, 30.0], "official": [1.0, 2.0, 3.0]}

    def run_round(side, number, durations):
        order.append(side.name)
        return {"rate_1": rates[side.name][number]}

    def warm_up(side, threads, durations):
        order.append("warm " + side.name)

    monkeypatch.setattr(grpc, "measure_sends", warm_up)
    monkeypatch.setattr(grpc, "measure_round", run_round)
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
    assert measure(sides, 3, QUICK) == [{"rate_1": 7.0}, {"rate_1": 2.0}]
    assert order[:2] == ["warm ours", "warm official"]
    assert order[2:] == ["ours", "official", "official", "ours", "ours", "official"]
    # Whoever does not run is suspended before, and goes on afterwards.
    assert signals[:2] == [(2, signal.SIGSTOP), (2, signal.SIGCONT)]
    assert len(signals) == 2 * (2 + 6)


@pytest.mark.parametrize("row", grpc.ROWS, ids=lambda row: row.figure)
def test_each_row_names_a_figure_of_a_round(monkeypatch, row):
    monkeypatch.setattr(grpc, "measure_sends", lambda *_: {"cpu_us": 1.0, "rate": 2.0})
    monkeypatch.setattr(grpc, "measure_push", lambda *_: 3.0)
    side = GrpcSide("ours", "", "", "", (os.getpid(),))
    assert grpc.measure_round(side, 0, QUICK)[row.figure] > 0


def test_chosen_sides_are_started_in_their_order_and_compared(monkeypatch):
    start_order = []

    def start(name):
        start_order.append(name)
        return GrpcSide(f"side {name}", "", "", "", ())

    monkeypatch.setattr(grpc, "STARTS", {name: lambda _, name=name: start(name) for name in grpc.STARTS})
    monkeypatch.setattr(
        grpc, "measure", lambda sides, rounds, durations: [{"rate_1": 3.0, "rate_16": 4.0} for _ in sides]
    )
    result = CliRunner().invoke(grpc.main, ["--sides", "ours, proxy,proxy-official,official"])
    assert result.exit_code == 0
    assert start_order == ["ours", "proxy", "proxy-official", "official"]
    assert (
        "| figure | side ours | side proxy | side proxy-official | side official | bar | met |"
        in result.output
    )


@pytest.mark.parametrize(
    ("text", "problem"), [("ours,none", "'none' is not one of ours"), ("ours,ours", "twice")]
)
def test_sides_that_cannot_be_compared_are_refused(text, problem):
    result = CliRunner().invoke(grpc.main, ["--sides", text])
    assert result.exit_code == click.UsageError.exit_code
    assert problem in result.output
