"""The front before brokers elsewhere: members, masters that move, brokers that fail, what is read again, users.

That the RPCs do the same as before local brokers is tested in `test_rpcs.py`.
"""

from contextlib import suppress
from typing import Any

import pytest
import trio

from codec.command import encode_response
from codec.constants import ResponseCode
from gateway.auth.access_control import AccessControl
from gateway.auth.account_table import User
from gateway.auth.request_needs import NeedContext
from gateway.grpc_front import messages as m
from gateway.grpc_front.loading_cache import MAX_AGE_S, CacheEntry
from gateway.grpc_front.remote_cluster import (
    AVOIDED_S,
    MASTERS_MAX_AGE_S,
    MAX_BROKERS,
    OPEN_TIMEOUT_S,
    UNNAMED_BROKER_S,
    RemoteCluster,
    split_address,
)
from gateway.grpc_front.service import GrpcService
from gateway.grpc_front.tests.test_rpcs import FakeAccounts, resource, send, signed
from gateway.grpc_front.tests.world import (
    MAX_STREAMS,
    Front,
    consumer_settings,
    message,
    producer_settings,
    receive_request,
    received,
    remote_cluster,
    send_request,
)
from gateway.tests.cluster import NAMESRV, Node, settle, simulated
from remoting.bodies.auth import UserInfo
from remoting.bodies.replication import ReplicatedAccounts
from remoting.errors import RemotingClosed, RequestError
from remoting.handler_table import Guard
from remoting.limits import ConnectionLimits
from remoting.requests.auth import AuthGetUser, AuthGetUserReply
from remoting.requests.pop import ChangeMessageInvisibletime
from remoting.requests.replication import GetReplicatedAccounts, GetReplicatedAccountsReply
from remoting.requests.send import SendMessageV2
from remoting.requests.topics import GetTopicConfig
from remoting.server import ServerLimits
from storage.files import MemoryFiles


class RemoteFront(Front):
    """A front before several brokers, whose cluster can be looked at."""

    remote: Any
    brokers: list[Node]

    def create_topic(self, name="orders", kind="NORMAL", queues=4):
        for node in self.brokers:
            config = node.broker.topics.create_for_send(name, "TBW102", queues, 0)
            config.attributes["message.type"] = kind


async def open_remote(cluster, *, brokers=1, accounts=None, **more):
    """Start a namesrv, brokers and a front that finds them through the namesrv."""
    namesrv = await cluster.namesrv()
    settings = more.pop("settings", {})
    nodes = [
        await cluster.add_broker(f"broker-{letter}", accounts=accounts, **settings)
        for letter in "abc"[:brokers]
    ]
    service = GrpcService(ConnectionLimits(), ServerLimits(), max_streams=MAX_STREAMS)
    front = RemoteFront(cluster, service, nodes[0], namesrv)
    front.brokers = nodes
    build = remote_cluster(cluster, accounts, **more)

    def build_and_keep(nursery):
        front.remote = build(nursery)
        return front.remote

    cluster.nursery.start_soon(service.run, [], build_and_keep)
    await trio.sleep(2)
    front.create_topic()
    await trio.sleep(2)
    return front


def connections_of(node):
    return [
        connection for connection in node.service.server.connections if connection.remote[0] == "10.1.0.2"
    ]


async def kill(node):
    """End a server as SIGKILL does."""
    await node.crash()
    for connection in list(node.service.server.connections):
        connection.close("killed")
    await settle()


# -- connections and members ----------------------------------------------------------------------------------


@simulated
async def test_a_client_has_one_connection_to_a_broker_for_everything(cluster):
    front = await open_remote(cluster)
    client = front.client()
    await client.tell_settings(consumer_settings())
    await client.start_receive(poll_s=20)
    for _ in range(5):
        assert (await send(client, message())).status.code == m.OK
    # The other one is that of the front itself, which reads topics and groups.
    assert len(connections_of(front.brokers[0])) == 2
    assert front.remote.session_count == 1
    assert front.broker.clients.consumer_group("GID").client_ids() == ["client-1"]
    await client.transport.aclose()
    await settle()
    assert front.remote.session_count == 0
    assert len(connections_of(front.brokers[0])) == 1
    assert front.broker.clients.consumer_group("GID") is None


