"""Builds requests that send a client's request again to a target; queue, broker and credentials are replaced.

`mirror/resend_writer.py` and `capture` send them.
"""

from typing import Final

from codec.command import Command
from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.recall_handle import RecallHandle
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.request_policy import SEND_CODES
from gateway.shadow.traffic.subject import Subject, header_field_name

CREDENTIALS: Final = ("AccessKey", "Signature", "SecurityToken")
"""Header fields of a client's signature. Source: SessionCredentials, 5.4.0."""
FROM_SLAVE: Final = "from slave broker"
"""Part of the remark with which a slave refuses changes of topics and groups.

Source: AdminBrokerProcessor.validateSlave, 5.4.0."""
_TEMPORARY_REMARKS: Final = ("busy", FROM_SLAVE, "in-sync replicas not enough")
"""Parts of remarks of SYSTEM_ERROR: a broker that cannot keep up, one that is not the master of its name any more, and
a master that lacks slaves."""
_TEMPORARY_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)


def is_temporary_refusal(code: int, remark: str | None) -> bool:
    """Tell whether a refusal means that the target cannot store now, rather than that it will not.

    Source: SendMessageProcessor.handlePutMessageResult, 5.4.0: a full disk is SERVICE_NOT_AVAILABLE; a broker that
    cannot create files or keep up with its page cache answers SYSTEM_ERROR with a remark that contains "busy".
    """
    if code == ResponseCode.SYSTEM_ERROR:
        return any(part in (remark or "") for part in _TEMPORARY_REMARKS)
    return code in _TEMPORARY_CODES


def repeat_command(request: Command, target_broker: str) -> Command:
    """Return the same request without its sender's signature, and with the target's broker where it names a broker."""
    ext = {name: value for name, value in request.ext.items() if name not in CREDENTIALS}
    # "n" is the broker name in the short field names of the newer sends. The old send does not use it.
    names = ("bname", "n") if request.code in SEND_CODES and request.code != 10 else ("bname",)
    for name in names:
        if name in ext:
            ext[name] = target_broker
    return Command(
        request.code, 0, 0, ext, request.body, None, request.language, request.version, request.binary
    )


def send_to_queue(exchange: Exchange, subject: Subject, target_broker: str) -> Command:
    """Return a send to the queue that the primary chose."""
    command = repeat_command(exchange.request_command, target_broker)
    command.ext[header_field_name(exchange.code, "queueId")] = str(subject.queue_id)
    return command


def recall_from_target(request: Command, target_broker: str) -> Command:
    """Return RECALL_MESSAGE with the target's broker in its handle.

    Raises MessageFormatError for an unreadable handle.
    """
    command = repeat_command(request, target_broker)
    handle = RecallHandle.decode(request.ext.get("recallHandle", ""))
    command.ext["recallHandle"] = handle._replace(broker_name=target_broker).encode()
    return command


def recalled_unique_key(request: Command) -> str:
    """Return the unique key of the message that a RECALL_MESSAGE takes back; "" for an unreadable handle."""
    try:
        return RecallHandle.decode(request.ext.get("recallHandle", "")).unique_key
    except MessageFormatError:
        return ""
