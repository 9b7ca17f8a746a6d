"""The reasons for which a cluster cannot be tested, against scripted servers."""

import socket
from typing import Any

import pytest

from compat_tests.endpoints import reach
from compat_tests.endpoints.reach import GET_BROKER_CLUSTER_INFO, Unreachable, find_broker
from compat_tests.tests.test_probe import Answer, reply, server


def cluster_at(broker: str) -> Answer:
    """Return the script of a namesrv that knows one master, or none for "", in the official way to write it."""
    table = f'"broker-a":{{"brokerAddrs":{{0:"{broker}"}}}}' if broker else ""

    def answer(request: dict[str, Any], _body: bytes) -> list[tuple[dict[str, Any], bytes]]:
        assert request["code"] == GET_BROKER_CLUSTER_INFO
        return [(reply(request), f'{{"brokerAddrTable":{{{table}}}}}'.encode())]

    return answer


def always(code: int, remark: str) -> Answer:
    return lambda request, _body: [(reply(request, code, remark=remark), b"")]


def reason(namesrv: str) -> str:
    with pytest.raises(Unreachable) as refused:
        find_broker(namesrv, 0)
    return str(refused.value)


@pytest.mark.parametrize("code", [0, 17])
def test_a_broker_that_answers_is_found_whatever_it_answers(code: int) -> None:
    with server(always(code, "no such topic")) as broker, server(cluster_at(broker)) as namesrv:
        assert find_broker(namesrv, 0) == broker


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert f"nothing listens at {address}: check host and port" in reason(address)


def test_an_unknown_host_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(reach, "Probe", connect)
    with pytest.raises(Unreachable, match="the host name of nowhere:1 is unknown"):
        find_broker("nowhere:1", 3600)


def test_a_namesrv_without_a_broker() -> None:
    with server(cluster_at("")) as namesrv:
        assert f"knows no master broker: start a broker with namesrvAddr={namesrv}" in reason(namesrv)


def test_the_address_of_a_broker_is_none_of_a_namesrv() -> None:
    with server(always(3, "request type 106 not supported")) as broker:
        assert "is not the address of a namesrv (code 3: request type 106" in reason(broker)


def test_a_broker_whose_address_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        broker = f"127.0.0.1:{listener.getsockname()[1]}"
    with server(cluster_at(broker)) as namesrv:
        text = reason(namesrv)
    assert f"names the broker {broker}, which cannot be reached" in text
    assert "brokerIP1" in text


@pytest.mark.parametrize(
    ("code", "remark"), [(16, "user is not allowed"), (1, "AclException: No accessKey is configured")]
)
def test_access_control(code: int, remark: str) -> None:
    with server(always(code, remark)) as broker, server(cluster_at(broker)) as namesrv:
        assert f"the broker at {broker} refuses requests without credentials" in reason(namesrv)
    with server(always(code, remark)) as namesrv:
        assert f"the namesrv at {namesrv} refuses requests without credentials" in reason(namesrv)


def test_another_protocol_and_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(lambda request, _body: []) as silent:
        monkeypatch.setattr(reach, "ANSWER_TIMEOUT_S", 0.1)
        monkeypatch.setattr(reach, "_serves_tls", lambda address: False)
        assert f"{silent} does not answer as a RocketMQ server" in reason(silent)
        monkeypatch.setattr(reach, "_serves_tls", lambda address: True)
        assert f"{silent} accepts TLS only" in reason(silent)
