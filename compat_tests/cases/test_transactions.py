"""Transactions: half messages, commits and rollbacks, check-backs; with stock clients and by the stored messages."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from codec.message import Message, decode_message
from compat_tests.clients import programs
from compat_tests.clients.java_api import JavaClient, JavaPushConsumer, JavaTransactionProducer
from compat_tests.clients.typed import (
    create_topic,
    expect_refusal,
    heartbeat_request,
    iter_queue,
    messages,
    pull,
    read_first_message,
    send,
)
from compat_tests.jars import Unavailable
from compat_tests.marks import case, differs
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.errors import RemotingTimeout
from remoting.requests.admin import UpdateBrokerConfig
from remoting.requests.offsets import GetMaxOffset
from remoting.requests.send import SendMessageReply
from remoting.requests.transaction import CheckTransactionState, EndTransaction, ResumeCheckHalfMessage

HALF, OP, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK = 8, 12
UNSET = "not set any response code"
# A change of the check interval takes effect after the current interval, 30 s by default.
FIRST_CHECK_S = 45.0
ADDED = {"MSG_REGION", "TRACE_ON", "CLUSTER"}


def configure(broker: BlockingClient, **settings: int) -> None:
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    broker.ask(UpdateBrokerConfig(body=text.encode()))


@pytest.fixture
def quick(broker: BlockingClient, admin_rights: None) -> Iterator[None]:
    """A broker that checks back on half messages every second, once they are a second old."""
    configure(broker, transactionCheckInterval=1000, transactionTimeOut=1000)
    yield
    configure(broker, transactionCheckInterval=30_000, transactionTimeOut=6000, transactionCheckMax=15)


def half(
    broker: BlockingClient, topic: str, key: str, group: str = "compat_tx", **fields: Any
) -> SendMessageReply:
    properties = {"UNIQ_KEY": key, "WAIT": "true", "TRAN_MSG": "true", "PGROUP": group}
    properties |= fields.pop("properties", {})
    return send(broker, topic, b"body " + key.encode(), properties=properties, sys_flag=4, **fields)


def end(sent: SendMessageReply, decision: int = COMMIT, **changes: Any) -> EndTransaction:
    values = {
        "producer_group": "compat_tx",
        "tran_state_table_offset": sent.queue_offset,
        "commit_log_offset": int(sent.msg_id[-16:], 16),
        "commit_or_rollback": decision,
        "msg_id": sent.transaction_id,
        **changes,
    }
    return EndTransaction(**values)


def stored_half(broker: BlockingClient, offset: int) -> Message:
    return eventually(lambda: messages(pull(broker, HALF, offset, max_msg_nums=1)), 10)[0]


def op_messages(broker: BlockingClient, begin: int) -> list[Message]:
    reply = pull(broker, OP, begin)
    return messages(reply) if reply.code == 0 else []


def end_of(broker: BlockingClient, topic: str) -> int:
    return broker.ask(GetMaxOffset(topic=topic, queue_id=0)).offset


# -- stock clients --------------------------------------------------------------------------------------------


@case("transactions", "Java: committed messages are delivered once, others never")
def test_java_local_decisions(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    decisions = ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE"] * 5
    batch = [
        {
            "topic": topic,
            "body": f"{number} {state}",
            "tags": "a",
            "keys": f"k{number}",
            "properties": {"local": state},
        }
        for number, state in enumerate(decisions)
    ]
    with java.producer(server.unique_name("producer")) as plain:
        plain.send_numbered(topic, 1)
    with java.transactions(server.unique_name("tx")) as producer, java.push(group, topic) as consumer:
        results = producer.send(*batch)
        assert {result["status"] for result in results} == {"SEND_OK"}
        got = consumer.received(6)
        # 1 s would be enough for a rolled-back message to arrive if it were delivered.
        assert len(consumer.received(len(got) + 1, 1.0)) == len(got)
        assert producer.checks(0, 0) == []
    bodies = sorted(message["body"] for message in got)
    assert bodies == ["0", *[f"{number} COMMIT_MESSAGE" for number in range(0, 10, 2)]]
    (first,) = [message for message in got if message["body"] == "0 COMMIT_MESSAGE"]
    assert (first["tags"], first["keys"], first["msg_id"]) == ("a", "k0", results[0]["msg_id"])
    assert (first["queue"], first["properties"]["TRAN_MSG"]) == (results[0]["queue"], "true")


def checked(producer: JavaTransactionProducer, bodies: set[str]) -> dict[str, dict[str, Any]]:
    """Return the check-backs so far by body; {} until all of these bodies were asked about."""
    checks = {check["body"]: check for check in producer.checks(0, 0)}
    return checks if bodies <= checks.keys() else {}


def received(consumer: JavaPushConsumer) -> set[str]:
    return {message["body"] for message in consumer.received(0)}


@pytest.mark.usefixtures("quick")
@case(
    "transactions", "Java: a producer that answered UNKNOW gets a check-back, and its decision is carried out"
)
def test_java_check(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    batch = [
        {"topic": topic, "body": state, "flag": 7, "properties": {"check": state}}
        for state in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE")
    ]
    with java.producer(server.unique_name("producer")) as plain:
        plain.send_numbered(topic, 1)
    with (
        java.transactions(server.unique_name("tx"), heartbeatBrokerInterval=1000) as producer,
        java.push(group, topic) as consumer,
    ):
        results = producer.send(*batch)
        # On a slow machine one of them may be asked about twice before the other.
        asked = eventually(lambda: checked(producer, {"COMMIT_MESSAGE", "ROLLBACK_MESSAGE"}), FIRST_CHECK_S)
        eventually(lambda: received(consumer) == {"0", "COMMIT_MESSAGE"}, 10)
    for sent, state in zip(results, ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE"), strict=True):
        check = asked[state]
        assert (check["topic"], check["queue"], check["transaction_id"]) == (
            topic,
            sent["queue"],
            sent["msg_id"],
        )
        assert int(check["properties"]["TRANSACTION_CHECK_TIMES"]) >= 1


@pytest.mark.usefixtures("quick")
@case("transactions", "Java: another producer of the group gets the check-back when the first is gone")
def test_java_other_producer(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group, producers = server.topic_name(), server.unique_name("group"), server.unique_name("tx")
    with java.producer(server.unique_name("producer")) as plain:
        plain.send_numbered(topic, 1)
    with java.transactions(producers, name=f"{producers}_1") as first:
        first.send({"topic": topic, "body": "left behind", "properties": {"check": "COMMIT_MESSAGE"}})
    with (
        java.transactions(producers, name=f"{producers}_2", heartbeatBrokerInterval=1000) as second,
        java.push(group, topic) as consumer,
    ):
        second.send({"topic": topic, "body": "own", "properties": {"local": "COMMIT_MESSAGE"}})
        # Its own message may be asked about as well: a commit counts once the broker has stored it.
        eventually(lambda: checked(second, {"left behind"}), FIRST_CHECK_S)
        eventually(lambda: received(consumer) == {"0", "left behind", "own"}, 10)


@case("transactions", "Go: 200 committed messages are delivered once, 200 rolled back never")
def test_go(server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 4)
    try:
        result = programs.run_go(server.namesrv, topic, 200, 120, "transactions")
    except Unavailable as missing:
        skip_or_fail(str(missing))
    assert result == programs.ProgramResult(sent=200, distinct=200, deliveries=200)


# -- stored messages ------------------------------------------------------------------------------------------


@case("transactions", "half message: stored topic, queue, flags and properties")
def test_half_layout(broker: BlockingClient, topic: str) -> None:
    sent = half(broker, topic, "HALF01", queue_id=2, flag=3, properties={"TAGS": "a", "own": "x"})
    assert (sent.queue_id, sent.transaction_id) == (2, "HALF01")
    message = stored_half(broker, sent.queue_offset)
    assert (message.topic, message.queue_id, message.flag, message.sys_flag) == (HALF, 0, 3, 0)
    own = {name: value for name, value in message.properties.items() if name not in ADDED}
    assert own == {
        "UNIQ_KEY": "HALF01", "WAIT": "true", "TRAN_MSG": "true", "PGROUP": "compat_tx", "TAGS": "a", "own": "x",
        "__transactionId__": "HALF01", "REAL_TOPIC": topic, "REAL_QID": "2",
    }  # fmt: skip
    assert pull(broker, topic, queue_id=2).code == 19
    broker.ask(end(sent, ROLLBACK))


@case("transactions", "commit: the real message's position, flags and properties; rollback: no message")
def test_commit_layout(broker: BlockingClient, topic: str) -> None:
    sent = half(broker, topic, "COMMIT01", queue_id=2, flag=3, properties={"TAGS": "a", "own": "x"})
    gone = half(broker, topic, "GONE01", queue_id=2)
    before = stored_half(broker, sent.queue_offset)
    committed = broker.send_command(end(sent).to_command())
    assert (committed.code, committed.remark) == (0, None)
    rolled_back = broker.send_command(end(gone, ROLLBACK).to_command())
    assert (rolled_back.code, rolled_back.remark) == (0, UNSET)
    message = read_first_message(broker, topic, queue_id=2)
    assert (message.queue_id, message.queue_offset, message.flag, message.sys_flag) == (2, 0, 3, 8)
    assert message.prepared_transaction_offset == before.physical_offset
    assert (message.born_timestamp, message.born_host) == (before.born_timestamp, before.born_host)
    kept = {
        name: value for name, value in before.properties.items() if name not in ("REAL_TOPIC", "REAL_QID")
    }
    assert message.properties == kept
    assert pull(broker, topic, 1, queue_id=2).code == 19


@case("transactions", "op message: lists ended half messages in a batch")
def test_op_layout(broker: BlockingClient, topic: str) -> None:
    begin = end_of(broker, OP)
    sent = [half(broker, topic, f"OP0{number}") for number in range(3)]
    for number, each in enumerate(sent):
        broker.ask(end(each, ROLLBACK if number == 1 else COMMIT))
    wanted = {str(each.queue_offset) for each in sent}

    def found() -> list[Message]:
        """Return the op messages about the half messages, once each has one: a batch may end between two."""
        found = [op for op in op_messages(broker, begin) if wanted & _offsets(op)]
        return found if set().union(*map(_offsets, found)) >= wanted else []

    for op in eventually(found, 10):
        assert (op.tags, op.sys_flag, op.queue_id, op.body[-1:]) == ("d", 0, 0, b",")
        assert op.properties == {"TAGS": "d", "WAIT": "true"}


def _offsets(op: Message) -> set[str]:
    return set(op.body.decode().split(",")) - {""}


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
@case("transactions", "END_TRANSACTION refused: wrong group, queue offset or commit log offset")
def test_refusals(broker: BlockingClient, topic: str, decision: int) -> None:
    sent = half(broker, topic, f"REFUSE{decision}")
    for changes, remark in (
        ({"producer_group": "other"}, "The producer group wrong"),
        ({"tran_state_table_offset": sent.queue_offset + 1}, "The transaction state table offset wrong"),
        ({"commit_log_offset": 1 << 40}, "Find prepared transaction message failed"),
    ):
        refused = expect_refusal(broker, end(sent, decision, **changes))
        assert (refused.code, refused.remark) == (1, remark)
    broker.ask(end(sent, ROLLBACK))


@case("transactions", "END_TRANSACTION after the message's own immunity time is refused (604)")
def test_late(broker: BlockingClient, topic: str) -> None:
    born = int(time.time() * 1000) - 20_000
    sent = half(
        broker, topic, "LATE01", born_timestamp=born, properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "10"}
    )
    for decision in (COMMIT, ROLLBACK):
        refused = expect_refusal(broker, end(sent, decision))
        assert (refused.code, refused.remark) == (604, UNSET)
    broker.ask(end(sent, ROLLBACK, from_transaction_check=True))


@case("transactions", "END_TRANSACTION without a decision gets no answer")
def test_no_decision(broker: BlockingClient, other: BlockingClient, topic: str) -> None:
    sent = half(broker, topic, "NODECISION")
    with pytest.raises(RemotingTimeout):
        other.send_command(end(sent, 0).to_command(), timeout_s=1.0)
    broker.ask(end(sent, ROLLBACK))


@case("transactions", "RESUME_CHECK_HALF_MESSAGE of a message that does not exist is refused")
def test_resume_refused(broker: BlockingClient) -> None:
    refused = expect_refusal(broker, ResumeCheckHalfMessage(topic="t", msg_id="0" * 31 + "1"))
    assert refused.code == 1
    assert refused.remark == f"Exception was thrown when putting message back to {HALF}."


# -- check-backs ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
@case("transactions", "check-back: its fields and message; given up after transactionCheckMax; resumed")
def test_check_and_give_up(
    broker: BlockingClient, other: BlockingClient, server: ServerUnderTest, topic: str
) -> None:
    configure(broker, transactionCheckMax=2)
    group = server.unique_name("tx")
    other.ask(heartbeat_request("client1", producer=group))
    sent = half(broker, topic, f"ASK{group}", group, queue_id=1, properties={"TAGS": "a"})
    asked = [other.wait_for_request(CheckTransactionState, timeout_s=FIRST_CHECK_S) for _ in range(2)]
    for times, question in enumerate(asked, 1):
        copy = stored_half(broker, question.tran_state_table_offset)
        assert question.tran_state_table_offset > sent.queue_offset
        assert question.commit_log_offset == copy.physical_offset
        assert (question.topic, question.msg_id, question.transaction_id) == (
            HALF,
            f"ASK{group}",
            f"ASK{group}",
        )
        assert question.offset_msg_id is not None
        assert int(question.offset_msg_id[-16:], 16) == copy.physical_offset
        message = decode_message(question.body)
        assert (message.topic, message.queue_id, message.body) == (topic, 1, copy.body)
        assert message.properties == {**copy.properties, "WAIT": "false"}
        assert copy.properties["TRANSACTION_CHECK_TIMES"] == str(times)
        assert copy.born_timestamp == stored_half(broker, sent.queue_offset).born_timestamp
    given_up = eventually(
        lambda: [each for each in iter_queue(broker, GIVEN_UP, 0) if each.unique_key == f"ASK{group}"], 10
    )[0]
    assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "2"
    broker.ask(ResumeCheckHalfMessage(topic=topic, msg_id=given_up.msg_id))
    again = other.wait_for_request(CheckTransactionState, timeout_s=10)
    assert decode_message(again.body).properties["TRANSACTION_CHECK_TIMES"] == "1"
    changes = {
        "producer_group": group,
        "tran_state_table_offset": again.tran_state_table_offset,
        "commit_log_offset": again.commit_log_offset,
    }
    broker.ask(end(sent, COMMIT, from_transaction_check=True, **changes))
    assert read_first_message(broker, topic, queue_id=1).unique_key == f"ASK{group}"


@pytest.mark.usefixtures("quick")
@differs("a half message committed after its first check is not asked about, and committed, once more")
@case(
    "transactions", "a commit after a check-back counts, although the half message was rewritten in between"
)
def test_late_commit_counts(
    broker: BlockingClient, other: BlockingClient, server: ServerUnderTest, topic: str
) -> None:
    group = server.unique_name("tx")
    other.ask(heartbeat_request("client1", producer=group))
    sent = half(broker, topic, f"OLD{group}", group)
    other.wait_for_request(CheckTransactionState, timeout_s=FIRST_CHECK_S)
    broker.ask(end(sent, producer_group=group))
    questions: list[CheckTransactionState] = []
    other.serve_request(CheckTransactionState, questions.append)
    with contextlib.suppress(RemotingTimeout):
        other.serve_until(lambda: bool(questions), timeout_s=4.0)
    for question in questions:
        changes = {
            "producer_group": group,
            "tran_state_table_offset": question.tran_state_table_offset,
            "commit_log_offset": question.commit_log_offset,
        }
        broker.ask(end(sent, ROLLBACK, from_transaction_check=True, **changes))
    assert questions == []
