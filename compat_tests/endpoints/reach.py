"""Finds the broker of somebody's cluster, and says in words of the user why it cannot be tested.

The steps are those of a client: connect to the namesrv, ask it for brokers, connect to one of them, ask it something
harmless. Each step that fails has a reason of its own and an advice.
"""

import socket
import ssl
import time
from typing import Final

from compat_tests.endpoints.probe import Probe, ProbeRefused, broker_addresses

GET_MAX_OFFSET, GET_BROKER_CLUSTER_INFO = 30, 106
RETRY_S: Final = 0.2
ANSWER_TIMEOUT_S: Final = 3.0
"""Longest wait for a connection, and for an answer."""
_NO_PERMISSION: Final = 16
_WORDS_OF_ACCESS_CONTROL: Final = ("acl", "accesskey", "authentication", "signature")
_TOPIC_OF_EVERY_BROKER: Final = "SELF_TEST_TOPIC"


class Unreachable(RuntimeError):
    """The cluster cannot be tested; the text says why, and what to do."""


def find_broker(namesrv: str, timeout_s: float) -> str:
    """Return the address of a master of the cluster, after it has answered a request.

    Tries again for ``timeout_s``, as a cluster may be starting; a host name that is unknown stays so. Raises
    Unreachable.
    """
    end = time.monotonic() + timeout_s
    while True:
        try:
            broker = _ask_for_broker(namesrv)
            _check_broker(broker, namesrv)
            return broker
        except Unreachable as problem:
            if time.monotonic() > end or isinstance(problem.__cause__, socket.gaierror):
                raise
        time.sleep(RETRY_S)


def check_listener(address: str) -> None:
    """Raise Unreachable unless something listens at an address ("host:port")."""
    try:
        _connect(address).__exit__()
    except OSError as error:
        raise Unreachable(f"nothing can be reached at {address} ({error}): check host and port") from error


def _ask_for_broker(namesrv: str) -> str:
    try:
        with _connect(namesrv) as probe:
            _, body = probe.ask(GET_BROKER_CLUSTER_INFO, {})
    except socket.gaierror as error:
        raise Unreachable(
            f"the host name of {namesrv} is unknown ({error.strerror}): check its spelling"
        ) from error
    except ConnectionRefusedError as error:
        raise Unreachable(
            f"nothing listens at {namesrv}: check host and port (the default port of a namesrv is 9876), "
            "and that the namesrv runs"
        ) from error
    except ProbeRefused as error:
        if _is_access_refused(error):
            raise Unreachable(_needs_credentials(f"the namesrv at {namesrv}", error)) from error
        raise Unreachable(
            f"{namesrv} is not the address of a namesrv ({error}): give the namesrv's, not the broker's"
        ) from error
    except (OSError, ValueError) as error:
        raise Unreachable(_explain_silence(namesrv, error)) from error
    addresses = broker_addresses(body.decode(errors="replace"))
    if not addresses:
        raise Unreachable(
            f"the namesrv at {namesrv} knows no master broker: start a broker with namesrvAddr={namesrv}, "
            "or wait until it has registered"
        )
    return addresses[0]


def _check_broker(broker: str, namesrv: str) -> None:
    """Raise Unreachable unless the broker answers a request of a client that signs nothing."""
    try:
        with _connect(broker) as probe:
            probe.ask(GET_MAX_OFFSET, {"topic": _TOPIC_OF_EVERY_BROKER, "queueId": "0"})
    except ProbeRefused as error:
        if _is_access_refused(error):
            raise Unreachable(_needs_credentials(f"the broker at {broker}", error)) from error
    except (ConnectionRefusedError, TimeoutError, socket.gaierror) as error:
        raise Unreachable(
            f"the namesrv at {namesrv} names the broker {broker}, which cannot be reached from here ({error}): "
            "start it, or set its brokerIP1 to an address that clients can reach"
        ) from error
    except (OSError, ValueError) as error:
        raise Unreachable(_explain_silence(broker, error)) from error


def _connect(address: str) -> Probe:
    return Probe(address, ANSWER_TIMEOUT_S)


def _explain_silence(address: str, error: Exception) -> str:
    """Return why an address gives no answer to a plain request: it wants TLS, or speaks another protocol."""
    if _serves_tls(address):
        return (
            f"{address} accepts TLS only, and the suite connects without: "
            "test a cluster whose tls.server.mode is permissive or disabled"
        )
    return (
        f"{address} does not answer as a RocketMQ server ({error}): check host and port. "
        "The gRPC address of a Proxy is given with --proxy"
    )


def _serves_tls(address: str) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        Probe(address, ANSWER_TIMEOUT_S, context).__exit__()
    except OSError:
        return False
    return True


def _is_access_refused(error: ProbeRefused) -> bool:
    text = str(error).lower()
    return error.code == _NO_PERMISSION or any(word in text for word in _WORDS_OF_ACCESS_CONTROL)


def _needs_credentials(server: str, error: ProbeRefused) -> str:
    return (
        f"{server} refuses requests without credentials ({error}), and the suite has none: "
        "test a cluster without access control"
    )