@simulated
async def test_clients_that_share_a_connection_are_members_each(cluster):
    front = await open_remote(cluster)
    client = front.client()
    await client.tell_settings(consumer_settings())
    client.metadata["x-mq-client-id"] = "client-2"
    await client.tell_settings(consumer_settings())
    assert front.broker.clients.consumer_group("GID").client_ids() == ["client-1", "client-2"]
    assert front.remote.session_count == 2
    leave = m.NotifyClientTerminationRequest(group=resource("GID"))
    assert (await client.call("NotifyClientTermination", leave)).status.code == m.OK
    assert front.broker.clients.consumer_group("GID").client_ids() == ["client-1"]
    assert front.remote.session_count == 1
    client.metadata["x-mq-client-id"] = "client-1"
    assert (await send(client, message())).status.code == m.OK


@simulated
async def test_a_member_that_leaves_takes_its_connection_along_after_the_requests_in_progress(cluster):
    front = await open_remote(cluster)
    client, other = front.client(), front.client("client-2")
    await client.tell_settings(consumer_settings())
    stream = await client.start_receive(group="GID2", poll_s=10)
    await settle()
    leave = m.NotifyClientTerminationRequest(group=resource("GID"))
    assert (await client.call("NotifyClientTermination", leave)).status.code == m.OK
    assert front.broker.clients.consumer_group("GID") is None
    # A new request gets another connection, and the receive goes on over the former one.
    assert (await send(client, message())).status.code == m.OK
    await stream.ended.wait()
    assert received(stream).bodies == [b"hello"]
    await settle()
    assert front.remote.session_count == 1
    assert (await send(other, message())).status.code == m.OK


@simulated
async def test_a_broker_that_restarts_knows_the_members_after_their_next_heartbeat(cluster):
    front = await open_remote(cluster)
    client = front.client()
    await client.tell_settings(producer_settings("orders"))
    front.brokers[0].broker.clients.next_producer("orders")
    for connection in connections_of(front.brokers[0]):
        connection.close("cut")
    await settle()
    assert front.remote.session_count == 0
    beat = m.HeartbeatRequest(client_type=m.PRODUCER)
    assert (await client.call("Heartbeat", beat)).status.code == m.OK
    assert front.broker.clients.next_producer("orders").client_id == "client-1"


@simulated
async def test_messages_of_a_late_answer_are_returned(cluster):
    """The receive was given up, but its pop cannot be taken back."""
    front = await open_remote(cluster)
    client, other = front.client(), front.client("client-2")
    await client.receive()
    stream = await client.start_receive(poll_s=20)
    await trio.sleep(1)
    client.h2.reset_stream(next(number for number, each in client.streams.items() if each is stream))
    await client.flush()
    await settle()
    await send(other, message())
    got = await other.receive(poll_s=20)
    assert got.bodies == [b"hello"]


@simulated
async def test_a_stop_answers_receives_that_wait(cluster):
    front = await open_remote(cluster)
    stream = await front.client().start_receive(poll_s=20)
    await trio.sleep(1)
    begin_s = trio.current_time()
    await front.service.stop()
    await stream.ended.wait()
    assert trio.current_time() - begin_s < 1
    assert received(stream).code == m.MESSAGE_NOT_FOUND


# -- masters and failures -------------------------------------------------------------------------------------


