"""The sink without Spark and without a broker: columns, ids, rows, queues, and sends that fail."""

import uuid
from typing import Any

import pyarrow as pa
import pytest

from codec.batch import split_batch
from codec.command import Command, decode_frame, encode_response
from codec.hashing import java_hash
from codec.ids import decode_unique_key
from codec.properties import decode_properties
from remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from spark.errors import ColumnError, EndpointError, OptionError, RowError
from spark.sink.columns import check_columns
from spark.sink.dedup_ids import DedupIds
from spark.sink.message_sender import MessageSender
from spark.sink.options import sink_spec
from spark.sink.row_encoder import OutgoingMessage, RowEncoder, java_long_hash
from spark.sink.write_queues import WriteQueue, publish_info_from_route

ADDRESSES = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}


def spec_of(**options: str) -> Any:
    return sink_spec({"nameServer": "127.0.0.1:9876", "retryIntervalMs": "0", **options})


# -- columns ------------------------------------------------------------------------------------------------------


def test_columns_and_aliases_are_found() -> None:
    fields = [("Value", "string"), ("key", "binary"), ("TOPIC", "string"), ("queueOffset", "bigint")]
    assert check_columns(fields, None) == {"body": 0, "keys": 1, "topic": 2}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([("body", "binary"), ("topc", "string")], "no column topc; did you mean topic?"),
        ([("body", "binary"), ("zzzzzz", "string")], "no column zzzzzz; columns: body, value, topic"),
        ([("body", "int"), ("topic", "string")], "column body must be binary or string, it is int"),
        ([("topic", "string")], "no column body"),
        ([("body", "string"), ("value", "binary")], "columns body and value are the same column"),
        ([("body", "string")], "neither an option topic nor a column topic"),
        ([("body", "string"), ("topic", "string"), ("brokerName", "string")], "requires column queueId"),
        (
            [("body", "string"), ("topic", "string"), ("shardingKey", "string"), ("queueId", "int")],
            "both choose the queue",
        ),
        ([("body", "string"), ("deliverAt", "timestamp_ntz")], "deliverAt must be timestamp, it is"),
    ],
)
def test_columns_that_cannot_be_sent_are_named(fields: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(ColumnError, match=words.replace("?", r"\?")):
        check_columns(fields, None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "a b"}, "illegal characters"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "is forbidden"),
        ({"producerGroup": "g" * 121}, "longer than group max length"),
        ({"dedupKey": "TAGS"}, "is reserved by the protocol"),
        ({"delivry": "staged"}, 'did you mean "delivery"'),
        ({"delivery": "exactly-once"}, 'expected "at-least-once" or "staged"'),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        spec_of(**options)


# -- ids ----------------------------------------------------------------------------------------------------------


def test_ids_are_the_same_again_and_differ_otherwise() -> None:
    query = str(uuid.uuid4())
    one = DedupIds(query, 7, 3)
    assert one.dedup_id(5) == f"{query}:7:3:5"
    assert one.unique_key(5) == DedupIds(query, 7, 3).unique_key(5)
    others = {DedupIds(query, b, p).unique_key(row) for b in range(5) for p in range(5) for row in range(5)}
    assert len(others) == 125


def test_unique_keys_have_the_form_of_stock_clients() -> None:
    key = DedupIds("q", 0, 0).unique_key(70_000)
    assert len(key) == 32
    assert key == key.upper()
    assert decode_unique_key(key).elapsed_ms == 1
    assert decode_unique_key(key).counter == 70_000 - 65_536


# -- rows ---------------------------------------------------------------------------------------------------------


def read(rows: list[dict[str, Any]], schema: pa.Schema, **options: str) -> list[OutgoingMessage]:
    kinds = {name: "binary" if name == "body" else None for name in schema.names}
    places = {name: place for place, name in enumerate(kinds)}
    reader = RowEncoder(spec_of(topic="t", **options), places, DedupIds("q", 1, 2))
    return list(reader.encode_rows(pa.RecordBatch.from_pylist(rows, schema)))


