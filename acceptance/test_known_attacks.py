"""Attacks that were found in RocketMQ, and their relatives, against our server. Each must leave no trace.

The tests are named by the CVE where there is one. They look at what an attacker wants: a file outside the store, a
started program, a secret, a route to the attacker's address, or a server that serves nobody else any more.
"""

import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from acceptance.secured import SECRET, create_user, denial, dial, run_ours
from codec.properties import properties_text
from compat_tests.clients.typed import (
    batch_request,
    connect,
    expect_refusal,
    has_route,
    heartbeat_request,
    messages,
    pull,
    send,
    send_request,
    topic_request,
)
from compat_tests.endpoints.process import descendants
from compat_tests.server import eventually, split_address
from remoting.blocking import BlockingClient
from remoting.bodies.auth import UserInfo
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.errors import RemotingClosed, RequestError
from remoting.requests.admin import GetBrokerConfig, UpdateBrokerConfig
from remoting.requests.auth import AuthGetUser, AuthListUser, AuthUpdateUser
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.namesrv import (
    GetNamesrvConfig,
    GetRouteInfoByTopic,
    PutKvConfig,
    RegisterBroker,
    RegisterTopicInNamesrv,
    UpdateNamesrvConfig,
)
from remoting.requests.offsets import UpdateConsumerOffset
from remoting.requests.send import ConsumerSendMsgBack, SendBatchMessage
from remoting.requests.topics import DeleteTopicInBroker
from tools.processes import Gateway

