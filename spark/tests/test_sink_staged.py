"""Staged delivery without Spark and without a broker: pieces, staging broker, requests of a commit."""

from collections.abc import Callable
from typing import Any

import pytest

from codec.batch import split_batch
from codec.command import Command, decode_frame, encode_response
from remoting.bodies.routes import BrokerData, ClusterInfo
from remoting.errors import RemotingClosed, RequestError
from remoting.requests.staging import GetStagingState, PublishStaged, PublishStagedReply
from spark.errors import ColumnError, EndpointError, OptionError, RowError
from spark.sink import staged_delivery
from spark.sink.staged_delivery import StagingSender, check_staged, publish_batch, writer_name
from spark.tests.test_sink import FakeBrokers, FakeClient, messages_of, spec_of


class StagingBrokers(FakeBrokers):
    """Brokers that stage pieces; `published` is the batch they report as published."""

    def __init__(self, *queues: tuple[str, int, int]) -> None:
        super().__init__(*queues)
        self.pieces: dict[tuple[str, int], tuple[int, list[bytes]]] = {}
        self.published = -1

    def get_client(self, address: tuple[str, int]) -> FakeClient:
        name = super().get_client(address)._name
        return StagingClient(self, name)


class StagingClient(FakeClient):
    def start_command(self, command: Command) -> int:
        opaque = len(self._answers) + 1
        failure = self._brokers.fail(self._name, command)
        assert self._name == "b"
        if failure is None:
            ext, brokers = command.ext, self._brokers
            bodies = [each[1] for each in split_batch(bytes(command.body))]
            assert isinstance(brokers, StagingBrokers)
            brokers.pieces[ext["stage"], int(ext["number"])] = (int(ext["queueId"]), bodies)
            frame = encode_response(opaque, 0, {"published": str(brokers.published)}, b"", None)
            self._answers[opaque] = decode_frame(frame, 4, len(frame))
        elif isinstance(failure, RequestError):
            frame = encode_response(opaque, failure.code, {}, b"", failure.remark)
            self._answers[opaque] = decode_frame(frame, 4, len(frame))
        else:
            self._answers[opaque] = failure
        return opaque


def sender_of(brokers: StagingBrokers, batch: int = 3, **options: str) -> StagingSender:
    return StagingSender(spec_of(**options), 0, "b", "w", batch, brokers)


def test_pieces_are_numbered_and_stay_at_one_broker() -> None:
    brokers = StagingBrokers(("a", 2, 6), ("b", 2, 6))
    failures: list[Any] = [None, RemotingClosed("gone")]
    brokers.fail = lambda broker, command: failures.pop() if failures else None
    sender = sender_of(brokers, sendBatchBytes="400")
    sender.send_all(messages_of(50))
    sender.wait_until_stored()
    assert sorted(brokers.pieces) == [(sender.stage, number) for number in range(sender.pieces)]
    assert sorted(body for _, bodies in brokers.pieces.values() for body in bodies) == [
        b"%03d" % number for number in range(50)
    ]


def test_pieces_of_a_key_are_in_order() -> None:
    brokers = StagingBrokers(("b", 2, 6))
    sender = sender_of(brokers, sendBatchBytes="400")
    sender.send_all(message._replace(key_hash=message.row % 2) for message in messages_of(60))
    sender.wait_until_stored()
    for queue in (0, 1):
        mine = [brokers.pieces[key] for key in sorted(brokers.pieces) if brokers.pieces[key][0] == queue]
        found = [body for _, bodies in mine for body in bodies]
        assert found == [b"%03d" % number for number in range(queue, 60, 2)]


def test_nothing_more_is_sent_of_a_batch_that_was_published() -> None:
    brokers = StagingBrokers(("b", 1, 6))
    brokers.published = 3
    sender = sender_of(brokers, sendBatchBytes="0")
    for message in messages_of(50):
        sender.send_all([message])
    sender.wait_until_stored()
    assert len(brokers.pieces) < 5


def test_what_a_broker_refuses_together_is_refused() -> None:
    brokers = StagingBrokers(("b", 1, 6))
    brokers.fail = lambda broker, command: RequestError(13, "too large")
    sender = sender_of(brokers)
    sender.send_all(messages_of(3))
    with pytest.raises(RowError, match=r"rows 0 to 2, to queue 0 of t at b: too large \(code 13\)"):
        sender.wait_until_stored()


