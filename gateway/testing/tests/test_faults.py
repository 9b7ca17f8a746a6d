"""Injected faults, as a client sees them."""

import time

import pytest

from gateway.testing.faults import FaultSpec
from gateway.testing.tests.clients import Client, now_ms, open_client, route_of
from gateway.tests.cluster import message, pull
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.namesrv import GetRouteInfoByTopic

WRITE_ONLY = 2


def bodies(mq, topic="orders"):
    return [each.body for each in mq.messages(topic)]


def test_error_strikes_so_many_times(mq, client):
    fault = mq.faults.add("error", request="send", code=14, remark="disk is full", times=2)
    for _ in range(2):
        with pytest.raises(RequestError, match="disk is full") as refused:
            client.send()
        assert refused.value.code == 14
    client.send(body=b"third")
    assert (fault.hits, bodies(mq)) == (2, [b"third"])


def test_flow_control_is_a_busy_broker(mq, client):
    mq.faults.add("flow-control", request="pull")
    client.send()
    with pytest.raises(RequestError, match="start flow control for a while") as refused:
        client.pull_bodies()
    assert refused.value.code == 2


def test_latency_delays_and_adds_up(mq, client):
    client.send()
    for _ in range(2):
        mq.faults.add("latency", seconds=0.03, request="pull")
    started_s = time.monotonic()
    assert client.pull_bodies() == [b"hello"]
    assert time.monotonic() - started_s >= 0.06
    mq.faults.add("error", request="pull")
    with pytest.raises(RequestError):
        client.pull_bodies()


def test_dropped_answer_leaves_the_message(mq, client):
    mq.faults.add("drop-answer", request="send", times=1)
    opaque = client.start_command(message("orders", b"sent").to_command())
    mq.wait_for("orders")
    with pytest.raises(RemotingTimeout):
        client.receive_answer(opaque, timeout_s=0.05)
    client.send(body=b"next")
    assert bodies(mq) == [b"sent", b"next"]


def test_close_does_not_handle_the_request(mq, client):
    mq.faults.add("close", request="send", times=1)
    with pytest.raises(RemotingClosed):
        client.send()
    assert bodies(mq) == []


def test_close_before_answer_handles_the_request(mq, client):
    mq.faults.add("close-before-answer", request="send", times=1)
    with pytest.raises(RemotingClosed):
        client.send()
    assert bodies(mq) == [b"hello"]


def test_half_an_answer_arrives(mq, client):
    mq.faults.add("half-answer", request="send")
    client.start_command(message("orders", b"sent").to_command())
    received = client.receive_bytes()
    announced = int.from_bytes(received[:4], "big")
    assert 8 < len(received) < 4 + announced
    assert client.is_closed_by_peer()
    assert bodies(mq) == [b"sent"]


def test_late_answer_is_struck_too(mq, client):
    mq.faults.add("drop-answer", request="pull", times=1)
    client.send("orders", b"first")
    first = client.start_command(pull("orders", offset=1, wait_ms=15_000).to_command())
    second = client.start_command(pull("orders", offset=1, wait_ms=15_000).to_command())
    with Client(mq) as other:
        other.send("orders", b"second")
    assert b"second" in bytes(client.receive_answer(second).body)
    with pytest.raises(RemotingTimeout):
        client.receive_answer(first, timeout_s=0.05)


def test_duplicate_stores_a_message_twice(mq, client):
    mq.faults.add("duplicate", request="send", times=1)
    sent = client.send()
    assert sent.queue_offset == 1
    found = mq.messages("orders")
    assert [each.body for each in found] == [b"hello", b"hello"]
    assert len({each.unique_key for each in found}) == 1


def test_route_changes(mq, client):
    client.send()
    mq.faults.add("route", topic="orders", queues=7, permission=WRITE_ONLY, address="192.0.2.1:10911")
    route = route_of(mq, "orders")
    (queues,) = route.queue_datas
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (7, 7, WRITE_ONLY)
    assert list(route.broker_datas[0].broker_addrs.values()) == ["192.0.2.1:10911"]
    assert route_of(mq, "TBW102").queue_datas[0].perm != WRITE_ONLY


