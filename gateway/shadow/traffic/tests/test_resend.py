import pytest

from codec.command import Command, encode_command
from codec.recall_handle import RecallHandle
from gateway.shadow.tests.exchanges import make_exchange
from gateway.shadow.traffic.resend import (
    is_temporary_refusal,
    recall_from_target,
    recalled_unique_key,
    repeat_command,
    send_to_queue,
)
from gateway.shadow.traffic.subject import Subject

SIGNED = {"AccessKey": "me", "Signature": "abc=", "SecurityToken": "t"}


def test_repeated_request_drops_signature_and_primary_broker():
    asked = Command(
        17, 5, 0, {"topic": "orders", "bname": "broker-a", "n": "4", **SIGNED}, b"body", version=399
    )
    again = repeat_command(asked, "broker-x")
    assert (again.ext, again.body, again.version) == (
        {"topic": "orders", "bname": "broker-x", "n": "4"},
        b"body",
        399,
    )
    assert asked.ext["bname"] == "broker-a"


@pytest.mark.parametrize(
    ("code", "queue", "broker"), [(10, "queueId", None), (310, "e", "n"), (320, "e", "n")]
)
def test_send_goes_to_the_primarys_queue(code, queue, broker):
    ext = {queue: "-1", **({broker: "broker-a"} if broker else {}), **SIGNED}
    sent = make_exchange(code, encode_command(Command(code, ext=ext, body=b"x")), None)
    again = send_to_queue(sent, Subject("orders", queue_id=3), "broker-x")
    assert again.ext == {queue: "3", **({broker: "broker-x"} if broker else {})}


def test_recall_handle_names_the_targets_broker():
    handle = RecallHandle("orders", "broker-a", "1700000000000", "K1")
    asked = Command(370, ext={"topic": "orders", "recallHandle": handle.encode()})
    assert (
        RecallHandle.decode(recall_from_target(asked, "broker-x").ext["recallHandle"]).broker_name
        == "broker-x"
    )
    assert recalled_unique_key(asked) == "K1"
    assert recalled_unique_key(Command(370, ext={"recallHandle": "!"})) == ""
    with pytest.raises(ValueError, match="handle"):
        recall_from_target(Command(370), "broker-x")


def test_temporary_refusals():
    busy = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
    assert all(
        is_temporary_refusal(*each) for each in ((2, None), (14, "no room"), (215, ""), (1500, ""), (1, busy))
    )
    slave = "Can't modify topic or subscription group from slave broker, please execute it from master broker"
    assert is_temporary_refusal(1, slave)
    assert is_temporary_refusal(1, "in-sync replicas not enough")
    assert not any(is_temporary_refusal(*each) for each in ((1, "no"), (16, "busy"), (0, None)))
