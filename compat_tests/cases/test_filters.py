"""SQL92 filters: the messages that expressions select, refused expressions, and the subscription that counts."""

import pytest

from codec.command import Command, encode_command
from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import (
    bodies,
    create_group,
    expect_refusal,
    pull,
    pull_request,
    send,
    send_heartbeat,
)
from compat_tests.marks import case, differs, read_only
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.bodies.heartbeat import CheckClientRequestBody, SubscriptionData
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerConfig
from remoting.requests.client import CheckClientConfig

FOUND, NOT_FOUND, RETRY = 0, 19, 20
PARSE_FAILED, NOT_EXIST, NOT_LATEST = 23, 27, 28

SENT = {
    b"five": {"a": "5", "b": "x", "t": "true"},
    b"nine": {"a": "9", "b": "xyz", "t": "TRUE"},
    b"point": {"a": "5.0", "b": "it's"},
    b"text": {"a": "many", "b": "5"},
    b"huge": {"a": "3000000000"},
    b"bare": {},
}
SELECTED = [
    ("a > 5", ["nine"]),
    ("a >= 5.0", ["five", "nine", "point", "huge"]),
    ("a > 2147483648", ["huge"]),
    ("a = 5", ["five"]),
    ("a = 5.0", ["five", "point"]),
    ("a = '5'", ["five"]),
    ("a <> 5", ["nine"]),
    ("NOT (a = '5')", ["nine", "point", "text", "huge"]),
    ("NOT a = '5'", []),  # NOT binds tighter than comparisons, of which it allows = and <> only
    ("NOT a <> 5", ["five", "nine", "point", "text", "huge"]),
    ("a > 5 = TRUE", ["nine"]),
    ("a BETWEEN 5 AND 9", ["five", "nine"]),
    ("a not between 6.5 and 10", ["five", "point"]),
    ("b IN ('x', 'it''s')", ["five", "point"]),
    ("b NOT IN ('x')", ["nine", "point", "text"]),
    ("a IS NULL", ["bare"]),
    ("b IS NOT NULL AND a > 5", ["nine"]),
    ("b CONTAINS 'y' OR b STARTSWITH 'it'", ["nine", "point"]),
    ("b NOT ENDSWITH 'z'", ["five", "point", "text"]),
    ("t = TRUE", ["five", "nine"]),
    ("t", []),
    ("TRUE", ["five", "nine", "point", "text", "huge", "bare"]),
    ("missing = absent", ["five", "nine", "point", "text", "huge", "bare"]),
    ("a > 5 OR b = '5'", ["nine"]),
    ("b = '5' OR a > 5", ["nine", "text"]),
    ("a = 5 ) what follows is never read !", ["five"]),
]
REFUSED = [
    ("a > >", None),
    ("NOT a > 2", "java.lang.RuntimeException: Value '(NOT a)' cannot be compared."),
    ("NOT a BETWEEN 1 AND 2", "java.lang.RuntimeException: Value '(NOT a)' cannot be compared."),
    (
        "NOT a IN ('1')",
        "java.lang.RuntimeException: Expected a property for In expression, got: (NOT a)",
    ),
    ("a > 1 > 0", "java.lang.RuntimeException: Value '(a > 1)' cannot be compared."),
    ("a > 'x'", "java.lang.RuntimeException: Value ''x'' cannot be compared."),
    ("a = NULL", "java.lang.RuntimeException: 'NULL' cannot be compared."),
    (
        "5",
        "org.apache.rocketmq.filter.parser.ParseException: Expression will not result in a boolean value: 5",
    ),
    (
        "a BETWEEN 9 AND 5",
        "java.lang.RuntimeException: Illegal values of between, left value(9) must less than or equal to "
        "right value(5)",
    ),
    (
        "a != 5",
        "org.apache.rocketmq.filter.parser.TokenMgrError: Lexical error at line 1, column 3.  "
        'Encountered: "!" (33), after : ""',
    ),
    (
        "a IS 5",
        'org.apache.rocketmq.filter.parser.ParseException: Encountered " <DECIMAL_LITERAL> "5 "" at line 1, '
        'column 6.\nWas expecting one of:\n    "NOT" ...\n    "NULL" ...\n    ',
    ),
]


@pytest.fixture(autouse=True)
def _filters_are_on(server: ServerUnderTest, broker: BlockingClient) -> None:
    """Leave the cases out at somebody's broker without SQL92 filters, which are off by default officially."""
    if server.kind == "address" and not serves_filters(broker):
        pytest.skip("the broker has enablePropertyFilter=false: set it to true")


def serves_filters(broker: BlockingClient) -> bool:
    """Ask a broker for its setting; one that does not tell is taken to serve filters."""
    try:
        listed = bytes(broker.ask(GetBrokerConfig()).body).decode()
    except RequestError:
        return True
    return "enablePropertyFilter=false" not in listed.splitlines()


def sql(topic: str, expression: str, version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, sub_version=version, expression_type="SQL92")


def fill(broker: BlockingClient, topic: str) -> None:
    for body, properties in SENT.items():
        send(broker, topic, body, properties=properties)
    eventually(lambda: pull(broker, topic).max_offset == len(SENT))


@case("filter", "SQL92: messages selected by expressions in the pull's own subscription")
def test_selected(broker: BlockingClient, topic: str) -> None:
    fill(broker, topic)
    found = {}
    for expression, _ in SELECTED:
        reply = pull(broker, topic, tags=expression, expression_type="SQL92")
        found[expression] = [body.decode() for body in bodies(reply)]
        assert (reply.code, reply.next_begin_offset) == (FOUND if reply.body else RETRY, len(SENT))
    assert found == dict(SELECTED)


