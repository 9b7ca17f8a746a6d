"""`advance` makes due: delayed messages, retries, timers, open transactions, invisible times."""

import pytest

from gateway.testing.tests.clients import Client, now_ms
from gateway.tests.cluster import pull
from remoting.errors import RemotingTimeout
from remoting.requests.transaction import CheckTransactionState, EndTransaction

HALF = 4
COMMIT = 8
HOUR_S = 3600


@pytest.mark.parametrize(("level", "seconds"), [(1, 1), (3, 10), (18, 2 * HOUR_S)])
def test_delayed_message_is_due(mq, client, level, seconds):
    client.send("orders", b"later", properties={"DELAY": str(level)})
    mq.advance(seconds - 0.5 if seconds > 1 else 0)
    assert mq.messages("orders") == []
    mq.advance(seconds)
    assert [each.body for each in mq.messages("orders")] == [b"later"]


def test_many_delayed_messages_are_due_together(mq, client):
    for number in range(300):
        client.send("orders", b"%d" % number, properties={"DELAY": str(1 + number % 18)})
    mq.advance(2 * HOUR_S)
    assert len(mq.messages("orders")) == 300


@pytest.mark.parametrize("seconds", [5, 3 * HOUR_S, 2 * 24 * HOUR_S])
def test_timer_message_is_due(mq, client, seconds):
    client.send("orders", b"relative", properties={"TIMER_DELAY_SEC": str(seconds)})
    client.send("orders", b"absolute", properties={"TIMER_DELIVER_MS": str(now_ms() + seconds * 1000)})
    mq.advance(seconds - 3)
    assert mq.messages("orders") == []
    mq.advance(4)
    assert {each.body for each in mq.messages("orders")} == {b"relative", b"absolute"}


def test_times_of_clients_are_converted(mq, client):
    mq.advance(HOUR_S)
    client.send("orders", b"absolute", properties={"TIMER_DELIVER_MS": str(now_ms() + 60_000), "KEYS": "k 1"})
    assert mq.messages("orders") == []
    mq.advance(61)
    (found,) = mq.messages("orders")
    assert found.keys == ["k", "1"]
    assert client.pop_bodies("orders") == [b"absolute"]


def test_retry_is_due(mq, client):
    client.beat("c1")
    client.send("orders", b"try again")
    (got,) = client.pull_messages("orders")
    client.send_back(got)
    assert client.pull_bodies("%RETRY%GID") == []
    mq.advance(10)
    (again,) = client.pull_messages("%RETRY%GID")
    assert (again.body, again.reconsume_times) == (b"try again", 1)


def test_waiting_pull_is_answered(mq, client):
    client.send("orders", b"later", properties={"DELAY": "3"})
    with Client(mq) as other:
        opaque = other.start_command(pull("orders", wait_ms=15_000).to_command())
        mq.advance(10)
        assert b"later" in bytes(other.receive_answer(opaque).body)


def test_invisible_time_ends(mq, client):
    client.beat("c1")
    client.send("orders", b"popped")
    assert client.pop_bodies("orders", invisible_time=60_000) == [b"popped"]
    assert client.pop_bodies("orders") == []
    mq.advance(61)
    assert [each.body for each in mq.messages("%RETRY%GID_orders")] == [b"popped"]


def test_producer_is_asked_once_for_each_advance(mq, client):
    client.beat("c1")
    properties = {"TRAN_MSG": "true", "PGROUP": "PID"}
    sent = client.send("orders", b"half", sys_flag=HALF, properties=properties)
    mq.advance(60)
    asked = client.wait_for_request(CheckTransactionState)
    assert asked.body
    with pytest.raises(RemotingTimeout):
        client.wait_for_request(CheckTransactionState, timeout_s=0.05)
    mq.advance(60)
    again = client.wait_for_request(CheckTransactionState)
    client.ask(
        EndTransaction(
            producer_group="PID",
            tran_state_table_offset=again.tran_state_table_offset,
            commit_log_offset=again.commit_log_offset,
            commit_or_rollback=COMMIT,
            from_transaction_check=True,
            msg_id=sent.msg_id,
            transaction_id=again.transaction_id,
        )
    )
    assert [each.body for each in mq.messages("orders")] == [b"half"]
    mq.advance(60)
    with pytest.raises(RemotingTimeout):
        client.wait_for_request(CheckTransactionState, timeout_s=0.05)


def test_connections_survive_long_times(mq, client):
    client.beat("c1")
    for _ in range(20):
        mq.advance(30 * 24 * HOUR_S)
    client.send("orders")
    assert client.pull_bodies("orders") == [b"hello"]


def test_time_does_not_go_back(mq):
    with pytest.raises(ValueError, match="cannot go back"):
        mq.advance(-1)