def test_writers_names_are_what_brokers_take() -> None:
    assert writer_name("job 1/2") == writer_name("job 1/2") != writer_name("job 1/3")
    assert writer_name("job 1/2").isalnum()


# -- the driver ---------------------------------------------------------------------------------------------------


class FakeConnections:
    """A cluster of these brokers, whose answers `answer` makes."""

    def __init__(self, brokers: list[str], answer: Callable[[Any], Any]) -> None:
        data = {name: BrokerData(broker_name=name, broker_addrs={0: "127.0.0.1:1"}) for name in brokers}
        self.info = ClusterInfo(broker_addr_table=data)
        self.answer = answer
        self.asked: list[Any] = []

    def __call__(self, endpoint: object) -> "FakeConnections":
        return self

    def __enter__(self) -> "FakeConnections":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def request_name_server(self, request: Any) -> Any:
        reply = type("Reply", (), {})()
        reply.data = self.info
        return reply

    def get_client(self, address: Any) -> "FakeConnections":
        return self

    def drop_client(self, address: Any) -> None:
        pass

    def request_from(self, address: Any, request: Any) -> Any:
        return self.ask(request)

    def ask(self, request: Any, timeout_s: float = 0) -> Any:
        self.asked.append(request)
        return self.answer(request)


def connected(
    monkeypatch: pytest.MonkeyPatch, brokers: list[str], answer: Callable[[Any], Any]
) -> FakeConnections:
    fake = FakeConnections(brokers, answer)
    monkeypatch.setattr(staged_delivery, "Connections", fake)
    return fake


def refuse(code: int, remark: str) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        raise RequestError(code, remark)

    return answer


def test_the_only_broker_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = connected(monkeypatch, ["a"], lambda request: None)
    assert check_staged(spec_of(), ["body"]) == "a"
    assert isinstance(fake.asked[0], GetStagingState)


def test_one_of_several_brokers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    connected(monkeypatch, ["a", "b"], lambda request: None)
    assert check_staged(spec_of(stagingBroker="b"), ["body"]) == "b"
    with pytest.raises(OptionError, match=r"set option stagingBroker \(a, b\)"):
        check_staged(spec_of(), ["body"])
    with pytest.raises(OptionError, match="stagingBroker=c: there are a, b"):
        check_staged(spec_of(stagingBroker="c"), ["body"])


def test_brokers_that_cannot_and_columns_that_cannot_be_staged_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected(monkeypatch, ["a"], refuse(3, " request type 770002 not supported"))
    with pytest.raises(OptionError, match=r"with stagedPublish=true, but broker a answered: request type"):
        check_staged(spec_of(), ["body"])
    connected(monkeypatch, ["a"], refuse(16, "no"))
    with pytest.raises(EndpointError, match="delivery=staged at broker a"):
        check_staged(spec_of(), ["body"])
    with pytest.raises(ColumnError, match="column deliverAt cannot be used with delivery=staged"):
        check_staged(spec_of(), ["body", "deliverAt"])


def test_a_commit_is_asked_again_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [RemotingClosed("gone"), RequestError(14, "disk full")]

    def answer(request: Any) -> Any:
        if failures:
            raise failures.pop()
        return PublishStagedReply(messages=7)

    fake = connected(monkeypatch, ["a"], answer)
    assert publish_batch(spec_of(), "a", "w", 5, [("s", 2), ("empty", 0)], stream=True) == 7
    assert len(fake.asked) == 3
    last: PublishStaged = fake.asked[-1]
    assert (last.batch, last.stream, [(s.name, s.pieces) for s in last.data.stages]) == (5, True, [("s", 2)])


def test_a_commit_that_is_refused_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    connected(monkeypatch, ["a"], refuse(29, "piece 0 of stage s of batch 5 is not here"))
    with pytest.raises(EndpointError, match=r"publishing batch 5 at broker a.*piece 0 of stage s"):
        publish_batch(spec_of(), "a", "w", 5, [("s", 1)], stream=True)
    connected(monkeypatch, [], refuse(1, ""))
    with pytest.raises(EndpointError, match="not exist"):
        publish_batch(spec_of(retryTimes="0"), "a", "w", 5, [("s", 1)], stream=True)
