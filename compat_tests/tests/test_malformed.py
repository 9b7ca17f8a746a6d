"""Variants of malformed requests, their recorded answers, and the list of our deviations."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from codec.command import Command, encode_command, encode_response
from codec.frames import FrameSplitter
from compat_tests.malformed import recording
from compat_tests.malformed.exchange import OTHER_OPAQUE, SILENT, ObservedAnswer, RawExchange, masked
from compat_tests.malformed.recording import (
    read_deviations,
    read_recording,
    recordable,
    same_answer,
    write_section,
)
from compat_tests.malformed.valid_requests import BROKER_CODES, NAMESRV_CODES, valid_request
from compat_tests.malformed.variants import Variant, damaged_headers, unknown_names, variants_of

VARIANT = Variant("v", encode_command(Command(1, 7)))


@pytest.mark.parametrize("code", sorted({*BROKER_CODES, *NAMESRV_CODES}))
def test_every_variant_of_a_code_has_a_name_of_its_own_and_is_recorded(code: int) -> None:
    names = [variant.name for variant in variants_of(valid_request(code))]
    assert len(names) == len(set(names)) >= 6
    recorded = read_recording()
    for server, codes in (("broker", BROKER_CODES), ("namesrv", NAMESRV_CODES)):
        if code in codes:
            assert list(recorded[f"{server} {code}"]) == names


def test_requests_about_unknown_names_are_recorded_with_and_without_automatic_creation() -> None:
    recorded = read_recording()
    for code in BROKER_CODES:
        names = [variant.name for variant in unknown_names(valid_request(code))]
        assert set(names) <= set(recorded[f"broker {code}"])
        assert list(recorded.get(f"strict {code}", ())) == names
    assert recorded["broker 36"]["unknown group"].code == 1
    assert recorded["strict 36"]["unknown group"].code == 26


def test_variants_lack_each_field_and_put_wrong_values_into_it() -> None:
    names = {variant.name for variant in variants_of(valid_request(30))}
    assert {"without topic", "topic=", "without queueId", "queueId=x", "queueId=-1", "empty header"} <= names
    assert {"no opaque", "oneway", "binary header", "committed=maybe", "queueId=9999999999"} <= names


def test_damaged_headers_are_recorded_for_both_servers() -> None:
    names = [variant.name for variant in damaged_headers(30, {"topic": "t"})]
    assert len(names) == len(set(names))
    recorded = read_recording()
    assert list(recorded["broker headers"]) == list(recorded["namesrv headers"]) == names


def test_every_deviation_is_about_a_recorded_variant_and_has_a_reason() -> None:
    recorded = {f"{section}: {name}" for section, outcomes in read_recording().items() for name in outcomes}
    deviations = read_deviations()
    assert deviations.keys() <= recorded
    assert all(len(deviation.reason) > 20 for deviation in deviations.values())


def test_a_deviation_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deviations.toml"
    path.write_text('[[deviation]]\nreason="r"\nours=1\n[deviation.cases]\n"broker 1" = ["a", "a"]\n')
    monkeypatch.setattr(recording, "DEVIATIONS", path)
    with pytest.raises(ValueError, match="listed more than once: broker 1: a"):
        read_deviations()


def test_sections_are_written_in_order_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "RECORDING", tmp_path / "answers.json")
    closed = ObservedAnswer(SILENT, stays_open=False)
    refused = ObservedAnswer(17, "no route", (("MSG_REGION", "r"),))
    write_section("namesrv 105", {"valid": ObservedAnswer(0)})
    write_section("broker 30", {"valid": refused, "cut": closed})
    assert list(json.loads((tmp_path / "answers.json").read_text())) == ["broker 30", "namesrv 105"]
    assert read_recording() == {
        "broker 30": {"valid": refused, "cut": closed},
        "namesrv 105": {"valid": ObservedAnswer(0)},
    }


def test_an_unexpected_exception_equals_any_remark_of_the_same_code() -> None:
    recorded = recordable(ObservedAnswer(1, "java.lang.NullPointerException: x, Some.method(Some.java:1)"))
    assert same_answer(ObservedAnswer(1, "the custom field <topic> is null"), recorded)
    assert not same_answer(ObservedAnswer(29, "the custom field <topic> is null"), recorded)
    assert not same_answer(ObservedAnswer(1), recorded)
    assert not same_answer(ObservedAnswer(1, "other"), recordable(ObservedAnswer(1, "Group null not exist!")))


def test_a_code_that_was_set_without_a_remark_has_none() -> None:
    assert recordable(ObservedAnswer(0, "not set any response code")) == ObservedAnswer(0)


def test_addresses_and_times_are_masked() -> None:
    assert masked("from 127.0.0.1:5 at 1700000000000") == "from ADDRESS at TIME"


Answering = Callable[[Command], bytes | None]


@contextmanager
def peer(answer: Answering) -> Iterator[str]:
    """Run a server for one connection: it answers each command with a function, and closes when that returns None."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            splitter = FrameSplitter()
            with closing(connection):
                while data := connection.recv(65536):
                    for command in splitter.feed(data):
                        frame = answer(command)
                        if frame is None:
                            return
                        connection.sendall(frame)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive()


def test_an_answer_is_observed_with_its_fields() -> None:
    fields = {"MSG_REGION": "r", "offset": "9"}
    with peer(lambda command: encode_response(command.opaque, 29, fields, b"", "no")) as server:
        outcome = RawExchange(server, VARIANT).outcome(10)
    assert outcome == ObservedAnswer(29, "no", (("MSG_REGION", "r"), ("offset", "*")))


def test_silence_and_a_closed_connection_are_told_apart() -> None:
    def only_the_probe(command: Command) -> bytes:
        return b"" if command.code == 1 else encode_response(command.opaque, 3, None, b"", None)

    with peer(only_the_probe) as server:
        assert RawExchange(server, VARIANT).outcome(0.05) == ObservedAnswer(SILENT)
    with peer(lambda command: None) as server:
        assert RawExchange(server, VARIANT).outcome(10) == ObservedAnswer(SILENT, stays_open=False)


def test_requests_of_the_server_are_no_answers_and_opaques_are_compared() -> None:
    def notify_then_answer(command: Command) -> bytes:
        return encode_command(Command(40, 1)) + encode_response(command.opaque + 1, 0, None, b"", None)

    with peer(notify_then_answer) as server:
        # The probe's answer has another opaque as well, so the connection is closed from this side.
        exchange = RawExchange(server, VARIANT)
        exchange._read_until(lambda: exchange._answer is not None, 10)
        assert exchange._outcome().code == OTHER_OPAQUE
        exchange._socket.close()