MIB = 1024 * 1024
EVIL = "evil-marker"
"""Part of every name that an attack wants to see in the file system."""
MAX_GROWTH_BYTES = 160 * MIB
"""Memory that a refused attack may cost; the attacks announce or unpack to more."""
LIMITS = {
    "maxConnectionsPerAddress": 40,
    "broker.maxTopics": 60,
    "maxSubscriptionGroups": 60,
    "maxClients": 20,
    "maxRegisteredBrokers": 5,
    "maxKvEntries": 10,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attacked")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Gateway]:
    """A server without access control, with a store on disk and low limits."""
    flags = [word for key, value in LIMITS.items() for word in ("--set", f"{key}={value}")]
    place = ["--store", str(directory / "outer" / "store")]
    with Gateway(directory, *place, "--set", f"kvConfigPath={directory}/namesrv/kv.json", *flags) as process:
        yield process
        assert "Traceback" not in process.output()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with run_ours(tmp_path_factory.mktemp("guarded")) as process:
        yield process


def namesrv_of(server: Gateway) -> BlockingClient:
    return connect(server.namesrv, timeout_s=15)


def assert_serves(server: Gateway) -> None:
    """Assert that an honest client is served."""
    with server.connect() as client:
        offset = send(client, "honest", b"x").queue_offset
        assert [each.body for each in messages(pull(client, "honest", offset))] == [b"x"]


# -- CVE-2019-17572: files are written where the name of a topic points --------------------------------------------

PATHS = (
    f"../{EVIL}",
    f"../../../../{EVIL}",
    f"/tmp/{EVIL}",
    f"a/../../{EVIL}",
    f"..\\{EVIL}",
    f"{EVIL}/../x",
    f"{EVIL}\0/x",
    f"{EVIL}\n",
    f".{EVIL}",
)


def files_below(directory: Path) -> set[str]:
    return {str(file.relative_to(directory)) for file in directory.rglob("*")}


def expect_no_success(client: BlockingClient, request: object) -> None:
    """Send a request that may be refused, or answered without an effect."""
    with suppress(RequestError):
        client.ask(request)


@pytest.mark.parametrize("name", PATHS)
def test_cve_2019_17572_path_by_topic_name(server: Gateway, directory: Path, name: str) -> None:
    """Sends, topics, groups, retries, offsets and dead letters whose names are paths."""
    assert_serves(server)  # creates the files that there always are
    outside = files_below(directory.parent) - {str(directory.name)}
    with server.connect() as client:
        expect_refusal(client, send_request(name))
        expect_refusal(client, topic_request(name, 1))
        for prefix in ("%RETRY%", "%DLQ%"):
            expect_no_success(client, send_request(prefix + name))
            expect_no_success(client, topic_request(prefix + name, 1))
        group = SubscriptionGroupConfig(group_name=name)
        expect_no_success(client, UpdateAndCreateSubscriptionGroup(data=group))
        expect_no_success(client, ConsumerSendMsgBack(offset=0, group=name, delay_level=0))
        expect_no_success(
            client, UpdateConsumerOffset(consumer_group=name, topic=name, queue_id=0, commit_offset=1)
        )
        expect_no_success(client, heartbeat_request("attacker", name, "honest"))
        expect_no_success(client, DeleteTopicInBroker(topic=name))
    with namesrv_of(server) as client:
        expect_no_success(client, PutKvConfig(namespace=name, key=name, value=name))
    assert_serves(server)
    # Queues are made of a folder for each topic: none of these has one, inside the store or elsewhere.
    new = files_below(directory.parent) - outside
    assert not [file for file in new if EVIL in file]
    assert not Path("/tmp", EVIL).exists()


# -- CVE-2023-33246 and CVE-2023-37582: settings that run programs or name files ------------------------------------


def expect_config_unchanged(client: BlockingClient, *, is_broker: bool, text: str) -> RequestError:
    """Send a change of settings that must be refused as a whole."""
    listing = GetBrokerConfig() if is_broker else GetNamesrvConfig()
    before = bytes(client.ask(listing).body)
    request = UpdateBrokerConfig() if is_broker else UpdateNamesrvConfig()
    request.body = text.encode()
    refusal = expect_refusal(client, request)
    assert bytes(client.ask(listing).body) == before
    return refusal


@pytest.mark.parametrize(
    "line",
    [
        "rocketmqHome=-c $@|sh . echo touch {evil};",
        "rocketmqHome=/tmp",
        "brokerConfigPath={evil}",
        "configBlackList=x",
        "storePathRootDir={evil}",
        "storePathCommitLog={evil}",
        "brokerIP1=$(touch {evil})\nrocketmqHome=/tmp",
        "rocketmqHom\\u0065=-c $@|sh . echo touch {evil};",
        "  rocketmqHome : /tmp",
    ],
)
def test_cve_2023_33246_dangerous_keys_of_the_broker(server: Gateway, directory: Path, line: str) -> None:
    """Harmless keys come along, which must not take effect either; no program is started."""
    evil = directory / EVIL
    children = descendants(server.pid)
    with server.connect() as client:
        text = f"filterServerNums=1\nfileReservedTime=13\n{line.format(evil=evil)}\n"
        expect_config_unchanged(client, is_broker=True, text=text)
    assert descendants(server.pid) == children
    assert not evil.exists()
    assert_serves(server)


@pytest.mark.parametrize(
    "line",
    [
        "configStorePath={evil}",
        "kvConfigPath={evil}",
        "configStorePathName={evil}",
        "rocketmqHome={evil}",
        "configBlackList=x",
        "configStore\\u0050ath={evil}",
    ],
)
def test_cve_2023_37582_dangerous_keys_of_the_namesrv(server: Gateway, directory: Path, line: str) -> None:
    """The attack names a file in one key and its content in another."""
    evil = directory / EVIL
    with namesrv_of(server) as client:
        text = f"productEnvName=*/1 * * * * root touch {evil}\n{line.format(evil=evil)}\n"
        expect_config_unchanged(client, is_broker=False, text=text)
    assert not evil.exists()


def test_cve_2023_37582_a_value_adds_no_key(server: Gateway, directory: Path) -> None:
    """A line break in a value must not become a line of a listing, or of the file in which the namesrv saves it."""
    value = f"45\\nkvConfigPath={EVIL}"
    with server.connect() as client:
        keys = listed_keys(client, GetBrokerConfig())
        expect_no_success(client, UpdateBrokerConfig(body=f"regionId={value}\n".encode()))
        assert listed_keys(client, GetBrokerConfig()) == keys
    with namesrv_of(server) as client:
        keys = listed_keys(client, GetNamesrvConfig())
        for key in keys:
            expect_no_success(client, UpdateNamesrvConfig(body=f"{key}={value}\n".encode()))
        assert listed_keys(client, GetNamesrvConfig()) == keys
        client.ask(UpdateNamesrvConfig(body=b"waitSecondsForService=45\n"))  # writes the file
    saved = directory / "outer" / "store" / "namesrv" / "namesrv.properties"
    assert "waitSecondsForService=45" in saved.read_text()
    assert EVIL not in saved.read_text()


def listed_keys(client: BlockingClient, listing: GetBrokerConfig | GetNamesrvConfig) -> list[str]:
    body = bytes(client.ask(listing).body).decode()
    return [line.partition("=")[0] for line in body.splitlines()]


# -- CVE-2024-23321: secrets are read through interfaces -----------------------------------------------------------


def test_cve_2024_23321_secrets_are_in_no_answer(guarded: Gateway) -> None:
    """Neither a reader nor the super user gets them. Every code: `test_secrets.py`."""
    with (
        create_user(guarded, "reader", ("Cluster:*", "Get,List", "Allow")) as reader,
        dial(guarded.broker) as root,
    ):
        for client in (reader, root):
            for request in (GetBrokerConfig(), AuthGetUser(username="root"), AuthListUser()):
                reply = client.ask(request)
                assert SECRET.encode() not in bytes(reply.body)
                assert SECRET not in str(reply.to_ext())
        with dial(guarded.namesrv) as namesrv:
            assert SECRET.encode() not in bytes(namesrv.ask(GetNamesrvConfig()).body)
        # A password that cannot be read cannot be replaced without the right either.
        stolen = UserInfo(username="root", password="mine now")
        assert "no permission" in denial(reader, AuthUpdateUser(username="root", data=stolen))


# -- lying lengths -------------------------------------------------------------------------------------------------

HUGE = 0x7FFF_FFF0


def lying_frames() -> dict[str, bytes]:
    """Return frames in which a length says more than there is."""
    binary_head = struct.pack(">HBHiI", 310, 0, 505, 1, 0)
    return {
        "the frame": struct.pack(">iI", HUGE, 2) + b"{}",
        "a negative frame": struct.pack(">iI", -1, 2) + b"{}",
        "the header": struct.pack(">II", 20, 0x00FFFFFF) + bytes(16),
        "a binary remark": struct.pack(">II", 4 + 13 + 4, 0x01000000 | 17)
        + binary_head
        + struct.pack(">i", HUGE),
        "binary fields": struct.pack(">II", 4 + 13 + 8, 0x01000000 | 21)
        + binary_head
        + struct.pack(">ii", 0, HUGE),
        "a binary field's value": struct.pack(">II", 4 + 13 + 8 + 8, 0x01000000 | 29)
        + binary_head
        + struct.pack(">iiH", 0, 8, 1)
        + b"b"
        + struct.pack(">i", HUGE)
        + b"x",
    }


@pytest.mark.parametrize("kind", lying_frames())
def test_lying_lengths_of_frames(server: Gateway, kind: str) -> None:
    before = server.memory_bytes()
    for _ in range(20):
        with socket.create_connection(split_address(server.broker), 15) as peer:
            peer.sendall(lying_frames()[kind])
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65536):
                pass
    assert server.memory_bytes() - before < MAX_GROWTH_BYTES
    assert_serves(server)