@simulated
async def test_a_master_that_moved_is_found(cluster):
    files = MemoryFiles()
    front = await open_remote(cluster, settings={"files": files})
    client = front.client()
    assert (await send(client, message())).status.code == m.OK
    await kill(front.brokers[0])
    answer = await send(client, message(body=b"lost"))
    assert answer.status.code == m.PROXY_TIMEOUT
    moved = await cluster.add_broker("broker-a", "10.0.1.77", files=files, takes_over_name=True)
    await trio.sleep(5)
    answer = await send(client, message(body=b"again"))
    assert answer.status.code == m.OK, answer
    assert moved.broker.store.max_offset("orders", 0) + moved.broker.store.max_offset("orders", 1) >= 1
    got = await client.receive(poll_s=5)
    assert b"again" in got.bodies or got.code == m.OK


@simulated
async def test_unordered_messages_go_to_brokers_that_can_be_reached(cluster):
    front = await open_remote(cluster, brokers=2)
    client = front.client()
    await send(client, message())
    await kill(front.brokers[1])
    answers = [await send(client, message()) for _ in range(8)]
    failed = [answer for answer in answers if answer.status.code != m.OK]
    assert {answer.status.code for answer in failed} <= {m.PROXY_TIMEOUT}
    assert len(failed) <= 2
    # Where ordered messages go does not change.
    ordered = [await send(client, message(message_group=f"g{number}")) for number in range(8)]
    assert {answer.status.code for answer in ordered} == {m.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE}
    front.remote.brokers_of("orders")[0][1].attributes["message.type"] = "FIFO"
    for config in front.remote.brokers_of("orders"):
        config[1].attributes["message.type"] = "FIFO"
    ordered = [await send(client, message(message_group=f"g{number}")) for number in range(8)]
    assert {answer.status.code for answer in ordered} == {m.OK, m.PROXY_TIMEOUT}
    await trio.sleep(AVOIDED_S)


@simulated
async def test_message_groups_stay_in_their_queues_whatever_the_order_of_a_route_is(cluster):
    front = await open_remote(cluster, brokers=3)
    await send(front.client(), message())
    orders = []
    for _ in range(2):
        writable = front.remote.writable_queues("orders", is_ordered=True)
        orders.append([(broker.name, queues) for broker, queues in writable])
        front.remote._topics._entries["orders"].content.reverse()
    assert orders == [[("broker-a", 4), ("broker-b", 4), ("broker-c", 4)]] * 2


@simulated
async def test_a_dead_broker_does_not_keep_clients_from_joining_the_others(cluster):
    front = await open_remote(cluster, brokers=2)
    await send(front.client("client-0"), message())
    await kill(front.brokers[1])
    stream = await front.client().tell_settings(consumer_settings())
    assert stream.answers[0].status.code == m.OK
    assert front.broker.clients.consumer_group("GID").client_ids() == ["client-1"]
    await kill(front.brokers[0])
    stream = await front.client("client-2").tell_settings(consumer_settings())
    assert stream.status != 0


@simulated
async def test_a_broker_that_accepts_no_connection_costs_a_bounded_time(cluster):
    front = await open_remote(cluster)
    await send(front.client("client-0"), message())

    async def hang(host, port):
        await trio.sleep_forever()

    front.remote._open_transport = hang
    begin_s = trio.current_time()
    answer = await send(front.client(), message())
    assert answer.status.code == m.PROXY_TIMEOUT
    assert trio.current_time() - begin_s <= 3 * OPEN_TIMEOUT_S


@simulated
async def test_a_silent_broker_holds_up_its_own_requests_only(cluster):
    front = await open_remote(cluster, brokers=2)
    silent = front.brokers[1].service.handlers
    handler = silent[SendMessageV2.code]
    silent[SendMessageV2.code] = lambda connection, command: None
    client = front.client()
    begin_s = trio.current_time()
    streams = [
        await client.start("SendMessage", send_request(message()), m.SendMessageResponse, grpc_timeout="3S")
        for _ in range(8)
    ]
    for stream in streams:
        await stream.ended.wait()
    assert trio.current_time() - begin_s < 4
    assert {stream.status for stream in streams} == {0, 4}
    silent[SendMessageV2.code] = handler


