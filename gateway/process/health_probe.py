"""The health check of containers: ask the server's own HTTP port whether clients may be sent to it.

    python3 -m gateway.process.health_probe     # exit status 0 while `/readyz` answers with status 200
    python3 -m gateway.process.health_probe --exclude in-sync     # also of a slave that is not in sync

The port is that of the environment, `RMQ_GATEWAY_HTTP_PORT`, as the container image sets it. It is asked with TLS if
`RMQ_GATEWAY_HTTP_TLS=enforcing`, or if it refuses plain HTTP, because a file may set `httpTls` as well. The certificate
is not verified: the probe stays on the loopback address and sends no secret.
"""

import argparse
import http.client
import os
import ssl
import sys
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

TIMEOUT_S: Final = 4.0


def probe(port: int, *, is_tls_only: bool = False, excluded: str = "") -> str:
    """Return what is wrong, but for a task that is ``excluded``; "" if nothing is."""
    path = f"/readyz?exclude={quote(excluded)}" if excluded else "/readyz"
    try:
        try:
            return _probe_once("https" if is_tls_only else "http", port, path)
        except (http.client.RemoteDisconnected, ConnectionResetError):
            return _probe_once("https", port, path)
    except (OSError, http.client.HTTPException) as error:
        return f"127.0.0.1:{port} (httpPort) cannot be reached: {error}"


def _probe_once(scheme: str, port: int, path: str) -> str:
    if scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return "" if answer.status == 200 else answer.read().decode("utf-8", "replace")
    finally:
        connection.close()


def main(words: Sequence[str] | None = None) -> int:
    """Print what is wrong, and return the exit status. ``words`` are those of the command line by default."""
    parser = argparse.ArgumentParser(
        description="Ask whether clients may be sent to the server of this container."
    )
    parser.add_argument(
        "--exclude", default="", metavar="TASK", help="a background task that may fail: in-sync"
    )
    options = parser.parse_args(words)
    port = os.environ.get("RMQ_GATEWAY_HTTP_PORT", "")
    if not port.isdecimal():
        problem = f"RMQ_GATEWAY_HTTP_PORT={port} is not a port: set it to the HTTP port of the server"
    else:
        is_tls_only = os.environ.get("RMQ_GATEWAY_HTTP_TLS") == "enforcing"
        problem = probe(int(port), is_tls_only=is_tls_only, excluded=options.exclude)
    if problem:
        print(problem)
    return int(bool(problem))


if __name__ == "__main__":
    sys.exit(main())
