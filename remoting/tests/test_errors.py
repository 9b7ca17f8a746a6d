"""Tests of the error values."""

import pickle

from remoting.errors import RequestError


def test_a_refusal_reads_as_official_clients_print_it() -> None:
    assert (
        str(RequestError(17, "No route info of this topic: T"))
        == "CODE: 17  DESC: No route info of this topic: T"
    )


def test_a_refusal_crosses_processes_whole() -> None:
    copy = pickle.loads(pickle.dumps(RequestError(14, "no permission")))
    assert (copy.code, copy.remark) == (14, "no permission")