FULL = pa.schema(
    [
        ("body", pa.binary()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("delayLevel", pa.int32()),
        ("deliverAt", pa.timestamp("us", tz="UTC")),
        ("shardingKey", pa.string()),
        ("flag", pa.int64()),
    ]
)


def test_a_row_becomes_a_message() -> None:
    given = [("TAGS", "no"), ("colour", "red"), ("UNIQ_KEY", "no"), ("empty", None), ("MIN_OFFSET", "1")]
    row = {"body": b"x", "tags": "a", "keys": "k1 k2", "properties": given, "shardingKey": "s", "flag": -1}
    (message,) = read([row], FULL)
    assert decode_properties(message.properties) == {
        "UNIQ_KEY": DedupIds("q", 1, 2).unique_key(0),
        "SPARK_DEDUP_ID": "q:1:2:0",
        "KEYS": "k1 k2",
        "TAGS": "a",
        "__SHARDINGKEY": "s",
        "colour": "red",
    }
    assert (message.topic, message.body, message.flag, message.key_hash) == ("t", b"x", -1, java_hash("s"))
    assert not message.timed


def test_strings_kafka_headers_and_arrays_of_keys() -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = pa.schema(
        [("body", pa.string()), ("keys", pa.list_(pa.string())), ("properties", pa.list_(header))]
    )
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}, {"key": "n", "value": None}]
    (message,) = read([{"body": "hé", "keys": ["a", None, "b"], "properties": headers}], schema)
    found = decode_properties(message.properties)
    assert (message.body, found["KEYS"], found["h"], "n" in found) == ("hé".encode(), "a b", "2", False)


def test_times_become_the_official_properties() -> None:
    level, at = read([{"body": b"x", "delayLevel": 3}, {"body": b"x", "deliverAt": 1_001}], FULL)
    assert decode_properties(level.properties)["DELAY"] == "3"
    assert decode_properties(at.properties)["TIMER_DELIVER_MS"] == "2"
    assert level.timed
    assert at.timed


def test_ids_may_stay_out_of_the_properties() -> None:
    (message,) = read([{"body": b"x"}], FULL, dedupKey="msgId")
    assert set(decode_properties(message.properties)) == {"UNIQ_KEY"}


def test_large_bodies_are_compressed_when_asked() -> None:
    small, large = read([{"body": b"x" * 10}, {"body": b"x" * 11}], FULL, compressBodyAbove="10")
    assert (small.sys_flag, large.sys_flag) == (0, 0x301)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"body": None}, "row 1: the message body is null"),
        ({"body": b""}, "row 1: the message body length is zero"),
        ({"body": b"x" * 101}, "the message body size over max value, MAX: 100"),
        ({"body": b"x", "delayLevel": 1, "deliverAt": 1}, "delayLevel and deliverAt both delay the message"),
        ({"body": b"x", "delayLevel": -1}, "delayLevel -1 is negative"),
        ({"body": b"x", "tags": "a\x02b"}, "one of the characters"),
        ({"body": b"x", "keys": "k" * 32_768}, "msg properties length limit 32KB"),
        ({"body": b"x", "flag": 1 << 31}, "flag 2147483648 does not fit 32 bits"),
    ],
)
def test_bad_rows_are_named_in_the_official_words(row: dict[str, Any], words: str) -> None:
    with pytest.raises(RowError, match=words):
        read([{"body": b"x"}, row], FULL, maxMessageSize="100")


def test_rows_without_or_with_illegal_topics_are_refused() -> None:
    reader = RowEncoder(spec_of(), {"body": 0, "topic": 1}, DedupIds("q", 0, 0))
    for topic, words in ((None, "topic is blank"), ("a b", "illegal characters"), ("t" * 128, "longer than")):
        batch = pa.RecordBatch.from_pylist([{"body": "x", "topic": topic}])
        with pytest.raises(RowError, match=words):
            list(reader.encode_rows(batch.cast(pa.schema([("body", pa.string()), ("topic", pa.string())]))))


@pytest.mark.parametrize(("number", "hashed"), [(0, 0), (-1, 0), (1 << 32, 1), (-(1 << 40), -256), (7, 7)])
def test_whole_numbers_are_hashed_as_java_does(number: int, hashed: int) -> None:
    assert java_long_hash(number) == hashed


# -- queues -------------------------------------------------------------------------------------------------------


def route(*queues: tuple[str, int, int], order: str | None = None) -> TopicRouteData:
    return TopicRouteData(
        order_topic_conf=order,
        queue_datas=[QueueData(broker_name=n, write_queue_nums=w, perm=p) for n, w, p in queues],
        broker_datas=[
            BrokerData(broker_name=name, broker_addrs={0: address}) for name, address in ADDRESSES.items()
        ],
    )