def test_lying_lengths_of_batches(server: Gateway) -> None:
    """Bodies and properties of entries that say they are longer than the body of the send."""
    whole = struct.pack(">IIIII", 20 + 1 + 2, 0, 0, 0, 1) + b"x" + struct.pack(">H", 0)
    with server.connect() as client:
        for body in (
            whole[:16] + struct.pack(">I", HUGE) + whole[20:],
            whole[:16] + struct.pack(">i", -1) + whole[20:],
            whole[:-2] + struct.pack(">H", 0xFFFF),
            whole + whole[:9],
        ):
            expect_refusal(client, batch_of("batches", body))
        # The size of a whole entry is not used, here and officially: the entry ends where its properties do.
        client.ask(batch_of("batches", struct.pack(">I", HUGE) + whole[4:]))
        assert [each.body for each in messages(pull(client, "batches"))] == [b"x"]
    assert_serves(server)


def batch_of(topic: str, body: bytes) -> SendBatchMessage:
    request = batch_request(topic, [])
    request.body = body
    return request


def test_lying_lengths_of_registrations(server: Gateway) -> None:
    """A compressed registration that announces two thousand million topics, or a topic of that length."""
    version = b'{"counter":1,"timestamp":1,"stateVersion":0}'
    head = struct.pack(">I", len(version)) + version
    before = server.memory_bytes()
    with namesrv_of(server) as client:
        for plain in (
            struct.pack(">I", HUGE),
            head + struct.pack(">I", HUGE),
            head + struct.pack(">II", 1, HUGE) + b"x",
        ):
            expect_refusal(client, registration(zlib.compress(plain), compressed=True))
    assert server.memory_bytes() - before < MAX_GROWTH_BYTES


