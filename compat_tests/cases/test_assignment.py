"""QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE, with our typed client."""

from compat_tests.clients.popping import BROKER_NAME
from compat_tests.clients.typed import connect, consumer_ids, expect_refusal, send_heartbeat
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.bodies.pop import (
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
)
from remoting.requests.pop import GetAllMessageRequestMode, QueryAssignment, SetMessageRequestMode

# An official broker fetches the topic's route from the namesrv at the first request, and then every 30 s.
ROUTE_S = 60


def ask(
    broker: BlockingClient, topic: str, group: str, client: str, **fields: str
) -> list[MessageQueueAssignment] | None:
    values = {"strategy_name": "AVG", "message_model": "CLUSTERING", **fields}
    body = QueryAssignmentRequestBody(topic=topic, consumer_group=group, client_id=client, **values)
    return broker.ask(QueryAssignment(data=body)).data.message_queue_assignments


def share(broker: BlockingClient, topic: str, group: str, client: str, **fields: str) -> list[int]:
    """Return the ids of the queues assigned to a client."""
    found = eventually(lambda: ask(broker, topic, group, client, **fields), ROUTE_S)
    queues = [assignment.message_queue for assignment in found]
    assert {(queue.topic, queue.broker_name) for queue in queues} == {(topic, BROKER_NAME)}
    return sorted(queue.queue_id for queue in queues)


def mode(topic: str, group: str, name: str, shared: int = 0) -> SetMessageRequestMode:
    body = SetMessageRequestModeRequestBody(
        topic=topic, consumer_group=group, mode=name, pop_share_queue_num=shared
    )
    return SetMessageRequestMode(data=body)


@case("pop", "QUERY_ASSIGNMENT shares queues among the members of a group")
def test_shares(
    broker: BlockingClient, other: BlockingClient, server: ServerUnderTest, topic: str, group: str
) -> None:
    send_heartbeat(broker, "a", group, topic)
    assert share(broker, topic, group, "a") == [0, 1, 2, 3]
    with connect(server.broker) as third:
        send_heartbeat(other, "b", group, topic)
        send_heartbeat(third, "c", group, topic)
        eventually(lambda: consumer_ids(broker, group) == {"a", "b", "c"})
        assert [share(broker, topic, group, client) for client in "abc"] == [[0, 1], [2], [3]]
        circle = [share(broker, topic, group, client, strategy_name="AVG_BY_CIRCLE") for client in "abc"]
        assert circle == [[0, 3], [1], [2]]
    assert {each.mode for each in ask(broker, topic, group, "a") or ()} == {"PULL"}
    assert len(ask(broker, topic, group, "a", message_model="BROADCASTING") or ()) == 4


@case("pop", "QUERY_ASSIGNMENT that cannot be answered: no list, so that the client keeps its queues")
def test_no_list(broker: BlockingClient, topic: str, group: str) -> None:
    send_heartbeat(broker, "a", group, topic)
    assert share(broker, topic, group, "a") == [0, 1, 2, 3]
    assert ask(broker, topic, group, "a", strategy_name="BY_MOON") is None
    assert ask(broker, "compat_no_such_topic", group, "a") is None
    assert ask(broker, topic, f"{group}_without_members", "a") is None
    assert ask(broker, topic, group, "nobody") == []


@case("pop", "SET_MESSAGE_REQUEST_MODE: a popping group is assigned all queues as one")
def test_pop_mode(broker: BlockingClient, topic: str, group: str) -> None:
    broker.ask(mode(topic, group, "POP"))
    send_heartbeat(broker, "a", group, topic)
    (found,) = eventually(lambda: ask(broker, topic, group, "a"), ROUTE_S)
    assert (found.mode, found.message_queue.queue_id) == ("POP", -1)
    table = broker.ask(GetAllMessageRequestMode()).data.message_request_mode_map
    assert (table[topic][group].mode, table[topic][group].pop_share_queue_num) == ("POP", 0)
    broker.ask(mode(topic, group, "PULL"))
    assert share(broker, topic, group, "a") == [0, 1, 2, 3]


@case("pop", "SET_MESSAGE_REQUEST_MODE: each member also pops the queues of the given number of others")
def test_shared_queues(broker: BlockingClient, server: ServerUnderTest, topic: str, group: str) -> None:
    broker.ask(mode(topic, group, "POP", shared=1))
    clients = [connect(server.broker) for _ in range(4)]
    try:
        for number, client in enumerate(clients):
            send_heartbeat(client, f"client{number}", group, topic)
        eventually(lambda: len(consumer_ids(broker, group)) == 4)
        shares = [share(broker, topic, group, f"client{number}") for number in range(4)]
        assert shares == [[0, 1], [1, 2], [2, 3], [0, 3]]
    finally:
        for client in clients:
            client.close()


@case("pop", "SET_MESSAGE_REQUEST_MODE is refused for retry topics and unknown topics")
def test_refused_modes(broker: BlockingClient, group: str) -> None:
    error = expect_refusal(broker, mode(f"%RETRY%{group}", group, "POP"))
    assert (error.code, error.remark) == (16, "retry topic is not allowed to set mode")
    error = expect_refusal(broker, mode("compat_no_such_topic", group, "POP"))
    assert (error.code, error.remark) == (17, "topic[compat_no_such_topic] not exist")
