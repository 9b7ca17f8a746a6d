"""Transactions whose broker is killed, or is replaced by the other implementation; these cases run last."""

from collections.abc import Callable

import pytest

from codec.message import decode_message
from compat_tests.cases.test_restart import read_all
from compat_tests.cases.test_transactions import COMMIT, ROLLBACK, end, half
from compat_tests.clients.typed import connect, create_topic, heartbeat_request
from compat_tests.endpoints import Endpoint, NotPossible
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest
from remoting.blocking import BlockingClient
from remoting.errors import RemotingTimeout
from remoting.requests.transaction import CheckTransactionState, EndTransaction

# The official broker repeats a check-back until it has persisted the answer, so that must be quick as well. Its
# check-backs also continue while it stops, hence the large maximum.
QUICK = {
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "1000",
    "transactionOpBatchInterval": "100",
    "transactionCheckMax": "1000",
}
GROUP = "compat_tx"


def answer_questions(
    broker: BlockingClient, decide: Callable[[str], int], wanted: set[str], timeout_s: float
) -> list[str]:
    """Answer check-backs with `decide(unique key)` until all wanted keys were asked about; return all keys in order."""
    asked: list[str] = []

    def answer(question: CheckTransactionState) -> None:
        asked.append(question.msg_id or "")
        decision = decide(asked[-1])
        if decision:
            broker.send_oneway(
                EndTransaction(
                    producer_group=GROUP,
                    tran_state_table_offset=question.tran_state_table_offset,
                    commit_log_offset=question.commit_log_offset,
                    commit_or_rollback=decision,
                    from_transaction_check=True,
                )
            )
        assert decode_message(question.body).unique_key == asked[-1]

    broker.serve_request(CheckTransactionState, answer)
    broker.ask(heartbeat_request("client1", producer=GROUP))
    broker.serve_until(lambda: wanted <= set(asked), timeout_s=timeout_s)
    try:  # 3.5 s for check-backs that should not come
        broker.serve_until(lambda: False, timeout_s=3.5)
    except RemotingTimeout:
        return asked
    raise AssertionError("unreachable")


@case(
    "transactions", "SIGKILL between half message and commit: nothing lost, no rolled-back message delivered"
)
def test_crash(endpoint: Endpoint, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 1)
    keys = [f"{topic}{number:02d}" for number in range(15)]
    committed, rolled_back, left = set(keys[0::3]), set(keys[1::3]), set(keys[2::3])
    with connect(server.broker) as broker:
        for key in keys:
            sent = half(broker, topic, key)
            if key not in left:
                broker.ask(end(sent, COMMIT if key in committed else ROLLBACK))
    usual = dict(endpoint.settings)
    try:
        endpoint.crash()
    except NotPossible as reason:
        pytest.skip(str(reason))
    endpoint.settings.update(QUICK)
    endpoint.start()
    with connect(server.broker) as broker:
        answer_questions(broker, lambda key: ROLLBACK if key in rolled_back else COMMIT, left, 60)
        bodies = [body.decode().removeprefix("body ") for body in read_all(broker, topic)]
    assert set(bodies) == committed | left
    if server.kind == "ours":  # the official broker may commit a message twice
        assert len(bodies) == len(committed | left)
    endpoint.settings.clear()
    endpoint.settings.update(usual)
    endpoint.stop()
    endpoint.start()
