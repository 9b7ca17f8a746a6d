"""The health check of containers: ask the server's own HTTP port whether clients may be sent to it.

    python3 -m gateway.health_probe     # exit status 0 while `/readyz` answers with status 200

The port is that of the environment, `RMQ_GATEWAY_HTTP_PORT`, as the container image sets it.
"""

import http.client
import os
import sys
from typing import Final

TIMEOUT_S: Final = 4.0


def probe(port: int) -> str:
    """Return what is wrong, "" if nothing is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return "" if answer.status == 200 else answer.read().decode("utf-8", "replace")
    except OSError as error:
        return f"127.0.0.1:{port} (httpPort) cannot be reached: {error}"
    finally:
        connection.close()


def main() -> int:
    """Print what is wrong, and return the exit status."""
    port = os.environ.get("RMQ_GATEWAY_HTTP_PORT", "")
    if not port.isdecimal():
        problem = f"RMQ_GATEWAY_HTTP_PORT={port} is no port to ask: set it to that of the server"
    else:
        problem = probe(int(port))
    if problem:
        print(problem)
    return int(bool(problem))


if __name__ == "__main__":
    sys.exit(main())