def test_queues_stand_in_the_order_of_stock_producers() -> None:
    found = publish_info_from_route("t", route(("b", 2, 6), ("a", 1, 6), ("c", 9, 6)))
    assert [(q.broker, q.queue_id) for q in found.queues] == [("a", 0), ("b", 0), ("b", 1)]
    assert found.queue_by_hash(-4) == WriteQueue("t", "b", 0, ("127.0.0.1", 2))
    assert found.queue_by_id(1, None).broker == "b"
    with pytest.raises(EndpointError, match="topic t has no queue 1 at broker a to send to"):
        found.queue_by_id(1, "a")
    ordered = publish_info_from_route("t", route(("a", 1, 6), order="b:1;a:2"))
    assert [(q.broker, q.queue_id) for q in ordered.queues] == [("b", 0), ("a", 0), ("a", 1)]


def test_a_topic_that_cannot_be_written_to_is_refused() -> None:
    with pytest.raises(EndpointError, match="no writable queue"):
        publish_info_from_route("t", route(("a", 4, 4)))


# -- sends --------------------------------------------------------------------------------------------------------


class FakeBrokers:
    """Stores sends by broker and queue, unless `fail` returns a failure."""

    def __init__(self, *queues: tuple[str, int, int]) -> None:
        self.route = route(*queues)
        self.stored: list[tuple[str, int, list[bytes]]] = []
        self.fail: Any = lambda broker, command: None
        self.dropped = 0

    def request_name_server(self, request: Any) -> Any:
        if request.topic != "t":
            raise RequestError(17, "no route")
        reply = type("Reply", (), {})()
        reply.data = self.route
        return reply

    def get_client(self, address: tuple[str, int]) -> "FakeClient":
        return FakeClient(self, next(n for n, text in ADDRESSES.items() if text.endswith(f":{address[1]}")))

    def drop_client(self, address: tuple[str, int]) -> None:
        self.dropped += 1

    def close(self) -> None:
        pass

    def bodies(self, queue: tuple[str, int] | None = None) -> list[bytes]:
        return [b for n, q, bodies in self.stored for b in bodies if queue in (None, (n, q))]


class FakeClient:
    def __init__(self, brokers: FakeBrokers, name: str) -> None:
        self._brokers, self._name = brokers, name
        self._answers: dict[int, Command | Exception] = {}

    def start_command(self, command: Command) -> int:
        opaque = len(self._answers) + 1
        failure = self._brokers.fail(self._name, command)
        if failure is None or isinstance(failure, RemotingTimeout):
            self._store(command)
        ext = {"msgId": "x", "queueId": "0", "queueOffset": "0"}
        code, remark = (failure.code, failure.remark) if isinstance(failure, RequestError) else (0, None)
        frame = encode_response(opaque, code, ext, b"", remark)
        answer: Command | Exception = decode_frame(frame, 4, len(frame))
        self._answers[opaque] = (
            failure if failure is not None and not isinstance(failure, RequestError) else answer
        )
        return opaque

    def receive_answer(self, opaque: int, *, timeout_s: float | None = None) -> Command:
        answer = self._answers[opaque]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _store(self, command: Command) -> None:
        body = bytes(command.body)
        bodies = [each[1] for each in split_batch(body)] if command.code == 320 else [body]
        self._brokers.stored.append((self._name, int(command.ext["e"]), bodies))


def send(brokers: FakeBrokers, messages: list[OutgoingMessage], **options: str) -> Any:
    with MessageSender(spec_of(**options), 0, brokers) as sender:
        sender.send_all(messages)
        return sender.wait_until_stored()


def messages_of(count: int, **fields: Any) -> list[OutgoingMessage]:
    return [OutgoingMessage(n, "t", b"%03d" % n, b"UNIQ_KEY\x01%d\x02" % n, **fields) for n in range(count)]


def test_messages_are_sent_together_and_spread() -> None:
    brokers = FakeBrokers(("a", 2, 6), ("b", 2, 6))
    counts = send(brokers, messages_of(400), sendBatchBytes="4000")
    assert sorted(brokers.bodies()) == [b"%03d" % n for n in range(400)]
    assert len({(name, queue) for name, queue, _ in brokers.stored}) == 4
    assert (counts.messages, counts.resent, counts.sends) == (400, 0, len(brokers.stored))
    assert counts.sends < 10