@simulated
async def test_a_silent_broker_does_not_keep_messages_of_others_from_being_renewed(cluster):
    front = await open_remote(cluster, brokers=2)
    client = front.client()
    await client.tell_settings(consumer_settings())
    names = ("broker-a", "broker-b")
    for name in names:
        assert received(await receive_from(client, name)).bodies == []
    for _ in range(8):
        assert (await send(client, message())).status.code == m.OK
    held = {name: received(await receive_from(client, name, auto_renew=True)) for name in names}
    assert all(held[name].bodies for name in names)
    asked_s = []

    def ignore(connection, command):
        asked_s.append(trio.current_time())

    # The messages of the silent broker come first in each pass.
    silent, answering_one = reversed(front.brokers)
    silent.service.handlers[ChangeMessageInvisibletime.code] = ignore
    for _ in range(20):
        await trio.sleep(10)
        await client.call("Heartbeat", m.HeartbeatRequest(group=resource("GID")))
    other = front.client("client-2")
    assert received(await receive_from(other, answering_one.broker.config.broker_name)).bodies == []
    # Once in a pass, and no longer than until the messages are visible.
    assert 1 <= len(asked_s) <= 6


@simulated
async def test_messages_that_a_client_leaves_are_returned_over_one_connection(cluster):
    front = await open_remote(cluster)
    client, other = front.client(), front.client("client-2")
    await client.tell_settings(consumer_settings())
    await client.receive(auto_renew=True)
    for _ in range(8):
        assert (await send(other, message())).status.code == m.OK
    assert len((await client.receive(auto_renew=True)).bodies) == 8
    dials, dial = [], front.remote.dial

    async def counted(broker, handlers):
        dials.append(broker.name)
        return await dial(broker, handlers)

    front.remote.dial = counted
    await client.transport.aclose()
    await trio.sleep(12)
    assert dials == ["broker-a"]
    assert front.remote.session_count == 1, "that of the other client"
    assert len((await other.receive(poll_s=20)).bodies) == 8


async def receive_from(client, broker, **more):
    """Receive from the queues of one broker."""
    request = receive_request(**more)
    request.message_queue.broker.name = broker
    stream = await client.start("ReceiveMessage", request, m.ReceiveMessageResponse)
    await stream.ended.wait()
    return stream


@simulated
async def test_brokers_that_no_namesrv_names_any_more_keep_no_others_out(cluster):
    front = await open_remote(cluster)
    remote = front.remote
    assert (await send(front.client(), message())).status.code == m.OK
    former = remote.broker("broker-a")
    for number in range(MAX_BROKERS):
        remote._note_broker(f"stranger-{number}", {0: f"10.9.{number // 256}.{number % 256}:10911"})
    assert remote.broker("stranger-1000") is not None
    await cluster.add_broker("broker-b")
    await trio.sleep(MASTERS_MAX_AGE_S + 5)
    assert remote.broker("broker-b") is None, "there is no room for it yet"
    (queues,) = [content for content in remote._topics.contents() if content[0][0] is former]
    queues.append((remote.broker("stranger-7"), queues[0][1]))
    await trio.sleep(UNNAMED_BROKER_S + 2 * MASTERS_MAX_AGE_S)
    assert remote.broker("broker-a") is former
    assert sorted(remote._brokers) == ["broker-a", "broker-b", "stranger-7"], "a topic uses the last one"


@simulated
async def test_brokers_that_cannot_be_reached_are_asked_last(cluster):
    front = await open_remote(cluster)
    remote = front.remote
    real = remote._brokers.pop("broker-a")
    for number in range(4):
        remote._note_broker(f"dead-{number}", {0: f"10.9.9.{number}:10911"})
    remote._brokers["broker-a"] = real
    request = GetTopicConfig(topic="orders")
    for _ in range(2):  # The first three are asked, then the others.
        with suppress(RemotingClosed):
            await remote._ask_brokers(request)
    await trio.sleep(2 * AVOIDED_S)
    assert (await remote._ask_brokers(request)).data.topic_name == "orders"
    await remote.load((), "GID")
    assert "GID" in remote._groups._entries, "a broker has answered"


