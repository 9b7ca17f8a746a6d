"""Requests of clients as they are sent again to a target: same fields but for queue, broker and credentials.

Not responsible for sending them (sent is).
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
_BUSY: Final = "busy"
_TEMPORARY_CODES: Final = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL}
)


def is_temporary_refusal(code: int, remark: str | None) -> bool:
    """Whether a refusal says that the target cannot now, rather than that it will not.

    Source: SendMessageProcessor.handlePutMessageResult, 5.4.0: no disk space is SERVICE_NOT_AVAILABLE; a broker that
    cannot make files or keep up with its page cache says SYSTEM_ERROR and that it is busy.
    """
    return code in _TEMPORARY_CODES or (code == ResponseCode.SYSTEM_ERROR and _BUSY in (remark or ""))


def repeat_command(asked: Command, target_broker: str) -> Command:
    """The same request, without its sender's signature and with the target's broker where it names one."""
    ext = {name: value for name, value in asked.ext.items() if name not in CREDENTIALS}
    names = ("bname", "n") if asked.code in SEND_CODES and asked.code != 10 else ("bname",)
    for name in names:
        if name in ext:
            ext[name] = target_broker
    return Command(asked.code, 0, 0, ext, asked.body, None, asked.language, asked.version, asked.binary)


def send_to_queue(exchange: Exchange, subject: Subject, target_broker: str) -> Command:
    """A send to the queue that the primary chose."""
    command = repeat_command(exchange.request_command, target_broker)
    command.ext[header_field_name(exchange.code, "queueId")] = str(subject.queue_id)
    return command


def recall_from_target(asked: Command, target_broker: str) -> Command:
    """RECALL_MESSAGE with the target's broker in the handle. Raises MessageFormatError for what is no handle."""
    command = repeat_command(asked, target_broker)
    handle = RecallHandle.decode(asked.ext.get("recallHandle", ""))
    command.ext["recallHandle"] = handle._replace(broker_name=target_broker).encode()
    return command


def recalled_unique_key(asked: Command) -> str:
    """The unique key of the message that a RECALL_MESSAGE takes back; "" when it has no readable handle."""
    try:
        return RecallHandle.decode(asked.ext.get("recallHandle", "")).unique_key
    except MessageFormatError:
        return ""
