"""Asks an address server for its list of namesrvs: an HTTP address whose answer is ``host:port[;host:port]``.

Stock clients and brokers build the address from a domain and a subgroup, and fall back to it when nothing else names
their namesrvs. Source: MixAll.getWSAddr and DefaultTopAddressing, 5.4.0.
"""

import re
import socket
import time
from typing import Final
from urllib.parse import urlsplit

DEFAULT_DOMAIN: Final = "jmenv.tbsite.net"
DEFAULT_SUBGROUP: Final = "nsaddr"
DEFAULT_PORT: Final = 8080
FETCH_TIMEOUT_S: Final = 3.0
"""Maximum time for the whole answer, as in the official broker."""
MAX_LIST_BYTES: Final = 64 * 1024
_RECEIVE_BYTES: Final = 4096
_LIST: Final = re.compile(r"[\w.:%\[\];, -]+", re.ASCII)
"""Characters of a list of addresses; a page of an unrelated server has others."""
_SCHEME: Final = "http://"


class AddressServerError(Exception):
    """An address server that gives no list; the text names its address and the reason."""


def address_server_url(domain: str, subgroup: str = DEFAULT_SUBGROUP) -> str:
    """Return the URL of the list. The domain may have a port; the default is 8080."""
    host = domain if domain.find(":") > 0 else f"{domain}:{DEFAULT_PORT}"
    return f"{_SCHEME}{host}/rocketmq/{subgroup}"


def fetch_namesrv_list(url: str, timeout_s: float = FETCH_TIMEOUT_S) -> str:
    """Return the first line of the answer of an address server. Raises AddressServerError, also for an empty list."""
    import h11  # only processes that ask an address server need it

    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
        if parts.scheme != "http" or not host:
            raise ValueError("it is not an http:// address")
        path = parts.path or "/"
        target = f"{path}?{parts.query}" if parts.query else path
        text = _get(host, port, parts.netloc, target, timeout_s).decode().strip()
    except (OSError, ValueError, h11.ProtocolError) as error:
        raise AddressServerError(f"address server {url}: {error or type(error).__name__}") from error
    if not text:
        raise AddressServerError(f"address server {url}: the list is empty")
    namesrvs = text.splitlines()[0].strip()
    if _LIST.fullmatch(namesrvs) is None:
        raise AddressServerError(f"address server {url}: the answer is not host:port[;host:port]")
    return namesrvs


def _get(host: str, port: int, authority: str, target: str, timeout_s: float) -> bytes:
    """Return the body of an answer. Raises OSError, ValueError and h11.ProtocolError."""
    import h11

    deadline_s = time.monotonic() + timeout_s
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_LIST_BYTES)
    request = h11.Request(
        method="GET", target=target, headers=[("Host", authority.rpartition("@")[2]), ("Connection", "close")]
    )
    body = bytearray()
    with socket.create_connection((host, port), timeout_s) as sock:
        sock.sendall(http.send(request) + http.send(h11.EndOfMessage()))
        while not isinstance(event := http.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
            if event is h11.NEED_DATA:
                # One deadline for the whole answer, so that one byte at a time does not prolong it.
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"no answer in {timeout_s:g} s")
                sock.settimeout(left_s)
                data = sock.recv(_RECEIVE_BYTES)
                if not data and http.their_state is h11.SEND_RESPONSE:
                    raise ValueError("it closes the connection without an answer")
                http.receive_data(data)
            elif isinstance(event, h11.Response) and event.status_code != 200:
                raise ValueError(f"it answers with status {event.status_code}")
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_LIST_BYTES:
                    raise ValueError(f"the list is larger than {MAX_LIST_BYTES} bytes")
    return bytes(body)
