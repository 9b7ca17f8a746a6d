"""Nothing but a broker gets clients' bytes, whatever the primary's route data say."""

import pytest
import trio

from codec.command import Command, decode_frame, encode_command
from gateway.shadow.clusters.address_policy import AddressPolicy, AddressRefused
from gateway.shadow.proxy.broker_check import RECHECK_PAUSE_S, BrokerCheck, NotABroker
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.tests.virtual import Kernel, settle, virtual

BROKER = "10.1.0.1:10911"


class Peer(Kernel):
    """A server that answers each piece that is sent to it with what ``reply`` returns."""

    def __init__(self, reply):
        super().__init__()
        self._reply = reply

    async def send_all(self, data):
        answer = self._reply(bytes(data))
        if answer is not None:
            self.arrive(answer)


class Bench:
    """A check whose dials reach `peers` by address."""

    def __init__(self, **more):
        self.peers = {}
        self.dialed = []
        self.policy = AddressPolicy(["10.1.0.9:9876"])
        self.check = BrokerCheck(self.policy.guard_opener(self._open), self.policy, timeout_s=3.0, **more)

    async def _open(self, host, port):
        address = f"{host}:{port}"
        self.dialed.append(address)
        if address not in self.peers:
            raise ConnectionRefusedError("nobody")
        reply = self.peers[address]
        if reply == "blackhole":
            await trio.sleep_forever()
        return Peer(reply)


def answer_with(code, **more):
    def reply(data):
        asked = decode_frame(data, 4, len(data))
        return encode_command(Command(code, asked.opaque, 1, **more))

    return reply


@virtual
@pytest.mark.parametrize("code", [0, 1, 3, 16])
async def test_any_answer_of_the_protocol_will_do(code):
    """A broker answers with success or a refusal; a Proxy does not know the request."""
    bench = Bench()
    asked = []

    def reply(data):
        asked.append(decode_frame(data, 4, len(data)))
        return answer_with(code)(data)

    bench.peers[BROKER] = reply
    assert not bench.check.is_checked(BROKER)
    await bench.check.dial(BROKER)
    await bench.check.dial(BROKER)
    assert [each.code for each in asked] == [GetBrokerRuntimeInfo.code], "asked once"
    assert bench.check.endpoint_of(BROKER) == ("10.1.0.1", 10911)


@virtual
@pytest.mark.parametrize(
    "reply",
    [
        lambda data: b"HTTP/1.1 400 Bad Request\r\n\r\n",
        lambda data: b"-ERR unknown command\r\n",
        lambda data: b"SSH-2.0-OpenSSH_9.6\r\n",
        lambda data: b"\x00\x00\x00\x04\x00\x00\x00\x00",
        lambda data: data,  # an echo
        lambda data: b"",
        lambda data: None,
        lambda data: encode_command(Command(0, -7, 1)),
        lambda data: (2**20 - 4).to_bytes(4) + bytes(100_000),
        lambda data: encode_command(Command(0, -7, 1)) * 50_000,
        lambda data: OSError("reset"),
    ],
)
async def test_other_services_get_no_client(reply):
    bench = Bench()
    bench.peers[BROKER] = reply
    with pytest.raises(OSError, match=r"."):
        await bench.check.dial(BROKER)
    assert bench.dialed == [BROKER], "only the question was sent"
    assert not bench.check.is_checked(BROKER)


@virtual
async def test_refused_addresses_are_not_even_dialed():
    bench = Bench(is_own=lambda endpoint: endpoint == ("10.1.0.5", 10911))
    for address in ("169.254.169.254:80", "127.0.0.1:6379", "10.1.0.5:10911", "nonsense", "10.1.0.1:0"):
        with pytest.raises(AddressRefused):
            await bench.check.dial(address)
    assert bench.dialed == []


@virtual
async def test_silence_ends_after_the_timeout():
    bench = Bench()
    bench.peers[BROKER] = "blackhole"
    started_s = trio.current_time()
    with pytest.raises(OSError, match="no connection"):
        await bench.check.dial(BROKER)
    bench.peers["10.1.0.2:10911"] = lambda data: None
    with pytest.raises(NotABroker):
        await bench.check.dial("10.1.0.2:10911")
    assert trio.current_time() - started_s == pytest.approx(6)


@virtual
async def test_many_clients_share_one_question_and_one_failure():
    bench = Bench()
    results = []

    async def dial():
        try:
            await bench.check.dial(BROKER)
            results.append("served")
        except OSError as error:
            results.append(str(error))

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(dial)
    assert results == ["nobody"] * 100
    assert bench.dialed == [BROKER]
    bench.peers[BROKER] = answer_with(0)
    await trio.sleep(RECHECK_PAUSE_S)
    results.clear()
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(dial)
    assert results == ["served"] * 100
    assert len(bench.dialed) == 102


@virtual
async def test_an_address_that_could_not_be_dialed_is_asked_again():
    """Another process may have the address by now."""
    bench = Bench()
    bench.peers[BROKER] = answer_with(0)
    await bench.check.dial(BROKER)
    del bench.peers[BROKER]
    with pytest.raises(OSError, match="nobody"):
        await bench.check.dial(BROKER)
    bench.peers[BROKER] = lambda data: b"+OK redis"
    with pytest.raises(NotABroker):
        await bench.check.dial(BROKER)
    await trio.sleep(RECHECK_PAUSE_S)
    bench.peers[BROKER] = answer_with(0)
    await bench.check.dial(BROKER)


@virtual
async def test_failures_are_bounded():
    bench = Bench()
    for number in range(5000):
        with pytest.raises(OSError, match="nobody"):
            await bench.check.dial(f"10.1.{number // 250}.{number % 250}:10911")
    assert len(bench.check._failures) <= 1024
    await settle()
    assert not bench.check._under_way