@read_only
@pytest.mark.parametrize(("expression", "remark"), REFUSED, ids=[text for text, _ in REFUSED])
@case("filter", "SQL92: check client config refuses an invalid expression (23) with the reason")
def test_refused(broker: BlockingClient, topic: str, expression: str, remark: str | None) -> None:
    body = CheckClientRequestBody(client_id="c@1", group="g", subscription_data=sql(topic, expression))
    error = expect_refusal(broker, CheckClientConfig(data=body))
    assert error.code == PARSE_FAILED
    assert remark is None or error.remark == remark


@read_only
@case("filter", "SQL92: check client config accepts a valid expression")
def test_accepted(broker: BlockingClient, topic: str) -> None:
    for expression, _ in SELECTED:
        body = CheckClientRequestBody(client_id="c@1", group="g", subscription_data=sql(topic, expression))
        broker.ask(CheckClientConfig(data=body))


@case("filter", "SQL92: a pull uses its group's latest heartbeat; older versions change nothing")
def test_versions(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    fill(broker, topic)
    group = create_group(broker, server.unique_name("group"))

    def subscribe(expression: str, version: int) -> None:
        send_heartbeat(broker, "client@1", group, topic, subscriptions=[sql(topic, expression, version)])

    def found(version: int) -> list[bytes]:
        return bodies(pull(broker, topic, consumer_group=group, tags=None, sub_version=version))

    subscribe("a > 5", 10)
    assert found(10) == [b"nine"]
    subscribe("a = 5", 9)
    assert found(10) == [b"nine"]
    subscribe("a = 5", 11)
    assert found(11) == [b"five"]


@case("filter", "SQL92: a heartbeat with an invalid expression is accepted, its pulls are refused (27)")
def test_no_filter_data(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    fill(broker, topic)
    group = create_group(broker, server.unique_name("group"))
    send_heartbeat(broker, "client@1", group, topic, subscriptions=[sql(topic, "a > >", 5)])
    error = expect_refusal(broker, pull_request(topic, consumer_group=group, tags=None, sub_version=5))
    remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
    assert (error.code, error.remark) == (NOT_EXIST, remark)


@case("filter", "SQL92: a waiting pull is answered by the first matching message")
def test_woken(broker: BlockingClient, other: BlockingClient, topic: str) -> None:
    request = pull_request(topic, tags="a > 5", expression_type="SQL92", suspend_ms=15_000)
    broker.send_bytes(encode_command(request.to_command(77)))
    eventually(lambda: pull(other, topic).code == NOT_FOUND)
    send(other, topic, b"no", properties={"a": "1"})
    send(other, topic, b"yes", properties={"a": "6"})
    found: list[bytes] = []

    def answered() -> bool:
        answer: Command = broker.receive_command(timeout_s=10)
        if answer.code == FOUND:
            found.extend(bodies(request.read_reply(answer)))
        else:
            follow = pull_request(topic, int(answer.ext["nextBeginOffset"]), tags="a > 5")
            follow.expression_type, follow.sys_flag = "SQL92", request.sys_flag
            broker.send_bytes(encode_command(follow.to_command(77)))
        return bool(found)

    eventually(answered)
    assert found == [b"yes"]


@case("filter", "SQL92: a pull with an invalid expression is refused (23)")
@differs(reason="the official broker lets every message pass")
def test_wrong_in_pull(broker: BlockingClient, topic: str) -> None:
    fill(broker, topic)
    error = expect_refusal(broker, pull_request(topic, tags="a > >", expression_type="SQL92"))
    assert error.code == PARSE_FAILED


@case("filter", "SQL92: a pull without an expression is refused (23)")
def test_empty_in_pull(broker: BlockingClient, topic: str) -> None:
    fill(broker, topic)
    error = expect_refusal(broker, pull_request(topic, tags="", expression_type="SQL92"))
    assert (error.code, error.remark) == (PARSE_FAILED, "parse the consumer's subscription failed")


@case("filter", "Java: SQL92, push with an expression")
def test_java_push(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    sent = [
        {"topic": topic, "body": f"{color}{size}", "properties": {"color": color, "size": str(size)}}
        for color in ("red", "green")
        for size in range(8)
    ]
    with java.producer(server.unique_name("producer")) as producer:
        producer.send(*sent)
        wanted = [{"topic": topic, "sql": "size > 5 AND color = 'red' OR size = '0'"}]
        with java.push(group, subscriptions=wanted) as consumer:
            consumer.received(4)
            producer.send(*sent[7:8])
            received = sorted(message["body"] for message in consumer.received(5))
    assert received == ["green0", "red0", "red6", "red7", "red7"]


@case("filter", "Java: SQL92, a filtered message that fails is retried")
def test_java_retry(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send(*[{"topic": topic, "body": str(n), "properties": {"n": str(n)}} for n in range(4)])
        wanted = [{"topic": topic, "sql": "n = 3"}]
        with java.push(group, subscriptions=wanted, failures=1, delay_level=1) as consumer:
            assert [message["body"] for message in consumer.received(2)] == ["3", "3"]


@case("filter", "Java: SQL92, a consumer with an invalid expression does not start")
def test_java_wrong(java: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer")) as producer:
        producer.send_numbered(topic, 1)
    with (
        pytest.raises(JavaClientError, match="CODE: 23"),
        java.push(group, subscriptions=[{"topic": topic, "sql": "a > >"}]),
    ):
        pass