def registration(
    body: bytes = b"", *, name: str = "attacker", address: str = "192.0.2.66:10911", compressed: bool = False
) -> RegisterBroker:
    return RegisterBroker(
        broker_name=name,
        broker_addr=address,
        cluster_name="DefaultCluster",
        ha_server_addr="192.0.2.66:10912",
        broker_id=0,
        compressed=compressed,
        body_crc32=zlib.crc32(body) & 0x7FFF_FFFF,
        body=body,
    )


# -- route hijack --------------------------------------------------------------------------------------------------


def test_route_hijack_of_a_broker_of_the_same_process(server: Gateway) -> None:
    """The registration is refused, and the log has both addresses."""
    (name,) = server.brokers
    with namesrv_of(server) as client:
        refusal = expect_refusal(client, registration(name=name))
        assert server.broker in (refusal.remark or "")
        route = client.ask(GetRouteInfoByTopic(topic="TBW102")).data
        assert [broker.broker_addrs for broker in route.broker_datas] == [{0: server.broker}]
    (line,) = eventually(lambda: server.lines("registration of a local broker's name refused"))
    assert "192.0.2.66:10911" in line
    assert server.broker in line


def test_route_hijack_of_another_broker_is_logged(tmp_path: Path) -> None:
    """As officially, a name moves to the address that registered last, which an operator may want: but not silently."""
    with (
        Gateway(tmp_path / "n", command="namesrv") as namesrv,
        Gateway(tmp_path / "b", "-n", namesrv.namesrv, "--memory", command="broker") as broker,
        namesrv_of(namesrv) as client,
    ):
        eventually(lambda: has_route(client, "TBW102"))
        (name,) = broker.brokers
        body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{},"dataVersion":{"counter":9}}}'
        expect_no_success(client, registration(body, name=name))
        (line,) = eventually(lambda: namesrv.lines("broker replaced by another address"))
        assert "192.0.2.66:10911" in line
        assert broker.broker in line


def test_route_hijack_needs_credentials(guarded: Gateway) -> None:
    """Nobody, and no user without the right, changes a route when authentication is on."""
    (name,) = guarded.brokers
    attacks = (
        registration(name=name),
        registration(name="another"),
        RegisterTopicInNamesrv(topic="TBW102"),
        PutKvConfig(namespace="ORDER_TOPIC_CONFIG", key="TBW102", value="attacker:4"),
    )
    with create_user(guarded, "insider", ("Topic:*", "All", "Allow")):
        for user, secret in ((None, ""), ("insider", "secret of insider")):
            with dial(guarded.namesrv, user, secret) as attacker:
                for attack in attacks:
                    denial(attacker, attack)
    with dial(guarded.namesrv) as root:
        route = root.ask(GetRouteInfoByTopic(topic="TBW102")).data
        assert [broker.broker_addrs for broker in route.broker_datas] == [{0: guarded.broker}]