# -- what is read again ---------------------------------------------------------------------------------------


@simulated
async def test_a_topic_is_found_soon_after_it_was_created_and_its_type_is_read_again(cluster):
    front = await open_remote(cluster)
    client = front.client()
    assert (await send(client, message("new"))).status.code == m.TOPIC_NOT_FOUND
    front.create_topic("new")
    await trio.sleep(2)
    assert (await send(client, message("new"))).status.code == m.OK
    front.broker.topics.get("new").attributes["message.type"] = "FIFO"
    await trio.sleep(MAX_AGE_S)
    await send(client, message("new"))
    await settle()
    assert (await send(client, message("new"))).status.code == m.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


@simulated
async def test_known_topics_are_served_while_no_namesrv_answers(cluster):
    outcomes = []
    front = await open_remote(cluster, record_outcome=outcomes.append)
    client = front.client()
    assert (await send(client, message())).status.code == m.OK
    assert outcomes == [None]
    await kill(front.namesrv)
    await trio.sleep(60)
    assert str(outcomes[-1]).startswith("namesrv 10.0.0.1:9876 cannot be reached")
    for _ in range(5):
        assert (await send(client, message())).status.code == m.OK
        await trio.sleep(30)
    answer = await send(client, message("unknown"))
    assert answer.status.code == m.PROXY_TIMEOUT
    assert "namesrv 10.0.0.1:9876 cannot be reached" in answer.status.message


@simulated
async def test_a_topic_that_one_namesrv_does_not_know_is_asked_for_at_the_others(cluster):
    """One that has just started learns the topics with the next registrations."""
    front = await open_remote(cluster)
    client = front.client()
    forgetful = await cluster.namesrv(address=("10.0.0.9", 9876))
    front.remote._namesrvs[:] = [forgetful.address, NAMESRV]
    assert (await send(client, message())).status.code == m.OK
    assert (await send(client, message("unknown"))).status.code == m.TOPIC_NOT_FOUND
    await kill(front.namesrv)
    front.remote._namesrvs[:] = [forgetful.address, NAMESRV]
    assert (await send(client, message("unknown-2"))).status.code == m.TOPIC_NOT_FOUND
    assert front.remote._namesrvs[0] == forgetful.address


@simulated
async def test_a_refusal_of_a_former_master_has_the_route_read_again(cluster):
    front = await open_remote(cluster)
    client = front.client()
    await send(client, message())
    asked = []
    load = front.remote._masters._load

    async def counted(name):
        asked.append(trio.current_time())
        return await load(name)

    front.remote._masters._load = counted

    def refuse(connection, command):
        raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "a slave")

    front.broker_handlers[SendMessageV2.code] = refuse
    front.native_sends.take = None  # C asks no handler.
    for _ in range(20):
        assert (await send(client, message())).status.code == m.INTERNAL_SERVER_ERROR
        await trio.sleep(0.1)
    assert 1 <= len(asked) <= 4


@pytest.mark.parametrize("text", ["", "host", "host:", "host:0", "host:99999", "host:x"])
def test_addresses_that_are_none_cannot_be_reached(text):
    with pytest.raises(OSError, match="host:port"):
        split_address(text)
    assert split_address("[::1]:80") == ("::1", 80)


# -- users ----------------------------------------------------------------------------------------------------


async def guarded(cluster):
    accounts = FakeAccounts()
    control = AccessControl(accounts, NeedContext("DefaultCluster"), authorizes=True)
    front = await open_remote(
        cluster,
        accounts=accounts,
        settings={"guard": Guard(control.protect)},
    )
    return front, accounts


