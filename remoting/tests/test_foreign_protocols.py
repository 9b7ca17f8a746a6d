"""Peers that speak another protocol: the log says which one, and what to do."""

import logging

import pytest
import trio

from remoting.server import RemotingServer
from remoting.tests.virtual import Kernel, virtual

FIRST_BYTES = {
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(190),
}
REMEDIES = {"HTTP/2": "remoting client", "HTTP": "httpPort", "TLS": "tls.server.mode"}


@pytest.mark.parametrize("protocol", FIRST_BYTES)
@virtual
async def test_the_log_says_what_came_and_what_to_do(caplog: pytest.LogCaptureFixture, protocol: str) -> None:
    server = RemotingServer({})
    kernel = Kernel()
    kernel.arrive(FIRST_BYTES[protocol])
    with trio.fail_after(5):
        await server.serve_transport(kernel)
    assert kernel.closed
    (record,) = (each for each in caplog.records if each.levelno >= logging.WARNING)
    assert record.getMessage() == "connection closed: the peer speaks another protocol"
    assert record.__dict__["protocol"].startswith(protocol)
    assert REMEDIES[protocol] in record.__dict__["remedy"]
    assert record.__dict__["port"] == 10911


@virtual
async def test_unknown_bytes_are_a_bad_frame(caplog: pytest.LogCaptureFixture) -> None:
    kernel = Kernel()
    kernel.arrive(b"\x7fELF" + bytes(60))
    with trio.fail_after(5):
        await RemotingServer({}).serve_transport(kernel)
    assert "connection closed: bad frame" in caplog.text