def test_route_disappears(mq, client):
    client.send()
    fault = mq.faults.add("route", topic="orders")
    with pytest.raises(RequestError, match="No topic route info") as refused:
        route_of(mq, "orders")
    assert refused.value.code == 17
    mq.faults.remove(fault)
    mq.faults.remove(fault)
    assert route_of(mq, "orders").queue_datas


def test_namesrv_can_fail(mq):
    mq.faults.add("error", request="route", times=1)
    with open_client(mq.namesrv_address) as client, pytest.raises(RequestError, match="injected fault"):
        client.ask(GetRouteInfoByTopic(topic="TBW102"))


def test_faults_without_request_leave_routes_alone(mq, client):
    client.send()
    fault = mq.faults.add("error", topic="orders", times=1)
    route_of(mq, "orders")
    assert fault.hits == 0
    with pytest.raises(RequestError):
        client.pull_bodies()


@pytest.mark.parametrize(
    ("condition", "hit", "missed"),
    [
        ({"topic": "orders"}, {"topic": "orders"}, {"topic": "other"}),
        ({"group": "PID"}, {}, {"producer_group": "PID_2"}),
        ({"client": "127.0.0.1", "group": "PID"}, {}, {"producer_group": "PID_2"}),
        ({"request": 310}, {}, None),
        ({"request": 10}, None, {}),
        ({"client": "10.0.0.1"}, None, {}),
    ],
)
def test_conditions_choose_requests(mq, client, condition, hit, missed):
    fault = mq.faults.add("error", **condition)
    if missed is not None:
        client.send(**missed)
    assert fault.hits == 0
    if hit is not None:
        with pytest.raises(RequestError, match="injected fault"):
            client.send(**hit)
        assert fault.hits == 1


def test_client_is_known_from_its_heartbeat(mq, client):
    with Client(mq) as other:
        client.beat("client-1")
        other.beat("client-2")
        mq.faults.add("error", client="client-2")
        client.send()
        with pytest.raises(RequestError, match="injected fault"):
            other.send()


def test_seed_decides_who_is_hit(mq, client):
    def pattern(seed):
        mq.faults.clear()
        mq.faults.add("error", request="send", probability=0.5, seed=seed)
        found = []
        for _ in range(24):
            try:
                client.send()
            except RequestError:
                found.append("hit")
            else:
                found.append("missed")
        return found

    first = pattern(1)
    assert {"hit", "missed"} == set(first)
    assert pattern(1) == first
    assert pattern(2) != first


def test_first_fault_decides(mq, client):
    first = mq.faults.add("error", remark="first", times=1)
    second = mq.faults.add("error", remark="second")
    with pytest.raises(RequestError, match="first"):
        client.send()
    assert (first.hits, second.hits) == (1, 0)
    with pytest.raises(RequestError, match="second"):
        client.send()


def test_oneway_requests_get_no_answer(mq, client):
    mq.faults.add("error", request="send", times=1)
    mq.faults.add("drop-answer", request="send", times=1)
    for body in (b"refused", b"stored"):
        client.send_oneway(message("orders", body, born_timestamp=now_ms()))
    client.send(body=b"last")
    assert bodies(mq) == [b"stored", b"last"]


def test_cleared_faults_end(mq, client):
    fault = mq.faults.add("error")
    mq.faults.clear()
    client.send()
    assert fault.hits == 0


@pytest.mark.parametrize(
    ("action", "options", "reason"),
    [
        ("explode", {}, "action: 'explode' is none of latency"),
        ("error", {"topik": "orders"}, "unknown option topik; a fault has address"),
        ("error", {"request": "sent"}, "request: 'sent' is none of send"),
        ("error", {"probability": 0}, "probability: 0 is not above 0"),
        ("error", {"probability": "1"}, "wrong type"),
        ("error", {"times": 0}, "times: 0 is less than 1"),
        ("latency", {}, "seconds: a latency needs"),
        ("latency", {"seconds": -1}, "seconds: -1 is negative"),
    ],
)
def test_wrong_faults_are_refused(action, options, reason):
    with pytest.raises(ValueError, match=reason):
        FaultSpec.parse(action, options)