# -- decompression bombs -------------------------------------------------------------------------------------------


def bomb(size_bytes: int) -> bytes:
    """Return zeros compressed a thousandfold."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(MIB)) for _ in range(size_bytes // MIB)) + packer.flush()


def test_decompression_bomb_as_registration(server: Gateway) -> None:
    before = server.memory_bytes()
    body = bomb(512 * MIB)
    assert len(body) < MIB
    with namesrv_of(server) as client:
        expect_refusal(client, registration(body, compressed=True))
    assert server.memory_bytes() - before < MAX_GROWTH_BYTES
    assert_serves(server)


def test_decompression_bomb_as_message(server: Gateway) -> None:
    """Bodies stay compressed in the broker: whoever consumes one unpacks it, or refuses to."""
    before = server.memory_bytes()
    body = bomb(256 * MIB)
    with server.connect() as client:
        properties = properties_text({"KEYS": "k", "TAGS": "t"})
        send(client, "bombs", body, sys_flag=1, properties=properties)
        (found,) = messages(pull(client, "bombs"))
        assert bytes(found.body) == body
    assert server.memory_bytes() - before < MAX_GROWTH_BYTES
    assert_serves(server)


# -- floods --------------------------------------------------------------------------------------------------------


def expect_limit(client: BlockingClient, requests: Iterator[object], setting: str) -> None:
    """Send requests until one is refused with the name of the setting that bounds them."""
    for request in requests:
        try:
            client.ask(request)
        except RequestError as refused:
            if setting in (refused.remark or ""):
                return
            raise
    raise AssertionError(f"nothing was refused because of {setting}")


def test_flood_of_connections(server: Gateway) -> None:
    """Connections above the limit of one address are closed; those that are open go on."""
    with server.connect() as honest, ExitStack() as stack:
        send(honest, "honest")
        flood = [
            stack.enter_context(socket.create_connection(split_address(server.broker), 15))
            for _ in range(2 * LIMITS["maxConnectionsPerAddress"])
        ]
        eventually(lambda: server.lines("maxConnectionsPerAddress"))
        # The honest client has one connection of its address's limit.
        eventually(lambda: sum(map(is_closed, flood)) > LIMITS["maxConnectionsPerAddress"], 60)
        send(honest, "honest")
    eventually(lambda: can_connect(server))


def is_closed(connection: socket.socket) -> bool:
    """Return True if the server has closed a connection on which it never says anything."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def can_connect(server: Gateway) -> bool:
    try:
        with server.connect() as client:
            client.ask(GetBrokerConfig())
    except (OSError, RemotingClosed):
        return False
    return True


def test_flood_of_names(server: Gateway) -> None:
    """Topics, groups, clients, brokers and KV entries have limits, whose refusals name their key."""
    numbers = range(200)
    with server.connect() as client:
        expect_limit(client, (send_request(f"flood-{number}") for number in numbers), "maxTopics")
        expect_limit(
            client,
            (
                UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name=f"flood-{number}"))
                for number in numbers
            ),
            "maxSubscriptionGroups",
        )
    with namesrv_of(server) as client:
        body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{},"dataVersion":{"counter":1}}}'
        brokers = (registration(body, name=f"flood-{n}", address=f"192.0.2.1:{n + 1}") for n in numbers)
        expect_limit(client, brokers, "maxRegisteredBrokers")
        entries = (PutKvConfig(namespace="flood", key=str(number), value="x") for number in numbers)
        expect_limit(client, entries, "maxKvEntries")
    assert_serves(server)


def test_flood_of_clients(server: Gateway) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(LIMITS["maxClients"] + 1)]
        answers = []
        for number, client in enumerate(clients):
            try:
                client.ask(heartbeat_request(f"flood@{number}", producer="flood"))
            except RequestError as refused:
                answers.append(refused.remark or "")
        assert answers
        assert all("maxClients" in answer for answer in answers)
    assert_serves(server)
