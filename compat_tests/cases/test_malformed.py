"""Thousands of malformed requests: the official servers still answer as recorded, and ours answers the same.

`compat_tests/malformed` builds the requests and holds the recorded answers, which
`pytest compat_tests/cases/test_malformed.py --endpoint official --record` renews.
"""

from collections.abc import Callable, Iterable, Iterator

import pytest

from compat_tests.clients.typed import (
    connect,
    create_group,
    create_topic,
    restore_timer_engine,
    send_readable,
    set_broker_config,
    topic_request,
)
from compat_tests.endpoints import choose_endpoint
from compat_tests.malformed.exchange import ANSWER_TIMEOUT_S, SILENT, ObservedAnswer, RawExchange
from compat_tests.malformed.recording import (
    case_name,
    read_deviations,
    read_recording,
    recordable,
    same_answer,
    write_section,
)
from compat_tests.malformed.valid_requests import (
    BROKER_CODES,
    EMPTY_TOPIC,
    GROUP,
    NAMESRV_CODES,
    TOPIC,
    UNSERVED_BROKER_CODES,
    UNSERVED_NAMESRV_CODES,
    valid_request,
)
from compat_tests.malformed.variants import Variant, damaged_headers, unknown_names, variants_of
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest

SILENCE_S = 0.3
"""Time after which a request counts as not answered, if none is expected."""
RECORDING_SILENCE_S = 3.0
"""The same while the answers are recorded and nothing is known of them."""

STRICT_SETTINGS = {
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "false",
    "recallMessageEnable": "true",
}

Check = Callable[[str, str, Iterable[Variant]], None]


@pytest.fixture(scope="module")
def world(recorded_server: ServerUnderTest) -> Iterator[None]:
    """The topics and the group that the requests name."""
    server = recorded_server
    create_topic(server, TOPIC, 4)
    create_topic(server, EMPTY_TOPIC, 4)
    with connect(server.broker) as broker:
        create_group(broker, GROUP)
        send_readable(broker, TOPIC)
    yield
    with connect(server.broker) as broker:  # A new one: the first has been idle for too long.
        restore_timer_engine(broker)


@pytest.fixture(scope="module")
def strict_broker(recorded_server: ServerUnderTest) -> Iterator[str]:
    """The address of another broker, of the same kind as the server, that creates no topic and no group unasked."""
    with choose_endpoint(recorded_server.kind) as endpoint:
        with connect(endpoint.broker) as broker:
            for topic in (TOPIC, EMPTY_TOPIC):
                broker.ask(topic_request(topic, 4))
            create_group(broker, GROUP)
            send_readable(broker, TOPIC)
            set_broker_config(broker, **STRICT_SETTINGS)
        yield endpoint.broker


@pytest.fixture
def check(request: pytest.FixtureRequest, server: ServerUnderTest, world: None) -> Check:
    """Sends the variants of one section to a server, and compares or records the outcomes."""
    return record if request.config.getoption("--record") else RecordingCheck(server.kind)


def record(section: str, server: str, variants: Iterable[Variant]) -> None:
    outcomes = {}
    for variant in variants:
        within_s = SILENCE_S if variant.is_silent else RECORDING_SILENCE_S
        outcomes[variant.name] = recordable(RawExchange(server, variant).outcome(within_s))
    write_section(section, outcomes)


class RecordingCheck:
    """Compares outcomes with the recording; our server may differ where the deviations say so."""

    def __init__(self, kind: str) -> None:
        self._is_ours = kind == "ours"
        self._recording = read_recording()
        self._deviations = read_deviations() if self._is_ours else {}

    def __call__(self, section: str, server: str, variants: Iterable[Variant]) -> None:
        recorded = self._recording[section]
        by_name = {variant.name: variant for variant in variants}
        assert list(by_name) == list(recorded), "the variants changed: record them again"
        # Those that get no answer are sent first, and wait for it while the others are answered.
        silent = {
            name: RawExchange(server, by_name[name]) for name in recorded if recorded[name].code == SILENT
        }
        outcomes = {
            name: RawExchange(server, variant).outcome(ANSWER_TIMEOUT_S)
            for name, variant in by_name.items()
            if name not in silent
        }
        outcomes |= {name: exchange.outcome(SILENCE_S) for name, exchange in silent.items()}
        problems = [self._problem(section, name, outcomes[name], recorded[name]) for name in recorded]
        assert list(filter(None, problems)) == []

    def _problem(self, section: str, name: str, outcome: ObservedAnswer, recorded: ObservedAnswer) -> str:
        """Return what is wrong with an outcome, or an empty text."""
        found = outcome if self._is_ours else recordable(outcome)
        is_same = same_answer(found, recorded)
        deviation = self._deviations.get(case_name(section, name))
        if deviation is None:
            return "" if is_same else f"{name}: {found.to_json()}, recorded {recorded.to_json()}"
        if is_same:
            return f"{name}: no longer differs; remove it from deviations.toml"
        expected = deviation.ours
        return "" if found.code == expected else f"{name}: {found.to_json()}, the deviation is {expected!r}"


@pytest.mark.parametrize("code", BROKER_CODES)
@case("wire", "malformed requests to the broker: code, remark and fate of the connection as recorded")
def test_broker(check: Check, server: ServerUnderTest, code: int) -> None:
    check(f"broker {code}", server.broker, variants_of(valid_request(code)))


@pytest.mark.parametrize("code", NAMESRV_CODES)
@case("namesrv", "malformed requests to the namesrv: code, remark and fate of the connection as recorded")
def test_namesrv(check: Check, server: ServerUnderTest, code: int) -> None:
    check(f"namesrv {code}", server.namesrv, variants_of(valid_request(code)))


@case("wire", "every code of other servers and of clients is refused by the broker (3)")
def test_broker_refuses_codes_of_others(check: Check, server: ServerUnderTest) -> None:
    for code in UNSERVED_BROKER_CODES:
        check(f"broker {code}", server.broker, variants_of(valid_request(code), valid_only=True))


@case("namesrv", "every code of brokers, controllers and clients is refused by the namesrv (3)")
def test_namesrv_refuses_codes_of_others(check: Check, server: ServerUnderTest) -> None:
    for code in UNSERVED_NAMESRV_CODES:
        check(f"namesrv {code}", server.namesrv, variants_of(valid_request(code), valid_only=True))


@case("admin", "a broker that creates nothing unasked refuses unknown topics and groups as recorded")
def test_nothing_is_created(check: Check, strict_broker: str) -> None:
    for code in BROKER_CODES:
        variants = list(unknown_names(valid_request(code)))
        if variants:
            check(f"strict {code}", strict_broker, variants)


@case("wire", "damaged headers: code, remark and fate of the connection as recorded")
def test_damaged_headers(check: Check, server: ServerUnderTest) -> None:
    request = valid_request(30)
    check("broker headers", server.broker, damaged_headers(request.code, request.ext))
    request = valid_request(105)
    check("namesrv headers", server.namesrv, damaged_headers(request.code, request.ext))