@simulated
async def test_users_are_those_of_the_brokers(cluster):
    front, accounts = await guarded(cluster)
    asked = []

    async def load(name):
        asked.append(name)
        user = accounts.user(name)
        return None if user is None else UserInfo(username=user.name, password=user.password)

    remote = RemoteCluster(
        [NAMESRV], cluster.open_transport, cluster.clock, cluster.nursery, sign=front.remote._sign_own,
        asks_for_users=True,
    )  # fmt: skip
    remote._users._load_user = load
    service = GrpcService(ConnectionLimits(), ServerLimits(), max_streams=MAX_STREAMS)
    cluster.nursery.start_soon(service.run, [], lambda nursery: remote)
    await settle()
    front.service = service
    for _ in range(3):
        assert (await send(front.client(**signed("alice", "secret")), message())).status.code == m.OK
    answer = await send(front.client(**signed("alice", "wrong")), message())
    assert (answer.status.code, answer.status.message) == (m.UNAUTHORIZED, "check signature failed.")
    answer = await send(front.client(**signed("nobody", "x")), message())
    assert (answer.status.code, answer.status.message) == (m.UNAUTHORIZED, "User:nobody is not found.")
    # The broker decides by the policies of the user, whose signature the request has.
    answer = await send(front.client(**signed("bob", "bob's")), message())
    assert answer.status.code == m.UNAUTHORIZED
    assert "User:bob has no permission to access Topic:orders" in answer.status.message
    answer = await send(front.client(), message())
    assert answer.status.code == m.UNAUTHORIZED
    assert asked == ["alice", "nobody", "bob"]


@simulated
async def test_unsigned_rpcs_are_trusted_by_the_address_of_their_sender_only(cluster):
    """ACL 1.0 has addresses that need no signature, and the brokers see that of the front."""
    front, accounts = await guarded(cluster)
    accounts.trusts_addresses = True
    trusted = {"10.1.0.2"}
    accounts.is_trusted_address = lambda address, user: user is None and address in trusted
    client = front.client()
    answer = await send(client, message())
    assert (answer.status.code, answer.status.message) == (m.UNAUTHORIZED, "username cannot be null.")
    route = await client.call("QueryRoute", m.QueryRouteRequest(topic=resource()))
    assert route.status.code == m.UNAUTHORIZED
    stream = await client.tell_settings(consumer_settings())
    await stream.ended.wait()
    assert stream.answers[0].status.code == m.UNAUTHORIZED
    assert (await send(front.client(**signed("alice", "secret")), message())).status.code == m.OK
    answer = await send(front.client(**signed("alice", "wrong")), message())
    assert answer.status.code == m.UNAUTHORIZED
    trusted.add(client.remote[0])
    assert (await send(client, message())).status.code == m.OK
    trusted.discard("10.1.0.2")
    assert (await send(client, message())).status.code == m.UNAUTHORIZED


def answering(requests, reply):
    """Return a handler that notes its requests, and answers with this reply."""

    def answer(connection, command):
        requests.append(command.code)
        return encode_response(command.opaque, 0, None, reply.encode_body(), None)

    return answer


@simulated
async def test_a_user_is_asked_for_with_the_official_request(cluster):
    front = await open_remote(cluster, asks_for_users=True)
    requests = []
    reply = AuthGetUserReply(data=UserInfo(username="alice", password="secret"))
    front.broker_handlers[AuthGetUser.code] = answering(requests, reply)
    assert (await send(front.client(**signed("alice", "secret")), message())).status.code == m.OK
    assert requests == [AuthGetUser.code]
    assert front.remote.guards[0].user("alice").password == "secret"
    answer = await send(front.client(), message())
    assert (answer.status.code, answer.status.message) == (m.UNAUTHORIZED, "username cannot be null.")


