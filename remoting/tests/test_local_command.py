import pytest

from codec.command import Command
from remoting.acl import ACCESS_KEY, Credentials, sign_request
from remoting.local_command import LocalCommand, proves_secret
from remoting.requests.pop import AckMessage
from remoting.requests.send import SendMessageReply

ALICE = Credentials("alice", "s3cret")


def ack():
    return AckMessage(consumer_group="g", topic="t", queue_id=1, extra_info="x", offset=2)


def test_header_fields_and_body_are_those_of_a_frame():
    request = ack()
    command = LocalCommand(request, 7, None, "GO")
    sent = request.to_command(7)
    sent.language = "GO"
    assert {name: getattr(command, name) for name in Command.__slots__} == {
        name: getattr(sent, name) for name in Command.__slots__
    }


def test_nothing_is_encoded_before_somebody_reads_it(monkeypatch):
    monkeypatch.setattr(AckMessage, "to_ext", lambda request: pytest.fail("encoded"))
    monkeypatch.setattr(AckMessage, "encode_body", lambda request: pytest.fail("encoded"))
    command = LocalCommand(ack(), 7, ALICE, "OTHER")
    assert command.code == AckMessage.code
    assert not command.is_oneway
    with pytest.raises(pytest.fail.Exception):
        _ = command.ext
    with pytest.raises(AttributeError):
        _ = command.nothing


def test_the_header_names_the_caller():
    command = LocalCommand(ack(), 7, ALICE, "OTHER")
    assert command.ext[ACCESS_KEY] == "alice"
    assert command.ext is command.ext


def test_a_verified_caller_proves_its_secret_until_it_is_changed():
    command = LocalCommand(ack(), 7, ALICE, "OTHER")
    assert proves_secret(command, "s3cret")
    assert not proves_secret(command, "changed")
    assert not proves_secret(LocalCommand(ack(), 7, None, "OTHER"), "s3cret")


def test_a_frame_proves_a_secret_by_its_signature():
    command = ack().to_command()
    assert not proves_secret(command, "s3cret")
    sign_request(command, ALICE)
    assert proves_secret(command, "s3cret")


def test_only_the_first_outcome_counts():
    command = LocalCommand(ack(), 7, None, "OTHER")
    reply = SendMessageReply(msg_id="m", queue_id=0, queue_offset=0)
    command.settle(reply)
    command.settle(ValueError("late"))
    assert command.outcome is reply
