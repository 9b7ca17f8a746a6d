"""The guard of a slave: it refuses what would change its log or tables, in the words of the official broker.

A slave's log and tables are those of its master, byte for byte, so nothing may be stored in them by a request. Such
requests are refused before their handler runs. The codes are the official ones, because stock clients act on them: a
producer tries another broker after SYSTEM_BUSY. The remark is for people, and says where the master is.

Requests that read are served, and so are those about clients: heartbeats, locks, and offsets that consumers commit.
Whether pulls are is decided in `gateway/broker/requests/slave_reads.py`. A former master refuses both until its log is
compared with the new master's, with the code of a slave that serves no pulls: it may have messages that nobody else
has, and consumers must not see what will be cut.

Source: SendMessageProcessor, EndTransactionProcessor, RecallMessageProcessor,
AdminBrokerProcessor.validateSlave, 5.4.0. Deviations: the official slave accepts pops and acks, and then cannot store
their records; it lets users, request modes and static settings be changed, and loses these changes at the next copy of
its master's tables.
"""

from collections.abc import Callable
from typing import Any, Final

from codec.command import Command
from codec.constants import ResponseCode
from gateway.broker.replication.relay import Relay
from gateway.config.process import BrokerConfig
from gateway.config.replication import Role
from remoting.connection import Connection, Handler
from remoting.declare import Request
from remoting.errors import RequestError
from remoting.requests import (
    auth,
    groups,
    offsets,
    pop,
    pull,
    query,
    replication,
    send,
    staging,
    topics,
    transaction,
)

TABLES_ARE_THE_MASTERS: Final = (
    "Can't modify topic or subscription group from slave broker, please execute it from master broker"
)


def _codes(*requests: type[Request[Any]]) -> frozenset[int]:
    return frozenset(request.code for request in requests)


STORING: Final = _codes(
    send.SendMessage,
    send.SendMessageV2,
    send.SendBatchMessage,
    send.ConsumerSendMsgBack,
    send.SendReplyMessage,
    send.SendReplyMessageV2,
    replication.PutMessagesAtOffsets,
    staging.StageMessages,
    staging.PublishStaged,
    pop.PopMessage,
    pop.AckMessage,
    pop.BatchAckMessage,
    pop.ChangeMessageInvisibletime,
    pop.PopRollback,
    pop.Notification,
)
"""Requests that store messages, those of consumers that pop included. They are refused with SYSTEM_BUSY."""
SENDS: Final = _codes(send.SendMessage, send.SendMessageV2, send.SendBatchMessage)
"""Refused with SERVICE_NOT_AVAILABLE by a slave that may act as master, with ``enableSlaveActingMaster``."""
DECIDING: Final = _codes(transaction.EndTransaction, transaction.ResumeCheckHalfMessage, send.RecallMessage)
"""Requests about messages that wait, refused with SLAVE_NOT_AVAILABLE."""
RELAYED: Final = (
    _codes(
        send.SendMessage,
        send.SendMessageV2,
        send.SendBatchMessage,
        send.ConsumerSendMsgBack,
        pop.AckMessage,
        pop.BatchAckMessage,
        pop.ChangeMessageInvisibletime,
    )
    | DECIDING
)
"""Requests that a former master passes on to the one that it handed over to."""
CHANGING: Final = _codes(
    topics.UpdateAndCreateTopic,
    topics.UpdateAndCreateTopicList,
    topics.DeleteTopicInBroker,
    topics.CleanUnusedTopic,
    groups.UpdateAndCreateSubscriptionGroup,
    groups.UpdateAndCreateSubscriptionGroupList,
    groups.DeleteSubscriptionGroup,
    groups.UpdateAndGetGroupForbidden,
    offsets.InvokeBrokerToResetOffset,
    offsets.CloneGroupOffset,
    replication.RaiseConsumerOffsets,
    pop.SetMessageRequestMode,
    auth.AuthCreateUser,
    auth.AuthUpdateUser,
    auth.AuthDeleteUser,
    auth.AuthCreateAcl,
    auth.AuthUpdateAcl,
    auth.AuthDeleteAcl,
)
"""Requests that change tables, refused with SYSTEM_ERROR."""
READING: Final = _codes(pull.PullMessage, pull.LitePullMessage, query.QueryMessage, query.ViewMessageById)
"""Requests that return messages, refused with SYSTEM_BUSY by a former master that is not compared yet."""


class RoleGuard:
    """Refuses requests on a slave. On a master it costs nothing.

    ``config`` returns the present configuration, ``find_master`` the address of the master, "" while it is unknown,
    ``find_relay`` the way to the master that this broker handed over to, None without one, and ``find_other_master``
    why a broker that is configured as master must not be one, "" if it may. ``is_compared`` is False at a slave whose
    log may have messages that its master lacks.
    """

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        find_master: Callable[[], str],
        find_relay: Callable[[], Relay | None] = lambda: None,
        find_other_master: Callable[[], str] = lambda: "",
        is_compared: Callable[[], bool] = lambda: True,
    ) -> None:
        self._config = config
        self._find_master = find_master
        self._find_relay = find_relay
        self._find_other_master = find_other_master
        self._is_compared = is_compared

    def guard(self, code: int, handler: Handler) -> Handler:
        """Refuse the requests of a code that a broker in this role does not serve, or pass them on."""
        if self._config().role is Role.MASTER:
            return self._guard_master(code, handler)
        refusing, relay = self._guard_slave(code, handler), self._find_relay()
        if relay is None or code not in RELAYED:
            return refusing

        def pass_on(connection: Connection, command: Command) -> bytes | None:
            if not relay.takes(command):
                return refusing(connection, command)
            relay.take(connection, command)
            return None

        return pass_on

    def _guard_master(self, code: int, handler: Handler) -> Handler:
        """Store nothing while another master has the name: one of the two logs will be cut."""
        other_master = self._find_other_master()
        if not other_master or code not in STORING | DECIDING | CHANGING:
            return handler

        def refuse(connection: Connection, command: Command) -> bytes | None:
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST]{other_master}")

        return refuse

    def _guard_slave(self, code: int, handler: Handler) -> Handler:
        if code in SENDS and self._config().replication.enable_slave_acting_master:
            return self._refuse(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now")
        if code in STORING:
            return self._refuse(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]a slave takes no such request")
        if code in DECIDING:
            return self._refuse(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave decides about no message")
        if code in CHANGING:
            return self._refuse(ResponseCode.SYSTEM_ERROR, TABLES_ARE_THE_MASTERS)
        if code in READING and not self._is_compared():
            return self._serve_when_compared(handler)
        return handler

    def _serve_when_compared(self, handler: Handler) -> Handler:
        refuse = self._refuse(
            ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]the log is not compared with the master's yet"
        )

        def serve(connection: Connection, command: Command) -> bytes | None:
            return (handler if self._is_compared() else refuse)(connection, command)

        return serve

    def _refuse(self, response_code: int, reason: str) -> Handler:
        def refuse(connection: Connection, command: Command) -> bytes | None:
            raise RequestError(response_code, f"{reason}. {self.describe()}")

        return refuse

    def describe(self) -> str:
        """Return in words what this broker is, and where its master is."""
        config, master = self._config(), self._find_master()
        place = f"its master is at {master}" if master else "its master is not known at present"
        return f"This is the slave {config.broker_id} of {config.broker_name}; {place}"