@simulated
async def test_passwords_that_are_not_shown_are_copied(cluster):
    """Brokers of this project hide them from AUTH_GET_USER."""
    front = await open_remote(cluster, asks_for_users=True)
    requests = []
    shown = AuthGetUserReply(data=UserInfo(username="alice", password="******"))
    users = '{"users":{"alice":{"username":"alice","password":"secret","userType":"Normal","userStatus":"enable"}}}'
    copied = GetReplicatedAccountsReply(data=ReplicatedAccounts(users=users))
    front.broker_handlers[AuthGetUser.code] = answering(requests, shown)
    front.broker_handlers[GetReplicatedAccounts.code] = answering(requests, copied)
    for _ in range(3):
        assert (await send(front.client(**signed("alice", "secret")), message())).status.code == m.OK
    answer = await send(front.client(**signed("alice", "******")), message())
    assert answer.status.code == m.UNAUTHORIZED
    assert requests == [AuthGetUser.code, GetReplicatedAccounts.code]


@pytest.mark.parametrize("users", ["[]", "{", '{"users":[1]}', '{"users":{"alice":7}}', "\ud800"])
@simulated
async def test_copied_users_that_cannot_be_read_refuse_their_sender_only(cluster, users):
    front = await open_remote(cluster, asks_for_users=True)
    shown = AuthGetUserReply(data=UserInfo(username="alice", password="******"))
    copied = GetReplicatedAccountsReply(data=ReplicatedAccounts(users=users))
    front.broker_handlers[AuthGetUser.code] = answering([], shown)
    front.broker_handlers[GetReplicatedAccounts.code] = answering([], copied)
    for _ in range(2):
        answer = await send(front.client(**signed("alice", "secret")), message())
        assert answer.status.code not in (m.OK, m.CODE_UNSPECIFIED)
    front.remote._users._users._keep("alice", CacheEntry(User("alice", "secret"), trio.current_time(), 1e9))
    assert (await send(front.client(**signed("alice", "secret")), message())).status.code == m.OK


@simulated
async def test_a_copied_password_is_not_older_than_the_request_for_its_user(cluster):
    front = await open_remote(cluster, asks_for_users=True)
    shown = AuthGetUserReply(data=UserInfo(username="alice", password="******"))
    front.broker_handlers[AuthGetUser.code] = answering([], shown)

    def copy(password, status="enable"):
        user = f'"username":"alice","password":"{password}","userType":"Normal","userStatus":"{status}"'
        copied = GetReplicatedAccountsReply(
            data=ReplicatedAccounts(users=f'{{"users":{{"alice":{{{user}}}}}}}')
        )
        front.broker_handlers[GetReplicatedAccounts.code] = answering([], copied)

    async def refreshed(secret):
        """Return the answers of a user just before and after it is read again."""
        await trio.sleep(MAX_AGE_S)
        await send(front.client(**signed("alice", secret)), message())
        await settle()
        return (await send(front.client(**signed("alice", secret)), message())).status

    copy("first")
    assert (await send(front.client(**signed("alice", "first")), message())).status.code == m.OK
    copy("second")
    assert (await refreshed("second")).code == m.OK
    copy("second", "disable")
    status = await refreshed("second")
    assert (status.code, status.message) == (m.UNAUTHORIZED, "User:alice is not found.")


@simulated
async def test_a_disabled_user_is_nobody(cluster):
    front = await open_remote(cluster, asks_for_users=True)
    reply = AuthGetUserReply(data=UserInfo(username="alice", password="secret", user_status="disable"))
    front.broker_handlers[AuthGetUser.code] = answering([], reply)
    answer = await send(front.client(**signed("alice", "secret")), message())
    assert (answer.status.code, answer.status.message) == (m.UNAUTHORIZED, "User:alice is not found.")


@simulated
async def test_a_long_name_of_a_user_is_not_looked_for(cluster):
    front = await open_remote(cluster, asks_for_users=True)
    requests = []
    front.broker_handlers[AuthGetUser.code] = answering(requests, AuthGetUserReply(data=None))
    for chars, text in ((255, "is not found."), (256, "a username has at most 255 characters.")):
        answer = await send(front.client(**signed("a" * chars, "secret")), message())
        assert answer.status.code == m.UNAUTHORIZED
        assert text in answer.status.message
    assert requests == [AuthGetUser.code]
