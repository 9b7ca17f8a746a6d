"""Bound the functions that one request passes, from the readable client socket to the write to the upstream.

Calls of functions in `codec`, `remoting` and `gateway` are counted by a profile hook; transports are scripted, so those
of the tests do not count. A request is counted after others of its kind, when every table knows its code.
"""

import sys
from pathlib import Path

import pytest

import gateway
from gateway.shadow.tests.sessions import (
    HoldingHolder,
    RecordingObserver,
    SessionBench,
    answer,
    request,
    run_with_nursery,
)
from gateway.shadow.traffic.exchange import Hub

ROOT = Path(gateway.__file__).parents[1]
COUNTED = tuple(str(ROOT / package) + "/" for package in ("codec", "remoting", "gateway"))
OBSERVED, OTHER = 310, 11


def record_calls(bench, data):
    """Let bytes of the client arrive; return the names of the functions entered until the upstream gets them."""
    calls = []

    def note_call(frame, event, _):
        if event != "call":
            return
        code = frame.f_code
        if code.co_name == "send_now":
            sys.setprofile(None)
        elif code.co_filename.startswith(COUNTED) and "/tests/" not in code.co_filename:
            calls.append(code.co_qualname)

    written = len(bench.upstream.sent)
    sys.setprofile(note_call)
    try:
        bench.client.arrive(data)
    finally:
        sys.setprofile(None)
    assert bytes(bench.upstream.sent[written:]) == data
    return calls


def calls_of_a_request(code, frames=1, *, observed):
    """Return the functions that requests of one read pass, in a session that has forwarded others like them."""
    calls = []

    async def forward_requests(nursery):
        hub = Hub()
        if observed:  # As with a mirror in a synchronous mode.
            hub.add_observer(RecordingObserver({OBSERVED}))
            hub.set_holder(HoldingHolder({15}))
        bench = SessionBench(nursery, hub=hub)
        for number in range(3):
            await bench.send_from_client(request(code, number))
            await bench.send_from_upstream(answer(opaque=number))
        calls.extend(record_calls(bench, b"".join(request(code, 9 + each) for each in range(frames))))

    run_with_nursery(forward_requests)
    return calls


@pytest.mark.parametrize("observed", [False, True])
def test_a_request_that_nobody_observes_passes_few_functions(observed):
    calls = calls_of_a_request(OTHER, observed=observed)
    assert len(calls) <= 4, calls


def test_requests_in_one_read_pass_few_functions():
    calls = calls_of_a_request(OTHER, frames=2, observed=False)
    assert len(calls) <= 9, calls


def test_an_observed_request_passes_few_functions():
    calls = calls_of_a_request(OBSERVED, observed=True)
    assert len(calls) <= 12, calls
