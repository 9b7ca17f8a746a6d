"""Every request that our servers serve is sent by a case that checks the answer: a success and, where there is one, a
refusal.

Most answers are those of the recording of malformed requests, with which both servers are compared.
"""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from compat_tests.malformed.exchange import ObservedAnswer
from compat_tests.malformed.recording import read_recording
from compat_tests.malformed.valid_requests import (
    BROKER_CODES,
    NAMESRV_CODES,
    UNRECORDED_BROKER_CODES,
)
from compat_tests.mqadmin.recording import read_recording as read_output
from gateway.broker.processors import all_handlers
from gateway.namesrv.processors import handlers as namesrv_handlers
from remoting.requests.replication import PRIVATE_CODES

ROOT: Final = Path(__file__).resolve().parents[2]
CASES: Final = ROOT / "compat_tests" / "cases"
SUCCESSES: Final[Mapping[int, str]] = {
    12: "test_query.py::test_key",
    33: "test_query.py::test_view",
    36: "test_retry.py::test_back",
    37: "test_transactions.py::test_commit_layout",
    38: "test_heartbeat.py::test_two_clients",
    203: "test_heartbeat.py::test_connections",
    204: "test_heartbeat.py::test_producers",
    222: "test_heartbeat.py::test_reset",
    223: "test_heartbeat.py::test_status",
    307: "test_heartbeat.py::test_running_info",
    309: "test_heartbeat.py::test_consume_directly",
    315: "test_statistics.py::test_statistics",
    323: "test_transactions.py::test_check_and_give_up",
    324: "test_replies.py::test_reply",
    325: "test_replies.py::test_reply",
    370: "test_timer.py::test_recall",
    3001: "acceptance/access_control/test_account_requests.py::test_users",
    3002: "acceptance/access_control/test_account_requests.py::test_users",
    3003: "acceptance/access_control/test_account_requests.py::test_users",
    3004: "acceptance/access_control/test_account_requests.py::test_users",
    3005: "acceptance/access_control/test_account_requests.py::test_users",
    3006: "acceptance/access_control/test_account_requests.py::test_policies",
    3007: "acceptance/access_control/test_account_requests.py::test_policies",
    3008: "acceptance/access_control/test_account_requests.py::test_policies",
    3009: "acceptance/access_control/test_account_requests.py::test_policies",
    3010: "acceptance/access_control/test_account_requests.py::test_policies",
    200050: "test_pop.py::test_one_queue",
    200051: "test_pop_acks.py::test_ack",
    200052: "test_pop.py::test_peek",
    200053: "test_pop_acks.py::test_change",
    200151: "test_pop_acks.py::test_batch_ack",
}
"""Cases in which requests succeed that need more than one request to be valid."""
ALWAYS_REFUSED: Final = {1007: "only brokers under a controller have epochs"}
"""Requests that this server and the official one refuse, whatever they hold."""
NEVER_REFUSED: Final = {
    "broker": {
        26, 28, 35, 43, 45, 60, 61, 305, 306, 316, 317, 328, 329, 354, 402, 907, 2001, 2002, 2003, 200056,
    },
    "namesrv": {102, 104, 106, 205, 206, 216, 224, 304, 311, 312, 313, 319, 327, 901},
}  # fmt: skip
"""Requests that the official server carries out, or answers with an empty list, whatever they hold."""
OTHER_REFUSALS: Final[Mapping[int, str]] = {
    25: "updateBrokerConfig of a closed key",
    318: "updateNamesrvConfig of a closed key",
}
"""Refusals in the recording of mqadmin."""
SERVED: Final = {"broker": all_handlers().request_codes(), "namesrv": namesrv_handlers.request_codes()}
RECORDED: Final = {"broker": BROKER_CODES, "namesrv": NAMESRV_CODES}
BOTH: Final = [(server, code) for server in SERVED for code in RECORDED[server] if code in SERVED[server]]


@cache
def answers(server: str, code: int) -> list[ObservedAnswer]:
    return list(read_recording()[f"{server} {code}"].values())


def test_every_code_that_we_serve_is_sent_by_a_case() -> None:
    assert SERVED["broker"] <= {*BROKER_CODES, *UNRECORDED_BROKER_CODES, *PRIVATE_CODES}
    assert SERVED["namesrv"] == set(NAMESRV_CODES)


@pytest.mark.parametrize(("server", "code"), BOTH)
def test_a_case_shows_the_success_of_a_request(server: str, code: int) -> None:
    is_recorded = any(answer.code == 0 for answer in answers(server, code))
    assert is_recorded != (code in SUCCESSES or code in ALWAYS_REFUSED)


@pytest.mark.parametrize(("server", "code"), BOTH)
def test_a_case_shows_a_refusal_of_a_request(server: str, code: int) -> None:
    is_recorded = any(
        isinstance(answer.code, int) and answer.code not in (0, 3) for answer in answers(server, code)
    )
    assert is_recorded != (code in NEVER_REFUSED[server] or code in OTHER_REFUSALS)


@pytest.mark.parametrize("case", sorted(set(SUCCESSES.values())))
def test_the_cases_of_successes_exist(case: str) -> None:
    path, _, name = case.partition("::")
    file = ROOT / path if "/" in path else CASES / path
    tree = ast.parse(file.read_text("utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_other_refusals_are_recorded() -> None:
    assert set(OTHER_REFUSALS.values()) <= set(read_output())