def test_few_rows_are_spread_over_all_queues() -> None:
    """Two tasks of 2,500 small rows used two of four queues, although the page says "all queues in turn"."""
    brokers = FakeBrokers(("a", 2, 6), ("b", 2, 6))
    counts = send(brokers, messages_of(250))
    assert sorted(brokers.bodies()) == [b"%03d" % n for n in range(250)]
    assert sorted(len(bodies) for _, _, bodies in brokers.stored) == [62, 62, 63, 63]
    assert len({(name, queue) for name, queue, _ in brokers.stored}) == 4
    assert (counts.messages, counts.sends) == (250, 4)


def test_a_handful_of_rows_is_one_send() -> None:
    brokers = FakeBrokers(("a", 2, 6), ("b", 2, 6))
    assert send(brokers, messages_of(20)).sends == 1


def test_a_key_stays_in_its_queue_and_in_order() -> None:
    brokers = FakeBrokers(("a", 2, 6), ("b", 2, 6))
    keyed = [message._replace(key_hash=number % 7) for number, message in enumerate(messages_of(210))]
    send(brokers, keyed, sendBatchBytes="300")
    for key in range(7):
        mine = [message.body for message in keyed if message.key_hash == key]
        found = [body for body in brokers.bodies((("a", "b")[key % 4 // 2], key % 2)) if body in mine]
        assert found == mine


def test_what_is_timed_or_large_goes_alone() -> None:
    brokers = FakeBrokers(("a", 1, 6))
    mixed = messages_of(6)
    mixed[2] = mixed[2]._replace(timed=True)
    mixed[4] = mixed[4]._replace(body=b"x" * 5000)
    send(brokers, [m._replace(queue_id=0) for m in mixed], sendBatchBytes="1000")
    assert [len(bodies) for _, _, bodies in brokers.stored] == [2, 1, 1, 1, 1]
    assert brokers.bodies() == [m.body for m in mixed]


def test_after_a_failure_another_broker_is_tried() -> None:
    brokers = FakeBrokers(("a", 1, 6), ("b", 1, 6))
    brokers.fail = lambda broker, command: RemotingClosed("gone") if broker == "a" else None
    counts = send(brokers, messages_of(100), sendBatchBytes="400")
    assert sorted(brokers.bodies()) == [b"%03d" % n for n in range(100)]
    assert {name for name, _, _ in brokers.stored} == {"b"}
    assert counts.resent >= 40
    assert brokers.dropped


def test_a_fixed_queue_is_not_left_and_keeps_its_order() -> None:
    brokers = FakeBrokers(("a", 1, 6), ("b", 1, 6))
    failures = [RemotingClosed("gone"), None, RequestError(2, "busy"), RequestError(1, "again")]
    brokers.fail = lambda broker, command: failures.pop() if failures else None
    send(brokers, messages_of(50, queue_id=0, broker="b"), sendBatchBytes="200")
    assert brokers.bodies(("b", 0)) == [b"%03d" % n for n in range(50)]


def test_a_lost_answer_may_give_duplicates_and_says_so() -> None:
    brokers = FakeBrokers(("a", 1, 6))
    failures: list[Any] = [RemotingTimeout("no answer")]
    brokers.fail = lambda broker, command: failures.pop() if failures else None
    counts = send(brokers, messages_of(3))
    assert (len(brokers.bodies()), counts.messages, counts.resent) == (6, 3, 3)


def test_it_ends_when_nothing_helps() -> None:
    brokers = FakeBrokers(("a", 1, 6))
    brokers.fail = lambda broker, command: RequestError(2, "[PC_SYNCHRONIZED]broker busy")
    with pytest.raises(EndpointError, match=r"broker busy.*after 3 attempts"):
        send(brokers, messages_of(3), retryTimes="2")
    with pytest.raises(EndpointError, match="No route info of this topic: u"):
        send(brokers, [OutgoingMessage(0, "u", b"x", b"")])


def test_the_row_a_broker_refuses_is_named_and_the_others_of_its_batch_are_stored() -> None:
    brokers = FakeBrokers(("a", 1, 6))
    brokers.fail = lambda broker, command: RequestError(13, "illegal") if b"002" in command.body else None
    with pytest.raises(RowError, match=r"row 2, to queue 0 of t at a: illegal \(code 13\)"):
        send(brokers, messages_of(4, queue_id=0), retryTimes="0")
    assert brokers.bodies() == [b"000", b"001"]
